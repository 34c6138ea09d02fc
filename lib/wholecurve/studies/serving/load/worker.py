"""A process that sends one share of a load; `processes.py` starts it and tells it when.

Started as `python -m wholecurve.studies.serving.load.worker SOCKET SKEW`: the number of an inherited socket, and how
many seconds its clock is to be wrong by (what a machine with another clock looks like). It ends when the socket does,
also in the middle of a load, so a killed study leaves nothing running.
"""

import asyncio
import os
import pickle
import queue
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from wholecurve.errors import UserError
from wholecurve.studies.serving.load.job import Job, JobResult, run_job
from wholecurve.studies.serving.load.window import TimeSource

NOW = b"now"  # asks for this process's clock; every other message is a pickle
_PROGRESS_S = 0.2


class Worker:
    """Answers on `connection`, by a clock that is `skew_s` ahead."""

    def __init__(self, connection: Connection, skew_s: float):
        self._connection, self._skew_s = connection, skew_s
        self._messages: queue.Queue[bytes] = queue.Queue()
        self._sends = threading.Lock()
        self._told_at = 0.0

    def serve(self) -> None:
        """Send one share after another; ends with the connection, and so with the process."""
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            message = self._messages.get()
            try:
                self._tell("result", self._send_share(pickle.loads(message)))
            except UserError as error:
                self._tell("error", str(error))
            except Exception as error:
                traceback.print_exc()
                self._tell("error", f"{type(error).__name__}: {error}")

    def _send_share(self, job: Job) -> JobResult:
        source = TimeSource(self._now)
        with asyncio.Runner(loop_factory=source.new_loop) as runner:
            return runner.run(run_job(job, self._begin, source, self._ended))

    async def _begin(self) -> float:
        self._tell("ready", None)
        return pickle.loads(await asyncio.get_running_loop().run_in_executor(None, self._messages.get))

    def _ended(self, count: int) -> None:
        if (now := time.monotonic()) >= self._told_at + _PROGRESS_S:
            self._told_at = now
            self._tell("progress", count)

    def _now(self) -> float:
        return time.monotonic() + self._skew_s

    def _read(self) -> None:
        # In a thread of its own: a question for the clock is answered at once, and a parent that ends is noticed.
        try:
            while True:
                message = self._connection.recv_bytes()
                if message == NOW:
                    self._tell("now", self._now())
                else:
                    self._messages.put(message)
        except (EOFError, OSError):
            os._exit(0)

    def _tell(self, kind: str, value: object) -> None:
        with self._sends:
            self._connection.send((kind, value))


if __name__ == "__main__":
    Worker(Connection(int(sys.argv[1])), float(sys.argv[2])).serve()
