"""The client for asyncio."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._answers import Decision, Reservation, Settlement, Usage
from ._core import SPARE, WAITING, Call, Core
from ._http import ResponseReader
from ._local import LocalLimiter
from ._options import Address, OnError, OnRejected, Options, options_of
from ._requests import Check, Key, Limit, Question, Target, changes_of, part_of, question, target
from ._slots import Acquiring, AsyncSlot
from .errors import ClosedError, DeadlineError, QueueFullError, RlnodeError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")

GRACE = 0.05


class LoopStream:
    """A connection to a node, by asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.used = time.monotonic()
        self._late = False

    async def exchange(self, data: bytes, reader: ResponseReader, deadline: float) -> None:
        # Ending the connection is certain to end the wait, and no cancellation can be mistaken for it.
        timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), self._expire)
        try:
            self.writer.write(data)
            while not reader.done:
                reader.feed(await self.reader.read(65536))
        except OSError as e:
            if self._late:
                raise DeadlineError("no answer in time") from e
            raise
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self._late = True
        self.close()

    def usable(self) -> bool:
        return not self.writer.is_closing() and not self.reader.at_eof()

    def close(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self.writer.transport.abort()


class Loop:
    """The runtime of an event loop."""

    def __init__(self) -> None:
        self.core: Core
        self.tasks: set[asyncio.Task[None]] = set()
        self.turns = SPARE
        self.waiting: deque[asyncio.Future[bool]] = deque()  # for a turn
        self.pauses: set[asyncio.Future[bool]] = set()
        self.flushing = False

    async def connect(self, address: Address, options: Options, deadline: float) -> LoopStream:
        left = deadline - time.monotonic()
        tls = options.tls if address.tls else None
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(address.host, address.port, ssl=tls), left)
        except (TimeoutError, asyncio.TimeoutError):
            raise DeadlineError("no connection in time") from None
        sock = writer.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return LoopStream(reader, writer)

    async def pause(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()
        self.pauses.add(over)
        timer = loop.call_later(seconds, _resolve, over, True)
        try:
            return await over and not self.core.closed
        finally:
            timer.cancel()
            self.pauses.discard(over)

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(make())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def later(self, at: float, f: Callable[[], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), f).cancel

    async def enter(self, deadline: float) -> bool:
        if self.turns > 0:
            self.turns -= 1
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self.waiting.append(turn)
        timer = loop.call_later(max(0.0, deadline - time.monotonic()), _resolve, turn, False)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave()
            raise
        finally:
            timer.cancel()

    def leave(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self.turns += 1

    async def submit(self, call: Call) -> None:
        """Queues a check. Those of one turn of the loop share a request."""
        core = self.core
        if len(core.queue) >= core.options.max_queue:
            raise QueueFullError("too many calls are waiting")
        loop = asyncio.get_running_loop()
        call.answers = core.answers
        call.wake = wake = loop.create_future()
        core.queue.append(call)
        if not self.flushing and core.in_flight < core.options.max_in_flight:
            self.flushing = True
            loop.call_soon(self._flush)
        # What has been sent ends at its deadline by itself. A loop that was held up is given the time to see what has arrived.
        timer = loop.call_later(max(0.0, call.deadline - time.monotonic()) + GRACE, _resolve, wake, True)
        try:
            await wake
        except asyncio.CancelledError:
            if call.stage == WAITING:
                core.expired(call)
            raise
        finally:
            timer.cancel()
        if call.decision is None and call.error is None:
            call.error = ClosedError("the client is closed") if core.closed else core.expired(call)

    async def finish(self, making: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, Any]]) -> T:
        task = asyncio.ensure_future(making)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.spawn(lambda: _undo(task, undo))
            raise

    def _flush(self) -> None:
        self.flushing = False
        core = self.core
        while core.in_flight < core.options.max_in_flight and (batch := core.take()):
            core.in_flight += 1
            self.spawn(lambda batch=batch: self._send(batch))  # type: ignore[misc]

    async def _send(self, batch: list[Call]) -> None:
        core = self.core
        try:
            while batch:
                await core.send(batch)
                for call in batch:
                    _resolve(call.wake, True)
                batch = core.take()
        finally:
            core.in_flight -= 1
            for call in batch:  # the client was closed
                _resolve(call.wake, True)

    async def end(self) -> None:
        """Wakes all who wait, and ends all tasks."""
        core = self.core
        while core.queue:
            _resolve(core.queue.popleft().wake, True)
        for one in (*self.waiting, *self.pauses):
            _resolve(one, False)
        self.waiting.clear()
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


async def _undo(task: asyncio.Future[T], undo: Callable[[T], Coroutine[Any, Any, Any]]) -> None:
    with suppress(RlnodeError, asyncio.CancelledError):
        await undo(await task)


