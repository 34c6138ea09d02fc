"""Measures points and keeps them, whatever the servers do: one that dies is started anew once, and that is noted."""

from datetime import UTC, datetime

from wholecurve.errors import UserError
from wholecurve.runs import RunFolder
from wholecurve.studies.serving.bench import Bench
from wholecurve.studies.serving.live import LiveServer
from wholecurve.studies.serving.point import Measured, measure
from wholecurve.studies.serving.progress import Progress
from wholecurve.studies.serving.schedule import ServingPoint
from wholecurve.studies.serving.servers.settings import portable


class Recorder:
    """Writes points of one repeat. A contender whose server cannot be brought up again is out of it."""

    def __init__(self, bench: Bench, run: RunFolder, progress: Progress):
        self._bench, self._run, self._progress = bench, run, progress
        self._out: set[str] = set()

    def record(self, live: LiveServer, point: ServingPoint) -> dict | None:
        """Measure a point and write it; its row. None where the contender is out: then the point stays missing."""
        if live.contender.name in self._out:
            self._progress.ended(point, None)
            return None
        self._progress.begins(point)
        measured = self._measured(live, point)
        if measured is None or measured.died:
            lost = measured
            self._fault(point, "the server died; the point is measured again")
            if not self._comes_up_again(live, point):
                measured = None
            else:
                measured = self._measured(live, point) or lost
                if not live.is_alive():
                    self._fault(point, "the server died again")
                    self._comes_up_again(live, point)
        if measured is None:
            self._progress.ended(point, None)
            return None
        self._run.write_point(point.point_id, measured.row, measured.traces)
        self._progress.ended(point, measured.row["took_s"])
        return measured.row

    def _measured(self, live: LiveServer, point: ServingPoint) -> Measured | None:
        return measure(self._bench, live, point, on_progress=lambda done: self._progress.answered(point, done))

    def _comes_up_again(self, live: LiveServer, point: ServingPoint) -> bool:
        try:
            live.restart()
        except UserError as error:
            self._out.add(live.contender.name)
            self._fault(point, f"its points of this repeat are missing: {error}")
            return False
        return True

    def _fault(self, point: ServingPoint, what: str) -> None:
        """Note something that went wrong, for good: `faults.json` is the diary of a study."""
        known = self._run.read("faults")["faults"] if self._run.has("faults") else []
        when = datetime.now(UTC).isoformat(timespec="seconds")
        fault = {"contender": point.contender, "point": point.point_id, "what": portable(what), "when": when}
        self._run.write("faults", {"faults": [*known, fault]})
