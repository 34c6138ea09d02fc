"""What a running study says: how long it will take, on what assumption, what it does now, and how long is left."""

from collections.abc import Sequence
from time import monotonic

from tqdm.auto import tqdm

from wholecurve.runs import RunFolder
from wholecurve.studies.serving.bench import Bench
from wholecurve.studies.serving.estimate import ASSUMED, Estimate, assumed_s, in_words, work_of
from wholecurve.studies.serving.plan_parts import RUNNING, ServingContender
from wholecurve.studies.serving.schedule import ServingPoint

_SAY_EVERY_S = 1.0


class Progress:
    """The bar of one study. Points that are finished already correct the estimate before it is first told."""

    def __init__(self, bench: Bench, run: RunFolder, bar: tqdm):
        self._bench, self._run, self._bar = bench, run, bar
        self._estimate = Estimate()
        self._assumed: dict[tuple[str, float], float] = {}
        self._left: list[ServingPoint] = []
        self._starts = 0
        self._said = 0.0

    def says(self, text: str) -> None:
        """What is going on now."""
        self._bar.set_postfix_str(text)

    def plan(self, points: Sequence[ServingPoint], contenders: Sequence[ServingContender]) -> None:
        """Tell how long all of it will take, before anything of it starts."""
        for point in points:
            if self._run.has_point(point.point_id):
                row = self._run.read(f"points/{point.point_id}")
                self._estimate.finished(point.contender, self._seconds(point), row["took_s"])
            else:
                self._left.append(point)
        self._bar.total, self._bar.n = len(points), len(points) - len(self._left)
        self._bar.refresh()
        if not self._left:
            return
        started = {contender.name for contender in contenders if contender.server != RUNNING}
        self._starts = len({(p.contender, p.repeat) for p in self._left if p.contender in started})
        basis = f"corrected by {self._bar.n} finished points" if self._estimate.ratios else ASSUMED
        search = "" if self._bench.plan.maximum_load is None else ", and the search for the maximum load after it"
        self._bar.write(
            f"About {in_words(self.left_s())} for {len(self._left)} points and {self._starts} server starts{search} "
            f"({basis})."
        )

    def started(self, seconds: float | None) -> None:
        """A server is up, `seconds` after it was started."""
        self._starts = max(self._starts - 1, 0)
        if seconds is not None:
            self._estimate.starts_s.append(seconds)

    def begins(self, point: ServingPoint) -> None:
        """A point is being measured."""
        self.says(f"{self._name(point)}; about {in_words(self.left_s())} left")

    def answered(self, point: ServingPoint, requests: int) -> None:
        """So many requests of it have ended. Said now and then: the client that calls this is being measured."""
        now = monotonic()
        if now - self._said < _SAY_EVERY_S:
            return
        self._said = now
        self.says(f"{self._name(point)}, {requests} answered; about {in_words(self.left_s())} left")

    def ended(self, point: ServingPoint, took_s: float | None) -> None:
        """A point is finished, or given up where `took_s` is None."""
        if took_s is not None:
            self._estimate.finished(point.contender, self._seconds(point), took_s)
        if point in self._left:
            self._left.remove(point)
            self._bar.update()

    def left_s(self) -> float:
        """Seconds that the points of the race will still take."""
        return self._estimate.left_s([(p.contender, self._seconds(p)) for p in self._left], self._starts)

    def _name(self, point: ServingPoint) -> str:
        unit = {"concurrency": "in flight", "sessions": "sessions", "request_rate": "per s"}[point.load_kind]
        return f"{point.contender}, {point.load:g} {unit}, repeat {point.repeat}"

    def _seconds(self, point: ServingPoint) -> float:
        """What one point takes under the assumption; all repeats of a level are taken to be as long as the first."""
        key = (point.load_kind, point.load)
        if key not in self._assumed:
            first = ServingPoint(0, "", point.workload, point.load_kind, point.load, 1)
            sessions = self._bench.prepared(first).sessions
            warm_up, warm_load = self._bench.warm_up(first, sessions)
            self._assumed[key] = assumed_s(work_of(sessions, self._bench.load(first)))
            self._assumed[key] += assumed_s(work_of(warm_up, warm_load))
        return self._assumed[key]
