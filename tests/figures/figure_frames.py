"""Synthetic frames for the tests of the figures, deterministic, with the columns of tidy points."""

import numpy as np
import pandas as pd


def decode_points(factors, loads=(1, 2, 4, 8, 16), repeats=3, kind="cpu", devices=1, noise=0.02, seed=0, **extra):
    """Rows of contenders whose speed falls with the load; `factors` maps a name to its factor on speed."""
    random = np.random.default_rng(seed)
    rows = []
    for name, factor in factors.items():
        for load in loads:
            for repeat in range(repeats):
                speed = 22 * factor / (1 + load / 6) * np.exp(random.normal(0, noise))
                rows.append(
                    {
                        "contender": name, "workload": "decode", "load_kind": "concurrency", "load": load,
                        "repeat": repeat, "devices": devices, "device_kind": kind,
                        "source": f"measured ({kind})", "decode_speed_tok_per_s": speed, "window": "steady",
                        "output_throughput_tok_per_s": 0.95 * speed * load * devices,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows).assign(**extra)


def prefill_points(factors, loads=(512, 2048, 8192, 32768), repeats=2, kind="gpu"):
    """Rows of a prefill workload."""
    frame = decode_points(factors, loads, repeats, kind)
    rate = (
        60000 * frame["load"] / (frame["load"] + 1500) * frame["contender"].map(factors) * (1 + 0.01 * frame["repeat"])
    )
    return frame.assign(
        workload="prefill", load_kind="step_tokens", input_throughput_tok_per_s=rate,
        decode_speed_tok_per_s=np.nan, output_throughput_tok_per_s=np.nan,
    )  # fmt: skip


def comparison(n=3):
    """A comparison as a document: direct rows, matched rows with refusals at the ends, one stated target."""
    loads, wide = [1, 2, 4, 8, 16], n >= 3

    def matched(load, estimate, refused=None):
        missing = refused is not None
        low, high = (estimate * 0.93, estimate * 1.07) if wide and not missing else (None, None)
        return {
            "load_a": None if missing else 1.4 * (load or 3), "load_b": load,
            "estimate": None if missing else estimate, "low": low, "high": high, "n": n, 
            "bracket_low": None if missing else 0.96 * estimate,
            "bracket_high": None if missing else 1.03 * estimate,
            "floor": None if missing else 0.85 * estimate,
            "refused": refused, "verdict": "not measured" if missing else "A ahead",
        }  # fmt: skip

    direct = [
        {
            "load_a": load, "load_b": load, "ratio": ratio, "low": 0.96 * ratio if wide else None,
            "high": 1.04 * ratio if wide else None, "n": n, "speed_ratio": 1.01 * ratio, "floor": None,
            "speed_low": 0.97 * ratio if wide else None, "speed_high": 1.05 * ratio if wide else None,
            "refused": None, "verdict": "A ahead",
        }
        for load, ratio in zip(loads, [1.12, 1.15, 1.22, 1.31, 1.38], strict=True)
    ]  # fmt: skip
    same_speed = [matched(1, 0, "faster than every measured point of A")]
    same_speed += [matched(load, 1.3 + 0.1 * load) for load in loads[1:4]]
    same_speed += [matched(16, 0, "slower than every measured point of A"), matched(None, 1.5)]
    same_throughput = [matched(load, 1.1 + 0.04 * load) for load in loads[1:]]
    return {
        "direct": direct,
        "same_speed": same_speed,
        "same_throughput": same_throughput,
        "a": "fast",
        "b": "slow",
    }
