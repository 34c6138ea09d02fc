"""The printed table of vLLM's and SGLang's clients: read where it names its load, else refused with every reason."""

from pathlib import Path

import pytest
from fuzzing import assert_sound, truncations

from wholecurve.errors import UserError
from wholecurve.readers.recognise import read_file

DATA = Path(__file__).parents[1] / "data" / "readers"
VLLM, SGLANG = DATA / "vllm" / "console.txt", DATA / "sglang" / "console.txt"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"

sample = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the collection of real result files is not on this machine")


def edited(tmp_path, source=VLLM, **values):
    """The table with some values replaced, by the beginning of their lines with _ for a space; None drops the line."""
    kept = []
    for line in source.read_text().splitlines():
        name = next((n for n in values if line.startswith(n.replace("_", " "))), None)
        if name is None:
            kept.append(line)
        elif values[name] is not None:
            kept.append(f"{line.split(':')[0]}: {values[name]}")
    path = tmp_path / "log.txt"
    path.write_text("\n".join(kept) + "\n")
    return path


def refused(path):
    with pytest.raises(UserError) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def said(found):
    return "\n".join([*found.to_document()["converted"], *found.to_document()["not_converted"]])


def test_a_table_under_a_known_concurrency_is_a_point():
    found = read_file(VLLM)
    (row,) = found.points.to_dict("records")
    assert (row["contender"], row["load_kind"], row["load"], row["repeat"]) == ("vllm", "concurrency", 16, 1)
    assert (row["decode_speed_tok_per_s"], row["output_throughput_tok_per_s"]) == (50, 643.2)
    assert (row["ttft_p50_ms"], row["ttft_p99_ms"], row["tpot_p99_ms"]) == (800, 2000, 40)
    assert row["achieved_concurrency"] == pytest.approx(15.84)
    assert (row["n_completed"], row["window_s"], row["mean_input_tokens"]) == (400, 125, 1000)
    assert "n_failed" not in row
    assert found.format == "printed serving result" and "numbers of a printed table have two decimals" in said(found)


def test_the_table_of_sglang_is_read_as_sglangs():
    (row,) = read_file(SGLANG).points.to_dict("records")
    assert (row["contender"], row["load"], row["decode_speed_tok_per_s"]) == ("sglang", 16, 50)
    assert (row["e2e_p50_ms"], row["achieved_concurrency"]) == (4752, 15.84)


def test_several_tables_in_one_log_are_rows_and_each_has_its_own_load(tmp_path):
    path = tmp_path / "log.txt"
    lower = VLLM.read_text().replace("concurrency: 16", "concurrency: 15")
    unnamed = "\n".join(line for line in VLLM.read_text().splitlines() if "concurrency" not in line)
    path.write_text(VLLM.read_text() + lower + unnamed + "\n")
    found = read_file(path)
    assert found.points["load"].tolist() == [16, 15]
    (dropped,) = found.notes.dropped
    assert "it names neither a maximum request concurrency nor a finite request rate" in dropped


def test_a_request_rate_is_a_load_too(tmp_path):
    path = edited(tmp_path, Maximum=None, Traffic="3.30")
    (row,) = read_file(path).points.to_dict("records")
    assert (row["load_kind"], row["load"]) == ("request_rate", 3.3)


@pytest.mark.parametrize("value", [None, "None"])
def test_no_limit_is_no_load(tmp_path, value):
    text = refused(edited(tmp_path, Maximum=value))
    assert "it names neither a maximum request concurrency nor a finite request rate" in text
    assert "save the JSON instead (vllm bench serve --save-result" in text


def test_a_limit_that_is_not_set_is_no_load(tmp_path):
    assert "it names neither" in refused(edited(tmp_path, SGLANG, Max="not set"))


def test_every_reason_is_in_the_one_line(tmp_path):
    text = refused(edited(tmp_path, Maximum=None, Median_TTFT="0.00", Median_TPOT="-0.00"))
    assert "it names neither" in text
    assert "median TTFT is 0.00 ms with 400 completed requests" in text
    assert "median TPOT is -0.00 ms" in text


def test_replies_that_are_counted_twice_over_are_refused(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(SGLANG.read_text().replace("80360", "38000"))
    assert "80400 generated tokens are 38000 when tokenised again" in refused(path)


@pytest.mark.parametrize(
    "values, reason",
    [
        ({"Benchmark": "0.00"}, "duration is 0"),
        ({"Successful": "0"}, "0 requests completed"),
        ({"Output": "700.00"}, "output_throughput is 700, but total_output_tokens / duration is 643.2"),
        ({"Output": None}, "output_throughput is missing"),
        ({"Median_TPOT": "nan"}, "median_tpot_ms is NaN"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused_with_what_to_save(tmp_path, values, reason):
    text = refused(edited(tmp_path, **values))
    assert f"line 5: {reason}" in text and "save the JSON instead" in text


def test_numbers_with_too_few_digits_are_left_out(tmp_path):
    found = read_file(edited(tmp_path, Median_TPOT="0.04", Mean_TPOT="0.04", P99_TPOT="0.08"))
    assert "decode_speed_tok_per_s" not in found.points
    assert "median_tpot_ms: 0.04 has too few digits" in said(found)


@pytest.mark.parametrize("source", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_a_table_that_is_cut_off_is_refused(tmp_path, source):
    expected = read_file(source).points
    path = tmp_path / "log.txt"
    for data in truncations(source, 50):
        path.write_bytes(data)
        if assert_sound(read_file, path, expected) is not None:
            # All that is lost is some of the closing line.
            assert data.rstrip(b"=\n") == source.read_bytes().rstrip(b"=\n")
    path.write_bytes(source.read_bytes()[:-60])
    assert "the table has no closing line of '='; it is cut off" in refused(path)


@pytest.mark.parametrize("source", [VLLM, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("value", [None, "0", "-0.00", "-3.00", "nan", "inf", "OOM", "1e300", "[]"])
def test_any_one_line_damaged_is_refused_or_changes_no_number(tmp_path, source, value):
    expected = read_file(source).points
    lines = source.read_text().splitlines()
    path = tmp_path / "log.txt"
    for at, line in enumerate(lines):
        if ":" not in line:
            continue
        changed = [] if value is None else [f"{line.split(':')[0]}:   {value}"]
        path.write_text("\n".join([*lines[:at], *changed, *lines[at + 1 :]]) + "\n")
        allowed = set()
        if line.startswith("Median TPOT") and value is None:
            allowed = {"decode_speed_tok_per_s"}
        assert_sound(read_file, path, expected, allowed)


@sample
def test_real_tables_are_refused_with_their_reasons():
    text = refused(SAMPLES / "vllm" / "pr5895_console_ttft_zero.txt")
    assert "median TTFT is 0.00 ms with 1000 completed requests" in text
    assert "it names neither a maximum request concurrency" in text
    text = refused(SAMPLES / "sglang" / "dlora_console_negative_tpot.txt")
    assert "median TPOT is -0.00 ms" in text
    assert "218257 generated tokens are 103837 when tokenised again" in text
