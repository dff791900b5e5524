"""A throttle for Django REST framework.

In settings: ``RLNODE = {"nodes": ["http://127.0.0.1:8080"]}``, which are the arguments of Client;
``REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["rlnode.drf.RlnodeThrottle"]}``; and, for the rate headers,
``"rlnode.drf.RateLimitHeaders"`` in ``MIDDLEWARE``. A view holds a slot by ``with slot("render", request.user.pk):``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from rest_framework.exceptions import APIException, PermissionDenied, Throttled
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ._answers import NEVER, Decision
from ._requests import Key, Limit, Question, Value, question
from ._slots import Slot
from ._sync import Client, run
from ._web import Guard, Seen, address_of, complete
from .errors import MissingKeyError, RlnodeError

_lock = threading.Lock()  # guards _made
_made: list[Client] = []


def client_of_settings() -> Client:
    """Returns the client that ``settings.RLNODE`` describes. All throttles share it."""
    with _lock:
        if not _made:
            _made.append(Client(**settings.RLNODE))
        return _made[0]


class Unavailable(APIException):  # type: ignore[misc]
    """No node decided, and on_error refuses."""

    status_code = 503
    default_code = "unavailable"


class MissingKey(APIException):  # type: ignore[misc]
    """The request does not say whose it is."""

    status_code = 400
    default_code = "missing-key"


def _raise_unless_throttled(decision: Decision) -> None:
    """Raises the error of a refusal that is no matter of waiting."""
    if isinstance(decision.error, MissingKeyError):
        raise MissingKey(decision.reason)
    if decision.denied:
        raise PermissionDenied(decision.reason)
    if not decision.allowed and decision.decided_by == "error" and not decision.limit:
        raise Unavailable(decision.reason)


@contextmanager
def slot(rule: str | None = None, key: Key | None = None, **more: Any) -> Iterator[Slot]:
    """Holds a slot while a view works. See Client.acquire for the arguments.

    If all are held, the answer is 429, with Retry-After.
    """
    taken = client_of_settings().acquire(rule, key, **more)
    _raise_unless_throttled(taken.decision)
    if not taken:
        raise Throttled(None if taken.decision.never else taken.decision.retry_after)
    with taken:
        yield taken


class RlnodeThrottle(BaseThrottle):  # type: ignore[misc]
    """Asks the server's rules once for each request, however many throttles ask the same.

    By default every rule that matches the attributes ip, user, endpoint and method is asked. A subclass may set ``rule``, or
    ``limits``, and override the methods. What the rules deny is a PermissionDenied. ``missing_key`` says what happens if a part of
    the key is missing; see asgi.RateLimitMiddleware.
    """

    rule: str | None = None
    limits: Sequence[Limit] | None = None
    namespace: str | None = None
    client: Client | None = None
    missing_key: str = "refuse"

    _guard: Guard[Any] = Guard(lambda request: Seen("", "", "", ()))
    decision: Decision | None = None

    def get_ident(self, request: Any) -> str:
        """Returns the caller's address. NUM_PROXIES of the framework's settings says how many proxies are trusted; None: none."""
        forwarded = request.META.get("HTTP_X_FORWARDED_FOR")
        seen = Seen(request.method, request.path, request.META.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [])
        return address_of(seen, api_settings.NUM_PROXIES or 0)

    def get_attributes(self, request: Any, view: Any) -> Mapping[str, Value]:
        """Returns the attributes that rules match by."""
        found: dict[str, Value] = {"ip": self.get_ident(request), "endpoint": request.path, "method": request.method}
        if request.user and request.user.is_authenticated:
            found["user"] = str(request.user.pk)
        return found

    def get_key(self, request: Any, view: Any) -> Key | None:
        """Returns the subject of rule or limits. None: by attributes, or by address."""
        return None

    def get_costs(self, request: Any, view: Any) -> Mapping[str, int] | None:
        """Returns the costs by unit. None: what the rules say, or 1 request."""
        return None

    def get_question(self, request: Any, view: Any) -> Question | Decision:
        """Makes the check of a request, or the decision if its key is missing."""
        key, costs = self.get_key(request, view), self.get_costs(request, view)
        if self.limits is not None:
            key = self.get_ident(request) if key is None else key
        found = key if key is None else complete(key, self.missing_key, self.limits is not None)
        if isinstance(found, Decision):
            return found
        if self.limits is not None:
            return question(key=found, limits=self.limits, namespace=self.namespace, costs=costs, headers=True)
        if found is not None:
            return question(self.rule, found, costs=costs, headers=True)
        return question(self.rule, attributes=self.get_attributes(request, view), costs=costs, headers=True)

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decides a request."""
        plain = getattr(request, "_request", request)
        decisions: dict[str, Decision] = plain.__dict__.setdefault("_rlnode", {})
        try:
            asked = self.get_question(request, view)
            if isinstance(asked, Decision):
                self.decision = asked
            else:
                client = self.client or client_of_settings()
                if self.rule is not None:
                    client.expect_rules(self.rule)
                name = repr(asked.fields)
                if name not in decisions:
                    decisions[name] = run(client._core.check(asked))
                self.decision = decisions[name]
        except MissingKeyError:
            raise  # as missing_key says
        except RlnodeError as e:
            self.decision = self._guard.failed(e)
        _raise_unless_throttled(self.decision)
        return self.decision.allowed

    def wait(self) -> float | None:
        """Returns the seconds until the request could be allowed; None if it never is."""
        if self.decision is None or self.decision.allowed or self.decision.retry_after == NEVER:
            return None
        return self.decision.retry_after


class RateLimitHeaders:
    """Django middleware that puts the rate headers of throttles on answers."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        """Serves a request."""
        response = self.get_response(request)
        decisions: Mapping[str, Decision] = getattr(request, "_rlnode", {})
        # Of several, the one that refuses counts, or else the one with the smallest share left.
        for decision in sorted(decisions.values(), key=lambda d: (d.allowed, d.remaining / d.limit if d.limit else 1.0))[:1]:
            for name, value in decision.headers.items():
                response.headers.setdefault(name, value)
        return response
