"""How uncertain a matched multiplier is: the bootstrap over runs, and over the requests of each run.

The unit of replication is a run, a fresh server: all loads of one repeat move together, and a repeat of A moves with
the same repeat of B. Drawing runs with replacement fails for the three to five runs that a study has: a percentile
interval then ends at the extreme runs at the latest and covers at most 1 - 2^(1-n) of the time (75 % for n = 3, 94 %
for n = 5), also with expanded percentiles (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", The
American Statistician 69, section 5.3). So a resample weights the runs by normal multipliers instead of counts
(Præstgaard and Wellner 1993, "Exchangeably Weighted Bootstraps of the General Empirical Process", Annals of
Probability 21), divided by a common chi deviate: for anything linear in the logarithms, the percentiles of these
resamples *are* Student's t interval over paired runs, for every n. The curves bend, and the percentiles follow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wholecurve.curves.curve import Curve
from wholecurve.curves.interpolate import Axis
from wholecurve.curves.resampled import ResampledCurves
from wholecurve.errors import UserError

RESAMPLES, SEED = 10_000, 20_260_101
AXES: tuple[Axis, Axis] = ("speed", "throughput")

# Resampled versions of the requests of one point, from which every resample of runs takes one.
_POOL = 400


@dataclass(frozen=True)
class RequestSample:
    """The completed requests of one point: TPOT [s] (NaN where undefined), output tokens, E2E [s]; one each."""

    tpot_s: np.ndarray
    output_tokens: np.ndarray
    e2e_s: np.ndarray


# Requests of a whole curve, by (load, repeat).
Requests = Mapping[tuple[float, int], RequestSample]


class Resampler:
    """Draws resamples of curves. The same instance moves the same repeats of every curve in the same way."""

    def __init__(self, repeats: list[int], resamples: int = RESAMPLES, seed: int = SEED):
        self.repeats = repeats
        self._random = np.random.default_rng(seed)
        half = -(-resamples // 2)
        normals, chances = self._random.standard_normal((half, len(repeats))), self._random.random(half)
        # Every deviation also occurs with the opposite sign, so that what is linear gets a symmetric interval.
        self._normals = np.concatenate([normals, -normals])[:resamples]
        self._chances = np.concatenate([chances, chances])[:resamples]

    def curves(self, curve: Curve, requests: Requests | None = None) -> ResampledCurves:
        """Resamples of the mean curve; with ``requests``, the requests of every run are drawn again as well.

        Run-to-run spread already contains the spread between requests, so the second level can only widen an
        interval. Raises UserError where ``requests`` lacks a point of the curve.
        """
        tables = {axis: np.log(self._table(curve, axis)) for axis in AXES}
        moved = {axis: self._runs(table) for axis, table in tables.items()}
        if requests is not None:
            loads = np.unique(curve.points["load"])
            for row, load in enumerate(loads):
                shift = self._requests(curve, requests, load)
                for column, axis in enumerate(AXES):
                    moved[axis][:, row] += shift[:, column]
        return ResampledCurves(np.log(np.unique(curve.points["load"]).astype(float)), moved)

    def _table(self, curve: Curve, axis: Axis) -> np.ndarray:
        """Values [loads, repeats], NaN where a repeat lacks a load."""
        table = curve.points.pivot(index="load", columns="repeat", values=axis)
        return table.reindex(columns=self.repeats).to_numpy(float)

    def _runs(self, table: np.ndarray) -> np.ndarray:
        """Resampled means [resamples, loads] of logarithms [loads, repeats]."""
        counts = np.isfinite(table).sum(axis=1)
        mean = np.nanmean(table, axis=1)
        deviation = np.nan_to_num(table - mean[:, None])
        standard_error = deviation / np.sqrt(counts * np.maximum(counts - 1, 1))[:, None]
        return mean + self._normals @ standard_error.T * self._student_scale(counts)

    def _student_scale(self, counts: np.ndarray) -> np.ndarray:
        """sqrt(df / chi²) [resamples, loads] with df = runs - 1; loads with other counts share the chance."""
        # Imported where it is needed, to keep every analysis command quick to start.
        from scipy.special import chdtri

        scales = {n: np.sqrt((n - 1) / chdtri(n - 1, self._chances)) if n > 1 else 0.0 for n in set(counts.tolist())}
        return np.stack([np.broadcast_to(scales[n], self._chances.shape) for n in counts.tolist()], axis=1)

    def _requests(self, curve: Curve, requests: Requests, load: float) -> np.ndarray:
        """Mean over the runs at one load of the log deviations [resamples, 2] that drawing requests again gives."""
        repeats = curve.points.loc[curve.points["load"] == load, "repeat"]
        total = np.zeros((len(self._chances), 2))
        for repeat in repeats:
            if (load, repeat) not in requests:
                raise UserError(f"{curve.name}, load {load:g}, repeat {repeat}: its requests are missing")
            pool = _request_pool(requests[load, repeat], self._random)
            total += pool[self._random.integers(len(pool), size=len(total))]
        return total / len(repeats)


def percentile_interval(
    log_ratios: np.ndarray, estimate: float, confidence: float
) -> tuple[float | None, float | None, float]:
    """(low, high, share outside) of resampled log ratios [resamples].

    A resample that left the overlap is infinite and counts as beyond the end on its side; NaN, where both curves
    left it on the same side, counts as beyond both. An end among them is open: low = 0 or high = inf. The interval
    contains the estimate.
    """
    outside = float(np.mean(~np.isfinite(log_ratios)))
    skip = math.floor(0.5 * (1 - confidence) * (len(log_ratios) - 1) + 1e-9)  # 49.999… is 50
    unknown = np.isnan(log_ratios)
    low = np.partition(np.where(unknown, -np.inf, log_ratios), skip)[skip]
    high = np.partition(np.where(unknown, np.inf, log_ratios), -1 - skip)[-1 - skip]
    return min(float(np.exp(low)), estimate), max(float(np.exp(high)), estimate), outside


def _request_pool(sample: RequestSample, random: np.random.Generator) -> np.ndarray:
    """Log deviations [pool, 2] of decode speed and throughput when the requests of a point are drawn again.

    Speed is 1 / median TPOT. Throughput is concurrency x tokens / E2E by Little's law, so it moves with the ratio
    of the two sums.
    """
    tpot, tokens, e2e = (np.asarray(v, float) for v in (sample.tpot_s, sample.output_tokens, sample.e2e_s))
    drawn = random.integers(len(tokens), size=(_POOL, len(tokens)))
    drawn = drawn[np.isfinite(tpot[drawn]).any(axis=1)]  # a draw of undefined TPOTs alone has no speed
    median = np.median if np.isfinite(tpot).all() else np.nanmedian  # several times slower
    speed = median(tpot) / median(tpot[drawn], axis=1)
    throughput = tokens[drawn].sum(axis=1) / e2e[drawn].sum(axis=1) * (e2e.sum() / tokens.sum())
    return np.log(np.stack([speed, throughput], axis=1))
