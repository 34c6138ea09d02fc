"""Bytes of HTTP/1.1: heads and the framing of a body."""

from http import HTTPStatus

import orjson

END_OF_CHUNKS = b"0\r\n\r\n"


def head(status: int, content_type: str, length: int | None, headers: tuple[str, ...] = ()) -> bytes:
    """Status line and headers; ``length`` None announces a chunked body."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Scripted"
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"HTTP/1.1 {status} {phrase}", f"Content-Type: {content_type}", framing, *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def json_reply(document: dict, status: int = 200, headers: tuple[str, ...] = ()) -> bytes:
    """A whole reply with a JSON body."""
    body = orjson.dumps(document)
    return head(status, "application/json", len(body), headers) + body


def text_reply(text: str) -> bytes:
    """A whole reply with a text body, as a metrics page is."""
    body = text.encode()
    return head(200, "text/plain; version=0.0.4", len(body)) + body
