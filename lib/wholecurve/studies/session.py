"""One contender of a study, alive in its worker: how it is started, and what one point of it takes."""

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from wholecurve.curves.metrics import reduce_batch, reduce_prefill, reduce_trace
from wholecurve.errors import UserError
from wholecurve.files import slug
from wholecurve.models.config import ModelConfig
from wholecurve.models.resolve import ModelFiles
from wholecurve.runs.folder import rounded
from wholecurve.studies import workloads
from wholecurve.studies.contenders import ENGINES
from wholecurve.studies.contenders.options import Options, PinnedOptions, parse_options
from wholecurve.studies.peers import PEERS
from wholecurve.studies.plan import Plan
from wholecurve.studies.plan_parts import ContenderPlan
from wholecurve.studies.process import Launch, WorkerProcess
from wholecurve.studies.request import Request
from wholecurve.trace import RequestTrace

REDUCE = {"decode": reduce_trace, "prefill": reduce_prefill, "batch": reduce_batch}


def require_available(contender: ContenderPlan) -> None:
    """UserError when the contender's package is not installed, or its peer not set up."""
    entry = ENGINES[contender.engine]
    if entry.package is not None and find_spec(entry.package) is None:
        raise UserError(
            f"contender {contender.name}: package {entry.package} is not installed: "
            "pip install 'wholecurve[engine,peers]'"
        )
    if entry.peer is not None:
        try:
            PEERS[entry.peer].require_ready()
        except UserError as error:
            raise UserError(f"contender {contender.name}: {error}") from None


@dataclass(frozen=True)
class Bench:
    """What all contenders of a study share: the plan, the checkpoint in its forms, threads, and where logs go."""

    plan: Plan
    files: ModelFiles
    config: ModelConfig
    threads: int
    logs: Path

    def start(self, contender: ContenderPlan, settings: dict) -> "Session":
        """Start a worker with `settings` (the engine's own) and load the model in it; takes seconds to a minute."""
        options = parse_options(contender.engine, settings)
        threads = options.threads or self.threads
        launch = _launch(contender.engine, threads, options)
        log = self.logs / f"{slug(contender.name)}.log"
        worker = WorkerProcess(contender.name, log, threads, launch)
        try:
            answer = worker.ask("start", engine=contender.engine, settings=self._settings(contender, threads, options))
        except BaseException:
            worker.close()
            raise
        loaded = answer.pop("loaded_rss_bytes")
        return Session(self, contender, worker, {"engine": contender.engine, **answer}, loaded)

    def _settings(self, contender: ContenderPlan, threads: int, options: Options) -> dict:
        gguf = self._gguf(contender.engine)
        return {
            "hf_folder": str(self.files.hf_folder()),
            "gguf": str(gguf) if gguf else None,
            "dtype": self.plan.dtype,
            "threads": threads,
            "max_batch_tokens": self.plan.max_step_tokens,
            "max_sequences": max(self.plan.max_concurrency, 8),
            "cache_tokens": self.plan.cache_tokens,
            "sequence_tokens": self.plan.sequence_tokens,
            "options": options.model_dump(),
        }

    def _gguf(self, engine: str) -> Path | None:
        if not ENGINES[engine].reads_gguf or not self.files.gguf:
            return None
        if engine == "llama.cpp":
            return PEERS["llama.cpp"].typed_gguf(self.files.f16_gguf(), self.plan.dtype)
        return self.files.f16_gguf()

    def requests(self, workload: str, load: int, repeat: int) -> list[Request]:
        """The measured requests of one point."""
        plan, vocab_size = self.plan, self.config.vocab_size
        make = {
            "decode": workloads.decode_requests,
            "prefill": workloads.prefill_requests,
            "batch": workloads.batch_requests,
        }[workload]
        return make(getattr(plan, workload), plan.seed, load, repeat, vocab_size)

    def warm_up(self, workload: str, load: int) -> list[Request]:
        """What is sent before them and discarded: prompts as long as the longest of the point."""
        plan, vocab_size = self.plan, self.config.vocab_size
        if workload == "prefill":
            return workloads.warm_up_requests(1, load, plan.seed, vocab_size)
        length = plan.decode.prompt_tokens[1] if workload == "decode" else plan.batch.prompt_tokens
        return workloads.warm_up_requests(load, length, plan.seed, vocab_size)


