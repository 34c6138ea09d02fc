"""A server of the standard library alone that claims what it is told to: `python toy_server.py PORT '{"model": …}'`.

cache: whether a prompt that was sent before counts as found. dies: exit code before it listens. unhealthy: never ready.
refuses: status of every completion. family: it starts a child that starts a grandchild in a session of its own, both
deaf to SIGTERM; their process ids are written to that file. counters: False for no metrics page.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2:]:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], start_new_session=True)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(120)
"""


def main():
    port, config = int(sys.argv[1]), json.loads(sys.argv[2])
    if "family" in config:
        subprocess.Popen([sys.executable, "-c", FAMILY, config["family"], FAMILY])
    if config.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "dies" in config:
        print("loading weights\nout of luck", flush=True)
        sys.exit(config["dies"])
    counts, seen = {"prompt": 0, "generated": 0, "hits": 0}, set()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, document, status=200):
            content = document.encode() if isinstance(document, str) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            if self.path == "/health":
                self.answer({}, 503 if config.get("unhealthy") else 200)
            elif self.path == "/v1/models":
                entries = [{"id": name, "max_model_len": config.get("length", 4096)} for name in config["models"]]
                self.answer({"object": "list", "data": entries})
            elif self.path == "/metrics" and config.get("counters", True):
                names = {"prompt_tokens": "prompt", "generation_tokens": "generated", "prefix_cache_hits": "hits"}
                lines = [f'wholecurve:{name}_total{{model_name="m"}} {counts[key]}.0' for name, key in names.items()]
                self.answer("\n".join(lines) + "\n")
            else:
                self.answer({"error": "no such path"}, 404)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if config.get("exits"):
                print("CUDA error: gone", flush=True)
                os._exit(3)
            if "refuses" in config:
                return self.answer({"error": {"message": "no such thing"}}, config["refuses"])
            prompt = json.dumps(body["prompt"])
            length = len(body["prompt"])
            counts["prompt"] += length
            counts["generated"] += body["max_tokens"]
            counts["hits"] += length if config.get("cache") and prompt in seen else 0
            seen.add(prompt)
            self.answer({"choices": [{"text": "a"}], "usage": {"prompt_tokens": length}})

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("listening", flush=True)
    time.sleep(config.get("slow_s", 0))
    server.serve_forever()


if __name__ == "__main__":
    main()
