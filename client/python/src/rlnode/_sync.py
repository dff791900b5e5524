"""The client for threads."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._answers import Decision, Reservation, Settlement, Usage
from ._core import SPARE, WAITING, Call, Core
from ._http import ResponseReader
from ._local import LocalLimiter
from ._options import Address, OnError, OnRejected, Options, options_of
from ._requests import Check, Key, Limit, Target, changes_of, part_of, question, target
from ._setup import LOGGER
from ._slots import Slot
from .errors import ClosedError, DeadlineError, QueueFullError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        found: T = e.value
        return found
    coroutine.close()
    raise RuntimeError("a coroutine of the client for threads was suspended")


class SocketStream:
    """A connection to a node, by a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.used = time.monotonic()

    async def exchange(self, data: bytes, reader: ResponseReader, deadline: float) -> None:
        try:
            self.sock.settimeout(_left(deadline))
            self.sock.sendall(data)
            while not reader.done:
                self.sock.settimeout(_left(deadline))
                reader.feed(self.sock.recv(65536))
        except DeadlineError:
            raise
        except TimeoutError as e:
            raise DeadlineError("no answer in time") from e
        except ValueError as e:  # ssl, if another thread has closed the socket
            raise ConnectionAbortedError(str(e)) from e

    def usable(self) -> bool:
        try:
            if hasattr(select, "poll"):
                poll = select.poll()
                poll.register(self.sock, select.POLLIN)
                return not poll.poll(0)
            return not select.select([self.sock], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads, which closing alone does not
        self.sock.close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineError("no answer in time")
    return left


class Timer:
    """What is to be called at a time."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call


class Threads:
    """The runtime of threads.

    It has some of its own only for a node that is passed over, at first to check the setup, and while slots are held: one that waits
    until they are to be renewed, and one for each renewal.
    """

    def __init__(self) -> None:
        self.core: Core
        self.begin()

    def begin(self) -> None:
        self.ended = threading.Event()
        self.turns = threading.Semaphore(SPARE)
        self.changed = threading.Condition()  # guards what follows
        self.timers: set[Timer] = set()
        self.wakes = 0.0  # when the thread looks at them
        self.ticking = False  # it runs

    async def connect(self, address: Address, options: Options, deadline: float) -> SocketStream:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        error: OSError = OSError("the name has no address")
        for family, kind, protocol, _, where in found:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(_left(deadline))
                sock.connect(where)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if options.tls is not None and address.tls:
                    sock.settimeout(_left(deadline))
                    sock = options.tls.wrap_socket(sock, server_hostname=address.host)
                return SocketStream(sock)
            except TimeoutError as e:
                sock.close()
                error = e if isinstance(e, DeadlineError) else DeadlineError("no connection in time")
            except OSError as e:
                sock.close()
                error = e
        raise error

    async def pause(self, seconds: float) -> bool:
        return not self.ended.wait(seconds)

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        threading.Thread(target=lambda: run(make()), name="rlnode", daemon=True).start()

    def later(self, at: float, f: Callable[[], None]) -> Callable[[], None]:
        timer = Timer(at, f)
        with self.changed:
            if not self.ticking:
                threading.Thread(target=self._tick, name="rlnode-slots", daemon=True).start()
                self.ticking = True  # only now: if no thread can be started, the next slot tries that again
            elif at < self.wakes:
                self.changed.notify()
            self.timers.add(timer)
        return lambda: self._cancel(timer)

    def _cancel(self, timer: Timer) -> None:
        with self.changed:
            self.timers.discard(timer)

    def _tick(self) -> None:
        """Calls what is due, until there has been nothing to wait for during a second."""
        idle = False
        while True:
            with self.changed:
                now = time.monotonic()
                due = [timer for timer in self.timers if timer.at <= now]
                self.timers.difference_update(due)
                if not due and (self.ended.is_set() or (idle and not self.timers)):
                    self.ticking = False
                    return
                idle = not due and not self.timers
                if not due:
                    self.wakes = min((timer.at for timer in self.timers), default=now + 1)
                    self.changed.wait(self.wakes - now)
            for timer in due:
                try:
                    timer.call()
                except Exception:  # as where no thread can be started: the other slots go on
                    LOGGER.exception("a slot's timer")

    async def enter(self, deadline: float) -> bool:
        return self.turns.acquire(timeout=max(0.0, deadline - time.monotonic()))

    def leave(self) -> None:
        self.turns.release()

    async def submit(self, call: Call) -> None:
        """Sends a check at once if few are under way. Else it waits, to be sent with others by one of their threads."""
        core = self.core
        with core.lock:
            if core.closed:
                raise ClosedError("the client is closed")
            if core.in_flight < core.options.max_in_flight:
                core.in_flight += 1
                core.queue.append(call)
                call.lead = core.take()
            elif len(core.queue) >= core.options.max_queue:
                raise QueueFullError("too many calls are waiting")
            else:
                call.wake, call.answers = threading.Event(), core.answers
                core.queue.append(call)
        if call.lead is None:
            self._wait(call)
        if call.lead is not None:
            self._lead(call, call.lead)

    async def finish(self, making: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, Any]]) -> T:
        return await making  # nobody cancels a thread

    def _wait(self, call: Call) -> None:
        """Waits until the call is decided, or is to lead a batch."""
        core = self.core
        try:
            call.wake.wait(max(0.0, call.deadline - time.monotonic()))
        except BaseException:
            with core.lock:
                lead = call.lead
                if call.stage == WAITING:
                    call.error = core.expired(call)
            if lead is not None:
                self._finish(call, lead, ClosedError("the thread that was to send this check was interrupted"))
            raise
        with core.lock:
            if call.lead is not None or call.decision is not None or call.error is not None:
                return
            call.error = ClosedError("the client is closed") if core.closed else core.expired(call)

    def _lead(self, call: Call, batch: list[Call]) -> None:
        try:
            run(self.core.send(batch))
        finally:
            self._finish(call, batch, ClosedError("the thread that sent this check was interrupted"))

    def _finish(self, call: Call, batch: list[Call], otherwise: Exception) -> None:
        """Hands the answers out, and the next request to a thread that waits for it."""
        core = self.core
        for one in batch:
            if one.decision is None and one.error is None:
                one.error = otherwise
            if one is not call and one.wake is not None:
                one.wake.set()
        with core.lock:
            batch = [] if core.closed else core.take()
            if not batch:
                core.in_flight -= 1
                return
            leader = max(batch, key=lambda one: one.deadline)  # it may have to wait until then
            leader.lead = batch
        leader.wake.set()

    def wake_all(self) -> None:
        self.ended.set()
        with self.changed:
            self.changed.notify()
        with self.core.lock:
            waiting = [*self.core.queue]
            self.core.queue.clear()
        for call in waiting:
            call.wake.set()


class Client:
    """Asks nodes for decisions. Its methods may be called by many threads at once, and in forked processes.

    Args:
        nodes: Addresses of nodes, such as ``http://10.0.0.1:8080``, 1 to 64 of them, the preferred one first.
        token: Is sent as a bearer token. It needs the scope check and, for adjust and reset, adjust.
        on_error: What a check is if no node answers: ``open`` (the default) allows it, ``closed`` refuses it, and ``local``
            decides it by limits in this process: those of the call, else ``local_limits``, which are required. It never lets
            pass what a node answers with an error below 500, but for an unknown rule of ``rules``, or what goes beyond
            ``max_queue``.
        timeout: Seconds from start to answer, over all nodes. A node gets half of it while another is left to ask.
        max_in_flight: Requests with checks that are under way at once. Further checks wait, and share the next requests.
        max_batch: Checks that share a request.
        max_queue: Checks that wait and, separately, other calls under way. Beyond it calls are refused at once.
        open_when_full: Lets ``on_error`` also decide what is beyond ``max_queue``. A stranger can bring that about.
        local_limits: With ``on_error="local"``, the limits of a subject whose check brings none.
        tls: For nodes with https addresses; the system's roots if left out.
        on_rejected: What a check is if a node, and then another one, rejects the token: ``closed`` (the default) or ``open``.
        rules: Names of rules that are constants of this program, not chosen by its callers. If one of them does not exist,
            ``on_error`` decides; any other unknown rule is an error. A node is asked about them, and about the token, when the
            client is made, and what is wrong is logged as an error.
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
        options = self._options = options_of(
            nodes, token, on_error, timeout, max_in_flight, max_batch, max_queue, open_when_full, local_limits, tls, on_rejected, rules
        )
        self._threads = Threads()
        self._core = self._threads.core = Core(options, self._threads, LocalLimiter(options.local_limits))
        _clients.add(self)
        self._core.expect(tuple(options.setup.rules))

    def __repr__(self) -> str:
        return f"Client({', '.join(address.base for address in self._options.nodes)})"

    def expect_rules(self, *names: str) -> None:
        """Adds to the argument ``rules``. Middlewares call it for theirs."""
        if added := self._options.setup.add(names):
            self._core.expect(added)

    def close(self) -> None:
        """Releases all slots, ends all calls with ClosedError, and closes all connections. It may be called twice."""
        # At once: each may take all of the client's timeout.
        releases = [threading.Thread(target=run, args=(held.release(),), name="rlnode", daemon=True) for held in list(self._core.slots)]
        for thread in releases:
            thread.start()
        for thread in releases:
            thread.join()
        self._core.close()
        self._threads.wake_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def check(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Check]) -> Decision:
        """Asks whether something may happen now and, if so, takes its cost: from all limits that apply, or from none.

        ``rule`` and ``key`` ask one rule about one subject; ``attributes`` every rule that matches; ``key`` and ``limits``,
        or ``subjects``, bring the limits with the call. See Check for all arguments.

        If no node answers, on_error decides, and the decision has the error. What the caller got wrong is raised:
        RequestError, or NodeError if a node says so.
        """
        return run(self._core.check(question(rule, key, **more)))

    def peek(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Check]) -> Decision:
        """Returns the decision that check would make, and takes nothing."""
        more["mode"] = "peek"
        return run(self._core.check(question(rule, key, **more)))

    def count(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Check]) -> Decision:
        """Takes the cost whether or not it fits. The decision is the one that check would have made."""
        more["mode"] = "count"
        return run(self._core.check(question(rule, key, **more)))

    def reserve(
        self,
        rule: str | None = None,
        key: Key | None = None,
        *,
        ttl: float | None = None,
        on_expiry: str | Mapping[str, int] | None = None,
        **more: Unpack[Check],
    ) -> Reservation:
        """Takes the costs as an estimate, which settle corrects.

        What is not settled within ttl (60 s) stays charged. With on_expiry "refund" it comes back, and with costs by unit
        these stay charged.
        """
        return run(self._core.reserve(question(rule, key, **more), ttl, on_expiry))

    def acquire(
        self,
        rule: str | None = None,
        key: Key | None = None,
        *,
        n: int | None = None,
        ttl: float | None = None,
        who: str | None = None,
        **more: Unpack[Check],
    ) -> Slot:
        """Takes a slot of each limit with the algorithm concurrency that applies, and the costs from the limits beside them.

        All or nothing. The slot renews itself, whenever a third of its time is over, until it is released:

        >>> with client.acquire("render", "acme") as slot:  # RefusedError: all are held
        ...     render()

        Args:
            rule: See check.
            key: See check.
            n: How many slots; the cost if left out, which is 1 for requests.
            ttl: Seconds for which a slot is held unless it is renewed; as long as the limits say if left out.
            who: Who holds it, for operators: at most 32 bytes.
            more: See Check. With ``wait``, it asks again as long as all are held, in pauses of up to a second.
        """
        return Slot(*run(self._core.acquire(question(rule, key, **more), n, ttl, who)), run)

    def settle(self, reservation: str, costs: Mapping[str, int] | None = None, *, timeout: float | None = None) -> Settlement:
        """Replaces a reservation's estimate by what was really used, by unit.

        A unit that is not named stays as reserved; no costs cancel the whole reservation. It is settled once: a repeated
        call gets the result of the first. An empty reservation, which no node made, settles nothing.
        """
        return run(self._core.settle(reservation, costs, timeout))

    def usage(self, rule: str | None = None, key: Key | None = None, **more: Unpack[Target]) -> Usage:
        """Returns what a subject has used, and takes nothing. All errors are raised.

        With a namespace and no limits, it has the counters of all limits that the node has met with the subject.
        """
        return run(self._core.usage(*target(rule, key, **more)))

    def reset(
        self, rule: str | None = None, key: Key | None = None, *, limit_name: str | None = None, request_id: str | None = None, **more: Unpack[Target]
    ) -> Usage:
        """Makes the counters of a subject fresh: all of them, or those of the limits. The token needs the scope adjust.

        With limit_name, as detail names it, only that limit's; a block then stays.
        """
        fields, timeout = target(rule, key, **more)
        return run(self._core.change("/v1/reset", part_of(fields, limit_name), timeout, request_id))

    def adjust(
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
        """Adds to what a subject has used, by unit, without a decision: a penalty, or a reward where it is negative.

        With limit_name, only to that limit; with bill, the bill of a rule with usage: monthly changes by what was applied, too.
        """
        fields, timeout = target(rule, key, **more)
        fields["costs"] = changes_of(costs)
        part_of(fields, limit_name, bill)
        return run(self._core.change("/v1/adjust", fields, timeout, request_id))

    def ready(self) -> bool:
        """Reports whether some node is ready to decide."""
        return run(self._core.ready())

    def _forked(self) -> None:
        self._threads.begin()
        self._core.begin()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    """Lets clients begin anew in a forked process: its threads are gone, and the connections are the parent's."""
    for client in list(_clients):
        try:
            client._forked()
        except Exception:
            LOGGER.exception("a client can't be used after the fork")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
