"""One server measured by four tools: the figure of `data/foreign`, from their own files."""

from pathlib import Path

import pandas as pd

from wholecurve.figures.curve import throughput_vs_speed
from wholecurve.figures.run_figures import RunFigure
from wholecurve.readers import read_collection

TOOLS = {"vllm": "vLLM", "sglang": "SGLang", "guidellm": "GuideLLM", "aiperf": "AIPerf"}


def foreign_points(folder: Path) -> pd.DataFrame:
    """The points of every tool in the folder of one server, the contender named after the tool."""
    frames = [read_collection([folder / name]).points()[0].assign(contender=tool) for name, tool in TOOLS.items()]
    # Every client asked for the same lengths; not every file states them.
    return pd.concat(frames, ignore_index=True).assign(workload="128 in / 64 out")


def foreign_figure(folder: Path) -> RunFigure:
    """Throughput against speed of one server as each tool measured it, in canonical metrics."""
    points = foreign_points(folder)
    ends = points.groupby("contender")["decode_speed_tok_per_s"].agg(["min", "max"])
    return RunFigure(
        "one_server_four_tools",
        "One server, four tools, one set of definitions",
        "One llama.cpp server at five concurrencies, measured by four load generators and read from their own files. "
        "At 2, 4 and 8 two runs of one tool differ as much as the tools do: fixed lengths lock a loop into step.",
        "; ".join(f"{row.Index}: {row.max:.0f} down to {row.min:.0f} tok/s/user" for row in ends.itertuples()),
        lambda ax: throughput_vs_speed(points, ax),
        points,
    )
