"""An engine without a model, for tests of what is around it: tokens follow from the prompt, steps are on call."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace

from wholecurve.errors import UserError


@dataclass(frozen=True)
class FakeOutput:
    """The fields of `StepOutput`."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None
    text: str | None = None
    logprobs: list | None = None
    num_cached: int = 0
    stop_reason: str | int | None = None


@dataclass
class FakeRequest:
    prompt_ids: list[int]
    params: object
    priority: int
    cache_salt: str
    num_sampled: int = 0


class FakeEngine:
    """Gives one token per request and step; the k-th one (from 0) is (sum of the prompt + k) modulo 10, as a digit.

    A prompt with the token 60 has nothing to sample at its third token, 66 is refused, and 67 breaks `add`.

    text_of: the text of a token. Between `hold` and `release` each step waits for a turn of `allow`.
    """

    def __init__(self, text_of=str):
        self.requests: dict[str, FakeRequest] = {}
        self.aborted: list[str] = []
        self.added: list[FakeRequest] = []
        self.text_of = text_of
        self.error: Exception | None = None  # raised by the next step
        self.num_steps = self.num_tokens = 0
        self._turns = threading.Semaphore(0)
        self._is_held = False
        self.changed = threading.Condition()  # notified after every add, abort and step

    def hold(self):
        self._is_held = True

    def allow(self, steps):
        for _ in range(steps):
            self._turns.release()

    def release(self):
        self._is_held = False
        self._turns.release()

    def wait_until(self, condition, timeout_s=20):
        """Wait until `condition()` holds after an add, an abort or a step."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the engine did not come to this"

    def _notify(self):
        with self.changed:
            self.changed.notify_all()

    @property
    def has_unfinished(self):
        return bool(self.requests)

    def add(self, request_id, prompt_ids, params, priority=0, cache_salt=""):
        if 66 in prompt_ids:
            raise UserError(f"request {request_id}: token 66 is refused")
        if 67 in prompt_ids:
            raise RuntimeError("token 67 breaks an add")
        self.requests[request_id] = FakeRequest(prompt_ids, params, priority, cache_salt)
        self.added.append(self.requests[request_id])
        self._notify()

    def prepare(self, params):
        if params.grammar is not None and "token 66" in params.grammar.text:
            raise UserError("grammar: token 66 is refused")

    def abort(self, request_id):
        if request_id not in self.requests:
            raise UserError(f"request {request_id}: not known, or finished")
        del self.requests[request_id]
        self.aborted.append(request_id)
        self._notify()

    def step(self):
        if self._is_held:
            self._turns.acquire()
        if self.error is not None:
            raise self.error
        outputs = []
        for request_id, request in list(self.requests.items()):
            token = (sum(request.prompt_ids) + request.num_sampled) % 10
            request.num_sampled += 1
            is_stuck = 60 in request.prompt_ids and request.num_sampled == 3
            is_last = is_stuck or request.num_sampled >= request.params.max_new_tokens
            reason = "abort" if is_stuck else "length" if is_last else None
            outputs.append(FakeOutput(request_id, [token], reason, self.text_of(token)))
            if is_last:
                del self.requests[request_id]
        self.num_steps += 1
        self.num_tokens += len(outputs)
        self._notify()
        return outputs

    def stats(self):
        return SimpleNamespace(
            running=len(self.requests),
            waiting=0,
            blocks_free=8,
            blocks_cached=0,
            blocks_used=2,
            blocks_total=10,
            prefix_queried_tokens=5,
            prefix_hit_tokens=3,
            preemptions=1,
            steps=self.num_steps,
            prompt_tokens=sum(len(request.prompt_ids) for request in self.added),
            output_tokens=self.num_tokens,
            drafts_proposed=0,
            drafts_accepted=0,
        )
