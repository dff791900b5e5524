"""Storage for the library limits, and so for flask-limiter and slowapi.

Importing this module registers ``rlnode://host:8080,host2:8080`` and ``async+rlnode://…`` with limits. Options stand in the
URI's query or are arguments: ``token``, ``tls``, ``timeout``, ``namespace`` (``limits``), ``on_error``, ``max_in_flight``,
``max_batch``, ``max_queue`` and ``wrap_exceptions``. Any other is rejected by name.

While no node answers, errors are raised, for the library's own fallback to take over. With ``on_error`` ``open``, ``closed`` or
``local`` the client decides instead.

A fixed window begins with its first hit, and refused hits are counted, as by all storages of limits. The moving window is
rlnode's sliding-window-log, and the sliding window counter its sliding-window, both decided in one place (``exact``).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import limits.aio.storage
import limits.storage
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from limits.storage.base import TimestampedSlidingWindow

from ._aio import AsyncClient
from ._answers import Decision
from ._core import Core
from ._requests import MAX_AMOUNT, MAX_VALUE, Limit, question, scrub, target
from ._sync import Client, run
from .errors import RlnodeError

MAX_WINDOWS = 10_000

_NUMBERS = {"timeout": float, "max_in_flight": int, "max_batch": int, "max_queue": int}
_RESET = "rlnode can't forget all keys of a storage: clear those that you know, or choose another namespace"


def _options(uri: str | None, options: dict[str, Any]) -> tuple[dict[str, Any], str, bool]:
    """Returns a client's options, the namespace, and whether errors are raised."""
    try:
        parts = urlsplit(uri or "")
        given = {**dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))), **options}
    except ValueError as e:
        raise ConfigurationError(f"{uri!r} is not an address such as rlnode://127.0.0.1:8080: {e}") from e
    if not parts.netloc or "@" in parts.netloc or parts.path.strip("/") or parts.fragment:
        shown = parts.netloc.rpartition("@")[2]
        raise ConfigurationError(f"rlnode://{shown}: an address such as rlnode://10.0.0.1:8080,10.0.0.2:8080?token=… is wanted")
    namespace = str(given.pop("namespace", "limits"))
    on_error = given.pop("on_error", "raise")
    tls = given.pop("tls", False)
    if isinstance(tls, str):
        if tls.lower() not in ("true", "false", "1", "0"):
            raise ConfigurationError(f"rlnode: tls is {tls!r}; true or false is wanted")
        tls = tls.lower() in ("true", "1")
    client: dict[str, Any] = {"on_error": "closed" if on_error == "raise" else on_error}
    if on_error == "local":  # all calls bring their limits, so that these are for none
        client["local_limits"] = [Limit(limit=1, per="1s")]
    if tls not in (True, False, None):
        client["tls"] = tls  # an ssl.SSLContext
    if "token" in given:
        client["token"] = given.pop("token")
    try:
        for name, kind in _NUMBERS.items():
            if name in given:
                client[name] = kind(given.pop(name))
    except (TypeError, ValueError) as e:
        raise ConfigurationError(f"rlnode: {name}: {e}") from e
    if given:
        known = ", ".join(["token", "tls", "namespace", "on_error", *_NUMBERS, "wrap_exceptions"])
        raise ConfigurationError(f"rlnode: the option {min(given)} is not known; there are {known}")
    client["nodes"] = [f"{'https' if tls else 'http'}://{_with_port(host)}" for host in parts.netloc.split(",")]
    return client, namespace, on_error == "raise"


def _with_port(host: str) -> str:
    return host if ":" in host.rpartition("]")[2] else f"{host}:8080"


