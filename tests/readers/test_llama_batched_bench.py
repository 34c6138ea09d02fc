"""llama-batched-bench: both phases of a row, shared prompts, steps, and consistency of its speeds."""

import json
import math
from pathlib import Path

import pytest
from fuzzing import assert_sound, document_of_lines, mutations, truncations
from hypothesis import given, settings

from wholecurve.curves import Curve, compare
from wholecurve.errors import UserError
from wholecurve.readers.content import read_content
from wholecurve.readers.found import Notes
from wholecurve.readers.llama_cpp import batched_bench as llama_batched_bench

DATA = Path(__file__).parents[1] / "data" / "readers" / "llama_cpp"
ROW = {
    "n_kv_max": 8192,
    "n_batch": 2048,
    "n_ubatch": 1024,
    "flash_attn": 1,
    "is_pp_shared": 0,
    "n_gpu_layers": 99,
    "n_threads": 8,
    "n_threads_batch": 8,
    "pp": 128,
    "tg": 32,
    "pl": 4,
    "n_kv": 640,
    # 4 prompts of 128 tokens in half a second, then 32 steps of 4 tokens in 2 seconds.
    "t_pp": 0.5,
    "speed_pp": 1024.0,
    "t_tg": 2.0,
    "speed_tg": 64.0,
    "t": 2.5,
    "speed": 256.0,
}


def row(pl=4, pp=128, tg=32, shared=0, **changed):
    """A row that is consistent: a step takes as long as it does for 4 sequences, a prompt token 1/1024 s."""
    tokens = pp if shared else pp * pl
    made = {**ROW, "pl": pl, "pp": pp, "tg": tg, "is_pp_shared": shared, "t_pp": tokens / 1024 or 1e-3}
    made |= {"t_tg": tg / 16 or 1e-3, "speed_tg": 16.0 * pl}
    return {**made, **changed}


def read(path):
    content = read_content(path)
    assert llama_batched_bench.recognises(content)
    return llama_batched_bench.read(content, Notes(dropped=list(content.skipped)))


def rows(tmp_path, *rows):
    path = tmp_path / "sweep.jsonl"
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if v != "absent"}) + "\n" for row in rows))
    return read(path)


def of_kind(found, kind):
    return found.points[found.points["load_kind"] == kind].dropna(axis=1).to_dict("records")


def sentences(found):
    document = found.to_document()
    return "\n".join(document["converted"] + document["not_converted"] + document["dropped"])


def test_decode_is_the_throughput_of_all_sequences_and_the_speed_of_one(tmp_path):
    found = rows(tmp_path, ROW)
    (decode,) = of_kind(found, "concurrency")
    assert (decode["workload"], decode["load"], decode["window"]) == ("decode at depth 128", 4, "decode phase")
    assert (decode["output_throughput_tok_per_s"], decode["decode_speed_tok_per_s"]) == (64, 16)
    assert decode["speed_from"] == "step time"
    assert (decode["device_kind"], decode["devices"], decode["source"]) == ("server", 1, "measured (device unstated)")
    said = sentences(found)
    assert "shown twice" in said and "whole server" in said and "names no model" in said


def test_by_construction_speed_and_throughput_of_two_sweeps_have_one_ratio(tmp_path):
    fast = rows(tmp_path, *(row(pl, speed_tg=32.0 * pl, t_tg=1.0) for pl in (1, 2, 4))).points
    slow = rows(tmp_path, *(row(pl) for pl in (1, 2, 4))).points
    direct = compare(*(Curve.from_points(p, workload="decode at depth 128") for p in (fast, slow))).direct
    assert direct["ratio"].tolist() == pytest.approx([2.0] * len(direct))


def test_prefill_is_the_prompts_in_steps_of_one_ubatch(tmp_path):
    (prefill,) = of_kind(rows(tmp_path, ROW), "step_tokens")
    assert (prefill["workload"], prefill["load"], prefill["input_tokens"]) == ("prefill", 512, 512)
    assert prefill["input_throughput_tok_per_s"] == 1024
    limits = [({"n_ubatch": 64}, 64), ({"n_batch": 96}, 96), ({"n_ubatch": 4096, "n_batch": 4096}, 512)]
    for changed, step in limits:
        assert of_kind(rows(tmp_path, {**ROW, **changed}), "step_tokens")[0]["load"] == step


