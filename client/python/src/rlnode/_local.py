"""Limits within this process, for while no node answers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from ._answers import NEVER, Decision, explain, with_headers
from ._requests import Question
from .errors import RequestError

MAX_COUNTERS = 100_000

_CALENDAR = {"minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0, "month": 2678400.0, "year": 31622400.0}
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")


def window_of(limit: Mapping[str, Any]) -> float:
    """Returns a limit's window in seconds. Those of the calendar have their longest usual length."""
    if "per_ms" in limit:
        return float(limit["per_ms"]) / 1000
    per = str(limit["per"])
    if per in _CALENDAR:
        return _CALENDAR[per]
    parts = _PART.findall(per)
    if not parts or "".join(n + unit for n, unit in parts) != per:
        raise RequestError(f"per is {per!r:.80}: a window such as 10s, 1m or day is wanted")
    return sum(float(n) * _UNITS[unit] for n, unit in parts)


class _Counter:
    __slots__ = ("ends", "used")

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.used = 0


class LocalLimiter:
    """Windows that begin with a subject's first hit, whatever the algorithm.

    At most 100,000 are kept. Further subjects are refused until some have ended: else a stranger could wash his own away.
    """

    def __init__(self, limits: tuple[Mapping[str, Any], ...]) -> None:
        self._limits = limits  # of checks that bring none
        self._counters: dict[tuple[Any, ...], _Counter] = {}
        self._swept = 0.0  # when ended windows were last dropped
        self.begin()

    def begin(self) -> None:
        """Makes a new lock: in a forked process another thread may have held it."""
        self._lock = threading.Lock()  # guards the counters

    def __len__(self) -> int:
        return len(self._counters)

    def decide(self, question: Question, error: Exception) -> Decision:
        """Decides a check by its own limits, or by those of this limiter."""
        fields = question.fields
        if "subjects" in fields:
            subjects = fields["subjects"]
        elif "limits" in fields:
            subjects = [fields]
        else:
            mode = "peek" if fields.get("peek") else fields.get("mode", "check")
            subjects = [{**fields, "limits": self._limits, "mode": mode}]
        if any(limit.get("algorithm") == "concurrency" for subject in subjects for limit in subject["limits"]):
            reason = "No node answers, and one process can't tell how many slots others hold."
            return with_headers(Decision(False, retry_after=1.0, decided_by="local", code="rate-limited", reason=reason, error=error), {})
        with self._lock:
            return self._decide(subjects, error)

    def _decide(self, subjects: list[dict[str, Any]], error: Exception) -> Decision:
        now = time.monotonic()
        counters: dict[tuple[Any, ...], _Counter] = {}  # of this check
        taken: list[tuple[tuple[Any, ...], int, str]] = []
        verdicts: list[tuple[Decision, str]] = []
        for subject in subjects:
            mode = subject.get("mode", "check")
            for limit in subject["limits"]:
                window = window_of(limit)
                unit = limit.get("unit", "requests")
                name = (*_name(subject), unit, limit.get("algorithm", ""), window)
                counter = counters.get(name) or self._counter(name, now, window, len(counters))
                if counter is None:
                    reason = "Too many are limited while no node answers."
                    return with_headers(Decision(False, retry_after=1.0, decided_by="local", code="rate-limited", reason=reason, error=error), {})
                counters[name] = counter
                cost, capacity = _cost(subject, unit), _capacity(limit)
                fits = counter.used + cost <= capacity
                taken.append((name, cost, mode))
                after = counter.used + (cost if mode == "count" or (fits and mode != "peek") else 0)
                verdict = Decision(
                    allowed=fits or bool(subject.get("shadow")),
                    rule=subject.get("rule") or "/".join(["inline", *filter(None, [subject.get("namespace")])]),
                    unit=unit,
                    limit=capacity,
                    used=after,
                    remaining=max(0, capacity - after),
                    window=window,
                    reset_after=counter.ends - now,
                    retry_after=0.0 if fits else NEVER if cost > capacity else counter.ends - now,
                    decided_by="local",
                    code="" if fits else "cost-above-limit" if cost > capacity else "rate-limited",
                    error=error,
                )
                verdicts.append((verdict, mode))
        passes = all(d.allowed for d, mode in verdicts if mode != "count")
        # What takes nothing leaves nothing: a window begins with a hit.
        for name, cost, mode in taken if passes else ():
            if mode != "peek":
                self._counters[name] = counters[name]
                counters[name].used += cost
        tightest = min(verdicts, key=lambda v: (v[0].allowed, -v[0].retry_after, v[0].remaining / max(1, v[0].limit)))[0]
        if tightest.allowed:
            return tightest
        found = Decision(**{**tightest.__dict__, "counted": passes, "reason": explain(tightest), "violated": (tightest.rule,)})
        return with_headers(found, {})

    def _counter(self, name: tuple[Any, ...], now: float, window: float, more: int) -> _Counter | None:
        """Returns a counter, perhaps a fresh one that is not kept yet; None if there is no room for it and so many more."""
        counter = self._counters.get(name)
        if counter is not None and counter.ends > now:
            return counter
        if counter is None and len(self._counters) + more >= MAX_COUNTERS:
            if now - self._swept >= 1:
                self._swept = now
                for ended in [one for one, kept in self._counters.items() if kept.ends <= now]:
                    del self._counters[ended]
            if len(self._counters) + more >= MAX_COUNTERS:
                return None
        return _Counter(now + window)


def _name(subject: Mapping[str, Any]) -> tuple[Any, ...]:
    """Names a subject. Of attributes, endpoint and method say what is asked for, and not who asks."""
    key = subject.get("key")
    attributes = subject.get("attributes") or {}
    who = tuple(sorted((name, value) for name, value in attributes.items() if name not in ("endpoint", "method")))
    return subject.get("rule"), subject.get("namespace"), tuple(key) if isinstance(key, list) else key, who


def _capacity(limit: Mapping[str, Any]) -> int:
    bucket = str(limit.get("algorithm", "")).endswith("-bucket")
    return int((limit.get("burst") if bucket else None) or limit["limit"])


def _cost(subject: Mapping[str, Any], unit: str) -> int:
    costs = subject.get("costs") or {}
    if unit in costs:
        return int(costs[unit])
    return int(subject.get("cost", 1)) if unit == "requests" else 0
