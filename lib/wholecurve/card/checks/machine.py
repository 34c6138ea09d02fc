"""The machine and the client: were they the same throughout, can the numbers be true, and who was measured."""

from wholecurve.card.ceilings import kept_rounds
from wholecurve.card.checks.check import Check, Rule
from wholecurve.card.facts import RunFacts
from wholecurve.card.wording import count, names, places, span, where
from wholecurve.curves.gates.one_curve import LAG_SHARE
from wholecurve.runs.bounds import BOUNDED
from wholecurve.runs.ceilings import rounds_of

# Ceilings of one machine that differ by more were taken while something else ran on it.
_UNSTEADY = 0.1
# Share of a core below which a contender that waits leaves the processor to the one that is measured.
_IDLE_SHARE = 0.05

_BOUNDS = Rule("Bounds", "no measurement is above what the measured ceilings allow the model")
_STEADY = Rule(
    "Steady machine", f"ceilings of the machine, before, between and after, differ by at most {100 * _UNSTEADY:.0f} %"
)
_LAG = Rule(
    "Client lag", f"requests leave at most {100 * LAG_SHARE:.0f} % of a TPOT late; more, and the client is measured"
)
_IDLE = Rule("Idle contenders", f"whoever waits uses at most {100 * _IDLE_SHARE:.0f} % of a core, or is stopped")


def bounds(facts: RunFacts) -> Check | None:
    if not facts.bounds:
        return None
    if facts.ceilings is None:
        return _BOUNDS.not_checked("ceilings were not measured")
    if facts.above:
        return _BOUNDS.flags(f"{count(len(facts.above), 'measurement')} above: {names(facts.above, 2)}")
    shares = []
    for workload, frame in facts.bounds.items():
        limits = frame.set_index("load")
        for row in facts.of(workload=workload):
            for column in BOUNDED[workload]:
                if row.get(column) is not None and row["load"] in limits.index:
                    shares.append((row[column] / limits[column][row["load"]], row))
    if not shares:
        return _BOUNDS.not_checked("no point has a bound")
    most, row = max(shares, key=lambda found: found[0])
    text = f"the highest of {count(len(shares), 'measurement')} is {100 * most:.0f} % of its bound ({places([row])})"
    if facts.above_kept:
        rates = (one["read_bytes_per_s"] / 1e9 for one in (facts.ceilings, *kept_rounds(facts.ceilings)))
        best, *kept = rates
        text += (
            f"; but {len(facts.above_kept)} are above it by the rounds that keep their raw trials (at most "
            f"{max(kept):.1f} GB/s read): it holds only by a round of {best:.1f} GB/s that keeps none"
        )
    return _BOUNDS.holds(not facts.above_kept, text)


def steady(facts: RunFacts) -> Check:
    if facts.ceilings is None:
        return _STEADY.not_checked("ceilings were not measured")
    rounds = rounds_of(facts.ceilings)
    if len(rounds) < 2:
        return _STEADY.not_checked("ceilings were measured once, so a drift would not be seen")
    read = [one["read_bytes_per_s"] / 1e9 for one in rounds]
    rate = [one["gemm_flops_per_s"] / 1e9 for one in rounds]
    text = f"{len(rounds)} times: {span(read, 1)} GB/s read, {span(rate, 0)} GFLOP/s"
    if untold := len(rounds) - len(kept_rounds(facts.ceilings)):
        text += f"; {untold} of them keep no raw trials"
    return _STEADY.holds(max(max(read) / min(read), max(rate) / min(rate)) <= 1 + _UNSTEADY, text)


def client_lag(facts: RunFacts) -> Check:
    known = [row for row in facts.rows if row.get("client_lag_ms") is not None and row.get("tpot_p50_ms")]
    if not known:
        return _LAG.not_checked("no point has both a lag and a TPOT")
    share = {row["order"]: row["client_lag_ms"] / row["tpot_p50_ms"] for row in known}
    slow = [row for row in known if share[row["order"]] > LAG_SHARE]
    worst = max(known, key=lambda row: share[row["order"]])
    most = 100 * share[worst["order"]]
    text = f"median at most {most:.2g} % of a TPOT ({worst['client_lag_ms']:.2g} ms; {where(worst)})"
    tails = [row[name] for row in facts.rows if row.get(name := "client_loop_delay_p99_ms") is not None]
    text += f"; event loop p99 at most {max(tails):.2g} ms" if tails else "; the event loop was not sampled"
    return _LAG.holds(not slow, text + (f"; above at {count(len(slow), 'point')}" if slow else ""))


def idle(facts: RunFacts) -> Check | None:
    if len(facts.contenders) < 2:
        return None
    shares: dict[str, float] = {}
    stopped = set()
    for row in facts.rows:
        found = (row.get("settings") or {}).get("idle") or row.get("idle")
        if isinstance(found, dict) and found.get("cpu_share") is not None:
            shares[row["contender"]] = max(shares.get(row["contender"], 0.0), found["cpu_share"])
            stopped |= {row["contender"]} if found.get("stopped") else set()
    if not shares:
        return _IDLE.not_checked("what contenders used while they waited was not recorded")
    busy = [name for name, share in shares.items() if share > _IDLE_SHARE and name not in stopped]
    text = f"{span((100 * share for share in shares.values()), 0)} % of a core"
    text += f"; stopped while others were measured: {names(sorted(stopped))}" if stopped else ""
    return _IDLE.holds(not busy, text + (f"; not stopped: {names(busy)}" if busy else ""))
