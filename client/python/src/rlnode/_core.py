"""A client's logic: which node is asked, what is repeated, what shares a request.

It is written once, as coroutines. AsyncClient runs them on an event loop. Client runs them in the caller's thread, with a
runtime that never suspends one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from . import _answers as answers
from ._answers import Decision, Reply, Reservation, Settlement, Usage
from ._http import ResponseReader, request
from ._local import LocalLimiter
from ._options import Address, Options
from ._requests import DEFAULT_TTL, Question, acquire_of, costs_of, encode, expiry_of, ttl_ms, with_id
from ._setup import LOGGER
from ._slots import FIRST_PAUSE as FIRST_SLOT_PAUSE
from ._slots import LAST_PAUSE as LAST_SLOT_PAUSE
from ._slots import Held
from .errors import (
    BadAnswerError,
    ClosedError,
    ConnectError,
    DeadlineError,
    NodeError,
    QueueFullError,
    RequestError,
    RlnodeError,
    UnavailableError,
)

SPARE = 64  # requests in flight that are not checks, on top of max_in_flight
IDLE = 90.0  # seconds; a node closes an idle connection after three minutes
OWNER_PAUSE = 0.05  # before a call is repeated that failed because the subject's owner can't be reached
FIRST_PAUSE, LAST_PAUSE = 0.25, 5.0  # how long a node that fails is passed over before it is probed

SETUP_DELAY = 0.1  # before a node is asked about the token and the rules: first comes what the program asks
SETUP_PAUSE = 5.0  # before that is tried again

MAX_ANSWER = 1 << 20
MAX_BATCH_ANSWER = 64 << 20
MAX_BATCH_BYTES = 4 << 20  # of a batch, below the node's 8 MiB

WELL, FAILING, SILENT = range(3)  # FAILING: it fails at once, so it is asked if no other is left. SILENT: it is not asked.
WAITING, SENT, ABANDONED = range(3)

T = TypeVar("T")


def passes(error: RlnodeError) -> bool:
    """Reports whether a node says that the owner can't be reached, or has not been replaced yet."""
    return isinstance(error, NodeError) and error.code in ("no-owner", "try-again")


class Stream(Protocol):
    """A connection to a node."""

    used: float  # when it was last used

    async def exchange(self, data: bytes, reader: ResponseReader, deadline: float) -> None:
        """Sends data and reads an answer. DeadlineError: it takes too long."""

    def usable(self) -> bool:
        """Reports whether it is open, with nothing to read."""

    def close(self) -> None:
        """Closes it at once."""


class Runtime(Protocol):
    """What differs between threads and an event loop."""

    async def connect(self, address: Address, options: Options, deadline: float) -> Stream: ...

    async def pause(self, seconds: float) -> bool:
        """Waits. False: the client was closed meanwhile."""

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a coroutine beside all else."""

    def later(self, at: float, f: Callable[[], None]) -> Callable[[], None]:
        """Calls f at a time of the monotonic clock, unless what it returns is called first."""

    async def enter(self, deadline: float) -> bool:
        """Waits for one of SPARE turns. False: none came until the deadline."""

    def leave(self) -> None: ...

    async def submit(self, call: Call) -> None:
        """Has a check decided, alone or together with others."""

    async def finish(self, making: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, Any]]) -> T:
        """Runs what makes something to its end. If the caller is cancelled meanwhile, undo gets what was made."""


class Node:
    """One of the nodes, and what is believed of it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.condition = WELL
        self.failures = 0  # consecutive
        self.watched = False  # it is probed until it is well
        self.idle: list[Stream] = []


class Call:
    """A check under way."""

    __slots__ = ("answers", "body", "budget", "counts", "deadline", "decision", "detail", "error", "headers", "lead", "sent", "stage", "wake")

    def __init__(self, question: Question, budget: float) -> None:
        self.body = question.body()
        self.counts, self.headers, self.detail = question.counts, question.headers, question.detail
        self.budget = budget
        self.deadline = time.monotonic() + budget
        self.answers = 0  # the client's count of answers when the call began to wait
        self.sent = 0.0
        self.stage = WAITING
        self.decision: Decision | None = None
        self.error: Exception | None = None
        self.wake: Any = None  # the runtime's
        self.lead: list[Call] | None = None  # the batch that this call's thread is to send