class _Windows:
    """The contract of storages, for both kinds of client."""

    def __init__(self, core: Callable[[], Core], namespace: str, raises: bool) -> None:
        self.core, self.namespace, self.raises = core, namespace, raises
        self.lock = threading.Lock()  # guards the rest
        self.windows: OrderedDict[str, int] = OrderedDict()  # by keys that don't tell it: at most MAX_WINDOWS

    async def incr(self, key: str, expiry: int, amount: int) -> int:
        if _from_key(key)[1] != expiry:
            with self.lock:
                self.windows[key] = expiry
                self.windows.move_to_end(key)
                if len(self.windows) > MAX_WINDOWS:
                    self.windows.popitem(last=False)
        return self._used(await self._ask("count", key, _fixed(key, expiry), amount))

    async def get(self, key: str) -> int:
        decision = await self._look(key)
        return 0 if decision is None else self._used(decision)

    async def get_expiry(self, key: str) -> float:
        decision = await self._look(key)
        return time.time() + (decision.reset_after if decision else 0)

    async def _look(self, key: str) -> Decision | None:
        with self.lock:
            expiry = self.windows.get(key)
        expiry = expiry or _from_key(key)[1]
        if not expiry:
            # Neither does the key tell its window, nor was it counted here. A node lists what it knows.
            usage = await self.core().usage(*target(None, _short(key), self.namespace))
            if usage.unknown:
                raise RlnodeError(f"the window of the key {key!r:.80} is not known here, since it was counted elsewhere")
            windows = [one for one in usage.limits if one.algorithm == "fixed-window"]
            if not windows:
                return None
            expiry = round(windows[0].window)
        return await self._ask("peek", key, _fixed(key, expiry), 0)

    async def acquire(self, algorithm: str, key: str, limit: int, expiry: int, amount: int) -> bool:
        if amount > limit:
            return False
        return (await self._ask("check", key, _limit(limit, expiry, algorithm), amount)).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        # What asks for all of it is refused if anything is used, and then told when the oldest hit leaves the window.
        decision = await self._ask("peek", key, _limit(limit, expiry, "sliding-window-log"), max(limit, 1))
        now = time.time()
        if decision.allowed:
            return now, 0
        leaves = min((one.more_after for one in decision.limits if one.more_after), default=decision.reset_after)
        return now - expiry + min(leaves, float(expiry)), self._used(decision)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        decision = await self._ask("peek", key, _limit(_from_key(key)[0], expiry, "sliding-window"), 0)
        # A node tells the weighted sum of both windows, when there is more, and when all is fresh: that is a window later if there
        # are hits in the current one. The library counts the time until there is more, or until this window ends, and takes it
        # modulo the window.
        ends = decision.reset_after - expiry if decision.reset_after > expiry else decision.reset_after
        more = min((one.more_after for one in decision.limits if one.more_after), default=ends)
        return 0, 0.0, self._used(decision), min(more, ends, expiry * 0.999)

    async def clear(self, key: str, limits: list[Limit] | None = None) -> None:
        with self.lock:
            self.windows.pop(key, None)
        await self.core().change("/v1/reset", *target(None, _short(key), self.namespace, limits), None)

    async def check(self) -> bool:
        return await self.core().ready()

    async def _ask(self, mode: Any, key: str, limits: list[Limit], cost: int) -> Decision:
        more: Any = {"detail": True} if mode == "peek" else {}
        asked = question(key=_short(key), namespace=self.namespace, limits=limits, consistency="exact", mode=mode, cost=cost, **more)
        decision = await self.core().check(asked)
        if decision.error is not None and self.raises:
            raise decision.error
        return decision

    def _used(self, decision: Decision) -> int:
        if decision.error is None or decision.limit:
            return decision.used
        return 0 if decision.allowed else MAX_AMOUNT  # on_error decided, and counted nothing


def _from_key(key: str) -> tuple[int, int]:
    """Returns the amount and the window that the library writes at the end of its keys; as window 0 if it did not."""
    parts = key.rsplit("/", 3)
    item = GRANULARITIES.get(parts[-1]) if len(parts) == 4 else None
    if item is None or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return MAX_AMOUNT, 0
    return int(parts[1]), int(parts[2]) * item.GRANULARITY.seconds


def _short(key: str) -> str:
    """Returns a key that a node accepts. Two long ones don't become the same."""
    text = scrub(key).encode()
    return key if len(text) <= MAX_VALUE else text[:512].decode("utf-8", "ignore") + sha256(text).hexdigest()


def _limit(limit: int, expiry: int, algorithm: str) -> list[Limit]:
    return [Limit(limit=min(max(limit, 1), MAX_AMOUNT), per_ms=int(expiry * 1000), algorithm=algorithm)]


def _fixed(key: str, expiry: int) -> list[Limit]:
    # The amount is for who looks at a node: counting and looking don't go by it.
    return [{**_limit(_from_key(key)[0], expiry, "fixed-window")[0], "from": "first"}]


