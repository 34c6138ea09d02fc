"""From what went wrong to one of the outcomes that a trace can have, with one line that says what it was."""

import asyncio
from dataclasses import dataclass

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from wholecurve.studies.serving.client.chunks import NotAChunk
from wholecurve.studies.serving.client.events import NotEvents

_MOST_CHARACTERS = 300

# Ends that a server gives to an answer that it could not finish.
FAILED_FINISHES = {"abort", "aborted", "cancelled", "error"}


@dataclass(frozen=True)
class Fault:
    """How a request failed: a name of trace.OUTCOMES, and what was seen."""

    outcome: str
    error: str


def fault_of(error: BaseException) -> Fault:
    """The fault that an exception of a request stands for; what is not known here is raised again."""
    text = " ".join(str(error).split())
    match error:
        case asyncio.CancelledError():
            return Fault("cancelled", "stopped by the client")
        case NotEvents() | NotAChunk():
            return Fault("malformed", text)
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError() | aiohttp.ServerFingerprintMismatch():
            return Fault("not connected", text)
        case TimeoutError():
            return Fault("timed out", "no end within the client's limit")
        case aiohttp.ClientPayloadError():
            return Fault("disconnected", f"the answer broke off: {getattr(error.__cause__, 'message', text)}")
        case aiohttp.ServerDisconnectedError():
            return Fault("disconnected", "the server closed the connection without an answer")
        case aiohttp.ClientConnectionError() | OSError():
            return Fault("disconnected", text or type(error).__name__)
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return Fault("malformed", f"no valid HTTP: {error.message}")
    raise error


def one_line(text: str, secret: str | None) -> str:
    """A text for a record: one line of bounded length, without the key even if a server repeats it."""
    if secret:
        text = text.replace(secret, "***")
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
