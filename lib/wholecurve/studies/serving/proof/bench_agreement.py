"""The same scripted server measured by our client and by `vllm bench serve`: one table, its differences named."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from wholecurve.curves.metrics import full_window
from wholecurve.errors import UserError
from wholecurve.runs.provenance import collect, package_versions
from wholecurve.studies.serving.load.kinds import ClosedLoad, Load, OpenLoad
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.proof.agreement_cases import LATENCIES, RATES, AgreementCase, agreement_cases
from wholecurve.studies.serving.proof.fake_server import FakeServer
from wholecurve.studies.serving.proof.server_log import ReplyLog
from wholecurve.studies.serving.proof.vllm_bench import PROMPT_TOKENS, WITH_WAITING, run_vllm_bench
from wholecurve.trace import RequestTrace

# Of where both define a metric in the same way.
LARGEST_SHARE = 0.03
_ORDER = ("wholecurve", "vllm bench serve", "vllm bench serve", "wholecurve")
Values = dict[str, float | None]


def summary(seconds: dict[str, Sequence[float | None]], tokens: int, requests: int, window_s: float) -> Values:
    """Mean and median of each latency (milliseconds), and both rates over ``window_s``; None where nothing is known."""
    values: Values = {}
    for name in LATENCIES:
        known = [value for value in seconds[name] if value is not None]
        values[f"{name}_mean_ms"] = 1e3 * fmean(known) if known else None
        values[f"{name}_p50_ms"] = 1e3 * median(known) if known else None
    return values | dict(zip(RATES, (tokens / window_s, requests / window_s)))


def of_traces(traces: Sequence[RequestTrace]) -> Values:
    """Our client's numbers: from the scheduled moment, tokens alone, gaps between chunks."""
    start, end = full_window(traces)
    gaps = [later - earlier for trace in traces for earlier, later in pairwise(_content(trace))]
    latencies = {
        "ttft": [trace.ttft_s for trace in traces],
        "tpot": [trace.tpot_s for trace in traces],
        "itl": gaps,
        "e2e": [trace.e2e_s for trace in traces],
    }
    return summary(latencies, sum(trace.output_tokens for trace in traces), len(traces), end - start)


def of_record(replies: Sequence[ReplyLog]) -> Values:
    """The server's own: from the request's first byte to its writes."""
    chunks = [reply.chunk_written_s for reply in replies]
    latencies = {
        "ttft": [written[0] - reply.first_byte_s for reply, written in zip(replies, chunks)],
        "tpot": [(written[-1] - written[0]) / (reply.output_tokens - 1) for reply, written in zip(replies, chunks)],
        "itl": [later - earlier for written in chunks for earlier, later in pairwise(written)],
        "e2e": [written[-1] - reply.first_byte_s for reply, written in zip(replies, chunks)],
    }
    window_s = max(written[-1] for written in chunks) - min(reply.first_byte_s for reply in replies)
    return summary(latencies, sum(reply.output_tokens for reply in replies), len(replies), window_s)


def rows_of(case: AgreementCase, runs: Sequence[dict]) -> list[dict]:
    """One row per metric: means over the runs of each tool, the difference, and whether it must be small.

    ``runs`` are {"tool", "values", "server"}. ``agrees`` is None where the definitions differ (``reason`` says how).
    """
    rows = []
    names = [f"{latency}_{which}_ms" for latency in LATENCIES for which in ("mean", "p50")] + list(RATES)
    if case.rate_per_s is not None:
        names.append(WITH_WAITING)
    for name in names:
        ours, theirs = (_mean(runs, tool, "values", name) for tool in ("wholecurve", "vllm bench serve"))
        reason = next((text for metric, text in case.differs.items() if name.startswith(metric)), None)
        if name == WITH_WAITING:
            reason = None
        share = ours / theirs - 1 if ours is not None and theirs else None
        rows.append(
            {
                "case": case.name,
                "metric": name,
                "wholecurve": ours,
                "vllm_bench_serve": theirs,
                "server_under_wholecurve": _mean(runs, "wholecurve", "server", name),
                "server_under_vllm_bench_serve": _mean(runs, "vllm bench serve", "server", name),
                "share": share,
                "agrees": None if reason or share is None else abs(share) <= LARGEST_SHARE,
                "reason": reason,
            }
        )
    return rows


def measure_agreement(model: str, scale: int = 1, on_part: Callable[[str], None] | None = None) -> dict:
    """Both tools on every case, in the order ours, theirs, theirs, ours; the record. Minutes.

    model: whose tokenizer makes vLLM's random prompts. UserError where the vLLM peer is not set up.
    """
    from wholecurve.models.resolve import resolve
    from wholecurve.studies.peers.vllm import VllmPeer

    peer, tokenizer = VllmPeer(), resolve(model).hf_folder()
    peer.require_ready()
    tell = on_part or (lambda _: None)
    cases, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        for case in agreement_cases(scale):
            runs = []
            for tool in _ORDER:
                tell(f"{case.name}: {tool}")
                with FakeServer(case.script) as server:
                    if tool == "wholecurve":
                        values = of_traces(_our_traces(case, server))
                        if case.rate_per_s is not None:
                            values[WITH_WAITING] = values["e2e_mean_ms"]
                    else:
                        values = run_vllm_bench(peer, case, server, tokenizer, Path(folder))
                    runs.append({"tool": tool, "values": values, "server": of_record(server.replies())})
            cases.append({"name": case.name, "requests": case.requests, "concurrency": case.concurrency, "runs": runs})
            rows += rows_of(case, runs)
    provenance = {**collect(), "packages": package_versions(["wholecurve", "aiohttp", "uvloop", "orjson"])}
    return {
        "kind": "agreement with vllm bench serve",
        "provenance": {**provenance, "vllm": peer.versions},
        "largest_share": LARGEST_SHARE,
        "cases": cases,
        "rows": rows,
    }


def _our_traces(case: AgreementCase, server: FakeServer) -> list[RequestTrace]:
    if case.api == "chat":
        prompt = [{"role": "user", "content": " ".join(["word"] * PROMPT_TOKENS)}]
    else:
        prompt = list(range(PROMPT_TOKENS))
    sessions = [Session(f"{i}", (Turn(f"{i}", prompt, case.output_tokens),)) for i in range(case.requests)]
    load: Load = ClosedLoad(case.concurrency)
    if case.rate_per_s is not None:
        load = OpenLoad(case.rate_per_s, arrivals="constant", most_in_flight=case.concurrency)
    traces = run_load(server.endpoint(api=case.api, usage_per_chunk=True), sessions, load).traces
    if failed := [trace for trace in traces if not trace.completed]:
        raise UserError(f"case {case.name!r}: request {failed[0].request} {failed[0].outcome}: {failed[0].error}")
    return traces


def _content(trace: RequestTrace) -> list[float]:
    return [at for at, tokens in zip(trace.arrivals_s, trace.arrival_tokens) if tokens]


def _mean(runs: Sequence[dict], tool: str, side: str, name: str) -> float | None:
    known = [run[side][name] for run in runs if run["tool"] == tool and run[side].get(name) is not None]
    return fmean(known) if known else None
