"""The figures of the audit of published claims, and the frames behind them."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from wholecurve.curves.claims import Audit, Published, audit, baseline_handicap, framing_table, published_ratios
from wholecurve.curves.claims.nouns import Number
from wholecurve.curves.costs.plane import CostPlane, cost_plane
from wholecurve.curves.costs.rates import rates_for
from wholecurve.errors import UserError
from wholecurve.figures.audit import baseline_handicap_curve, decode_identity, prefill_over_baselines
from wholecurve.figures.audit_framings import FRAMINGS, framing_plot
from wholecurve.figures.audit_rows import occupancy_plot, verdict_plot
from wholecurve.figures.cost import save_cost_figure
from wholecurve.figures.foreign_figure import foreign_figure
from wholecurve.figures.kernel_figures import KERNEL_SOURCE, kernel_figure
from wholecurve.figures.run_figures import RunFigure, write_figure
from wholecurve.files import published_folder
from wholecurve.readers import read_file
from wholecurve.readers.published import read_claims
from wholecurve.readers.rates import read_rates

PATCHED, AS_PUBLISHED = "DeepInfer (own patched run)", "DeepInfer (published figure)"
FOREIGN_SOURCE = "Result files of vLLM, SGLang, GuideLLM and AIPerf (data/foreign); llama.cpp server on one CPU core"
NOT_COMPARED = "TTFT|completion time|requests in flight"


def save_published_figures(folder: str | Path) -> list[Path]:
    """Write every figure of what is committed in `data` beside recorded runs to `folder`; returns the PNGs."""
    published, folder = read_claims(published_folder()), Path(folder)
    paths = [
        write_figure(figure, folder, _source(published, figure.data["document"]))
        for figure in published_figures(published)
    ]
    paths.append(write_figure(foreign_figure(foreign_folder()), folder, FOREIGN_SOURCE))
    paths.append(write_figure(kernel_figure(), folder, KERNEL_SOURCE))
    written = save_cost_figure(published_costs(), folder, source="Points: InferenceX (data/published)")
    return paths + [path for path in written if path.suffix == ".png"]


def foreign_folder() -> Path:
    """The result files of several tools for one server that come with a checkout."""
    return published_folder().parent / "foreign" / "llama-server-smollm2"


def published_costs() -> CostPlane:
    """The FP8 curves of `data/published/inferencex_points.csv` at the neocloud rates of April 2026."""
    points = read_file(published_folder() / "inferencex_points.csv").points
    curves = points[(points["precision"] == "fp8") & points.groupby("contender")["load"].transform("nunique").gt(2)]
    curves = curves.sort_values(["contender", "load"]).reset_index(drop=True)
    rates = rates_for(curves, rows=read_rates(published_folder() / "rates.csv"), tier="neocloud", as_of="2026-04-30")
    return cost_plane(curves, rates, at_latency_ms=[20_000])


def published_figures(published: Published) -> Iterator[RunFigure]:
    """All figures of the audit of the texts in `data/published`."""
    yield from _deepinfer_figures(published)
    framings = headline_framings(published)
    yield RunFigure(
        "published_framings",
        "What the published multipliers hold equal",
        "Every published multiplier of throughput or speed, by what is held equal between the two sides. Ranges are "
        "over the loads that the text prints. Times, where less is better, and multiples of requests in flight are "
        "left out. Between unlike models, metrics or machines no multiplier can be set against another.",
        f"{len(framings)} published multipliers in {framings['framing'].nunique()} framings: "
        + "; ".join(f"{row.who} over {row.against}, {row.framing}: {row.printed}" for row in framings.itertuples()),
        lambda ax: framing_plot(framings, ax),
        framings,
    )
    sides = occupancy_rows(published)
    yield RunFigure(
        "published_occupancy",
        "How much of concurrency × speed is there as throughput",
        "Printed total throughput against concurrency times printed median speed per user. Were all requests always "
        "generating at the median speed, the two would be equal. Why they are not (prefill, waiting, tools, ramp and "
        "drain, a slow tail) is not in the text. The baseline is a composite, which the text says.",
        "Printed throughput over concurrency times speed: "
        + "; ".join(f"{row.who} {row.precision} {row.occupancy:.2f}" for row in sides.itertuples()),
        lambda ax: occupancy_plot(sides, ax),
        sides,
    )
    counts = verdict_counts(audit(published))
    yield RunFigure(
        "published_verdicts",
        "Verdicts on the claims of four published texts",
        "How many claims of each text have which verdict. Confirmed means that a number follows from other printed "
        "numbers, not that it was measured well; a claim has the worst verdict of the checks that can decide it.",
        "; ".join(
            f"{label}: " + ", ".join(f"{row.claims} {row.verdict}" for row in rows.itertuples() if row.claims)
            for label, rows in counts.groupby("label", sort=False)
        ),
        lambda ax: verdict_plot(counts, ax),
        counts,
    )


def _deepinfer_figures(published: Published) -> Iterator[RunFigure]:
    ratios = published_ratios(published)
    prefill = ratios[ratios["load_kind"] == "step_tokens"]
    decode = ratios[ratios["load_kind"] == "requests_per_gpu"]
    yield RunFigure(
        "published_prefill_baselines",
        "Whether the prefill advantage grows depends on the baseline",
        "Backboard over DeepInfer, from two tables of one text: against its own patched run, and against the figure "
        "that DeepInfer's makers published, which the text calls approximate. Bars are what the printed digits allow, "
        "not an interval over runs: every point is a single run.",
        "Backboard's prefill ratio over step size. "
        + "; ".join(f"over {name}: {_series(rows)}" for name, rows in prefill.groupby("against", sort=False)),
        lambda ax: prefill_over_baselines(prefill, ax),
        prefill,
    )
    yield RunFigure(
        "published_decode_identity",
        "Decode throughput and speed: one measurement, shown twice",
        "With a fixed number of requests that all generate all the time, throughput is concurrency times speed on both "
        "sides, so that the two ratios cannot differ. Bars are what the printed digits allow.",
        "Backboard over DeepInfer by requests per GPU. "
        + "; ".join(f"{name}: {_series(rows)}" for name, rows in decode.groupby("metric", sort=False)),
        lambda ax: decode_identity(decode, ax),
        decode,
    )
    handicap = baseline_handicap(published, PATCHED, AS_PUBLISHED).assign(document=prefill["document"].iloc[0])
    shares = handicap.rename(columns={"baseline_run_over_published": "ratio"})
    yield RunFigure(
        "published_baseline_handicap",
        "How fast the patched baseline ran, against its published figure",
        "The quotient of the two printed ratios at each step: Backboard drops out of it, if it is the same measurement "
        "in both. Other machines, and reading off a figure, are in that share too, so that not all of it need be the "
        "patch. Bars are what the printed digits allow.",
        f"The patched DeepInfer run over its published figure by step size: {_series(shares)}.",
        lambda ax: baseline_handicap_curve(
            handicap, ax, run="patched DeepInfer run", as_published="DeepInfer's published figure"
        ),
        handicap,
    )


def headline_framings(published: Published) -> pd.DataFrame:
    """The rows of `framing_table` that compare throughput or speed, in the order of `FRAMINGS`, one model together.

    Times, where less is better, and multiples of requests in flight, from which throughput follows, are left out.
    """
    table = framing_table(published)
    table = table[~table["metric"].str.contains(NOT_COMPARED)]
    models = list(dict.fromkeys(zip(table["framing"], table["model"])))
    models.sort(key=lambda pair: list(FRAMINGS).index(pair[0]))
    place = [models.index(pair) for pair in zip(table["framing"], table["model"])]
    order = pd.Series(place, index=table.index).sort_values(kind="stable").index
    return table.loc[order].reset_index(drop=True)


def occupancy_rows(published: Published) -> pd.DataFrame:
    """One row for each side of every occupancy check of the claims, each pair of values once.

    Columns: document, who, precision, concurrency, speed [tok/s/user], product (concurrency × speed) and throughput
    [tok/s], occupancy (throughput over product) with low and high from the printed digits, composite (a baseline of
    which the text says that no single configuration reaches both). UserError where no claim asks for the check.
    """
    rows = {}
    for check in (check for claim in published.claims for check in claim.checks if check.name == "occupancy"):
        given = check.arguments
        for side, (speed, throughput) in enumerate(zip(given["speeds"], given["throughputs"], strict=True)):
            composite = side > 0 and given.get("says") is not None
            rows[speed.id, throughput.id] = _side(given["concurrency"], speed, throughput, composite)
    if not rows:
        raise UserError("no claim asks for the check 'occupancy', so that there are no pairs of speed and throughput")
    return pd.DataFrame(list(rows.values()))


def verdict_counts(found: Audit) -> pd.DataFrame:
    """One row for each document and verdict: document, label (title, publisher, kind), verdict, claims."""
    rows = []
    for id, document in found.published.documents.items():
        about = ", ".join(text for text in (document.publisher, document.kind) if text)
        label = f"{document.title or id} ({about})" if about else document.title or id
        given = [audited.verdict for audited in found.claims if audited.claim.document == id]
        for verdict in found.counts:
            rows.append({"document": id, "label": label, "verdict": verdict, "claims": given.count(verdict)})
    return pd.DataFrame(rows)


def _side(concurrency: Number, speed: Number, throughput: Number, composite: bool) -> dict:
    product = concurrency.estimate * speed.estimate
    share = throughput.estimate / product
    return {
        "document": speed.document,
        "who": speed.who,
        "precision": speed.precision,
        "concurrency": float(concurrency.estimate.value),
        "speed": float(speed.estimate.value),
        "product": float(product.value),
        "throughput": float(throughput.estimate.value),
        "occupancy": float(share.value),
        "low": float(share.interval.low),
        "high": float(share.interval.high),
        "composite": composite,
    }


def _series(rows: pd.DataFrame) -> str:
    return ", ".join(f"{row.ratio:.2f}× at {row.load:,.0f}" for row in rows.sort_values("load").itertuples())


def _source(published: Published, ids: pd.Series) -> str:
    """Where the printed numbers stand: the documents by title, publisher and date."""
    texts = []
    for id in dict.fromkeys(ids):
        document = published.documents[id]
        about = ", ".join(text for text in (document.publisher, document.date) if text)
        texts.append(f"“{document.title.rstrip('.')}” ({about})")
    return f"Printed digits of {'; '.join(texts)}. Recomputed; nothing was run."
