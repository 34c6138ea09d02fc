"""The proof's own arithmetic: a client that loses, doubles or invents is found out, and numbers are what they say."""

import dataclasses
import json
import signal
import stat
import subprocess
import sys
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from wholecurve.cli.client import client_app
from wholecurve.errors import UserError
from wholecurve.studies.serving.proof import level as level_module
from wholecurve.studies.serving.proof.agreement_cases import AgreementCase, agreement_cases
from wholecurve.studies.serving.proof.bench_agreement import LARGEST_SHARE, of_record, of_traces, rows_of
from wholecurve.studies.serving.proof.cost import measure_flood, measure_idle
from wholecurve.studies.serving.proof.fake_server import FakeServer
from wholecurve.studies.serving.proof.level import Level, measure_level
from wholecurve.studies.serving.proof.prove import LEVELS, QUICK_LEVELS
from wholecurve.studies.serving.proof.report import print_agreement, print_proof
from wholecurve.studies.serving.proof.script import Script, jittered
from wholecurve.studies.serving.proof.server_log import ReplyLog
from wholecurve.studies.serving.proof.setup import read_setup
from wholecurve.studies.serving.proof.truth import count_differences, deliveries_s, paired, spread_ms, true_trace
from wholecurve.studies.serving.proof.vllm_bench import WITH_WAITING, run_vllm_bench
from wholecurve.trace import RequestTrace


def reply(label="a", written=(101.0, 102.0, 104.0), tokens=(1, 2, 3), **changes):
    """A record of a reply: its head is write 0, and each chunk is a write of its own."""
    fields = {
        "number": 0, "path": "/v1/completions", "body": {"label": label}, "prompt_tokens": 5,
        "first_byte_s": 100.5, "read_s": 100.6, "due_s": [100.6, *written], "written_s": [100.6, *written],
        "handed_s": [100.6, *written], "chunk_write": list(range(1, len(written) + 1)), "chunk_tokens": list(tokens),
    }  # fmt: skip
    return ReplyLog(**{**fields, **changes})


def trace(name="a", arrivals=(1.5, 2.5, 4.5), tokens=(1, 2, 3), **changes):
    fields = {
        "request": name, "prompt_tokens": 5, "cached_tokens": None, "scheduled_s": 0.25, "sent_s": 0.5,
        "arrivals_s": list(arrivals), "arrival_tokens": list(tokens), "finished_s": 5.0, "outcome": "completed",
    }  # fmt: skip
    return RequestTrace(**{**fields, **changes})


def test_traces_and_replies_are_paired_by_name():
    pairs = paired([trace("b"), trace("a")], [reply("a"), reply("b"), reply("c")])
    assert [(one.request, other.label) for one, other in pairs] == [("b", "b"), ("a", "a")]


@pytest.mark.parametrize(
    ("traces", "replies", "message"),
    [
        ([trace("a")], [reply("a"), reply("a")], "request a reached the server twice"),
        ([trace("a"), trace("b")], [reply("a")], r"request b has a trace \(1 such\), and the server never saw it"),
        ([trace("a")], [reply("a", body={})], "its request carried no label"),
    ],
)
def test_pairs_that_cannot_be_are_named(traces, replies, message):
    with pytest.raises(UserError, match=message):
        paired(traces, replies)


@pytest.mark.parametrize(
    ("tokens", "lost", "doubled", "differ"),
    [
        ((1, 2, 3), 0, 0, 0),
        ((1, 0, 2, 3), 0, 0, 0),  # a chunk without content is no token event
        ((1, 3), 2, 0, 1),
        ((1, 2, 2, 3), 0, 2, 1),
        ((1, 3, 2), 0, 0, 1),  # nothing missing in the sum, and yet wrong
        ((1, 1, 1, 3), 0, 0, 1),
        ((), 6, 0, 1),
    ],
)
def test_a_lost_doubled_or_exchanged_event_is_counted(tokens, lost, doubled, differ):
    seen = trace(arrivals=[1.0 + i for i in range(len(tokens))], tokens=tokens)
    counts = count_differences([(seen, reply())])
    assert (counts["chunks"], counts["tokens"]) == (3, 6)
    assert (counts["tokens_lost"], counts["tokens_doubled"], counts["requests_that_differ"]) == (lost, doubled, differ)


def test_a_loss_in_one_request_does_not_hide_a_doubling_in_another():
    pairs = [(trace("a", (1.0,), (5,)), reply("a")), (trace("b", (1.0,), (7,)), reply("b"))]
    counts = count_differences(pairs)
    assert (counts["tokens_lost"], counts["tokens_doubled"], counts["requests_that_differ"]) == (1, 1, 2)