class Core:
    """A client but for threads and loops."""

    def __init__(self, options: Options, runtime: Runtime, local: LocalLimiter) -> None:
        self.options = options
        self.runtime = runtime
        self.local = local
        self.nodes = [Node(address) for address in options.nodes]
        self.closed = False
        self.begin()

    def begin(self) -> None:
        """Begins as if nothing were under way: at first, and in a forked process.

        Connections are forgotten, and not shut down: a forked process shares them with its parent.
        """
        self.lock = threading.Lock()  # guards what follows, and the nodes
        self.answers = 0  # from nodes, with a status below 500
        self.direct = 0  # calls other than checks
        self.in_flight = 0  # requests with checks
        self.queue: deque[Call] = deque()  # checks that wait, at most max_queue
        self.open: set[Stream] = set()  # connections in use
        self.slots: set[Held] = set()  # that are held
        self.reserved: dict[str, Held] = {}  # those of reservations, by their ids
        self.local.begin()
        for node in self.nodes:
            node.idle = []
            node.condition, node.failures, node.watched = WELL, 0, False

    def close(self) -> None:
        """Ends what is under way."""
        with self.lock:
            self.closed = True
        self.disconnect()

    def disconnect(self) -> None:
        """Closes all connections."""
        with self.lock:
            streams = [*self.open, *(stream for node in self.nodes for stream in node.idle)]
            for node in self.nodes:
                node.idle = []
        for stream in streams:
            stream.close()

    # The setup

    def expect(self, rules: tuple[str, ...]) -> None:
        """Asks a node, beside all else, whether it accepts the token and knows these rules."""
        if not self.closed and (rules or self.options.authorization):
            self.runtime.spawn(lambda: self._check_setup(rules))

    async def _check_setup(self, rules: tuple[str, ...]) -> None:
        # A key of no values fits only a rule without key attributes, and a peek takes nothing from that, either.
        body = json.dumps({"checks": [{"rule": rule, "key": [], "peek": True} for rule in rules]}).encode()
        pause = SETUP_DELAY
        while await self.runtime.pause(pause) and not self.closed:
            pause = SETUP_PAUSE
            try:
                budget = self.options.timeout
                reply = await self._ask("/v1/check/batch", body, MAX_BATCH_ANSWER, True, time.monotonic() + budget, budget)
                results = reply.json().get("results") if reply.status == 200 else None
            except RlnodeError:
                continue
            if isinstance(results, list):
                for rule, found in zip(rules, results):
                    if isinstance(found, dict) and (found.get("error") or {}).get("code") == "unknown-rule":
                        self._unknown(rule, reply.node)
            return

    def _unknown(self, rule: str, node: str) -> None:
        self.options.setup.log(logging.ERROR, f"rule {rule}", "the rule %r of this program does not exist at %s", rule, node)

    def _rejected(self, reply: Reply) -> Reply:
        self.options.setup.log(logging.ERROR, "rejection", "nodes reject this client: %s", reply.problem())
        return reply

    # The calls

    async def check(self, question: Question) -> Decision:
        try:
            decision = await self._decide(question)
        except RlnodeError as e:
            return self.undecided(e, question)
        await self._hold(question, decision)
        return decision

    async def _decide(self, question: Question) -> Decision:
        if self.closed:
            raise ClosedError("the client is closed")
        budget = self._budget(question.timeout)
        if question.mixed:
            # No batch may carry it: an answer without a status would not tell what was taken.
            reply = await self._tell("/v1/check", question.body(), True, budget)
            return answers.decision_of(reply, True, question.headers)[0]
        call = Call(question, budget)
        await self.runtime.submit(call)
        if call.error is not None:
            late = call.stage == SENT and call.deadline - call.sent < call.budget / 2
            raise self.starved(call.answers, call.error) if late and isinstance(call.error, DeadlineError) else call.error
        if call.decision is None:
            raise ClosedError("the client is closed")
        return call.decision

    def undecided(self, error: RlnodeError, question: Question) -> Decision:
        """Returns the decision of a check that no node decided. What it allows, it grants."""
        decision = self._on_error(error, question)
        return replace(decision, granted=question.most()) if decision.allowed else decision

    def _on_error(self, error: RlnodeError, question: Question) -> Decision:
        """Decides a check by the options.

        Only a node's own trouble may let a check pass. A stranger could cause everything else, and so switch the limits off.
        """
        refused = Decision(allowed=False, decided_by="error", error=error)
        if isinstance(error, NodeError) and error.rejects and self.options.on_rejected == "open":
            return replace(refused, allowed=True)
        rule = question.fields.get("rule")
        if isinstance(error, NodeError) and error.code == "unknown-rule" and rule in self.options.setup.rules:
            self._unknown(rule, error.node)  # the operator's mistake, which no stranger can make
        elif isinstance(error, (RequestError, ClosedError)) or (isinstance(error, NodeError) and error.status < 500):
            raise error
        if isinstance(error, QueueFullError) and not self.options.open_when_full:
            return replace(refused, reason="Too many calls wait for the rate limiter.")
        if self.options.on_error == "closed":
            return replace(refused, reason="Nothing passes while the rate limiter does not answer.")
        if self.options.on_error == "local":
            return self.local.decide(question, error)
        return replace(refused, allowed=True)

    async def _hold(self, question: Question, decision: Decision) -> None:
        if question.wait and decision.allowed and decision.delay > 0 and not await self.runtime.pause(decision.delay):
            raise ClosedError("the client was closed while a check waited for its turn")

    async def reserve(self, question: Question, ttl: float | None, on_expiry: object = None) -> Reservation:
        fields = {**question.fields, "ttl_ms": ttl_ms(DEFAULT_TTL if ttl is None else ttl)}
        if on_expiry is not None:
            fields["on_expiry"] = expiry_of(on_expiry)
        try:
            reserved, until = await self.runtime.finish(self._reserve(question, fields), lambda made: self._cancel(made[0].id))
        except RlnodeError as e:
            return Reservation(**self.undecided(e, question).__dict__)
        if reserved.slot:
            self.hold(reserved.slot, until, reserved.id)
        try:
            await self._hold(question, reserved)
        except BaseException:
            self.spawn(lambda: self._cancel(reserved.id))
            raise
        return reserved

    async def _reserve(self, question: Question, fields: dict[str, Any]) -> tuple[Reservation, float]:
        """Makes a reservation, and returns until when its slot is held."""
        reply = await self._tell("/v1/reserve", encode(fields), True, self._budget(question.timeout))
        return answers.reservation_of(reply, question), answers.slot_of(reply, reply.json())[1]

    async def _cancel(self, reservation: str) -> None:
        """Settles a reservation that nobody knows. That releases its slot, too."""
        with suppress(RlnodeError):
            await self.settle(reservation, None, None)

    async def settle(self, reservation: str, costs: Any, timeout: float | None) -> Settlement:
        if not reservation:
            return Settlement()
        held = self.reserved.pop(reservation, None)
        if held is not None:
            held.end()  # which releases the slot
        fields = {"reservation": reservation, "costs": costs_of(costs or {})}
        return answers.settlement_of(await self._tell("/v1/settle", encode(fields), True, self._budget(timeout)))

    # Slots

    async def acquire(self, question: Question, n: int | None, ttl: float | None, who: str | None) -> tuple[Decision, Held]:
        """Acquires a slot. With wait, it asks again as long as all are held."""
        fields = acquire_of(question, n, ttl, who)
        pause = FIRST_SLOT_PAUSE
        while True:
            decision, held = await self.runtime.finish(self._acquire(question, fields), lambda made: made[1].release())
            if decision.allowed or not question.wait or decision.never or decision.denied or decision.error is not None:
                return decision, held
            if not await self.runtime.pause(min(pause, decision.retry_after or pause)):
                raise ClosedError("the client was closed while a slot was waited for")
            pause = min(2 * pause, LAST_SLOT_PAUSE)

    async def _acquire(self, question: Question, fields: dict[str, Any]) -> tuple[Decision, Held]:
        # An attempt that is sent twice gets one slot.
        body = encode(fields if "request_id" in fields else with_id(fields, uuid4().hex))
        try:
            reply = await self._tell("/v1/acquire", body, True, self._budget(question.timeout))
            decision, found = answers.decision_of(reply, False, question.headers)
            slot, until = answers.slot_of(reply, found)
        except RlnodeError as e:
            return self.undecided(e, question), Held(self, "", 0.0)
        return decision, self.hold(slot, until)

    async def release_reserved(self, reservation: str) -> None:
        """Releases the slot of a reservation that nobody settles."""
        held = self.reserved.pop(reservation, None)
        if held is not None:
            await held.release()

    def hold(self, slot: str, until: float, reservation: str = "") -> Held:
        """Begins to renew a slot."""
        held = Held(self, slot, until, reservation)
        if slot:
            self.slots.add(held)
            if reservation:
                self.reserved[reservation] = held
            held.begin()
        return held

    def later(self, at: float, f: Callable[[], None]) -> Callable[[], None]:
        return self.runtime.later(at, f)

    def spawn(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.runtime.spawn(make)

    def ended(self, held: Held) -> None:
        self.slots.discard(held)
        self.reserved.pop(held.reservation, None)

    async def renew(self, slot: str, left: float) -> float:
        if left <= 0:
            raise DeadlineError("it comes too late")
        reply = await self._tell("/v1/renew", encode({"slot": slot}), True, min(left, self.options.timeout))
        if reply.status != 200:
            raise reply.problem()
        return answers.slot_of(reply, {**reply.json(), "slot": slot})[1]

    async def release(self, slot: str) -> bool:
        """Gives a slot back, and repeats that while there is time."""
        body = encode({"slot": slot})
        budget = self.options.timeout
        deadline = time.monotonic() + budget
        pause = FIRST_SLOT_PAUSE
        while True:
            try:
                return (await self._ask("/v1/release", body, MAX_ANSWER, True, deadline, budget)).status == 200
            except RlnodeError:
                if time.monotonic() + pause >= deadline or not await self.runtime.pause(pause):
                    return False
            pause *= 2

    async def usage(self, fields: dict[str, Any], timeout: float | None) -> Usage:
        reply = await self._tell("/v1/usage", encode(fields), True, self._budget(timeout))
        return answers.usage_of(reply, fields.get("key"))

    async def change(self, path: str, fields: dict[str, Any], timeout: float | None, request_id: str | None) -> Usage:
        """Makes a call that changes what a subject has used.

        It is safe to repeat, because it has an id. A node of an older release rejects ids. It gets the call without the one
        made here, and then it is repeated only if it can't have been carried out.
        """
        budget = self._budget(timeout)
        body = encode(with_id(fields, request_id or uuid4().hex))
        reply = await self._tell(path, body, True, budget)
        if reply.status == 400 and not request_id and reply.problem().code == "unknown-field":
            reply = await self._tell(path, encode(fields), False, budget)
        return answers.usage_of(reply, fields.get("key"))

    def _budget(self, timeout: float | None) -> float:
        if timeout is None:
            return self.options.timeout
        if not 0 < timeout <= 3600:
            raise RequestError(f"timeout is {timeout!r}; it must be above 0 and at most 3600 seconds")
        return timeout

    async def _tell(self, path: str, body: bytes, repeat: bool, budget: float) -> Reply:
        """Makes a call that shares its request with no other."""
        with self.lock:
            if self.closed:
                raise ClosedError("the client is closed")
            if self.direct >= self.options.max_queue:
                raise QueueFullError("too many calls are waiting")
            self.direct += 1
        deadline = time.monotonic() + budget
        try:
            while True:
                try:
                    return await self._ask_in_turn(path, body, repeat, deadline, budget)
                except NodeError as e:
                    late = time.monotonic() + OWNER_PAUSE >= deadline
                    if not repeat or not passes(e) or late or not await self.runtime.pause(OWNER_PAUSE):
                        raise
        finally:
            with self.lock:
                self.direct -= 1

    async def _ask_in_turn(self, path: str, body: bytes, repeat: bool, deadline: float, budget: float) -> Reply:
        before, began = self.answers, time.monotonic()
        if not await self.runtime.enter(deadline):
            raise self.starved(before, DeadlineError("no answer in time"))
        late = time.monotonic() - began > budget / 2
        try:
            return await self._ask(path, body, MAX_ANSWER, repeat, deadline, budget)
        except DeadlineError as e:
            raise self.starved(before, e) if late else e from None
        finally:
            self.runtime.leave()

    def starved(self, before: int, error: RlnodeError) -> RlnodeError:
        """Returns the error of a call whose turn came too late or never.

        If nodes have answered other calls since, they are healthy: this client's queue was too full.
        """
        if self.answers == before or self.closed:
            return error
        full = QueueFullError("too many calls are waiting: this one's turn did not come")
        full.__cause__ = error
        return full

    # Checks that share a request

    def take(self) -> list[Call]:
        """Takes the checks of the next request off the queue. The lock is held."""
        batch: list[Call] = []
        size, now = 0, time.monotonic()
        while self.queue and len(batch) < self.options.max_batch and size <= MAX_BATCH_BYTES:
            call = self.queue.popleft()
            if call.stage == WAITING:
                call.stage, call.sent = SENT, now
                batch.append(call)
                size += len(call.body)
        return batch

    def expired(self, call: Call) -> RlnodeError:
        """Returns the error of a check that waited until its deadline."""
        error = DeadlineError("no answer in time")
        if call.stage != SENT or call.deadline - call.sent < call.budget / 2:
            call.stage = ABANDONED if call.stage == WAITING else call.stage
            return self.starved(call.answers, error)
        return error

    async def send(self, batch: list[Call]) -> None:
        """Makes one request for the checks of a batch. Each then has a decision or an error."""
        budget = max(call.budget for call in batch)
        deadline = max(call.deadline for call in batch)
        try:
            if len(batch) == 1:
                reply = await self._ask("/v1/check", batch[0].body, MAX_ANSWER, True, deadline, budget)
                batch[0].decision = answers.decision_of(reply, batch[0].counts, batch[0].headers)[0]
            else:
                await self._send_several(batch, deadline, budget)
        except Exception as e:
            for call in batch:
                call.error = e

    async def _send_several(self, batch: list[Call], deadline: float, budget: float) -> None:
        bodies = []
        for call in batch:
            named = call.headers and not call.detail  # headers name all limits
            bodies.append(call.body[:-1] + b',"detail":true}' if named else call.body)
        body = b'{"checks":[' + b",".join(bodies) + b"]}"
        reply = await self._ask("/v1/check/batch", body, MAX_BATCH_ANSWER, True, deadline, budget)
        if reply.status != 200:
            raise reply.problem()
        told = reply.json()
        results, refusals = told.get("results"), told.get("refusals") or []
        if not isinstance(results, list) or len(results) != len(batch):
            raise BadAnswerError(f"{reply.node}: its results are not those of {len(batch)} checks")
        style = reply.headers.get("rlnode-headers", "")
        for call, found in zip(batch, results):
            try:
                call.decision = self._read_one(call, _with_refusal(found, refusals), reply.node, style)
            except RlnodeError as e:
                call.error = e

    def _read_one(self, call: Call, found: Any, node: str, style: str) -> Decision:
        if not isinstance(found, dict):
            raise BadAnswerError(f"{node}: a result is no JSON object")
        error = found.get("error")
        if error is not None:
            try:
                raise answers.problem_of(error, int(error["status"]), node)
            except (TypeError, ValueError, KeyError, AttributeError):
                raise BadAnswerError(f"{node}: an error is {error!r:.80}") from None
        decision = answers.read_decision(found, node, call.counts)
        told = answers.make_headers(decision, style) if call.headers else {}
        if not call.detail:
            decision = replace(decision, limits=())
        return answers.with_headers(decision, told)

    # Nodes

    def _choose(self, tried: set[int]) -> tuple[Node | None, bool]:
        """Returns the first untried node that is well, else one that fails at once, and whether another one is left."""
        at: int | None = None
        for want in (WELL, FAILING):
            for i, node in enumerate(self.nodes):
                if i in tried or i == at or node.condition != want:
                    continue
                if at is not None:
                    tried.add(at)
                    return self.nodes[at], True
                at = i
        if at is None:
            return None, False
        tried.add(at)
        return self.nodes[at], False

    async def _ask(self, path: str, body: bytes, bound: int, repeat: bool, deadline: float, budget: float) -> Reply:
        """Posts body to one node after another until one answers.

        If a node rejects this client, one other is tried, which may have a newer list of tokens.
        """
        tried: set[int] = set()
        rejection: Reply | None = None
        last: RlnodeError | None = None
        while True:
            with self.lock:
                node, more = self._choose(tried)
            if rejection is not None and (node is None or time.monotonic() >= deadline):
                return self._rejected(rejection)
            if node is None:
                raise last or UnavailableError("no node has answered lately")
            began = time.monotonic()
            try:
                reply = await self._post(node, path, body, bound, repeat, min(deadline, began + (budget / 2 if more else budget)))
                if reply.status < 500:
                    with self.lock:
                        node.condition, node.failures = WELL, 0
                        self.answers += 1
                    if reply.status not in (401, 403) or not reply.problem().rejects:
                        return reply
                    if rejection is not None or not more:
                        return self._rejected(rejection or reply)
                    rejection = reply
                    continue
                # The call was not, or not fully, carried out.
                problem = reply.problem()
                if problem.code in ("overloaded", "no-owner", "try-again", "too-many-reservations", "too-many-slots"):
                    with self.lock:
                        node.condition, node.failures = WELL, 0  # it is healthy; the next one may do better
                else:
                    self._failed(node, FAILING, problem)
                if problem.code in ("too-many-reservations", "too-many-slots"):
                    raise problem  # any other node would ask the same owner for room
                error: RlnodeError = problem
            except DeadlineError as e:
                # Don't blame the node if the call had waited so long that little time was left, or has little by itself.
                if time.monotonic() - began >= self.options.timeout / 2:
                    self._failed(node, SILENT, e)
                error = e
            except UnavailableError as e:
                self._failed(node, FAILING, e)
                error = e
            if self.closed:
                raise ClosedError("the client is closed")
            if rejection is not None:
                return self._rejected(rejection)
            untouched = error.status == 503 if isinstance(error, NodeError) else isinstance(error, ConnectError)
            if (not repeat and not untouched) or time.monotonic() >= deadline:
                raise error
            if last is None or not passes(last):  # which says more than what is wrong with another node
                last = error

    async def _post(self, node: Node, path: str, body: bytes | None, bound: int, repeat: bool, deadline: float) -> Reply:
        """Makes one request. Without a body it is a GET."""
        address = node.address
        method = "GET" if body is None else "POST"
        data = request(method, address.path + path, address.name, self.options.authorization, body)
        while True:
            stream = self._take_idle(node)
            reused = stream is not None
            if stream is None:
                stream = await self._connect(node, deadline)
            reader = ResponseReader(bound)
            sent = time.monotonic()
            try:
                await stream.exchange(data, reader, deadline)
            except BaseException as e:
                self._drop(stream)
                if isinstance(e, DeadlineError):
                    raise DeadlineError(f"{address.base}: no answer in time") from None
                if isinstance(e, OSError):
                    if reused and repeat and not reader.started and not self.closed:
                        continue  # the node has just closed this connection
                    raise UnavailableError(f"{address.base}: {e}") from e
                if isinstance(e, BadAnswerError):
                    raise BadAnswerError(f"{address.base}: {e}") from None
                raise
            self._put_idle(node, stream, reader.keep)
            return Reply(address.base, reader.status, reader.headers, reader.body, sent)

    async def _connect(self, node: Node, deadline: float) -> Stream:
        try:
            stream = await self.runtime.connect(node.address, self.options, deadline)
        except DeadlineError:
            raise DeadlineError(f"{node.address.base}: no connection in time") from None
        except OSError as e:
            raise ConnectError(f"{node.address.base}: {e}") from e
        with self.lock:
            self.open.add(stream)
        if self.closed:
            self._drop(stream)
            raise ClosedError("the client is closed")
        return stream

    def _take_idle(self, node: Node) -> Stream | None:
        oldest = time.monotonic() - IDLE
        while True:
            with self.lock:
                if not node.idle:
                    return None
                stream = node.idle.pop()
                self.open.add(stream)
            if stream.used >= oldest and stream.usable():
                return stream
            self._drop(stream)

    def _put_idle(self, node: Node, stream: Stream, keep: bool) -> None:
        with self.lock:
            keep = keep and not self.closed and stream in self.open
            self.open.discard(stream)
            if keep:
                stream.used = time.monotonic()
                node.idle.append(stream)
        if not keep:
            stream.close()

    def _drop(self, stream: Stream) -> None:
        with self.lock:
            self.open.discard(stream)
        stream.close()

    def _failed(self, node: Node, how: int, error: RlnodeError) -> None:
        """Records what is wrong with a node, and begins to watch it."""
        if self.closed:
            return
        with self.lock:
            node.condition = how
            node.failures = min(node.failures + 1, 16)
            watched, node.watched = node.watched, True
        self._passed_over(node, error)
        if watched:
            return
        try:
            self.runtime.spawn(lambda: self._watch(node))
        except RuntimeError as e:  # no thread can be started: the node is asked again, since nobody would find out that it is well
            LOGGER.warning("node %s can't be watched: %s", node.address.base, e)
            with self.lock:
                node.condition, node.watched = WELL, False

    def _passed_over(self, node: Node, why: object) -> None:
        self.options.setup.log(logging.WARNING, node.address.base, "node %s is passed over: %s", node.address.base, why)

    async def _watch(self, node: Node) -> None:
        """Probes a node's readiness, with growing pauses, until it is ready."""
        while not self.closed:
            with self.lock:
                rest = 0.0 if node.condition == WELL else min(FIRST_PAUSE * 2 ** max(node.failures - 1, 0), LAST_PAUSE)
            if rest and not await self.runtime.pause(rest):
                return
            if not rest or await self._ready(node):
                with self.lock:
                    # Its failures count until it answers a check: one that is ready but decides nothing is probed less often.
                    node.condition, node.watched = WELL, False
                self.options.setup.log_end(node.address.base, "node %s is asked again", node.address.base)
                return
            with self.lock:
                node.failures = min(node.failures + 1, 16)
            self._passed_over(node, "it is not ready")

    async def _ready(self, node: Node) -> bool:
        try:
            reply = await self._post(node, "/readyz", None, MAX_ANSWER, True, time.monotonic() + self.options.timeout)
        except RlnodeError:
            return False
        return reply.status == 200

    async def ready(self) -> bool:
        """Reports whether some node is ready."""
        for node in self.nodes:
            if await self._ready(node):
                return True
        return False


def _with_refusal(found: Any, refusals: Any) -> Any:
    """Returns a result of a batch with its refusal, which is in the batch's table."""
    place = found.get("refusal") if isinstance(found, dict) else None
    if not isinstance(place, int) or not isinstance(refusals, list) or not 0 <= place < len(refusals):
        return found
    return {**found, "refusal": refusals[place]}