def test_a_shared_prompt_is_processed_once(tmp_path):
    found = rows(tmp_path, row(shared=1))
    (prefill,) = of_kind(found, "step_tokens")
    assert (prefill["load"], prefill["input_tokens"]) == (128, 128)
    with pytest.raises(UserError, match="speed_pp is 1024 tok/s, but 512 tokens"):
        rows(tmp_path, row(shared=1, is_pp_shared=0, tg=0))


@pytest.mark.parametrize(
    ("changed", "kept", "said"),
    [
        ({"speed_tg": 64 * 1.03}, "step_tokens", "speed_tg is 65.92 tok/s, but 128 tokens in t_tg 2 s are 64"),
        ({"speed_tg": 16.0}, "step_tokens", "speed_tg is 16"),
        ({"speed_pp": 1024 * 1.03}, "concurrency", "speed_pp is 1054.72"),
        ({"speed_pp": 256.0}, "concurrency", "speed_pp is 256"),
        ({"t_tg": 0}, "step_tokens", "t_tg is 0"),
        ({"speed_tg": math.inf}, "step_tokens", "speed_tg is infinite"),
        ({"speed_pp": math.nan}, "concurrency", "speed_pp is NaN"),
        ({"t_pp": -1}, "concurrency", "t_pp is negative"),
    ],
    ids=str,
)
def test_a_phase_whose_speed_is_not_tokens_over_time_is_dropped_alone(tmp_path, changed, kept, said):
    found = rows(tmp_path, {**ROW, **changed}, row(8))
    assert found.points["load_kind"].tolist() == [kept, "concurrency", "step_tokens"]
    assert said in found.notes.dropped[0] and "line 1" in found.notes.dropped[0]


def test_a_speed_is_believed_within_two_percent(tmp_path):
    assert len(rows(tmp_path, {**ROW, "speed_tg": 64 * 1.015, "speed_pp": 1024 * 0.985}).points) == 2


def test_sequences_that_decoded_one_after_another_are_no_concurrency(tmp_path):
    found = rows(tmp_path, {**ROW, "is_tg_separate": 1})
    assert found.points["load_kind"].tolist() == ["step_tokens"]
    assert "is_tg_separate is 1" in found.notes.dropped[0]
    assert "together is assumed" in sentences(rows(tmp_path, ROW))
    assert "together is assumed" not in sentences(rows(tmp_path, {**ROW, "is_tg_separate": 0}))


def test_a_row_of_one_phase_gives_that_point_only(tmp_path):
    found = rows(tmp_path, row(tg=0), row(pp=0))
    assert found.points["workload"].tolist() == ["prefill", "decode"]
    assert not found.notes.dropped
    bad = {**ROW, "pl": 0}
    with pytest.raises(UserError, match="pl is 0; a whole number from 1 up is needed"):
        rows(tmp_path, bad)


def test_prefill_without_its_step_is_left_out_by_name(tmp_path):
    for name in ("n_ubatch", "is_pp_shared"):
        found = rows(tmp_path, {**ROW, name: "absent"})
        assert found.points["load_kind"].tolist() == ["concurrency"]
        assert "the tokens of a step are not known" in sentences(found)


def test_names_tell_tests_apart_and_repeats_are_the_same_test(tmp_path):
    def contenders(*tests):
        points = rows(tmp_path, *tests).points
        return points.groupby("load_kind")["contender"].agg(lambda names: sorted(set(names))).to_dict()

    assert contenders(row(1), row(2))["concurrency"] == ["llama.cpp sweep"]
    assert contenders(row(), row(tg=64))["concurrency"] == ["llama.cpp sweep tg 32", "llama.cpp sweep tg 64"]
    assert contenders(row(), row(n_threads=4))["step_tokens"] == [
        "llama.cpp sweep n_threads 4",
        "llama.cpp sweep n_threads 8",
    ]
    shared = rows(tmp_path, row(shared=1), row(1), row(2, shared=1)).points
    assert shared.groupby("load_kind")["contender"].nunique().tolist() == [2, 2]
    again = rows(tmp_path, row(), row(tg=64)).points
    assert again[again["load_kind"] == "step_tokens"]["repeat"].tolist() == [1, 2]