def test_the_truth_is_the_trace_at_the_moments_of_the_record():
    true = true_trace((trace(), reply()), began_s=100.0)
    assert true.arrivals_s == [1.0, 2.0, 4.0]
    assert (true.ttft_s, true.e2e_s) == (0.75, 3.75)
    assert true.tpot_s == pytest.approx(3.0 / 5)
    true.check()


def test_a_delivery_is_from_the_write_to_the_stamp():
    late = trace(arrivals=(1.5, 1.6, 2.25, 4.125), tokens=(1, 0, 2, 3))
    assert deliveries_s([(late, reply())], began_s=100.0) == pytest.approx([0.5, 0.25, 0.125])
    # Where a chunk is missing nobody can say which one: no delivery is claimed.
    assert deliveries_s([(trace(arrivals=(1.5,), tokens=(6,)), reply())], began_s=100.0) == []


def test_spreads_have_no_percentile_that_few_values_cannot_carry():
    assert spread_ms([0.001, 0.002, 0.003]) == {"min_ms": 1.0, "p50_ms": 2.0, "p99_ms": None, "max_ms": 3.0}
    assert spread_ms([0.001] * 300)["p99_ms"] == pytest.approx(1.0)
    assert set(spread_ms([]).values()) == {None}


def test_jittered_gaps_keep_their_mean_and_their_spread():
    gaps = jittered(0.02, 0.1)
    assert sum(gaps) / len(gaps) == pytest.approx(0.02)
    assert len(set(gaps)) == len(gaps) == 97
    assert min(gaps) > 0.017 and max(gaps) < 0.023
    assert max(jittered(0.02)) > 0.027


def test_a_level_knows_its_rate_and_its_length():
    level = Level(streams=10, gap_s=0.1, ttft_s=0.5, output_tokens=11, requests_per_stream=2, ramp_s=1.0)
    assert level.token_events_per_s == pytest.approx(100)
    assert level.scripted_s == pytest.approx(1.0 + 2 * 1.5)
    assert len({session.session_id for session in level.sessions()}) == 20


def test_the_recorded_levels_have_1_100_and_1000_streams():
    for levels in (LEVELS, QUICK_LEVELS):
        assert {level.streams for level in levels} == {1, 100, 1000}
        assert any(level.token_events_per_s == pytest.approx(1000) and level.streams == 1000 for level in levels)
    assert sum(level.scripted_s for level in QUICK_LEVELS) < 30


SMALL = Level(streams=3, gap_s=0.004, ttft_s=0.01, output_tokens=6, requests_per_stream=2)


@pytest.fixture(scope="module")
def small_record():
    record = measure_level(SMALL, idle_core_share=0.0)
    flood = measure_flood(600, 3)
    return {"levels": [record], "floods": [flood], "idle": measure_idle(0.05)}


def test_a_level_is_measured_against_script_and_record(small_record):
    (record,) = small_record["levels"]
    assert (record["n_completed"], record["n_failed"], record["not_sent"]) == (6, 0, 0)
    assert record["counts"] == {
        "chunks": 36, "tokens": 36, "tokens_lost": 0, "tokens_doubled": 0, "requests_that_differ": 0,
    }  # fmt: skip
    # No chunk is seen before it was written, and none is written before its moment.
    assert record["delivery"]["min_ms"] > 0
    assert record["request"]["min_ms"] > 0
    assert record["server_late"]["min_ms"] >= 0
    assert record["client"]["e2e_p50_ms"] > record["server"]["e2e_p50_ms"]
    assert record["client_minus_server"]["ttft_p50_ms"]["absolute"] > 0
    gaps = SMALL.script().gaps_s[:5]
    assert record["scripted"]["tpot_ms"] == pytest.approx(1e3 * sum(gaps) / 5)
    assert record["scripted"]["e2e_ms"] == pytest.approx(10 + 1e3 * sum(gaps))
    json.dumps(record, allow_nan=False)


def test_a_flood_compares_every_chunks_tokens(small_record):
    (flood,) = small_record["floods"]
    assert (flood["n_completed"], flood["n_failed"], flood["counts"]["chunks"]) == (3, 0, 600)
    assert flood["counts"]["tokens"] > 600
    assert flood["counts"]["requests_that_differ"] == 0
    assert flood["token_sources"] == ["usage per chunk"]


