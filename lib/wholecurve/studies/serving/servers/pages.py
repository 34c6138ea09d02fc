"""What a server answers besides generated text: models, health, metrics, settings. Blocking, for before and after."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from wholecurve.errors import UserError

# As the load's client: a proxy that the environment names is not part of what is measured.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoAnswer(UserError):
    """Nothing came, or an HTTP error; `status` is None where nothing came."""

    def __init__(self, message: str, status: int | None):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Pages:
    """Paths of one server. ``root`` is the part before the path, without a slash at the end; ``api`` is where below
    it the OpenAI API is.
    """

    root: str
    api: str = "/v1"
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0

    def get_text(self, path: str) -> str:
        """The text at a path; NoAnswer says which address and why."""
        return self._fetch(path, None).decode("utf-8", errors="replace")

    def get_json(self, path: str) -> Any:
        """The document at a path; UserError when there is none or it is no JSON."""
        return self._parsed(path, self._fetch(path, None))

    def post_json(self, path: str, body: dict) -> Any:
        """The answer to a document that is sent to a path."""
        return self._parsed(path, self._fetch(path, json.dumps(body).encode()))

    def _parsed(self, path: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError:
            raise UserError(f"{self.root}{path}: its answer is not JSON ({content[:80]!r})") from None

    def _fetch(self, path: str, body: bytes | None) -> bytes:
        url = f"{self.root}{path}"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            with _OPENER.open(urllib.request.Request(url, body, headers), timeout=self.timeout_s) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode("utf-8", errors="replace").strip()
            raise NoAnswer(f"{url}: HTTP {error.code} {' '.join(said.split())[:300]}".rstrip(), error.code) from None
        except (OSError, ValueError, HTTPException) as error:  # ValueError: the URL is none
            reason = getattr(error, "reason", None) or f"{type(error).__name__} {error}".strip()
            raise NoAnswer(f"{url}: {reason}", None) from None
