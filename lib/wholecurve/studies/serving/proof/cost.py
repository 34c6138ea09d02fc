"""What the client costs when nothing comes, and that of a million token events none is lost or counted twice."""

import random
from collections.abc import Sequence

from wholecurve.studies.serving.load.kinds import ClosedLoad
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session
from wholecurve.studies.serving.proof.fake_server import FakeServer
from wholecurve.studies.serving.proof.level import labelled_turn
from wholecurve.studies.serving.proof.script import Script
from wholecurve.studies.serving.proof.truth import count_differences, paired

_SIZES = 97
_MOST_TOKENS = 4  # of a chunk, as with speculation: a chunk that is mistaken for another is noticed


def measure_flood(
    events: int, streams: int, chunks_per_write: int = 1, tokens_per_chunk: Sequence[int] | None = None
) -> dict:
    """``events`` token events as fast as server and client can, in ``streams`` at once; what was lost or doubled.

    The server tells usage with every chunk, so that each chunk's tokens are compared with those that were written.
    """
    draw = random.Random(events)
    sizes = tuple(tokens_per_chunk or (draw.randint(1, _MOST_TOKENS) for _ in range(_SIZES)))
    script = Script(tokens_per_chunk=sizes, chunks_per_write=chunks_per_write)
    chunks = -(-events // streams)
    tokens = sum(sizes[index % len(sizes)] for index in range(chunks))
    names = [f"flood-{number}" for number in range(streams)]
    with FakeServer(script) as server:
        sessions = [Session(name, (labelled_turn(name, tokens),)) for name in names]
        result = run_load(server.endpoint(usage_per_chunk=True), sessions, ClosedLoad(streams))
        server_cpu_s, replies = server.cpu_s(), server.replies()
    pairs = paired(result.traces, replies)
    counts = count_differences(pairs)
    return {
        "streams": streams,
        "chunks_per_write": chunks_per_write,
        "n_completed": sum(trace.completed for trace in result.traces),
        "n_failed": sum(not trace.completed for trace in result.traces),
        "token_sources": sorted({str(trace.token_source) for trace in result.traces}),
        "counts": counts,
        "client_cpu_us_per_token_event": 1e6 * result.lag["cpu_s"] / counts["chunks"],
        "client_token_events_per_cpu_s": counts["chunks"] / result.lag["cpu_s"],
        "token_events_per_s": counts["chunks"] / result.lag["wall_s"],
        "server_cpu_s": server_cpu_s,
        "blocked_writes": sum(reply.blocked_writes for reply in replies),
        "lag": result.lag,
    }


def measure_idle(seconds: float) -> dict:
    """What the client costs while one request waits: it watches its own event loop, whatever comes."""
    with FakeServer(Script(ttft_s=seconds)) as server:
        result = run_load(server.endpoint(), [Session("idle", (labelled_turn("idle", 1),))], ClosedLoad(1))
    return {"seconds": seconds, "client_core_share": result.lag["cpu_s"] / result.lag["wall_s"], "lag": result.lag}
