"""One level of the proof: so many streams at once from a script, measured by the client and by the server's record."""

from dataclasses import asdict, dataclass

from wholecurve.curves.metrics import reduce_trace
from wholecurve.errors import UserError
from wholecurve.studies.serving.load.kinds import ClosedLoad
from wholecurve.studies.serving.load.run import run_load
from wholecurve.studies.serving.load.turns import Session, Turn
from wholecurve.studies.serving.proof.fake_server import FakeServer
from wholecurve.studies.serving.proof.script import Script, jittered
from wholecurve.studies.serving.proof.truth import count_differences, deliveries_s, paired, spread_ms, true_trace

_PROMPT_TOKENS = 16
_METRICS = (
    "ttft_p50_ms", "ttft_p90_ms", "tpot_p50_ms", "tpot_p90_ms", "e2e_p50_ms", "e2e_p90_ms",
    "output_throughput_full_tok_per_s",
)  # fmt: skip


@dataclass(frozen=True)
class Level:
    """``streams`` requests at once; token events come ``gap_s`` apart on the mean in each, jittered by half."""

    streams: int
    gap_s: float
    ttft_s: float
    output_tokens: int
    requests_per_stream: int
    ramp_s: float = 0.0  # over which the first requests start

    @property
    def token_events_per_s(self) -> float:
        """While all streams are in their decode phase."""
        return self.streams / self.gap_s

    @property
    def scripted_s(self) -> float:
        """What the script alone takes, without the client: a lower bound of the measurement's length."""
        request_s = self.ttft_s + (self.output_tokens - 1) * self.gap_s
        return self.ramp_s + self.requests_per_stream * request_s

    def script(self) -> Script:
        """The reply of every request. The gaps' mean is ``gap_s`` exactly."""
        return Script(ttft_s=self.ttft_s, gaps_s=jittered(self.gap_s), usage="none")

    def sessions(self) -> list[Session]:
        """One turn each; the request's body carries its name, by which the server's record is found."""
        names = [f"{self.streams}-{number}" for number in range(self.streams * self.requests_per_stream)]
        return [Session(name, (labelled_turn(name, self.output_tokens),)) for name in names]


def labelled_turn(name: str, output_tokens: int) -> Turn:
    """A request that the server's record knows by ``name``."""
    return Turn(name, list(range(_PROMPT_TOKENS)), output_tokens, extra_body={"label": name})


def measure_level(level: Level, idle_core_share: float) -> dict:
    """Run one level; the record of it, every number beside the server's own.

    ``client`` and ``server`` are the same reduction of the client's traces and of the server's record, and
    ``client_minus_server`` their difference, also as a share. ``delivery`` is per chunk, from the write to the stamp;
    ``request`` from the scheduled moment to the server's first byte of the request; ``server_late`` is the server's
    own error against its script. CPU per token event is everything that the client used, its requests included, less
    ``idle_core_share`` for the length of the load, which it uses without any event.
    """
    script = level.script()
    with FakeServer(script) as server:
        cpu_before_s = server.cpu_s()
        result = run_load(server.endpoint(), level.sessions(), ClosedLoad(level.streams, level.ramp_s))
        server_cpu_s = server.cpu_s() - cpu_before_s
        replies = server.replies()
    pairs, began_s = paired(result.traces, replies), result.began_monotonic_s
    truth = reduce_trace([true_trace(pair, began_s) for pair in pairs], level.streams)
    client = reduce_trace(result.traces, level.streams)
    counts = count_differences(pairs)
    if not counts["chunks"]:
        first = result.traces[0]
        raise UserError(
            f"level of {level.streams} streams: no token came; its first request {first.outcome}: {first.error}"
        )
    return {
        "level": asdict(level),
        "scripted": _scripted(level, script),
        "client": {name: client[name] for name in _METRICS},
        "server": {name: truth[name] for name in _METRICS},
        "client_minus_server": _differences(client, truth),
        "n_completed": client["n_completed"],
        "n_failed": client["n_failed"],
        "not_sent": len(result.not_sent),
        "counts": counts,
        "delivery": spread_ms(deliveries_s(pairs, began_s)),
        "request": spread_ms([reply.first_byte_s - began_s - trace.scheduled_s for trace, reply in pairs]),
        "server_late": spread_ms([late for _, reply in pairs for late in reply.lateness_s()]),
        "server_cpu_s": server_cpu_s,
        "lag": result.lag,
        "client_cpu_us_per_token_event": 1e6
        * (result.lag["cpu_s"] - idle_core_share * result.lag["wall_s"])
        / counts["chunks"],
        "client_core_share": result.lag["cpu_s"] / result.lag["wall_s"],
        "token_events_per_s": counts["chunks"] / result.lag["wall_s"],
    }


def _scripted(level: Level, script: Script) -> dict[str, float]:
    """What a client without any cost, on a server without any, would measure."""
    decode_s = sum(script.gap_s(chunk) for chunk in range(1, level.output_tokens))
    return {
        "ttft_ms": 1e3 * level.ttft_s,
        "tpot_ms": 1e3 * decode_s / (level.output_tokens - 1),
        "e2e_ms": 1e3 * (level.ttft_s + decode_s),
    }


def _differences(client: dict, server: dict) -> dict[str, dict[str, float]]:
    known = [name for name in _METRICS if client[name] is not None and server[name] is not None]
    return {name: {"absolute": client[name] - server[name], "share": client[name] / server[name] - 1} for name in known}
