"""What our client and `vllm bench serve` are both pointed at, and where their definitions part."""

from dataclasses import dataclass, field
from typing import Literal

from wholecurve.studies.serving.proof.script import Script, jittered

# Compared of each case: seconds are kept as milliseconds, rates per second.
LATENCIES = ("ttft", "tpot", "itl", "e2e")
# Narrow: a median of few distinct gaps may lie on either side of the middle one.
_SPREAD = 0.1
RATES = ("output_throughput_tok_per_s", "request_throughput_per_s")


@dataclass(frozen=True)
class AgreementCase:
    """One script and load for both. ``differs`` names the metrics whose definitions are not equal here, and why."""

    name: str
    script: Script
    requests: int
    concurrency: int
    output_tokens: int
    api: Literal["completions", "chat"] = "completions"
    rate_per_s: float | None = None  # an open loop with equal gaps; None is a closed loop
    differs: dict[str, str] = field(default_factory=dict)


def agreement_cases(scale: int = 1) -> list[AgreementCase]:
    """The cases; ``scale`` times as many requests as the smallest number that says something."""
    return [
        AgreementCase(
            name="one token a chunk",
            script=Script(ttft_s=0.1, gaps_s=jittered(0.02, _SPREAD)),
            requests=32 * scale,
            concurrency=8,
            output_tokens=50,
        ),
        AgreementCase(
            name="speculation: 1 to 5 tokens a chunk",
            script=Script(ttft_s=0.1, gaps_s=jittered(0.03, _SPREAD), tokens_per_chunk=(1, 4, 2, 5, 3)),
            requests=32 * scale,
            concurrency=8,
            output_tokens=60,
        ),
        AgreementCase(
            name="chat that begins with a chunk of the role alone",
            script=Script(ttft_s=0.2, gaps_s=jittered(0.02, _SPREAD)),
            requests=32 * scale,
            concurrency=8,
            output_tokens=50,
            api="chat",
            differs={
                "ttft": "vLLM stamps the first chunk with choices, the role; here the first token counts",
                "tpot": "vLLM's is (E2E - TTFT)/(n - 1), with that TTFT",
                "itl": "vLLM's first gap is the one between the role and the first token",
            },
        ),
        AgreementCase(
            name="10 requests/s at a server that does 2, one at a time (vllm#54101)",
            script=Script(ttft_s=0.1, gaps_s=(0.05,)),
            requests=8 * scale,
            concurrency=1,
            output_tokens=9,
            rate_per_s=10.0,
            differs={
                "ttft": "vLLM's clock starts when a place is free; here at the scheduled moment, waiting included",
                "e2e": "the same",
                **dict.fromkeys(RATES, "vLLM's window begins a gap before its first request; here with the request"),
            },
        ),
    ]