def _launch(engine: str, threads: int, options: Options) -> Launch:
    if engine == "vllm":
        return Launch(*PEERS["vllm"].worker(threads, options.model_dump()))
    if isinstance(options, PinnedOptions) and options.pin_threads:
        return Launch(environment={"OMP_PROC_BIND": "close", "OMP_PLACES": "threads"})
    return Launch()


class Reference:
    """The float32 reference in a worker of its own, started when it is first asked and alive until the block ends."""

    def __init__(self, bench: Bench):
        self.bench = bench
        self.hf_folder = bench.files.hf_folder()
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> "Reference":
        return self

    def __exit__(self, *_) -> None:
        if self._worker is not None:
            self._worker.close()

    def score(self, sequences: list[dict]) -> list[list[float]]:
        """`agreement.score_greedy` of tokens that somebody else chose."""
        if self._worker is None:
            self._worker = WorkerProcess("reference", self.bench.logs / "reference.log", self.bench.threads)
        return self._worker.ask("score", model=str(self.hf_folder), sequences=sequences)["scores"]


class Session:
    """A contender with its model loaded. `described` are its settings in effect, `loaded_rss_bytes` what it holds."""

    def __init__(
        self,
        bench: Bench,
        contender: ContenderPlan,
        worker: WorkerProcess,
        described: dict,
        loaded_rss_bytes: int | None,
    ):
        self.bench, self.contender, self.worker = bench, contender, worker
        self.described, self.loaded_rss_bytes = described, loaded_rss_bytes
        self.stops_when_idle = False

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_) -> None:
        self.worker.close()

    def ask(self, command: str, **arguments) -> dict:
        """Ask the worker; one that is stopped while idle is awake for as long as it takes."""
        if not self.stops_when_idle:
            return self.worker.ask(command, **arguments)
        self.worker.resume()
        try:
            return self.worker.ask(command, **arguments)
        finally:
            self.worker.pause()

    def generate(self, requests: list[Request]) -> dict[str, list[int]]:
        """Greedy tokens by request, all of them in flight at once."""
        return self.ask("generate", requests=[asdict(request) for request in requests])["tokens"]

    def measure(self, workload: str, load: int, repeat: int) -> tuple[dict, list[RequestTrace]]:
        """One point: its metrics with the memory that it took, and its traces.

        UserError when a request did not bring the tokens that it asked for: then it is not this workload.
        """
        requests = self.bench.requests(workload, load, repeat)
        answer = self.ask(
            workload,
            requests=[asdict(request) for request in requests],
            warm_up=[asdict(request) for request in self.bench.warm_up(workload, load)],
            **({} if workload == "prefill" else {"concurrency": load}),
        )
        traces = [rounded(RequestTrace(**trace)) for trace in answer["traces"]]
        self._require_complete(f"{workload} {load}, repeat {repeat}", requests, traces)
        memory = {"loaded_rss_bytes": self.loaded_rss_bytes, **answer["memory"]}
        return {**REDUCE[workload](traces, load), **memory}, traces

    def _require_complete(self, point: str, requests: list[Request], traces: list[RequestTrace]) -> None:
        wanted = {request.request_id: request.output_tokens for request in requests}
        for trace in traces:
            if trace.output_tokens != wanted.pop(trace.request):
                raise UserError(
                    f"contender {self.contender.name}: request {trace.request} of {point} brought "
                    f"{trace.output_tokens} tokens, not the number that it asked for"
                )
        if wanted:
            raise UserError(f"contender {self.contender.name}: requests of {point} are missing: {sorted(wanted)[:3]}")
