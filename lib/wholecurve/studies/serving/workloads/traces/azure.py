"""Azure's LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and …2024.md (CC-BY); the multimodal one of 2025 adds
NumImages. TIMESTAMP is a date with up to seven decimals of a second, in 2024 with a time zone. Contents and sharing are
not recorded.
"""

from datetime import datetime
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.readers.record import Record
from wholecurve.studies.serving.workloads.traces.rows import csv_rows
from wholecurve.studies.serving.workloads.traces.schema import RecordedSession, RecordedTurn, Recording

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path) -> Recording:
    """Each row as a session of one turn, with its arrival since the first row."""
    sessions: list[RecordedSession] = []
    first: datetime | None = None
    for number, record in enumerate(csv_rows(path, COLUMNS)):
        moment = _moment(record)
        first = first or moment
        if (moment.tzinfo is None) != (first.tzinfo is None):
            raise record.refuse("TIMESTAMP", "a date with a time zone in every row, or in none,")
        images = record.optional_count("NumImages")
        turn = RecordedTurn(
            f"r{number:06d}",
            record.count("GeneratedTokens"),
            record.count("ContextTokens"),
            misfit="has images, which the trace does not hold" if images else None,
        )
        start_s = (moment - first).total_seconds()
        sessions.append(RecordedSession(f"s{number:06d}", (turn,), record.where, start_s))
    return Recording("azure", sessions)


def _moment(record: Record) -> datetime:
    text = record.text("TIMESTAMP")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{record.where}: TIMESTAMP is {text!r}; a date as 2023-11-16 18:15:46.6805900 is needed"
        ) from None
