"""Several files together: what is a repeat, what is another contender or workload, and what was refused."""

import json

import pytest

from wholecurve.errors import UserError
from wholecurve.readers import read_collection, read_source, read_sources
from wholecurve.readers.found import Found, Notes

HEADER = "contender,concurrency,decode_speed_tok_per_s,output_throughput_tok_per_s,gpus"


def table(path, *rows, header=HEADER):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_files_of_one_folder_with_the_same_load_are_repeats(tmp_path):
    for i in (1, 2, 3):
        table(tmp_path / f"run{i}.csv", f"a,8,{50 + i},400,1")
    points, notes = read_collection([tmp_path]).points()
    assert points["repeat"].tolist() == [1, 2, 3]
    assert points["decode_speed_tok_per_s"].tolist() == [51, 52, 53]
    assert any("are repeats" in sentence for sentence in notes.converted)


def test_the_same_contender_in_two_folders_is_two_contenders(tmp_path):
    for folder, speed in (("x2", 50), ("x4", 70)):
        table(tmp_path / folder / "r.csv", f"a,8,{speed},400,1")
    points, notes = read_collection([tmp_path]).points()
    assert sorted(points["contender"]) == ["x2: a", "x4: a"] and set(points["repeat"]) == {1}
    assert any("kept apart, named after the folder" in sentence for sentence in notes.converted)
    assert read_source(f"{tmp_path}:x4: a").points["decode_speed_tok_per_s"].tolist() == [70]


def test_one_curve_over_several_files_and_folders_stays_one(tmp_path):
    table(tmp_path / "low" / "r.csv", "a,1,90,85,1")
    table(tmp_path / "high" / "r.csv", "a,8,50,400,1")
    points, _ = read_collection([tmp_path]).points()
    assert points["contender"].unique().tolist() == ["a"] and sorted(points["load"]) == [1, 8]


def test_a_file_that_is_refused_does_not_stop_the_others(tmp_path):
    table(tmp_path / "good.csv", "a,8,50,400,1")
    table(tmp_path / "bad.csv", "a,8,0,400,1")
    (tmp_path / "picture.png").write_bytes(b"x")
    (tmp_path / "README.md").write_text("What these files are.\n")
    (tmp_path / ".hidden.csv").write_text("no")
    collection = read_collection([tmp_path])
    assert [one.path.name for one in collection.found] == ["good.csv"]
    (refused,) = collection.refused
    assert "bad.csv, line 2: decode_speed_tok_per_s is 0" in refused
    assert collection.not_looked_at == 2
    assert "plain text" in read_collection([tmp_path / "README.md"]).refused[0]


def test_a_folder_without_any_result_and_a_missing_path_are_refused(tmp_path):
    with pytest.raises(UserError, match="no result file in this folder"):
        read_sources(str(tmp_path))
    with pytest.raises(UserError, match="no such run folder or file"):
        read_collection([tmp_path / "nowhere"])


def test_workloads_of_other_lengths_do_not_become_repeats(tmp_path):
    from wholecurve.readers.collection import Collection

    def found(name, tokens):
        import pandas as pd

        row = {"contender": "a", "workload": "decode", "load_kind": "concurrency", "load": 8, "repeat": 1}
        row |= {"mean_input_tokens": tokens, "mean_output_tokens": 128.0, "device_kind": "server", "devices": 1}
        return Found(tmp_path / name, "tool", pd.DataFrame([row]), Notes())

    collection = Collection([found("1", 1024.0), found("2", 4096.0), found("3", 1050.0)])
    points, notes = collection.points()
    assert points["workload"].tolist() == ["1024 in / 128 out", "4096 in / 128 out", "1024 in / 128 out"]
    assert points["repeat"].tolist() == [1, 1, 2]
    assert any("are different workloads (1024 in / 128 out, 4096" in sentence for sentence in notes.converted)


