"""Middleware for WSGI: Flask, Django, Pyramid and others.

>>> app.wsgi_app = RateLimitMiddleware(app.wsgi_app, nodes=["http://127.0.0.1:8080"])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from ._answers import Decision
from ._options import OnError
from ._requests import Key, Limit, Value
from ._slots import Held, Slot
from ._sync import Client, run
from ._web import Guard, Seen, own_limits, refusal
from .errors import MissingKeyError, RlnodeError

Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def see(environ: Environ) -> Seen:
    """Returns what WSGI tells of a request."""
    path = str(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))
    forwarded = environ.get("HTTP_X_FORWARDED_FOR")
    decoded = path.encode("latin-1", "replace").decode("utf-8", "replace")
    return Seen(environ.get("REQUEST_METHOD", "GET"), decoded, environ.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [])


class RateLimitMiddleware:
    """Checks each request. See asgi.RateLimitMiddleware for the arguments, whose functions take the environ here.

    ``environ["rlnode.decision"]`` is the decision. on_refuse is a WSGI app. A delayed request holds its thread, so at most 16
    are held at once unless max_held says otherwise. With slots, ``environ["rlnode.slot"]`` is the Slot, which is released when the
    server closes the answer: it has been sent, it failed, or the caller has hung up.
    """

    def __init__(
        self,
        app: App,
        *,
        client: Client | None = None,
        nodes: Sequence[str] | str = (),
        token: str | None = None,
        on_error: OnError = "open",
        rule: str | None = None,
        key: Callable[[Environ], Key | None] | None = None,
        attributes: Callable[[Environ], Mapping[str, Value]] | None = None,
        limits: Sequence[Limit] | None = None,
        namespace: str | None = None,
        trusted_hops: int = 0,
        costs: Callable[[Environ], Mapping[str, int] | None] | None = None,
        skip: Callable[[Environ], bool] | None = None,
        on_refuse: App | None = None,
        headers: bool = True,
        ignore_delay: bool = False,
        max_delay: float = 30.0,
        max_held: int = 16,
        missing_key: str = "refuse",
        local_limits: Sequence[Limit] = (),
        slots: bool = False,
        slot_ttl: float | None = None,
    ) -> None:
        self.app = app
        self.slots, self.slot_ttl = slots, slot_ttl
        self.client = client or Client(nodes, token=token, on_error=on_error, local_limits=local_limits or own_limits(on_error, limits))
        if rule is not None:
            self.client.expect_rules(rule)
        self.skip, self.on_refuse = skip, on_refuse
        self.guard: Guard[Environ] = Guard(
            see, rule, key, attributes, limits, namespace, trusted_hops, costs, headers, ignore_delay, max_delay, max_held, missing_key
        )

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serves a request."""
        if self.skip is not None and self.skip(environ):
            return self.app(environ, start_response)
        decision, held = self._decide(environ)
        environ["rlnode.decision"] = decision
        if not decision.allowed and self.on_refuse is None:
            status, headers, body = refusal(decision)
            start_response(f"{status} {_phrase(status)}", list(headers.items()))
            return [body]

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            there = {name.lower() for name, _ in headers}
            return start_response(status, [*headers, *((n, v) for n, v in decision.headers.items() if n.lower() not in there)], *more)

        if not decision.allowed and self.on_refuse is not None:
            return self.on_refuse(environ, start)
        if held is None:
            return self.app(environ, start)
        environ["rlnode.slot"] = Slot(decision, held, run)
        try:
            return _Holding(self.app(environ, start), held)
        except BaseException:
            run(held.release())
            raise

    def _decide(self, environ: Environ) -> tuple[Decision, Held | None]:
        guard = self.guard
        held: Held | None = None
        try:
            asked = guard.question(environ)
            if isinstance(asked, Decision):
                return asked, None
            if self.slots:
                decision, held = run(self.client._core.acquire(asked, None, self.slot_ttl, None))
            else:
                decision = run(self.client._core.check(asked))
        except MissingKeyError:
            raise  # as the option says
        except RlnodeError as e:
            return guard.failed(e), None
        allowed = False
        try:
            decision = self._wait(decision)
            if held is not None and held.lost is not None:
                decision = guard.failed(held.lost)  # the work may not begin without its slot
            allowed = decision.allowed
            return decision, held
        finally:
            if held is not None and not allowed:
                run(held.release())

    def _wait(self, decision: Decision) -> Decision:
        guard = self.guard
        if decision.allowed and decision.delay > 0 and not guard.ignore_delay:
            late = guard.too_late(decision)
            if late is not None:
                return late
            guard.held += 1  # threads may miscount by a few: it bounds what is held only roughly
            try:
                time.sleep(decision.delay)
            finally:
                guard.held -= 1
        return decision


class _Holding:
    """An answer that releases a slot when the server closes it."""

    def __init__(self, answer: Iterable[bytes], held: Held) -> None:
        self.answer, self.held = answer, held

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.answer)

    def close(self) -> None:
        try:
            close = getattr(self.answer, "close", None)
            if close is not None:
                close()
        finally:
            run(self.held.release())


def _phrase(status: int) -> str:
    """Returns the phrase of a status. A rule's refusal may have one without."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"