def _core_of(client: Client) -> Callable[[], Core]:
    return lambda: client._core


class RlnodeStorage(limits.storage.Storage, limits.storage.MovingWindowSupport, limits.storage.SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """Storage for limits, by the client for threads."""

    STORAGE_SCHEME = ["rlnode"]  # noqa: RUF012

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        configured, namespace, raises = _options(uri, options)
        try:
            self.storage = self.client = Client(**configured)  # the library's own storages have what they store in as storage
        except ValueError as e:
            raise ConfigurationError(f"rlnode: {e}") from e
        self._windows = _Windows(_core_of(self.client), namespace, raises)
        weakref.finalize(self, self.client.close)  # the library never closes a storage

    @property
    def base_exceptions(self) -> type[Exception]:
        """What a storage raises."""
        return RlnodeError

    def close(self) -> None:
        """Closes the client."""
        self.client.close()

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts, and returns what is counted in this window."""
        return run(self._windows.incr(key, expiry, amount))

    def get(self, key: str) -> int:
        """Returns what is counted in this window."""
        return run(self._windows.get(key))

    def get_expiry(self, key: str) -> float:
        """Returns the Unix time at which this window ends; now if there is none."""
        return run(self._windows.get_expiry(key))

    def check(self) -> bool:
        """Reports whether some node is ready."""
        return run(self._windows.check())

    def reset(self) -> int | None:
        """Is not supported."""
        raise NotImplementedError(_RESET)

    def clear(self, key: str) -> None:
        """Makes all counters of a key fresh."""
        run(self._windows.clear(key))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes amount from a moving window if it fits."""
        return run(self._windows.acquire("sliding-window-log", key, limit, expiry, amount))

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns when the oldest hit of a moving window was, and how many there are."""
        return run(self._windows.get_moving_window(key, limit, expiry))

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes amount from a sliding window if it fits."""
        return run(self._windows.acquire("sliding-window", key, limit, expiry, amount))

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns the weighted count as that of the current window, and the time until there is more."""
        return run(self._windows.get_sliding_window(key, expiry))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Makes a sliding window fresh."""
        run(self._windows.clear(key, _limit(MAX_AMOUNT, expiry, "sliding-window")))


class AsyncRlnodeStorage(
    limits.aio.storage.Storage, limits.aio.storage.MovingWindowSupport, limits.aio.storage.SlidingWindowCounterSupport, TimestampedSlidingWindow
):
    """Storage for limits, by the client for asyncio."""

    STORAGE_SCHEME = ["async+rlnode"]  # noqa: RUF012

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        configured, namespace, raises = _options(uri, options)
        try:
            self.storage = self.client = AsyncClient(**configured)
        except ValueError as e:
            raise ConfigurationError(f"rlnode: {e}") from e
        self._windows = _Windows(self.client._attach, namespace, raises)

    @property
    def base_exceptions(self) -> type[Exception]:
        """What a storage raises."""
        return RlnodeError

    async def close(self) -> None:
        """Closes the client."""
        await self.client.close()

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Counts, and returns what is counted in this window."""
        return await self._windows.incr(key, expiry, amount)

    async def get(self, key: str) -> int:
        """Returns what is counted in this window."""
        return await self._windows.get(key)

    async def get_expiry(self, key: str) -> float:
        """Returns the Unix time at which this window ends; now if there is none."""
        return await self._windows.get_expiry(key)

    async def check(self) -> bool:
        """Reports whether some node is ready."""
        return await self._windows.check()

    async def reset(self) -> int | None:
        """Is not supported."""
        raise NotImplementedError(_RESET)

    async def clear(self, key: str) -> None:
        """Makes all counters of a key fresh."""
        await self._windows.clear(key)

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes amount from a moving window if it fits."""
        return await self._windows.acquire("sliding-window-log", key, limit, expiry, amount)

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns when the oldest hit of a moving window was, and how many there are."""
        return await self._windows.get_moving_window(key, limit, expiry)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Takes amount from a sliding window if it fits."""
        return await self._windows.acquire("sliding-window", key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns the weighted count as that of the current window, and the time until there is more."""
        return await self._windows.get_sliding_window(key, expiry)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Makes a sliding window fresh."""
        await self._windows.clear(key, _limit(MAX_AMOUNT, expiry, "sliding-window"))
