"""Curves for tests: from numbers, and from the closed form speed = s0/(1 + c/c0), throughput = c × speed."""

import numpy as np
import pandas as pd

from wholecurve.curves import Curve

GRID = tuple(2.0**k for k in range(8))  # 1 … 128


def frame(name, loads, speeds, throughputs, repeats=None, **columns):
    """Point rows of one contender; one repeat unless ``repeats`` has one number a row."""
    return pd.DataFrame(
        {
            "contender": name,
            "workload": "decode",
            "load_kind": "concurrency",
            "load": loads,
            "repeat": 1 if repeats is None else repeats,
            "devices": 1,
            "device_kind": "gpu",
            "source": "measured (gpu)",
            "window": "steady",
            "decode_speed_tok_per_s": speeds,
            "output_throughput_tok_per_s": throughputs,
        }
    ).assign(**columns)


def curve(name, loads, speeds, throughputs, **columns):
    """The curve of ``frame``."""
    return Curve.from_points(frame(name, loads, speeds, throughputs, **columns))


def analytic(name, s0, c0, loads=GRID):
    """The closed form on a grid of loads, one repeat."""
    loads = np.asarray(loads, float)
    speeds = s0 / (1 + loads / c0)
    return curve(name, loads, speeds, loads * speeds)


def noisy(name, s0, c0, rng, sigma, repeats, loads=GRID):
    """The closed form with independent log-normal noise on both axes of every (load, repeat)."""
    load = np.repeat(loads, repeats)
    speed = s0 / (1 + load / c0) * np.exp(sigma * rng.standard_normal(len(load)))
    throughput = load * s0 / (1 + load / c0) * np.exp(sigma * rng.standard_normal(len(load)))
    return curve(name, load, speed, throughput, repeats=np.tile(np.arange(1, repeats + 1), len(loads)))
