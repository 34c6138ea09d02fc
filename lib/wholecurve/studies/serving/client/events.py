"""Server-sent events out of bytes, wherever the bytes were cut.

The format is that of the HTML standard, section "Server-sent events": lines that end in CR, LF or CR LF; a blank
line ends an event; lines of `data` are joined by LF; a line that begins with a colon is a comment.
"""

from dataclasses import dataclass

_FIELDS = {b"data", b"event", b"id", b"retry", b"error"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class NotEvents(ValueError):
    """Bytes that are no events. `events` are those that had ended before them."""

    def __init__(self, text: str, events: "list[Event] | None" = None):
        super().__init__(text)
        self.events = events or []


@dataclass(slots=True)
class Event:
    """One event. ``name`` is empty for most; "error" also where a server writes its error as a field of its own."""

    data: bytes
    name: str = ""


class EventParser:
    """Takes bytes as they come and gives the events that they complete. Time is linear in the number of bytes."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of a line that has not ended
        self._data: list[bytes] = []  # lines of the event that has not ended
        self._name = ""
        self._after_cr = False  # a line ended in CR, and an LF that comes next belongs to it
        self._at_start = True

    @property
    def is_between_events(self) -> bool:
        """True when nothing of an event has begun."""
        return not self._line and not self._data and not self._name

    def feed(self, received: bytes) -> list[Event]:
        """Events that end within `received`; NotEvents for a line that can be none of an event stream."""
        if self._after_cr and received:
            self._after_cr = False
            if received[0] == 0x0A:
                received = received[1:]
        if not received:
            return []
        if b"\n" not in received and b"\r" not in received:
            self._line.append(received)
            return []
        if self._line:
            received = b"".join((*self._line, received))
            self._line = []
        self._after_cr = received.endswith(b"\r")
        lines = received.splitlines()
        if not received.endswith((b"\n", b"\r")):
            self._line.append(lines.pop())
        return self._take(lines)

    def close(self) -> list[Event]:
        """The event that the end of the stream completes, if there is one: its last lines may lack their ends."""
        lines = [b"".join(self._line), b""] if self._line else [b""]
        self._line = []
        return self._take(lines)

    def _take(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        if self._at_start and lines:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        for line in lines:
            if not line:
                if self._data:
                    events.append(Event(self._data[0] if len(self._data) == 1 else b"\n".join(self._data), self._name))
                    self._data = []
                self._name = ""
                continue
            field, _, value = line.partition(b":")
            if value[:1] == b" ":
                value = value[1:]
            if field == b"data":
                self._data.append(value)
            elif field == b"event":
                self._name = value.decode("utf-8", "replace")
            elif field == b"error":
                self._name = "error"
                self._data.append(value)
            elif field and field not in _FIELDS:
                raise NotEvents(f"a line that is no field of an event: {quoted(line)}", events)
        return events


def quoted(content: bytes, most: int = 80) -> str:
    """Bytes for a message: printable, in quotes, cut after `most` characters."""
    text = content[: 4 * most].decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= most else text[:most] + "…")
