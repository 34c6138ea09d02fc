"""From specs and rates on the command line to the plane of cost and latency."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from wholecurve.curves.costs.plane import CostPlane, cost_plane
from wholecurve.curves.costs.rates import rates_for
from wholecurve.errors import UserError
from wholecurve.files import published_folder
from wholecurve.readers.rates import read_rates
from wholecurve.readers.specs import named_apart, read_sources


def cost_of_specs(
    specs: Sequence[str],
    rate: float | None = None,
    rates: Path | None = None,
    tier: str | None = None,
    as_of: str | None = None,
    at_latency_ms: Sequence[float] = (),
    percentile: int = 90,
    gpus: int | None = None,
) -> CostPlane:
    """Costs of every contender of the specs, at one ``rate`` [USD per device-hour] or by a file of rates.

    With a ``tier`` and no file, the published rates are taken. Contenders of one name in two specs carry their specs.
    Raises UserError for specs or rates that cannot be read, and for a rate and a file at once.
    """
    apart = named_apart([source for spec in specs for source in read_sources(spec, gpus)])
    if len({source.contender for source in apart}) < len(apart):
        raise UserError(f"{', '.join(specs)}: a contender is given twice")
    points = pd.concat([source.points for source in apart], ignore_index=True)
    table = read_rates(rates or published_folder() / "rates.csv") if rates or tier else None
    return cost_plane(points, rates_for(points, rate, table, tier, as_of), at_latency_ms, percentile)
