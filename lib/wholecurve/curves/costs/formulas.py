"""What tokens cost: dollars, joules, and what a multiplier in throughput is worth. Never a cost without a rate.

Every throughput here is per device, every rate per device-hour. A missing value (None or NaN) gives None, never 0:
a cost of 0 would read as free. Zero, negative and infinite values are refused by name.
"""

import math

from wholecurve.errors import UserError

SECONDS_PER_HOUR = 3600


def dollars_per_million_tokens(usd_per_device_hour: float | None, tok_per_s_per_device: float | None) -> float | None:
    """rate × 10⁶ / (tok/s × 3600), in dollars."""
    rate, throughput = known("rate", usd_per_device_hour), known("throughput", tok_per_s_per_device)
    return None if rate is None or throughput is None else rate * 1e6 / (throughput * SECONDS_PER_HOUR)


def tokens_per_dollar(usd_per_device_hour: float | None, tok_per_s_per_device: float | None) -> float | None:
    """3600 × tok/s / rate."""
    rate, throughput = known("rate", usd_per_device_hour), known("throughput", tok_per_s_per_device)
    return None if rate is None or throughput is None else SECONDS_PER_HOUR * throughput / rate


def joules_per_token(power_w_per_device: float | None, tok_per_s_per_device: float | None) -> float | None:
    """W / (tok/s). The caller says which power it is: measured at the device, or all-in."""
    power, throughput = known("power", power_w_per_device), known("throughput", tok_per_s_per_device)
    return None if power is None or throughput is None else power / throughput


def tokens_per_s_per_megawatt(power_w_per_device: float | None, tok_per_s_per_device: float | None) -> float | None:
    """10⁶ × tok/s / W: what one megawatt of such devices delivers, in tok/s."""
    joules = joules_per_token(power_w_per_device, tok_per_s_per_device)
    return None if joules is None else 1e6 / joules


def capacity_gain(multiplier: float) -> float:
    """g - 1: how much more the same machines deliver at multiplier g (2.2 gives 1.2, "120 % more
    capacity")."""
    return _multiplier(multiplier) - 1


def cost_cut(multiplier: float) -> float:
    """1 - 1/g: how much less the same work costs at multiplier g (2.2 gives 0.545, "54.5 % lower cost")."""
    return 1 - 1 / _multiplier(multiplier)


def tokens_per_dollar_ratio(multiplier: float, rate_a: float | None, rate_b: float | None) -> float | None:
    """Tokens per dollar of A over B where A's devices deliver ``multiplier`` times as much: g × rate_B / rate_A.

    At equal rates it is the multiplier itself; None where a rate is missing.
    """
    g, a, b = _multiplier(multiplier), known("rate of A", rate_a), known("rate of B", rate_b)
    return None if a is None or b is None else g * b / a


def worth_text(multiplier: float, rate_a: float | None, rate_b: float | None) -> str:
    """Capacity gain and cost cut of a throughput multiplier, always both: '+120 % capacity, 54.5 % lower cost'.

    Where the rates differ, the cut is that of g × rate_B / rate_A, and both rates are named.
    """
    capacity = f"{100 * capacity_gain(multiplier):+.0f} % capacity"
    ratio = tokens_per_dollar_ratio(multiplier, rate_a, rate_b)
    if ratio is None:
        return f"{capacity}, cost not known (no rate)"
    cut = 100 * cost_cut(ratio)
    cost = f"{abs(cut):.1f} % {'lower' if cut >= 0 else 'higher'} cost"
    if math.isclose(rate_a, rate_b):
        return f"{capacity}, {cost}"
    return f"{capacity}, {cost} at {rate_a:.2f} and {rate_b:.2f} $/h"


def known(name: str, value: float | None) -> float | None:
    """The value as a float, None where it is missing (None or NaN); UserError for zero, negative or infinite."""
    if value is None or math.isnan(value):
        return None
    if value == 0:
        raise UserError(f"{name} is 0, which would make tokens free; leave out what is not known")
    if value < 0 or math.isinf(value):
        raise UserError(f"{name} is {value:g}; a finite number above 0 is needed")
    return float(value)


def _multiplier(multiplier: float) -> float:
    if not 0 < multiplier < float("inf"):
        raise UserError(f"a multiplier of {multiplier} has no capacity or cost; a finite number above 0 is needed")
    return multiplier