def test_gpus_are_given_only_where_the_file_does_not_state_them(tmp_path):
    path = table(tmp_path / "r.csv", "a,8,50,400,4")
    with pytest.raises(UserError, match=r"states its devices itself \(4\)"):
        read_source(str(path), gpus=8)
    with pytest.raises(UserError, match="number of GPUs is 0"):
        read_source(str(path), gpus=0)


def test_a_run_folder_inside_a_folder_is_one_unit_and_states_its_conditions():
    from pathlib import Path

    runs = Path(__file__).parents[2] / "data" / "runs"
    collection = read_collection([runs])
    assert [one.format for one in collection.found] == ["wholecurve run"] * len(collection.found)
    assert not collection.refused
    points, _ = collection.points()
    assert points[["model", "precision", "hardware", "speed_from"]].notna().all().all()
    json.dumps(collection.found[0].to_document())


def test_samples_of_one_process_are_one_run_with_their_mean_and_that_is_said():
    import pandas as pd

    from wholecurve.readers import Source

    fixed = {"contender": "a", "workload": "decode", "load_kind": "concurrency", "devices": 1, "device_kind": "cpu"}
    frame = pd.DataFrame(
        {"load": [1, 1, 8], "repeat": [1, 2, 1], "decode_speed_tok_per_s": [10.0, 40.0, 5.0], "within_run": True}
    ).assign(output_throughput_tok_per_s=lambda f: f["load"] * f["decode_speed_tok_per_s"], **fixed)
    source = Source("f", "a", frame)
    points = source.curve("decode").points
    assert points["load"].tolist() == [1, 8] and points["repeat"].tolist() == [1, 1]
    assert points["speed"].tolist() == pytest.approx([20.0, 5.0])
    (finding,) = source.incomplete("decode")
    assert finding.gate == "within-run" and "up to 2 at a load" in finding.text
    assert len(Source("f", "a", frame.drop(columns="within_run")).curve("decode").points) == 3


def test_folders_are_kept_apart_no_deeper_than_their_loads_clash(tmp_path):
    for folder, load in (("x/c1", 1), ("x/c8", 8), ("y", 1), ("y", 8)):
        table(tmp_path / folder / f"r{load}.csv", f"a,{load},50,{40 * load},1")
    points, notes = read_collection([tmp_path]).points()
    assert points.groupby("contender")["load"].apply(sorted).to_dict() == {"x: a": [1, 8], "y: a": [1, 8]}
    (said,) = [sentence for sentence in notes.converted if "kept apart" in sentence]
    assert "(x, y)" in said


def test_files_that_aiperf_writes_beside_its_results_are_not_looked_at(tmp_path):
    run = tmp_path / "c4"
    (run / "phases" / "profiling").mkdir(parents=True)
    for name in ("profile_export_aiperf.json", "inputs.json", "profile_export_aiperf.csv", "logs.txt"):
        (run / name).write_text("{}")
        (run / "phases" / "profiling" / name).write_text("{}")
    collection = read_collection([tmp_path])
    assert len(collection.refused) == 1 and "c4/profile_export_aiperf.json" in collection.refused[0]
    assert collection.not_looked_at == 7


def test_one_server_measured_by_two_tools_is_not_one_contender_with_repeats(tmp_path):
    from wholecurve.readers import Collection

    def found(name, format):
        import pandas as pd

        row = {"contender": "m", "workload": "decode", "load_kind": "concurrency", "load": 8, "repeat": 1}
        return Found(tmp_path / name, format, pd.DataFrame([row]), Notes())

    both = [found("1", "GuideLLM"), found("2", "AIPerf"), found("3", "AIPerf records")]
    points, notes = Collection(both).points()
    assert points["contender"].tolist() == ["m (GuideLLM)", "m (AIPerf)", "m (AIPerf)"]
    assert points["repeat"].tolist() == [1, 1, 2]
    assert any("measured by several tools, which are kept apart: m" in sentence for sentence in notes.converted)