def test_prompts_that_fill_the_step_are_no_repeats_of_one_another(tmp_path):
    points = rows(tmp_path, *(row(pl, pp=512) for pl in (1, 2, 4, 8))).points
    prefill = points[points["load_kind"] == "step_tokens"]
    assert prefill["load"].tolist() == [512, 1024, 1024, 1024]
    assert prefill["repeat"].tolist() == [1] * 4
    assert prefill["contender"].tolist() == ["llama.cpp sweep"] * 2 + ["llama.cpp sweep pl 4", "llama.cpp sweep pl 8"]


# --- the printed table ------------------------------------------------------------------------------------------


def test_the_printed_table_is_read_with_the_settings_above_it():
    found = read(DATA / "batched_table.md")
    decode = of_kind(found, "concurrency")
    assert [point["load"] for point in decode] == [1, 2, 4] * 2
    assert {point["workload"] for point in decode} == {"decode at depth 16", "decode at depth 48"}
    assert decode[2]["output_throughput_tok_per_s"] == 133.46
    assert decode[2]["decode_speed_tok_per_s"] == pytest.approx(133.46 / 4)
    assert [point["load"] for point in of_kind(found, "step_tokens")] == [16, 32, 32, 32, 32, 32]
    assert "together is assumed" not in sentences(found)


def test_a_table_without_its_settings_gives_decode_only(tmp_path):
    path = tmp_path / "pasted.md"
    path.write_text((DATA / "batched_table.md").read_text().partition("\n\n")[2])
    found = read(path)
    assert found.points["load_kind"].unique().tolist() == ["concurrency"]
    assert "the tokens of a step are not known" in sentences(found)


def test_a_line_of_the_table_that_breaks_off_is_dropped_by_name(tmp_path):
    path = tmp_path / "cut.md"
    path.write_text((DATA / "batched_table.md").read_text().rstrip().removesuffix(" |"))
    found = read(path)
    assert [point["load"] for point in of_kind(found, "concurrency")] == [1, 2, 4, 1, 2]
    assert "the line is cut off" in found.notes.dropped[0]


def test_a_shared_prompt_in_json_lines_is_read():
    prefill = of_kind(read(DATA / "batched_shared_prompt.jsonl"), "step_tokens")
    assert [point["load"] for point in prefill] == [16] * 3 + [32] * 3
    assert [point["repeat"] for point in prefill] == [1, 2, 3] * 2


def test_other_tables_and_rows_are_not_taken(tmp_path):
    path = tmp_path / "other"
    for text in ("| model | test | t/s |\n", '{"pp": 1, "tg": 2}\n', "[]", "PP TG B\n"):
        path.write_text(text)
        assert not llama_batched_bench.recognises(read_content(path))


# --- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batched_table.md", "batched_shared_prompt.jsonl"])
def test_a_file_that_breaks_off_never_gives_another_number(tmp_path, name):
    whole, cut = read(DATA / name).points, tmp_path / name
    for data in truncations(DATA / name, step=30):
        cut.write_bytes(data)

        def read_cut(path):
            content = read_content(path)
            if not llama_batched_bench.recognises(content):
                raise UserError(f"{path}: not recognised")
            return llama_batched_bench.read(content, Notes())

        assert_sound(read_cut, cut, whole)


def test_a_changed_field_never_changes_a_speed(tmp_path_factory):
    path = DATA / "batched_shared_prompt.jsonl"
    document, whole = document_of_lines(path), read(path).points
    folder = tmp_path_factory.mktemp("mutated")

    @settings(max_examples=100)
    @given(mutations(document))
    def check(mutation):
        assert_sound(read, mutation.write(folder / path.name), whole, may_differ={"load", "output_tokens"})

    check()
