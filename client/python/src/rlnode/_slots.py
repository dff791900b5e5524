"""Slots: a bounded number of things that go on at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ._answers import Decision
from ._setup import LOGGER
from .errors import NodeError, RefusedError, RlnodeError, SlotLostError

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from typing_extensions import Self

FIRST_PAUSE, LAST_PAUSE = 0.025, 1.0  # seconds between attempts to renew, or to acquire

T = TypeVar("T")


class Keeper(Protocol):
    """What renews and releases slots."""

    def later(self, at: float, f: Callable[[], None]) -> Callable[[], None]:
        """Calls f at a time of the monotonic clock, unless what it returns is called first."""

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a coroutine beside all else."""

    async def renew(self, slot: str, left: float) -> float:
        """Holds a slot for longer, and returns until when. It ends after left seconds."""

    async def release(self, slot: str) -> bool:
        """Gives a slot back, and reports whether a node has acknowledged it."""

    def ended(self, held: Held) -> None:
        """Hears that a slot is renewed no longer."""


class Held:
    """A slot that renews itself whenever a third of its time is over, which counts from when the request was sent."""

    def __init__(self, keeper: Keeper, slot: str, until: float, reservation: str = "") -> None:
        self.keeper, self.slot, self.until, self.reservation = keeper, slot, until, reservation
        self.lock = threading.Lock()  # guards what follows
        self.over = not slot  # it is renewed no longer
        self.gone = not slot  # there is nothing to release
        self.lost: SlotLostError | None = None
        self.pause = 0.0
        self.cancels: list[Callable[[], None]] = []
        self.listeners: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begins to renew it."""
        with self.lock:
            if self.over:
                return
            now = time.monotonic()
            self.cancels = [
                self.keeper.later(self.until, lambda: self.lose("it was not renewed in time")),
                self.keeper.later(now + (self.until - now) / 3, self._due),
            ]

    def _due(self) -> None:
        if not self.over:
            self.keeper.spawn(self._renew)

    async def _renew(self) -> None:
        try:
            until = await self.keeper.renew(self.slot, self.until - time.monotonic())
        except RlnodeError as e:
            if isinstance(e, NodeError) and e.code == "unknown-slot":
                self.gone = True
                self.lose(str(e))
            else:
                self._again()
            return
        with self.lock:
            cancels, self.cancels = self.cancels, []
            self.until, self.pause = until, 0.0
        for cancel in cancels:
            cancel()
        self.begin()

    def _again(self) -> None:
        with self.lock:
            if not self.over:
                self.pause = min(max(2 * self.pause, FIRST_PAUSE), LAST_PAUSE)
                self.cancels[1:] = [self.keeper.later(time.monotonic() + self.pause, self._due)]

    def listen(self, f: Callable[[], None]) -> None:
        """Has f called when it is lost; at once if it is already."""
        with self.lock:
            if self.lost is None:
                self.listeners.append(f)
                return
        f()

    def lose(self, why: str) -> None:
        """Notes that it is held no longer."""
        if self.end(SlotLostError(f"the slot is lost: {why}")):
            for listener in self.listeners:
                try:
                    listener()
                except Exception:
                    LOGGER.exception("a function given to on_lost")

    def end(self, lost: SlotLostError | None = None) -> bool:
        """Ends the renewals, and reports whether they had not ended yet."""
        with self.lock:
            if self.over:
                return False
            self.over, self.lost = True, lost
            cancels, self.cancels = self.cancels, []
        for cancel in cancels:
            cancel()
        self.keeper.ended(self)
        return True

    async def release(self) -> bool:
        """Gives it back, once."""
        self.end()
        with self.lock:
            gone, self.gone = self.gone, True
        return gone or await self.keeper.release(self.slot)


class _Slot:
    """What both kinds of slots have."""

    def __init__(self, decision: Decision, held: Held) -> None:
        #: of the acquire; it says why a slot is refused, and its error why no node decided
        self.decision = decision
        self._held = held

    @property
    def id(self) -> str:
        """Names the slot at any node. It is empty if nothing is held: refused, or no node decided and on_error let it pass."""
        return self._held.slot

    @property
    def allowed(self) -> bool:
        """Whether the work may begin."""
        return self.decision.allowed

    def __bool__(self) -> bool:
        return self.decision.allowed

    @property
    def lost(self) -> bool:
        """Whether the slot may no longer be held: it is over, or no node has renewed it in time. The work should end."""
        return self._held.lost is not None

    def on_lost(self, f: Callable[[], None]) -> None:
        """Has f called, from wherever, when the slot is lost; at once if it is already."""
        self._held.listen(f)

    def raise_if_lost(self) -> None:
        """Raises SlotLostError if the slot is lost."""
        if self._held.lost is not None:
            raise self._held.lost


class Slot(_Slot):
    """A slot, or a refusal. ``with`` releases it, and raises RefusedError if it is one."""

    def __init__(self, decision: Decision, held: Held, run: Callable[[Coroutine[Any, Any, bool]], bool]) -> None:
        super().__init__(decision, held)
        self._run = run

    def release(self) -> bool:
        """Gives the slot back, and reports whether a node has acknowledged that; else the slot ends by itself.

        It repeats the call for the client's timeout, and may itself be called several times.
        """
        return self._run(self._held.release())

    def __enter__(self) -> Self:
        if not self.decision.allowed:
            raise RefusedError(self.decision)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class AsyncSlot(_Slot):
    """A slot, or a refusal. ``async with`` releases it, and raises RefusedError if it is one.

    If the slot is lost, what runs in ``async with`` is cancelled, and SlotLostError is raised.
    """

    _task: asyncio.Task[Any] | None = None
    _cancelled = False

    async def release(self) -> bool:
        """See Slot.release. It goes on if this is cancelled."""
        import asyncio

        return await asyncio.shield(asyncio.ensure_future(self._held.release()))

    async def __aenter__(self) -> Self:
        import asyncio

        if not self.decision.allowed:
            raise RefusedError(self.decision)
        self._task = asyncio.current_task()
        self.on_lost(self._cancel)
        return self

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import asyncio

        task, self._task = self._task, None
        await self.release()
        if self._cancelled and kind is asyncio.CancelledError:
            uncancel = getattr(task, "uncancel", lambda: 0)  # Python 3.11
            if uncancel() == 0:
                self.raise_if_lost()


class Acquiring:
    """An acquire under way: awaited it is the AsyncSlot, and with ``async with`` it is entered, too."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, AsyncSlot]]) -> None:
        self._make = make
        self._slot: AsyncSlot | None = None

    def __await__(self) -> Generator[Any, None, AsyncSlot]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSlot:
        self._slot = await self._make()
        return await self._slot.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._slot is not None:
            await self._slot.__aexit__(kind, error, trace)
