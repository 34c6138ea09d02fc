"""Runs a plan: fresh workers per repeat, agreement before timing, point by point, resumable at any moment."""

from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tqdm.auto import tqdm

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.models.config import config_from_hf
from wholecurve.models.resolve import resolve
from wholecurve.runs import RunFolder, provenance
from wholecurve.studies.agreement import judged, require_agreement
from wholecurve.studies.ceiling_rounds import AFTER, before_repeat, measure_round
from wholecurve.studies.idle import stop_what_spins
from wholecurve.studies.plan import Plan
from wholecurve.studies.protocol import PointSpec, schedule
from wholecurve.studies.session import Bench, Reference, Session, require_available
from wholecurve.studies.tuning import tune


class Study:
    """One plan, one run folder."""

    def __init__(self, plan: Plan, out: Path):
        self.plan, self.out = plan, out
        self.threads = plan.threads or provenance.usable_cores()
        for contender in plan.contenders:
            require_available(contender)
        files = resolve(plan.model)
        hf_folder = files.hf_folder()
        config = config_from_hf(read_json(hf_folder / "config.json"), str(hf_folder))
        self.bench = Bench(plan, files, config, self.threads, out / "logs")

    def run(self) -> RunFolder:
        """Measure every point that the folder does not have yet; returns the complete run.

        Raises UserError when a contender fails, disagrees, or the folder belongs to another plan or machine.
        """
        run = RunFolder(self.out)
        with run.locked():
            RunFolder.create(self.out, self.plan.document(), provenance.collect())
            run.write("model", {"name": self.plan.model, "config": asdict(self.bench.config)})
            self._require_same_machine(run)
            points = schedule(self.plan)
            missing = [point for point in points if not run.has_point(point.point_id)]
            if missing:
                self._sessions(run, missing, done=len(points) - len(missing))
                measure_round(run, AFTER, self.plan.dtype, self.threads)
        return run

    def _require_same_machine(self, run: RunFolder) -> None:
        then, now = run.provenance["hardware"]["fingerprint"], provenance.hardware()["fingerprint"]
        if then != now:
            raise UserError(f"{run.path}: was begun on another machine ({then}); this is {now}; choose another --out")

    def _sessions(self, run: RunFolder, missing: list[PointSpec], done: int) -> None:
        measure_round(run, before_repeat(1), self.plan.dtype, self.threads)
        with tqdm(total=done + len(missing), initial=done, unit="point", dynamic_ncols=True) as progress:
            settings = tune(self.bench, run, progress.set_postfix_str)
            for repeat in sorted({point.repeat for point in missing}):
                measure_round(run, before_repeat(repeat), self.plan.dtype, self.threads)
                self._repeat(run, [point for point in missing if point.repeat == repeat], settings, progress)

    def _repeat(self, run: RunFolder, points: list[PointSpec], settings: dict[str, dict], progress: tqdm) -> None:
        """Fresh workers for the contenders that still have points in this repeat, then those points in order."""
        wanted = {point.contender for point in points}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with ExitStack() as stack:
            sessions: dict[str, Session] = {}
            for contender in self.plan.contenders:
                if contender.name not in wanted:
                    continue
                progress.set_postfix_str(f"starting {contender.name}")
                session = self.bench.start(contender, settings[contender.name])
                sessions[contender.name] = stack.enter_context(session)
            self._check_agreement(run, sessions, progress)
            idle = stop_what_spins(sessions)
            for point in points:
                progress.set_postfix_str(f"{point.contender}, {point.workload} {point.load}, repeat {point.repeat}")
                session = sessions[point.contender]
                about = {"worker_started": started, "settings": {**session.described, "idle": idle[point.contender]}}
                self._measure(run, point, session, about)
                progress.update()

    def _check_agreement(self, run: RunFolder, sessions: dict[str, Session], progress: tqdm) -> None:
        """Score each contender's greedy answers once per study; a resumed study does not ask again."""
        known = run.read("agreement") if run.has("agreement") else {}
        new = [name for name in sessions if name not in known]
        if not new:
            return
        progress.set_postfix_str("greedy agreement")
        with Reference(self.bench) as reference:
            for name in new:
                tokens = self.plan.agreement.tokens
                known[name] = judged(sessions[name].generate, reference.score, reference.hf_folder, tokens)
                require_agreement(name, known[name], self.plan.agreement)
        run.write("agreement", known)

    def _measure(self, run: RunFolder, point: PointSpec, session: Session, about: dict) -> None:
        metrics, traces = session.measure(point.workload, point.load, point.repeat)
        run.write_point(point.point_id, {**asdict(point), "source": "measured (cpu)", **metrics, **about}, traces)
