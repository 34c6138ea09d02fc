"""The HTTP side: paths, keys, bodies, errors."""

import hmac
import time

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from wholecurve.engine.server.api_error import ApiError
from wholecurve.engine.server.chat import chat
from wholecurve.engine.server.chat_protocol import ChatRequest
from wholecurve.engine.server.completions import complete
from wholecurve.engine.server.protocol import CompletionRequest, parse_request
from wholecurve.engine.server.service import Service

_OPEN_PATHS = ("/health",)


class RequireKey:
    """Answers 401 unless the request carries the server's key; probes of its health need none."""

    def __init__(self, app: ASGIApp, api_key: str):
        self._app, self._expected = app, b"Bearer " + api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._expected):
                error = ApiError(
                    401,
                    "no valid API key: send the header Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request. ApiError 415 when it is not called JSON, 413 when it is longer than `limit` bytes.

    A page of a website can make a browser send a text to a server on this machine, but not one that is called JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the header Content-Type must be application/json, not {kind or 'missing'!r}")
    too_large = ApiError(413, f"the body is longer than the server's limit of {limit} bytes", code="body_too_large")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > limit:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


class Endpoints:
    """The functions behind the paths."""

    def __init__(self, service: Service):
        self._service = service
        self._started = int(time.time())

    async def completions(self, request: Request):
        arrival_s = time.monotonic()
        self._check_room()
        body = await read_body(request, self._service.settings.max_body_bytes)
        return await complete(self._service, parse_request(CompletionRequest, body), arrival_s)

    async def chat_completions(self, request: Request):
        arrival_s = time.monotonic()
        self._check_room()
        body = await read_body(request, self._service.settings.max_body_bytes)
        return await chat(self._service, parse_request(ChatRequest, body), arrival_s)

    def _check_room(self) -> None:
        """A full server refuses before it reads and tokenises."""
        if refusal := self._service.engine_loop.refusal():
            raise refusal

    def _model(self) -> dict:
        settings = self._service.settings
        return {
            "id": settings.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "wholecurve",
            "max_model_len": settings.context_tokens,
        }

    async def models(self, request: Request) -> Response:
        body = orjson.dumps({"object": "list", "data": [self._model()]})
        return Response(body, media_type="application/json")

    async def model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return Response(orjson.dumps(self._model()), media_type="application/json")

    async def health(self, request: Request) -> Response:
        """200 while requests are taken, or would be if there were room."""
        engine_loop = self._service.engine_loop
        state = "engine failed" if engine_loop.is_dead else "shutting down" if engine_loop.is_draining else "ok"
        body = orjson.dumps({"status": state})
        return Response(body, 200 if state == "ok" else 503, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        self._service.metrics.stats = await self._service.engine_loop.stats()
        return Response(self._service.metrics.page(), headers={"content-type": CONTENT_TYPE_LATEST})


def build_app(service: Service) -> Starlette:
    """The ASGI application of a server. Its event loop must have called `service.engine_loop.start`."""
    endpoints = Endpoints(service)

    async def api_error(request: Request, error: ApiError) -> Response:
        service.metrics.refused(error.status)
        return error.response()

    async def http_error(request: Request, error: HTTPException) -> Response:
        names = {404: f"no such path: {request.url.path}", 405: f"{request.url.path} does not take {request.method}"}
        told = ApiError(error.status_code, names.get(error.status_code, error.detail), headers=error.headers)
        return await api_error(request, told)

    async def gone(request: Request, error: ClientDisconnect) -> Response:
        """The client left while it sent its body; nobody will read this."""
        return Response(status_code=400)

    async def unexpected(request: Request, error: Exception) -> Response:
        return await api_error(request, ApiError(500, "an error inside the server; its log says which"))

    key = service.settings.api_key
    return Starlette(
        routes=[
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/chat/completions", endpoints.chat_completions, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route("/health", endpoints.health),
            Route("/metrics", endpoints.metrics),
        ],
        middleware=[Middleware(RequireKey, api_key=key)] if key else [],
        exception_handlers={
            ApiError: api_error,
            HTTPException: http_error,
            ClientDisconnect: gone,
            Exception: unexpected,
        },
    )
