"""Which rate and which all-in power belong to a contender: stated by the user, or looked up by its hardware."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from wholecurve.errors import UserError

ASSUMED = "assumed by the user"


@dataclass(frozen=True)
class Rate:
    """What one device of a contender costs and draws.

    usd_per_device_hour, all_in_kw_per_device: None where not known. label: where the numbers come from. date: of
    that source, None for an assumption. missing: why there is no rate, None where there is one.
    """

    usd_per_device_hour: float | None
    all_in_kw_per_device: float | None
    label: str
    date: str | None = None
    missing: str | None = None


def rates_for(
    points: pd.DataFrame,
    usd_per_device_hour: float | None = None,
    rows: pd.DataFrame | None = None,
    tier: str | None = None,
    as_of: str | None = None,
) -> dict[str, Rate]:
    """One rate per contender of tidy ``points``, in their order.

    Either ``usd_per_device_hour`` holds for all (an assumption, per GPU or per machine as the points count), or
    ``rows`` of `read_rates` are searched for the device that the column ``hardware`` names, in ``tier``, newest date
    first, none after ``as_of`` (YYYY-MM-DD). What is not found is a Rate without a rate and with the reason. Raises
    UserError for a rate that is not a finite number above 0, for both ways at once, or for an unknown tier.
    """
    names = list(dict.fromkeys(points["contender"]))
    if usd_per_device_hour is not None and rows is not None:
        raise UserError("a rate and a file of rates were given; one of the two is needed")
    if usd_per_device_hour is not None:
        return dict.fromkeys(names, _assumed(usd_per_device_hour))
    if rows is None:
        return dict.fromkeys(names, _without("no rate was given"))
    in_tier = _tier(rows, tier)
    if as_of is not None:
        in_tier = in_tier[in_tier["date"] <= as_of]
    return {name: _looked_up(points[points["contender"] == name], in_tier, tier, as_of) for name in names}


def device_named(hardware: str, devices: Iterable[str]) -> list[str]:
    """Those of ``devices`` that occur in a hardware text as a word of their own: "NVIDIA H200 SXM" names h200."""
    words = set(re.findall(r"[a-z0-9]+", hardware.lower()))
    return [device for device in devices if device.lower() in words]


def _assumed(usd: float) -> Rate:
    if math.isnan(usd):
        raise UserError("the rate is NaN; dollars per device-hour above 0 are needed, or none where it is not known")
    if not 0 < usd < math.inf:
        raise UserError(
            f"the rate is {usd:g}; dollars per device-hour above 0 are needed (0 would make tokens free; leave it out)"
        )
    return Rate(float(usd), None, ASSUMED)


def _without(reason: str) -> Rate:
    return Rate(None, None, "no rate", missing=reason)


def _tier(rows: pd.DataFrame, tier: str | None) -> pd.DataFrame:
    tiers = sorted(rows["tier"].unique())
    if tier not in tiers:
        asked = "no tier was named" if tier is None else f"there is no tier {tier!r}"
        raise UserError(f"{asked}; the file of rates has {', '.join(map(repr, tiers))}")
    return rows[rows["tier"] == tier]


def _looked_up(points: pd.DataFrame, rows: pd.DataFrame, tier: str, as_of: str | None) -> Rate:
    kinds = sorted(points["device_kind"].unique())
    if kinds != ["gpu"]:
        return _without(f"rates of the file are per GPU, this contender is counted per {' and '.join(kinds)}")
    named = points["hardware"].dropna().unique() if "hardware" in points else []
    if not len(named):
        return _without("its points do not name the hardware")
    if len(named) > 1:
        return _without(f"its points name several kinds of hardware ({', '.join(map(str, named))})")
    found = device_named(str(named[0]), rows["device"].unique())
    if len(found) != 1:
        how = "more than one device" if found else "no device"
        before = f" on or before {as_of}" if as_of else ""
        return _without(f"{named[0]!r} names {how} that the file has in tier {tier!r}{before}")
    row = rows[rows["device"] == found[0]].sort_values("date").iloc[-1]
    usd, power = (None if pd.isna(row[c]) else float(row[c]) for c in ("usd_per_gpu_hour", "all_in_kw_per_gpu"))
    label = f"{found[0]}, {tier}, {row['date']}"
    missing = f"the file leaves the rate of {label} empty" if usd is None else None
    return Rate(usd, power, label, str(row["date"]), missing)
