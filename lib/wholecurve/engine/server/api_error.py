"""Errors as the OpenAI API tells them, and from what."""

import orjson
from pydantic import ValidationError
from starlette.responses import Response


class ApiError(Exception):
    """What a client is told: HTTP status, and the four fields of OpenAI's error object.

    param: the field of the request that is wrong, where there is one. code: a short word for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def type(self) -> str:
        """OpenAI's class of errors: who has to act."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        """The JSON document, which is also the `data` of an error in the middle of a stream."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": fields})

    def response(self) -> Response:
        """The whole HTTP response."""
        return Response(self.body(), self.status, self.headers, media_type="application/json")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request has to change."""
    return ApiError(400, message, param=param, code=code)


def too_busy(waiting: int, limit: int) -> ApiError:
    """429: the queue is full; the same request may be sent again."""
    message = f"{waiting} requests wait already, the server queues at most {limit}; try again later"
    return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})


def shutting_down() -> ApiError:
    """503: no new requests are taken any more."""
    return ApiError(503, "the server is shutting down", code="shutting_down")


def engine_failed() -> ApiError:
    """500: an error inside the engine; its log says which."""
    return ApiError(500, "the engine failed; the server's log says why", code="engine_failed")


def no_token() -> ApiError:
    """400: what the request forbids left nothing to sample."""
    return bad_request("no token is left that bias, stop tokens and form of the answer allow", code="no_token")


def engine_dead() -> ApiError:
    """503: the engine failed earlier and the server has to be started anew."""
    return ApiError(503, "the engine has failed and takes no requests; restart the server", code="engine_failed")


def _path(location: tuple[int | str, ...]) -> str:
    """messages[0].content of ("messages", 0, "content"); names of union members, which pydantic adds, are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
    return path


def from_validation(error: ValidationError) -> ApiError:
    """The first thing that pydantic found wrong, as one line that names the field.

    A rule about several fields begins its message with the field at fault and a colon.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    location, message = first["loc"], first["msg"].removeprefix("Value error, ")
    field, colon, rest = message.partition(": ")
    if colon and field.isidentifier():
        location, message = (*location, field), rest
    param = _path(location) or None
    if first["type"] == "extra_forbidden":
        return bad_request(f"unknown field: {param}", param, "unknown_field")
    if first["type"] == "missing":
        return bad_request(f"missing field: {param}", param, "missing_field")
    return bad_request(f"{param}: {message}" if param else message, param, "invalid_value")
