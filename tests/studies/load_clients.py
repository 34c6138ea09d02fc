"""Clients that other processes can import: each answers a turn by real time."""

import asyncio
import os
import signal
import time

from virtual_time import reply

from wholecurve.errors import UserError


class SteadyClient:
    """Answers after 20 ms. Writes the machine's own clock at the last token where a server says why it stopped."""

    def __init__(self, endpoint, clock):
        self.clock = clock

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def send(self, turn, scheduled_s, session=None):
        sent_s = self.clock()
        await asyncio.sleep(0.02)
        before, now, after = time.monotonic(), self.clock(), time.monotonic()
        truth = f"{before!r} {after!r} {os.getpid()}"
        return reply(turn, scheduled_s, sent_s, [now], now, session, finish_reason=truth)


class DyingClient(SteadyClient):
    """Kills its own process when it is to send turn t005."""

    async def send(self, turn, scheduled_s, session=None):
        if turn.turn_id == "t005":
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().send(turn, scheduled_s, session)


class ExitingClient(SteadyClient):
    """Ends its own process with a last word when it is to send turn t005."""

    async def send(self, turn, scheduled_s, session=None):
        if turn.turn_id == "t005":
            os.write(2, b"first line\nout of memory in the client\n")
            os._exit(3)
        return await super().send(turn, scheduled_s, session)


class RefusingClient(SteadyClient):
    """Cannot be opened."""

    async def __aenter__(self):
        raise UserError("base_url 'nonsense': not a URL")


class BrokenClient(SteadyClient):
    """Has a fault of its own."""

    async def send(self, turn, scheduled_s, session=None):
        raise KeyError("no such field")


class PatientClient(SteadyClient):
    """Never answers."""

    async def send(self, turn, scheduled_s, session=None):
        await asyncio.sleep(3600)
