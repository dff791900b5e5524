"""What a program has configured, as far as nodes can contradict it, and what it logs about that and about nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

LOGGER = logging.getLogger("rlnode")

LOG_PAUSE = 60.0  # seconds between two lines about the same


class Setup:
    """Names of rules that are constants of the program, and when something was last logged.

    It has no lock, since a fork might leave that locked: two threads may at worst log the same line.
    """

    def __init__(self, rules: Iterable[str]) -> None:
        self.rules = set(rules)
        self._logged: dict[str, float] = {}
        self._over: set[str] = set()

    def add(self, names: Iterable[str]) -> tuple[str, ...]:
        """Adds rules, and returns those that are new."""
        added = tuple(name for name in names if name not in self.rules)
        self.rules.update(added)
        return added

    def log(self, level: int, about: str, message: str, *args: object) -> None:
        """Logs a line, at most once a minute for what it is about."""
        now = time.monotonic()
        if now - self._logged.get(about, -LOG_PAUSE) < LOG_PAUSE:
            return
        self._logged[about] = now
        self._over.discard(about)
        LOGGER.log(level, message, *args)

    def log_end(self, about: str, message: str, *args: object) -> None:
        """Logs that what a line was about is over, unless nothing was logged since the last time."""
        if about in self._logged and about not in self._over:
            self._over.add(about)
            LOGGER.info(message, *args)