def test_what_the_client_uses_without_events_is_taken_off(monkeypatch):
    real = level_module.run_load

    def costly(*arguments, **options):
        result = real(*arguments, **options)
        return dataclasses.replace(result, lag={**result.lag, "cpu_s": 1.0, "wall_s": 2.0})

    monkeypatch.setattr(level_module, "run_load", costly)
    record = measure_level(SMALL, idle_core_share=0.32)
    assert record["client_cpu_us_per_token_event"] == pytest.approx(1e6 * (1.0 - 0.64) / 36)
    assert record["client_core_share"] == pytest.approx(0.5)
    assert record["token_events_per_s"] == pytest.approx(18)


def test_a_client_that_loses_a_chunk_is_found_out(monkeypatch):
    real = level_module.run_load

    def losing(*arguments, **options):
        result = real(*arguments, **options)
        result.traces[2].arrivals_s.pop(3)
        result.traces[2].arrival_tokens.pop(3)
        return result

    monkeypatch.setattr(level_module, "run_load", losing)
    counts = measure_level(SMALL, idle_core_share=0.0)["counts"]
    assert (counts["tokens_lost"], counts["requests_that_differ"]) == (1, 1)


def test_a_level_without_any_token_is_one_line(monkeypatch):
    monkeypatch.setattr(Level, "script", lambda self: Script(status=503))
    level = dataclasses.replace(SMALL, streams=1, requests_per_stream=1)
    with pytest.raises(UserError, match=r"level of 1 streams: no token came; its first request refused: HTTP 503"):
        measure_level(level, idle_core_share=0.0)


CASE = AgreementCase("a case", Script(), requests=2, concurrency=1, output_tokens=6)


def test_our_numbers_are_from_the_schedule_and_theirs_are_not():
    role_first = trace(arrivals=(1.25, 1.5, 2.5, 4.5), tokens=(0, 1, 2, 3))
    values = of_traces([role_first, trace("b", scheduled_s=0.75)])
    assert values["ttft_mean_ms"] == pytest.approx(1000)
    assert values["tpot_mean_ms"] == pytest.approx(600)
    assert values["itl_mean_ms"] == pytest.approx(1500)
    assert values["itl_p50_ms"] == pytest.approx(1500)
    assert values["e2e_mean_ms"] == pytest.approx(4000)
    assert values["output_throughput_tok_per_s"] == pytest.approx(12 / 4.25)
    assert values["request_throughput_per_s"] == pytest.approx(2 / 4.25)
    server = of_record([reply()])
    assert (server["ttft_mean_ms"], server["e2e_mean_ms"]) == pytest.approx((500, 3500))
    assert server["output_throughput_tok_per_s"] == pytest.approx(6 / 3.5)


def runs(ours, theirs, name="ttft_mean_ms"):
    return [
        {"tool": "wholecurve", "values": {name: ours}, "server": {name: 99.0}},
        {"tool": "vllm bench serve", "values": {name: theirs}, "server": {name: 98.0}},
    ]


@pytest.mark.parametrize(("theirs", "agrees"), [(100.0, True), (102.9, True), (96.9, False), (103.2, False)])
def test_agreement_is_within_three_percent_where_definitions_are_equal(theirs, agrees):
    row = rows_of(CASE, runs(100.0, theirs))[0]
    assert (row["metric"], row["agrees"], row["reason"]) == ("ttft_mean_ms", agrees, None)
    assert row["share"] == pytest.approx(100 / theirs - 1)
    assert (row["server_under_wholecurve"], row["server_under_vllm_bench_serve"]) == (99.0, 98.0)
    assert LARGEST_SHARE == 0.03


def test_where_definitions_differ_there_is_a_reason_and_no_verdict():
    case = dataclasses.replace(CASE, differs={"ttft": "another clock", "e2e": "the same"}, rate_per_s=5.0)
    rows = {row["metric"]: row for row in rows_of(case, runs(100.0, 5.0) + runs(100.0, 100.0, WITH_WAITING))}
    assert (rows["ttft_mean_ms"]["agrees"], rows["ttft_mean_ms"]["reason"]) == (None, "another clock")
    assert rows[WITH_WAITING]["agrees"] is True
    # What was not measured has no verdict either.
    assert (rows["tpot_mean_ms"]["agrees"], rows["tpot_mean_ms"]["share"]) == (None, None)


def test_reasons_name_metrics_that_there_are():
    metrics = {row["metric"] for case in agreement_cases() for row in rows_of(case, [])}
    for case in agreement_cases():
        for name in case.differs:
            assert any(metric.startswith(name) for metric in metrics), name


