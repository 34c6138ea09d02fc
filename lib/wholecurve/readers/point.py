"""What the points of all load generators have in common: latencies, decode speed, names, a server of unknown size."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from wholecurve.curves.metrics import percentile
from wholecurve.errors import UserError
from wholecurve.readers.found import Notes
from wholecurve.readers.record import Record

PERCENTILES = ("p50", "p90", "p99")
LATENCIES = ("ttft", "tpot", "e2e", "itl")
SAME_NAMES = {part: part for part in PERCENTILES}

# A load generator sees a server, not its devices.
UNSTATED_DEVICES = {"devices": 1, "device_kind": "server", "source": "measured (device unstated)", "window": "full"}


def short_model(name: str) -> str:
    """A model's name without the organisation before it."""
    return name.strip().rstrip("/").rpartition("/")[2]


def lengths(input_tokens: float, output_tokens: float | None, input_std: float = 0.0, output_std: float = 0.0) -> str:
    """A workload by the lengths that were asked for, as "550 ± 150 in / 150 out"."""
    named = f"{_length(input_tokens, input_std)} in"
    return named if output_tokens is None else f"{named} / {_length(output_tokens, output_std)} out"


def _length(mean: float, std: float) -> str:
    return f"{mean:g} ± {std:g}" if std else f"{mean:g}"


def known(columns: Mapping[str, object]) -> dict:
    """The columns that have a value: what a file does not say is absent from a point."""
    return {name: value for name, value in columns.items() if value is not None}


def latencies_of_requests(name: str, values_ms: Iterable[float | None]) -> dict[str, float]:
    """Columns name_p50_ms … of one value per request; a percentile that too few requests carry is absent."""
    values = list(values_ms)
    return known({f"{name}_{part}_ms": percentile(values, int(part[1:])) for part in PERCENTILES})


def latencies_of_statistics(
    name: str, part: Record, factor: float, notes: Notes, statistics: Mapping[str, str] = SAME_NAMES
) -> dict[str, float]:
    """Columns name_p50_ms … of the statistics in ``part``, times ``factor``; one that is missing or null is absent.

    UserError for one that is there and not a finite number above 0. A gap of 0 is left out and named: it says that
    chunks arrived together, and a latency of 0 would be none.
    """
    found = {}
    for percentile_name, statistic in statistics.items():
        column = f"{name}_{percentile_name}_ms"
        if name == "itl" and part.has(statistic) and part.raw(statistic) == 0:
            notes.leave_out(f"{column}: 0, several chunks arrive together", part.where)
        elif part.has(statistic):
            found[column] = factor * part.positive(statistic)
    return found


def with_decode_speed(point: Mapping, speed_from: str = "median TPOT") -> dict:
    """The point with decode speed 1/p50(TPOT) and, of the slow side, 1/p90(TPOT), where its TPOT is known."""
    made = dict(point)
    if "tpot_p50_ms" in point:
        made |= {"decode_speed_tok_per_s": 1000 / point["tpot_p50_ms"], "speed_from": speed_from}
    if "tpot_p90_ms" in point:
        made["decode_speed_p90_tok_per_s"] = 1000 / point["tpot_p90_ms"]
    return made


def check_order(point: Mapping, where: str) -> None:
    """UserError where a higher percentile is lower than a lower one: such numbers are not of one distribution."""
    for name in LATENCIES:
        found = [(part, point[f"{name}_{part}_ms"]) for part in PERCENTILES if f"{name}_{part}_ms" in point]
        for (low, smaller), (high, larger) in pairwise(found):
            if larger < smaller:
                raise UserError(
                    f"{where}: {high} of {name.upper()} ({larger:g} ms) is below its {low} ({smaller:g} ms); "
                    "percentiles that rise are needed"
                )
