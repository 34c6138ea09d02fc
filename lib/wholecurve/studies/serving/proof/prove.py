"""The proof of the client: measured against a server whose every moment is known, as a record with provenance."""

import resource
from collections.abc import Callable

from wholecurve.errors import UserError
from wholecurve.runs.provenance import collect, package_versions
from wholecurve.studies.serving.proof.cost import measure_flood, measure_idle
from wholecurve.studies.serving.proof.level import Level, measure_level

# Goes up when what is measured, or how, changes.
PROOF_VERSION = 1
# One stream, then 1,000 token events per second in a hundred and in a thousand streams, then ten times as many.
LEVELS = (
    Level(streams=1, gap_s=0.01, ttft_s=0.05, output_tokens=64, requests_per_stream=40),
    Level(streams=100, gap_s=0.1, ttft_s=0.2, output_tokens=64, requests_per_stream=4, ramp_s=5.0),
    Level(streams=1000, gap_s=1.0, ttft_s=1.0, output_tokens=16, requests_per_stream=2, ramp_s=15.0),
    Level(streams=1000, gap_s=1.0, ttft_s=1.0, output_tokens=16, requests_per_stream=2),
    Level(streams=1000, gap_s=0.1, ttft_s=1.0, output_tokens=128, requests_per_stream=2, ramp_s=10.0),
)
QUICK_LEVELS = (
    Level(streams=1, gap_s=0.01, ttft_s=0.02, output_tokens=16, requests_per_stream=10),
    Level(streams=100, gap_s=0.1, ttft_s=0.1, output_tokens=16, requests_per_stream=1, ramp_s=1.0),
    Level(streams=1000, gap_s=1.0, ttft_s=0.5, output_tokens=4, requests_per_stream=1, ramp_s=3.0),
)
EVENTS, QUICK_EVENTS = 1_000_000, 50_000
IDLE_S, QUICK_IDLE_S = 10.0, 1.0
_SPARE_FILES = 64  # beside one socket for each stream


def prove(quick: bool = False, on_part: Callable[[str], None] | None = None) -> dict:
    """Measure everything; the record. Minutes, or seconds when ``quick``, on a machine that does nothing else.

    ``on_part`` is told what is measured next. UserError where the machine allows fewer open files than streams.
    """
    levels, events = (QUICK_LEVELS, QUICK_EVENTS) if quick else (LEVELS, EVENTS)
    _allow_files(max(level.streams for level in levels) + _SPARE_FILES)
    tell = on_part or (lambda _: None)
    tell("the client while it waits")
    record = {
        "kind": "client proof",
        "proof_version": PROOF_VERSION,
        "provenance": {**collect(), "packages": package_versions(["wholecurve", "aiohttp", "uvloop", "orjson"])},
        "idle": measure_idle(QUICK_IDLE_S if quick else IDLE_S),
        "levels": [],
        "floods": [],
    }
    for level in levels:
        tell(f"{level.streams} streams, {level.token_events_per_s:g} token events/s, {level.scripted_s:.0f} s or more")
        record["levels"].append(measure_level(level, record["idle"]["client_core_share"]))
    for streams, chunks_per_write in ((100, 1), (100, 50), (1, 10_000)):
        tell(f"{events} token events in {streams} streams, {chunks_per_write} a write")
        record["floods"].append(measure_flood(events, streams, chunks_per_write))
    return record


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(f"{needed} open files are needed and {hard} are allowed here (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
