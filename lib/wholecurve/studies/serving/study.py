"""Runs a serving plan: checks first, tuning, fresh servers per repeat, point by point, resumable at any moment."""

from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tqdm.auto import tqdm

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.runs import RunFolder, provenance
from wholecurve.studies.ceiling_rounds import AFTER, before_repeat, can_measure_ceilings, measure_round
from wholecurve.studies.idle import stop_what_spins
from wholecurve.studies.serving.agreed import check_agreement
from wholecurve.studies.serving.candidate import measure_candidate
from wholecurve.studies.serving.checks import make_bench
from wholecurve.studies.serving.live import LiveServer
from wholecurve.studies.serving.plan import ServingPlan
from wholecurve.studies.serving.plan_parts import RUNNING, ServingContender
from wholecurve.studies.serving.progress import Progress
from wholecurve.studies.serving.recorder import Recorder
from wholecurve.studies.serving.schedule import ServingPoint, schedule
from wholecurve.studies.serving.searching import not_searched, search
from wholecurve.studies.serving.tuning import tune


class ServingStudy:
    """One plan, one run folder. Making it checks everything that can be known before a server starts."""

    def __init__(self, plan: ServingPlan, out: Path):
        self.plan, self.out = plan, out
        self.bench = make_bench(plan, out)

    def run(self) -> RunFolder:
        """Measure every point that the folder does not have yet; returns the run.

        A point whose server cannot be brought up again is missing from it, and `faults.json` says why. Raises UserError
        when a server does not start at all, a contender disagrees with the reference, or the folder belongs to another
        plan or machine.
        """
        run = RunFolder(self.out)
        with run.locked():
            RunFolder.create(self.out, self.plan.document(), provenance.collect())
            self._require_same_machine(run)
            run.write("model", self._model())
            with tqdm(unit="point", dynamic_ncols=True) as bar:
                progress = Progress(self.bench, run, bar)
                contenders = tune(self.plan, run, partial(measure_candidate, self.bench), progress.says)
                run.write("contenders", {"contenders": [one.model_dump(mode="json") for one in contenders]})
                self._race(run, contenders, progress)
        return run

    def _model(self) -> dict:
        """Name of the model and its shape; None where the plan names no model, or one of a family not known here."""
        if self.bench.files is None:
            return {"name": None, "config": None}
        from wholecurve.models.config import config_from_hf

        folder = self.bench.files.hf_folder()
        try:
            config = asdict(config_from_hf(read_json(folder / "config.json"), str(folder)))
        except UserError:
            config = None
        return {"name": self.plan.model, "config": config}

    def _require_same_machine(self, run: RunFolder) -> None:
        then, now = run.provenance["hardware"]["fingerprint"], provenance.hardware()["fingerprint"]
        if then != now:
            raise UserError(f"{run.path}: was begun on another machine ({then}); this is {now}; choose another --out")

    def _race(self, run: RunFolder, contenders: list[ServingContender], progress: Progress) -> None:
        points = schedule(self.plan, [contender.name for contender in contenders])
        progress.plan(points, contenders)
        for repeat in range(1, self.plan.repeats + 1):
            missing = [p for p in points if p.repeat == repeat and not run.has_point(p.point_id)]
            wanted = {point.contender for point in missing}
            wanted |= not_searched(self.plan, run, [contender.name for contender in contenders], repeat)
            up = [contender for contender in contenders if contender.name in wanted]
            if up:
                self._ceilings(run, before_repeat(repeat))
            together = self.plan.servers == "together"
            for group in [up] if together else [[one] for one in (up if repeat % 2 else up[::-1])]:
                names = {contender.name for contender in group}
                mine = [point for point in missing if point.contender in names]
                if group:
                    self._repeat(run, group, mine, repeat, len(points), progress)
        if run.has("ceilings"):
            self._ceilings(run, AFTER)

    def _ceilings(self, run: RunFolder, when: str) -> None:
        """Measure this machine's ceilings, where a server of the study runs on it; no server is up meanwhile."""
        if can_measure_ceilings() and any(contender.server != RUNNING for contender in self.plan.contenders):
            measure_round(run, when, self.plan.dtype, self.bench.threads)

    def _repeat(
        self,
        run: RunFolder,
        group: list[ServingContender],
        points: list[ServingPoint],
        repeat: int,
        first_probe: int,
        progress: Progress,
    ) -> None:
        """Fresh servers for these contenders, their missing points in order, then their search."""
        with ExitStack() as stack:
            lives: dict[str, LiveServer] = {}
            for contender in group:
                progress.says(f"starting {contender.name}")
                live = lives[contender.name] = stack.enter_context(self.bench.start(contender))
                progress.started(live.server.ready_s)
            check_agreement(self.bench, run, lives, progress.says)
            if len(lives) > 1:
                progress.says("watching idle servers")
            for name, idle in stop_what_spins(lives).items():
                lives[name].idle = idle
            recorder = Recorder(self.bench, run, progress)
            for point in points:
                recorder.record(lives[point.contender], point)
            left = not_searched(self.plan, run, lives, repeat)
            if left:
                search(self.plan, run, recorder, {n: lives[n] for n in lives if n in left}, repeat, first_probe)