class FakePeer:
    """Stands for vLLM's environment: an interpreter that writes what it is told as the result."""

    def __init__(self, folder, document, code=0):
        self.python = folder / "python"
        program = (
            f"#!{sys.executable}\n"
            "import json, pathlib, sys\n"
            "words = dict(zip(sys.argv, sys.argv[1:]))\n"
            f"if {code}:\n"
            f"    print('a cause', file=sys.stderr)\n    sys.exit({code})\n"
            f"document = {document!r}\n"
            "document['arguments'] = sys.argv[3:]\n"
            "target = pathlib.Path(words['--result-dir']) / words['--result-filename']\n"
            "target.write_text(json.dumps(document))\n"
        )
        self.python.write_text(program)
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)


def bench_document(**changes):
    document = {"completed": 2, "output_throughput": 50.0, "request_throughput": 5.0}
    document["mean_e2el_including_client_queue_ms"] = 7.0
    for number, name in enumerate(("ttft", "tpot", "itl", "e2el")):
        document |= {f"mean_{name}_ms": 10.0 + number, f"p50_{name}_ms": 20.0 + number}
    return {**document, **changes}


@pytest.mark.parametrize("rate_per_s", [None, 4.0])
def test_the_result_of_vllm_bench_serve_is_read_under_our_names(tmp_path, rate_per_s):
    case = dataclasses.replace(CASE, rate_per_s=rate_per_s)
    server = FakeServer()  # never started: only its address is told
    values = run_vllm_bench(FakePeer(tmp_path, bench_document()), case, server, tmp_path, tmp_path)
    assert (values["ttft_mean_ms"], values["e2e_mean_ms"], values["e2e_p50_ms"]) == (10.0, 13.0, 23.0)
    assert values["output_throughput_tok_per_s"] == 50.0
    assert values.get(WITH_WAITING) == (None if rate_per_s is None else 7.0)
    words = json.loads((tmp_path / "vllm-bench.json").read_text())["arguments"]
    given = dict(pairwise(words))
    assert given["--request-rate"] == ("inf" if rate_per_s is None else "4.0")
    assert (given["--num-prompts"], given["--max-concurrency"], given["--random-output-len"]) == ("2", "1", "6")
    assert "--ignore-eos" in words


def test_a_vllm_bench_serve_that_fails_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"^vllm bench serve: code 3, case 'a case': a cause$"):
        run_vllm_bench(FakePeer(tmp_path, {}, code=3), CASE, FakeServer(), tmp_path, tmp_path)
    # Its metrics leave failed requests out: half a run must not pass for one.
    with pytest.raises(UserError, match=r"1 of 2 completed"):
        run_vllm_bench(FakePeer(tmp_path, bench_document(completed=1)), CASE, FakeServer(), tmp_path, tmp_path)


def test_records_are_printed_with_every_level_and_verdict(small_record):
    from rich.console import Console

    console = Console(width=240, record=True)
    print_proof(console, small_record)
    case = dataclasses.replace(CASE, differs={"tpot": "their TPOT holds the TTFT"})
    found = rows_of(case, runs(100.0, 101.0) + runs(1.0, 2.0, "e2e_mean_ms") + runs(1.0, 2.0, "tpot_mean_ms"))
    print_agreement(console, {"rows": found})
    text = console.export_text()
    assert all(words in text for words in ("agrees", "DIFFERS", "their TPOT holds the TTFT", "delivery p50"))
    assert text.count("ttft_p50_ms") == 2


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"default": {"ttft": 1}}, "default.ttft: Extra inputs are not permitted"),
        ({"names": {}}, "names: Extra inputs are not permitted"),
        ({"port": 9}, r"port: is given on the command line \(--port\)"),
    ],
)
def test_a_wrong_setup_file_is_one_line(tmp_path, document, message):
    path = tmp_path / "setup.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=message) as raised:
        read_setup(path, "127.0.0.1", 0)
    assert str(raised.value).startswith(str(path))
    with pytest.raises(UserError, match="missing"):
        read_setup(tmp_path / "nowhere.json", "127.0.0.1", 0)


def test_the_fake_server_command_serves_until_it_is_interrupted(tmp_path):
    path = tmp_path / "setup.json"
    path.write_text(json.dumps({"default": {"output_tokens": 2}}))
    program = "import sys; from wholecurve.cli.client import client_app; client_app(sys.argv[1:])"
    command = [sys.executable, "-c", program, "fake-server", "--setup", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        import httpx

        reply = httpx.post(f"{url}/completions", json={"model": "m", "prompt": "a", "stream": True})
        assert reply.text.count("finish_reason") == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_commands_are_there():
    result = CliRunner().invoke(client_app, ["--help"])
    assert all(name in result.output for name in ("prove", "agree", "fake-server"))
