"""Middleware for ASGI: Starlette, FastAPI, Litestar, Quart, Django and others.

>>> app.add_middleware(RateLimitMiddleware, nodes=["http://127.0.0.1:8080"])
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from ._aio import AsyncClient
from ._answers import Decision
from ._options import OnError
from ._requests import Key, Limit, Value
from ._slots import AsyncSlot, Held
from ._web import Guard, Seen, own_limits, refusal
from .errors import MissingKeyError, RlnodeError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def see(scope: Scope) -> Seen:
    """Returns what ASGI tells of a request."""
    forwarded = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"x-forwarded-for"]
    return Seen(scope.get("method", "GET"), scope.get("path", ""), (scope.get("client") or ("",))[0], forwarded)


class RateLimitMiddleware:
    """Checks each request, and each websocket before it opens.

    The server's rate headers stand on every answer. A refused request gets 429, a denied one 403, and one that no node
    decided, while ``on_error`` is ``closed``, 503. A delayed one is held until its turn. ``request.state.rlnode`` is the
    decision of a request that passed.

    Args:
        app: What comes behind.
        client: An AsyncClient; or else nodes, token and on_error, of which one is made. That is closed at the lifespan's end.
        nodes: See Client.
        token: See Client.
        on_error: See Client.
        rule: Only this rule is asked.
        key: Returns the subject of a scope, for rule or limits.
        attributes: Returns the attributes that rules match by; ip, endpoint and method if left out.
        limits: Limits in place of the server's rules. The subject is the address, or key.
        namespace: Of the subjects of limits.
        trusted_hops: The number of proxies in front of this server; the address is told by the farthest of them.
        costs: Returns the costs by unit; without it what the rules say, or 1 request.
        skip: Reports whether a request passes without a check.
        on_refuse: An ASGI app that answers what is refused; the decision is in its scope's state.
        headers: False leaves all rate headers but Retry-After out.
        ignore_delay: Passes delayed requests on at once.
        max_delay: Seconds that a request is held at most. Beyond it is refused.
        max_held: Requests that are held at once.
        missing_key: What happens if key, or a part of what it returns, is missing (None or empty), as of callers without an API
            key: ``refuse`` (the default) answers 400, ``error`` raises MissingKeyError, ``allow`` lets the request pass without
            a check. Any other text, such as ``anonymous``, is used in place of what is missing.
        local_limits: See Client; limits if left out.
        slots: Acquire slots in place of a check, and hold them for the length of the response: they are released when the app has ended,
            however it does, and when the caller hangs up. ``request.state.rlnode_slot`` is the AsyncSlot, which may be lost meanwhile.
        slot_ttl: Seconds for which a slot is held unless it is renewed; as long as the limits say if left out.
    """

    def __init__(
        self,
        app: App,
        *,
        client: AsyncClient | None = None,
        nodes: Sequence[str] | str = (),
        token: str | None = None,
        on_error: OnError = "open",
        rule: str | None = None,
        key: Callable[[Scope], Key | None] | None = None,
        attributes: Callable[[Scope], Mapping[str, Value]] | None = None,
        limits: Sequence[Limit] | None = None,
        namespace: str | None = None,
        trusted_hops: int = 0,
        costs: Callable[[Scope], Mapping[str, int] | None] | None = None,
        skip: Callable[[Scope], bool] | None = None,
        on_refuse: App | None = None,
        headers: bool = True,
        ignore_delay: bool = False,
        max_delay: float = 30.0,
        max_held: int = 10_000,
        missing_key: str = "refuse",
        local_limits: Sequence[Limit] = (),
        slots: bool = False,
        slot_ttl: float | None = None,
    ) -> None:
        self.app = app
        self.slots, self.slot_ttl = slots, slot_ttl
        self.own = client is None
        self.client = client or AsyncClient(nodes, token=token, on_error=on_error, local_limits=local_limits or own_limits(on_error, limits))
        if rule is not None:
            self.client.expect_rules(rule)
        self.skip, self.on_refuse = skip, on_refuse
        self.guard: Guard[Scope] = Guard(
            see, rule, key, attributes, limits, namespace, trusted_hops, costs, headers, ignore_delay, max_delay, max_held, missing_key
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] == "lifespan":
            self.client._attach()  # which checks the token and the rules
            await self.app(scope, receive, self._closing(send) if self.own else send)
        elif scope["type"] not in ("http", "websocket") or (self.skip is not None and self.skip(scope)):
            await self.app(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        decision, held = await decide(self.client, self.guard, scope, self.slots, self.slot_ttl)
        state = dict(scope.get("state") or {})
        state["rlnode"] = decision
        scope = {**scope, "state": state}
        if decision.allowed and held is not None:
            state["rlnode_slot"] = AsyncSlot(decision, held)
            await self._serve_holding(scope, receive, _adding(send, decision.headers), held)
        elif decision.allowed:
            await self.app(scope, receive, _adding(send, decision.headers))
        elif self.on_refuse is not None:
            await self.on_refuse(scope, receive, _adding(send, decision.headers))
        else:
            await _refuse(scope, receive, send, decision)

    async def _serve_holding(self, scope: Scope, receive: Receive, send: Send, held: Held) -> None:
        watch = Watch(receive, lambda: held.keeper.spawn(lambda: give_back(held)))
        try:
            await self.app(scope, watch.receive, send)
        finally:
            watch.stop()
            held.keeper.spawn(lambda: give_back(held))

    def _closing(self, send: Send) -> Send:
        async def closing(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.client.close()
            await send(message)

        return closing


async def give_back(held: Held) -> None:
    """Releases a slot."""
    await held.release()


class Watch:
    """Notes when the caller hangs up, which an app that does not ask is not told.

    It reads one message ahead, so that what has not been read does not grow.
    """

    def __init__(self, receive: Receive, gone: Callable[[], None]) -> None:
        self._receive, self._gone = receive, gone
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Condition()
        self._task = asyncio.ensure_future(self._read())
        self._task.add_done_callback(lambda _: asyncio.ensure_future(self._wake()))

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            async with self._changed:
                self._messages.append(message)
                self._changed.notify_all()
                if message["type"].endswith(".disconnect"):
                    self._gone()
                    return
                if message["type"] != "http.request" or message.get("more_body"):
                    await self._changed.wait_for(lambda: not self._messages)

    async def receive(self) -> Message:
        """Returns the next message, as the server's function does."""
        async with self._changed:
            # If the server's function has failed, the app hears of it.
            while not self._messages:
                if self._task.done():
                    self._task.result()
                await self._changed.wait()
            message = self._messages[0]
            if not message["type"].endswith(".disconnect"):
                self._messages.popleft()
                self._changed.notify_all()
            return message

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the reading."""
        self._task.cancel()


async def decide(
    client: AsyncClient, guard: Guard[Any], request: Any, slots: bool = False, slot_ttl: float | None = None
) -> tuple[Decision, Held | None]:
    """Decides a request, and waits for its turn. With slots, it acquires them, which the caller has to release if it is allowed."""
    held: Held | None = None
    try:
        asked = guard.question(request)
        if isinstance(asked, Decision):
            return asked, None
        if slots:
            slot = await client._acquire(asked, None, slot_ttl, None)
            decision, held = slot.decision, slot._held
        else:
            decision = await client._attach().check(asked)
    except MissingKeyError:
        raise  # as the option says
    except RlnodeError as e:
        return guard.failed(e), None
    allowed = False
    try:
        decision = await _wait(guard, decision)
        if held is not None and held.lost is not None:
            decision = guard.failed(held.lost)  # the work may not begin without its slot
        allowed = decision.allowed
        return decision, held
    finally:
        if held is not None and not allowed:
            held.keeper.spawn(lambda: give_back(held))


async def _wait(guard: Guard[Any], decision: Decision) -> Decision:
    if decision.allowed and decision.delay > 0 and not guard.ignore_delay:
        late = guard.too_late(decision)
        if late is not None:
            return late
        guard.held += 1
        try:
            await asyncio.sleep(decision.delay)
        finally:
            guard.held -= 1
    return decision


def _adding(send: Send, headers: Mapping[str, str]) -> Send:
    """Adds headers to an answer, but for those that the app has set itself."""

    async def adding(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            there = {name.lower() for name, _ in message.get("headers", ())}
            more = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
            message = {**message, "headers": [*message.get("headers", ()), *((n, v) for n, v in more if n not in there)]}
        await send(message)

    return adding if headers else send


async def _refuse(scope: Scope, receive: Receive, send: Send, decision: Decision) -> None:
    status, headers, body = refusal(decision)
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            reason = decision.reason.encode()[:120].decode(errors="ignore")  # a close frame has room for 123 bytes
            await send({"type": "websocket.close", "code": 1013, "reason": reason})
            return
        kind = "websocket.http.response"
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": f"{kind}.start", "status": status, "headers": lines})
    await send({"type": f"{kind}.body", "body": body})
