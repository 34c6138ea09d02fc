"""A serving run as text for the terminal: what users felt, what the machine delivered, who leads, what to doubt."""

import pandas as pd
from rich.console import Console
from rich.markup import escape

from wholecurve.figures.leads import lead_sentences, lead_table
from wholecurve.figures.race import labelled, race_of
from wholecurve.figures.serving import SERVING_PANELS, SESSION_PANELS
from wholecurve.figures.serving_run import SEARCH, measured_points
from wholecurve.figures.serving_tables import (
    flags_table,
    interactivity_table,
    objectives_table,
    outcome_table,
    serving_table,
    session_table,
    waiting_table,
)
from wholecurve.runs import RunFolder
from wholecurve.terminal import print_frame


def print_serving(console: Console, run: RunFolder, points: pd.DataFrame) -> None:
    """Tables of the race, sentences on who leads where, the result of a search for the largest load, and every flag."""
    race, raced = labelled(race_of(run), measured_points(points))
    if len(raced):
        sessions = set(raced["load_kind"]) == {"sessions"}
        print_frame(console, serving_table(raced), "Serving: median (range over repeats)")
        print_frame(
            console, waiting_table(raced), "What users wait for, from when a request was due; medians over repeats"
        )
        print_frame(console, interactivity_table(raced), "p90 speed of a user in both definitions (tok/s/user)")
        if sessions:
            print_frame(console, session_table(raced), "Sessions")
        if len(objectives := objectives_table(raced)):
            print_frame(console, objectives, f"Objectives: {objectives_text(run)}; failures count as not kept")
        if race.peers:
            _print_leads(
                console, lead_table(raced, race.ours, race.left_out, SESSION_PANELS if sessions else SERVING_PANELS)
            )
    probes = points[points["workload"] == SEARCH]
    if len(probes):
        print_frame(console, objectives_table(probes), f"Search for the largest load that keeps {objectives_text(run)}")
    print_frame(console, outcome_table(points), "How requests ended, all loads and repeats")
    if len(flags := flags_table(points)):
        print_frame(console, flags, "What points say against themselves")


def objectives_text(run: RunFolder) -> str:
    """The objectives of a run's plan in words."""
    from wholecurve.curves.slo import Slo

    return Slo.from_document(run.plan["plan"]["slo"]).text()


def _print_leads(console: Console, table: pd.DataFrame) -> None:
    print_frame(console, table, "Against the best of the others at each load, a composite of several")
    for sentence in lead_sentences(table):
        console.print(f"  {escape(sentence)}")
