"""BurstGPT: CSV with Timestamp (seconds), Request tokens, Response tokens.

Source: HPMLL/BurstGPT, README: files "without fails" and files where failed requests have 0 response tokens. Release 2
and later add Session ID and Elapsed time. What a request repeats of earlier ones of its session is not recorded, so
every row is a request of its own.
"""

from pathlib import Path

from wholecurve.studies.serving.workloads.traces.rows import csv_rows
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def read_burstgpt(path: Path) -> Recording:
    """Each row as a session of one turn."""
    sessions = []
    has_sessions = False
    for number, record in enumerate(csv_rows(path, COLUMNS)):
        has_sessions = has_sessions or record.has("Session ID")
        turn = RecordedTurn(f"r{number:06d}", record.count("Response tokens"), record.count("Request tokens"))
        sessions.append(RecordedSession(f"s{number:06d}", (turn,), record.where, record.number("Timestamp")))
    notes = ["Session ID is not used: the trace does not tell what a request repeats of earlier ones"]
    return Recording("burstgpt", sessions, notes=notes if has_sessions else [])
