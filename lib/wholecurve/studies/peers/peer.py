"""A peer: another engine, set up once in a folder of its own in the user's cache, at pinned versions."""

import fcntl
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from wholecurve.errors import UserError
from wholecurve.files import read_json, write_json
from wholecurve.models.store import cache_folder
from wholecurve.studies.peers.commands import announce


@dataclass(frozen=True)
class Step:
    """One step of a set-up. `is_done` looks at what is there, so that a killed or hand-made set-up goes on from it."""

    title: str
    is_done: Callable[[], bool]
    run: Callable[[], None]


class Peer(ABC):
    """What is known of one peer before it is set up, and how that is done."""

    name: str
    engine: str  # name of its engine in plans
    versions: dict[str, str]  # what is pinned
    cost: str  # for people: what the set-up takes

    @property
    def folder(self) -> Path:
        """Where everything of this peer lies."""
        return cache_folder() / "peers" / self.name

    @property
    def log(self) -> Path:
        return self.folder / "setup.log"

    @property
    def recipe(self) -> str:
        """Changes when the set-up does: an older one is then brought up to date."""
        return hashlib.sha256(json.dumps(self.recipe_parts(), sort_keys=True).encode()).hexdigest()[:16]

    def recipe_parts(self) -> dict:
        """What the set-up depends on."""
        return {"versions": self.versions}

    @abstractmethod
    def steps(self) -> list[Step]:
        """The set-up in order."""

    @property
    def is_ready(self) -> bool:
        """Whether this very set-up was finished."""
        stamp = self.folder / "stamp.json"
        return stamp.exists() and read_json(stamp).get("recipe") == self.recipe

    def require_ready(self) -> None:
        """UserError when the peer cannot run yet."""
        if not self.is_ready:
            state = "its set-up is older than this version" if (self.folder / "stamp.json").exists() else "not set up"
            raise UserError(f"peer {self.name}: {state}: run `wholecurve peers setup {self.name}` ({self.cost})")

    def setup(self) -> None:
        """Do what is missing; nothing when it is all there. UserError in one line when a step fails."""
        if self.is_ready:
            announce(f"{self.name}: ready in {self.folder}")
            return
        with self._locked():
            announce(f"{self.name}: setting up in {self.folder} ({self.cost})")
            started = time.monotonic()
            for step in self.steps():
                if step.is_done():
                    announce(f"{self.name}: {step.title}: there already")
                    continue
                step.run()
                if not step.is_done():
                    raise UserError(f"peer {self.name}: {step.title}: ended well but left nothing (log: {self.log})")
            write_json(
                self.folder / "stamp.json",
                {
                    "peer": self.name,
                    "recipe": self.recipe,
                    "versions": self.versions,
                    "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                },
            )
            announce(f"{self.name}: ready after {time.monotonic() - started:.0f} s")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"peer {self.name}: another set-up is at work in {self.folder}") from None
            yield
