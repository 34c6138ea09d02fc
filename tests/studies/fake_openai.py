"""A tiny OpenAI server with scripted faults, and a recipe that starts it: what serving studies are tried on.

Run as a program it is the server, with the standard library alone; `register` makes it the server "fake" of plans.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STATE = {"requests": 0, "prompt_tokens": 0, "generated": 0, "hits": 0}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    script: dict = {}  # noqa: RUF012

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/v1/models":
            self.reply({"data": [{"id": "fake", "max_model_len": 100000}]})
        elif self.path == "/metrics":
            names = {"prompt_tokens": "prompt_tokens", "generated": "generation_tokens",
                     "hits": "prefix_cache_hits"}  # fmt: skip
            lines = []
            for key, name in names.items():
                lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total {STATE[key]}"]
            self.send(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")
        else:
            self.reply({"ok": True})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, wanted = body["prompt"], body["max_tokens"]
        STATE["prompt_tokens"] += len(prompt)
        STATE["hits"] += int(self.script["hit_share"] * len(prompt))
        STATE["generated"] += wanted
        if body.get("stream"):
            STATE["requests"] += 1
            self.maybe_die()
            if self.script["refuse"]:
                self.reply({"error": {"message": "no"}}, 503)
                return
            self.stream(prompt, wanted)
        else:
            self.reply({"choices": [{"text": "a" * wanted}], "usage": {"completion_tokens": wanted}})

    def maybe_die(self):
        """At request `die_at` the whole process ends; with a `died` file only the first time."""
        died = self.script["died"]
        if STATE["requests"] == self.script["die_at"] and not (died and Path(died).exists()):
            if died:
                Path(died).write_text("once")
            os._exit(3)

    def stream(self, prompt, wanted):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(wanted):
            time.sleep(self.script["token_ms"] / 1e3)
            finish = "length" if number == wanted - 1 else None
            self.event({"choices": [{"index": 0, "text": " x", "finish_reason": finish}]})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": wanted}
        self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, document):
        self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def chunk(self, content):
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def reply(self, document, status=200):
        self.send(status, json.dumps(document).encode(), "application/json")

    def send(self, status, content, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def register(profile="vllm"):
    """Add the server "fake" to those that plans may name."""
    from typing import ClassVar

    from wholecurve.studies.serving import servers
    from wholecurve.studies.serving.servers.recipe import ServerOptions, ServerRecipe
    from wholecurve.studies.serving.servers.settings import Setting

    class FakeOptions(ServerOptions):
        token_ms: float = 1.0
        hit_share: float = 0.0
        die_at: int = 0  # streamed requests after which it dies; 0: never
        died: str | None = None
        refuse: bool = False
        never_starts: bool = False

    class FakeServer(ServerRecipe):
        name = "fake"
        options: ClassVar = FakeOptions
        takes_token_ids = True

        def require_available(self):
            pass

        def model_name(self, files, options, pages=None):
            return "fake"

        def command(self, launch):
            script = launch.options.model_dump(include={"token_ms", "hit_share", "die_at", "died", "refuse"})
            if launch.options.never_starts:
                return [sys.executable, "-c", "print('out of luck'); raise SystemExit(7)"]
            return [sys.executable, __file__, str(launch.port), json.dumps(script)]

        def read_settings(self, pages, launch, log):
            return {"version": Setting("1", "fake"), "model": Setting("fake", "/v1/models")}

    FakeServer.profile = profile
    recipe = FakeServer()
    servers.SERVERS["fake"] = recipe
    return recipe


if __name__ == "__main__":
    Handler.script = json.loads(sys.argv[2])
    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
