"""A server on a free port, in a thread of the test, and a tokenizer of single characters."""

import contextlib
import threading

import httpx
import openai
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from wholecurve.engine.server.http_server import HttpServer, address_of, bind
from wholecurve.engine.server.service import Service
from wholecurve.engine.server.settings import ServerSettings

END = "<|im_end|>"
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 \n.,:;!?{}[]\"'_-<>/|ABCDEFG"[:60]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tiny_tokenizer(template=TEMPLATE):
    """61 tokens: one per character of CHARACTERS, and the end at id 7. Other characters have none and vanish."""
    vocabulary = {c: i if i < 7 else i + 1 for i, c in enumerate(CHARACTERS)}
    vocabulary[END] = 7
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    tokenizer.chat_template = template
    return tokenizer


class LiveServer:
    """Serves an engine until the block is left; `settings` are those of ServerSettings."""

    def __init__(self, engine, tokenizer=None, grace_s=20.0, **settings):
        self.engine = engine
        defaults = {"model_name": "tiny", "context_tokens": 128, "vocab_size": 61, "max_running": 4, "max_queued": 64}
        self.service = Service(engine, tokenizer or tiny_tokenizer(), ServerSettings(**(defaults | settings)))
        self._bound = bind("127.0.0.1", 0)
        self.url = address_of(self._bound)
        self.server = HttpServer(self.service, self._bound, grace_s)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self.server.run, args=(self._ready.set,), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(30), "the server did not start"
        return self

    def __exit__(self, *_):
        self.stop()
        self.join()

    def stop(self):
        """What a signal does; returns at once."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.server.event_loop.call_soon_threadsafe(self.server.stop)

    def join(self):
        """Wait until the server has ended."""
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not end"

    def client(self, **options):
        """The official client."""
        return openai.OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def async_client(self, **options):
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def http(self, **options):
        """A plain HTTP client."""
        return httpx.Client(base_url=self.url, timeout=30, **options)