class AsyncClient:
    """Asks nodes for decisions. Its options are those of Client; token and rules are checked from the first call on.

    Checks that are made in the same turn of the event loop share a request. Each loop has connections of its own.
    """

    def __init__(
        self,
        nodes: Sequence[str] | str,
        *,
        token: str | None = None,
        on_error: OnError = "open",
        timeout: float = 1.0,
        max_in_flight: int = 4,
        max_batch: int = 256,
        max_queue: int = 10_000,
        open_when_full: bool = False,
        local_limits: Sequence[Limit] = (),
        tls: ssl.SSLContext | None = None,
        on_rejected: OnRejected = "closed",
        rules: Sequence[str] | str = (),
    ) -> None:
        self._options = options_of(
            nodes, token, on_error, timeout, max_in_flight, max_batch, max_queue, open_when_full, local_limits, tls, on_rejected, rules
        )
        self._unchecked = self._options.setup.rules.copy()  # rules about which no node has been asked; there is no loop yet
        self._token_unchecked = bool(token)
        self._local = LocalLimiter(self._options.local_limits)
        self._lock = threading.Lock()  # guards what follows
        self._closed = False
        self._states: dict[tuple[asyncio.AbstractEventLoop, int], Loop] = {}  # by loop and process; those that ended are dropped

    def _attach(self) -> Core:
        """Returns the core for the running loop. In a forked process that is another one, too."""
        at = (asyncio.get_running_loop(), os.getpid())
        state = self._states.get(at)
        if state is None:
            state = Loop()
            state.core = Core(self._options, state, self._local)
            with self._lock:
                state.core.closed = self._closed
                self._states = {(loop, pid): s for (loop, pid), s in self._states.items() if pid == at[1] and not loop.is_closed()}
                self._states[at] = state
        if self._unchecked or self._token_unchecked:
            rules, self._unchecked, self._token_unchecked = self._unchecked, set(), False
            state.core.expect(tuple(rules))
        return state.core

    def __repr__(self) -> str:
        return f"AsyncClient({', '.join(address.base for address in self._options.nodes)})"

    def expect_rules(self, *names: str) -> None:
        """See Client.expect_rules. A node is asked about them from the next call on."""
        self._unchecked |= set(self._options.setup.add(names))

    async def close(self) -> None:
        """Releases all slots, ends all calls with ClosedError, and closes all connections. It may be called twice."""
        with self._lock:
            self._closed = True
            states, self._states = self._states, {}
        for (loop, pid), state in states.items():
            if pid != os.getpid() or loop.is_closed():
                continue
            if loop is asyncio.get_running_loop():
                await asyncio.gather(*(held.release() for held in list(state.core.slots)))
                state.core.close()
                await state.end()
            else:
                state.core.closed = True
                loop.call_soon_threadsafe(state.core.disconnect)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def check(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Check]) -> Decision:
        """See Client.check."""
        return await self._attach().check(question(rule, key, **more))

    async def peek(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Check]) -> Decision:
        """See Client.peek."""
        more["mode"] = "peek"
        return await self._attach().check(question(rule, key, **more))

    async def count(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Check]) -> Decision:
        """See Client.count."""
        more["mode"] = "count"
        return await self._attach().check(question(rule, key, **more))

    async def reserve(
        self,
        rule: str | None = None,
        key: Key | None = None,
        *,
        ttl: float | None = None,
        on_expiry: str | Mapping[str, int] | None = None,
        **more: Unpack[Check],
    ) -> Reservation:
        """See Client.reserve. What is reserved for a task that has been cancelled meanwhile is given back."""
        return await self._attach().reserve(question(rule, key, **more), ttl, on_expiry)

    def acquire(
        self,
        rule: str | None = None,
        key: Key | None = None,
        *,
        n: int | None = None,
        ttl: float | None = None,
        who: str | None = None,
        **more: Unpack[Check],
    ) -> Acquiring:
        """See Client.acquire. ``await`` it, or enter it: ``async with client.acquire("render", "acme") as slot:``."""
        asked = question(rule, key, **more)
        return Acquiring(lambda: self._acquire(asked, n, ttl, who))

    async def _acquire(self, asked: Question, n: int | None, ttl: float | None, who: str | None) -> AsyncSlot:
        return AsyncSlot(*await self._attach().acquire(asked, n, ttl, who))

    async def settle(self, reservation: str, costs: Mapping[str, int] | None = None, *, timeout: float | None = None) -> Settlement:
        """See Client.settle."""
        return await self._attach().settle(reservation, costs, timeout)

    async def usage(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Target]) -> Usage:
        """See Client.usage."""
        return await self._attach().usage(*target(rule, key, **more))

    async def reset(
        self, rule: str | None = None, key: Key | None = None, *, limit_name: str | None = None, request_id: str | None = None, **more: Unpack[Target]
    ) -> Usage:
        """See Client.reset."""
        fields, timeout = target(rule, key, **more)
        return await self._attach().change("/v1/reset", part_of(fields, limit_name), timeout, request_id)

    async def adjust(
        self,
        rule: str | None = None,
        key: Key | None = None,
        *,
        costs: Mapping[str, int],
        limit_name: str | None = None,
        bill: bool = False,
        request_id: str | None = None,
        **more: Unpack[Target],
    ) -> Usage:
        """See Client.adjust."""
        fields, timeout = target(rule, key, **more)
        fields["costs"] = changes_of(costs)
        part_of(fields, limit_name, bill)
        return await self._attach().change("/v1/adjust", fields, timeout, request_id)

    async def ready(self) -> bool:
        """See Client.ready."""
        return await self._attach().ready()
