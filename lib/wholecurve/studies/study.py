"""Runs a plan: fresh workers per repeat, agreement before timing, point by point, resumable at any moment."""

from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from tqdm.auto import tqdm

from wholecurve.curves.metrics import RequestTrace, reduce_prefill, reduce_trace
from wholecurve.errors import UserError
from wholecurve.files import read_json, slug
from wholecurve.models.config import config_from_hf
from wholecurve.models.resolve import resolve
from wholecurve.runs import RunFolder, provenance
from wholecurve.runs.folder import rounded
from wholecurve.studies import workloads
from wholecurve.studies.agreement import agreement_requests, require_agreement, summarise
from wholecurve.studies.contenders import required_package
from wholecurve.studies.plan import Plan
from wholecurve.studies.process import WorkerProcess
from wholecurve.studies.protocol import PointSpec, schedule


class Study:
    """One plan, one run folder."""

    def __init__(self, plan: Plan, out: Path):
        self.plan, self.out = plan, out
        self.threads = plan.threads or provenance.usable_cores()
        for contender in plan.contenders:
            package = required_package(contender.engine)
            if find_spec(package) is None:
                raise UserError(
                    f"contender {contender.name}: package {package} is not installed: "
                    "pip install 'wholecurve[engine,peers]'"
                )
        files = resolve(plan.model)
        self.hf_folder = files.hf_folder()
        needs_gguf = any(contender.engine == "openvino" for contender in plan.contenders)
        self.gguf = files.f16_gguf() if needs_gguf and files.gguf else None
        self.model_config = config_from_hf(read_json(self.hf_folder / "config.json"), str(self.hf_folder))

    def run(self) -> RunFolder:
        """Measure every point that the folder does not have yet; returns the complete run.

        Raises UserError when a contender fails, disagrees, or the folder belongs to another plan or machine.
        """
        run = RunFolder(self.out)
        with run.locked():
            RunFolder.create(self.out, self.plan.document(), provenance.collect())
            run.write("model", {"name": self.plan.model, "config": asdict(self.model_config)})
            self._require_same_machine(run)
            points = schedule(self.plan)
            missing = [point for point in points if not run.has_point(point.point_id)]
            if missing:
                self._sessions(run, missing, done=len(points) - len(missing))
        return run

    def _require_same_machine(self, run: RunFolder) -> None:
        then, now = run.provenance["hardware"]["fingerprint"], provenance.hardware()["fingerprint"]
        if then != now:
            raise UserError(f"{run.path}: was begun on another machine ({then}); this is {now}; choose another --out")

    def _sessions(self, run: RunFolder, missing: list[PointSpec], done: int) -> None:
        if not run.has("ceilings"):
            with self._worker("ceilings", run) as worker:
                run.write("ceilings", worker.ask("ceilings", dtype=self.plan.dtype, threads=self.threads))
        with tqdm(total=done + len(missing), initial=done, unit="point", dynamic_ncols=True) as progress:
            for repeat in sorted({point.repeat for point in missing}):
                self._repeat(run, [point for point in missing if point.repeat == repeat], progress)

    def _repeat(self, run: RunFolder, points: list[PointSpec], progress: tqdm) -> None:
        """Fresh workers for the contenders that still have points in this repeat, then those points in order."""
        wanted = {point.contender for point in points}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with ExitStack() as stack:
            workers = {}
            for contender in self.plan.contenders:
                if contender.name not in wanted:
                    continue
                progress.set_postfix_str(f"starting {contender.name}")
                worker = stack.enter_context(self._worker(contender.name, run))
                settings = worker.ask("start", engine=contender.engine, settings=self._settings())
                workers[contender.name] = (worker, {"engine": contender.engine, **settings})
            self._check_agreement(run, workers, progress)
            for point in points:
                progress.set_postfix_str(f"{point.contender}, {point.workload} {point.load}, repeat {point.repeat}")
                worker, settings = workers[point.contender]
                self._measure(run, point, worker, {"worker_started": started, "settings": settings})
                progress.update()

    def _worker(self, label: str, run: RunFolder) -> WorkerProcess:
        return WorkerProcess(label, run.path / "logs" / f"{slug(label)}.log", self.threads)

    def _settings(self) -> dict:
        return {
            "hf_folder": str(self.hf_folder),
            "gguf": str(self.gguf) if self.gguf else None,
            "dtype": self.plan.dtype,
            "threads": self.threads,
            "max_batch_tokens": self.plan.max_step_tokens,
            "max_sequences": max(self.plan.max_concurrency, 8),
            "cache_tokens": self.plan.cache_tokens,
        }

    def _check_agreement(self, run: RunFolder, workers: dict, progress: tqdm) -> None:
        """Score each contender's greedy answers once per study; a resumed study does not ask again."""
        known = run.read("agreement") if run.has("agreement") else {}
        new = [name for name in workers if name not in known]
        if not new:
            return
        progress.set_postfix_str("greedy agreement")
        requests = agreement_requests(self.hf_folder, self.plan.agreement.tokens)
        answers = {name: workers[name][0].ask("generate", requests=[asdict(r) for r in requests]) for name in new}
        with self._worker("reference", run) as reference:
            for name in new:
                tokens = answers[name]["tokens"]
                sequences = [{"prompt_ids": r.prompt_ids, "tokens": tokens[r.request_id]} for r in requests]
                summary = summarise(reference.ask("score", model=str(self.hf_folder), sequences=sequences)["scores"])
                require_agreement(name, summary, self.plan.agreement)
                known[name] = summary
        run.write("agreement", known)

    def _measure(self, run: RunFolder, point: PointSpec, worker: WorkerProcess, about: dict) -> None:
        plan, vocab_size = self.plan, self.model_config.vocab_size
        if point.workload == "decode":
            requests = workloads.decode_requests(plan.decode, plan.seed, point.load, point.repeat, vocab_size)
            warm_up = workloads.warm_up_requests(point.load, plan.decode.prompt_tokens[1], plan.seed, vocab_size)
            arguments = {"concurrency": point.load}
        else:
            requests = workloads.prefill_requests(plan.prefill, plan.seed, point.load, point.repeat, vocab_size)
            warm_up = workloads.warm_up_requests(1, point.load, plan.seed, vocab_size)
            arguments = {}
        answer = worker.ask(
            point.workload,
            requests=[asdict(request) for request in requests],
            warm_up=[asdict(request) for request in warm_up],
            **arguments,
        )
        traces = [rounded(RequestTrace(**trace)) for trace in answer["traces"]]
        self._require_complete(point, requests, traces)
        reduce = reduce_trace if point.workload == "decode" else reduce_prefill
        row = {**asdict(point), "source": "measured (cpu)", **reduce(traces, point.load), **about}
        run.write_point(point.point_id, row, traces)

    def _require_complete(self, point: PointSpec, requests: list, traces: list[RequestTrace]) -> None:
        """Every request has as many tokens as it asked for, or the point is not a measurement of this workload."""
        wanted = {request.request_id: request.output_tokens for request in requests}
        for trace in traces:
            if trace.output_tokens != wanted.pop(trace.request):
                raise UserError(
                    f"contender {point.contender}: request {trace.request} of {point.point_id} brought "
                    f"{trace.output_tokens} tokens, not the number that it asked for"
                )
        if wanted:
            raise UserError(
                f"contender {point.contender}: requests of {point.point_id} are missing: {sorted(wanted)[:3]}"
            )
