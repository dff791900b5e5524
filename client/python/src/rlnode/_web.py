"""What the middlewares have in common."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Generic, TypeVar

from ._answers import NEVER, Decision, span
from ._requests import Key, Limit, Question, Value, question
from ._setup import Setup
from .errors import MissingKeyError, RlnodeError

R = TypeVar("R")  # a request, as the server's interface has it


@dataclass(frozen=True)
class Seen:
    """What a server's interface tells of a request."""

    method: str
    path: str
    peer: str
    forwarded: Sequence[str]  # the lines of X-Forwarded-For


def address_of(seen: Seen, hops: int) -> str:
    """Returns the caller's address, without port and zone. One that embeds an IPv4 address becomes that one.

    hops is the number of proxies in front of this server, each of which appends the address of its peer to X-Forwarded-For.
    The hops-th address from the right counts, because the caller controls those further left, or the leftmost if there are
    fewer. With 0, without the header, or if that is no address, it is the peer's.
    """
    peer = _address(seen.peer) or seen.peer
    if hops <= 0:
        return peer
    listed = [one.strip() for line in seen.forwarded for one in line.split(",")]
    if not listed:
        return peer
    return _address(listed[max(0, len(listed) - hops)]) or peer


_IN_BRACKETS = re.compile(r"\[([^\]]*)\](?::[0-9]{1,5})?")
_BEFORE_PORT = re.compile(r"([^:]+)(?::[0-9]{1,5})?")

# Addresses of these networks embed an IPv4 address, which begins behind so many bits: IPv4-mapped, NAT64, and a site of 6to4.
_EMBEDDING = [(IPv6Network("::ffff:0:0/96"), 96), (IPv6Network("64:ff9b::/96"), 96), (IPv6Network("2002::/16"), 16)]


def _address(text: str) -> str | None:
    """Returns the canonical notation of an address, as nodes count it; None if it is none.

    Blanks, quotes, brackets, a port and a zone are dropped. An address that embeds an IPv4 address becomes that one, so that
    a caller stays the same caller behind a translation of addresses, and is not one with all others behind it.
    """
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    in_brackets = _IN_BRACKETS.fullmatch(text)
    part = in_brackets or _BEFORE_PORT.fullmatch(text)
    try:
        found = ip_address(part[1] if part else text)
    except ValueError:
        return None
    if not isinstance(found, IPv6Address):
        return None if in_brackets else str(found)
    for network, bits in _EMBEDDING:
        if found in network:
            return str(IPv4Address(int(found) >> (96 - bits) & 0xFFFFFFFF))
    return str(found).partition("%")[0]


def attributes_of(seen: Seen, hops: int) -> dict[str, str]:
    """Returns the attributes ip, endpoint and method."""
    found = {"ip": address_of(seen, hops), "endpoint": seen.path, "method": seen.method}
    return {name: value for name, value in found.items() if value}


@dataclass
class Guard(Generic[R]):
    """The options of a middleware.

    rule, key, attributes and limits say what is asked: by default every rule that matches the attributes ip, endpoint and
    method. With limits, the key is the address unless key says otherwise.
    """

    see: Callable[[R], Seen]
    rule: str | None = None
    key: Callable[[R], Key | None] | None = None
    attributes: Callable[[R], Mapping[str, Value]] | None = None
    limits: Sequence[Limit] | None = None
    namespace: str | None = None
    trusted_hops: int = 0
    costs: Callable[[R], Mapping[str, int] | None] | None = None
    headers: bool = True
    ignore_delay: bool = False
    max_delay: float = 30.0
    max_held: int = 10_000
    missing_key: str = "refuse"
    held: int = 0  # requests that wait for their turn

    def __post_init__(self) -> None:
        if self.key is not None and self.rule is None and self.limits is None:
            raise ValueError("key needs rule or limits")
        if self.attributes is not None and (self.key is not None or self.limits is not None):
            raise ValueError("attributes exclude key and limits")
        self.setup = Setup(())

    def question(self, request: R) -> Question | Decision:
        """Makes the check of a request, or the decision if its key is missing."""
        costs = self.costs(request) if self.costs is not None else None
        more: dict[str, Any] = {"headers": self.headers, "costs": costs}
        if self.limits is not None:
            key: Key | None = self.key(request) if self.key is not None else address_of(self.see(request), self.trusted_hops)
            found_key = complete(key, self.missing_key, True)
            if isinstance(found_key, Decision):
                return found_key
            return question(key=found_key, limits=self.limits, namespace=self.namespace, **more)
        if self.key is not None:
            found_key = complete(self.key(request), self.missing_key)
            return found_key if isinstance(found_key, Decision) else question(self.rule, found_key, **more)
        found = self.attributes(request) if self.attributes is not None else attributes_of(self.see(request), self.trusted_hops)
        return question(self.rule, attributes=found, **more)

    def failed(self, error: RlnodeError) -> Decision:
        """Returns the refusal of a check that could not be decided because of what the caller, or the configuration, got wrong."""
        self.setup.log(logging.ERROR, "refused", "requests are refused, since their checks can't be decided: %s", error)
        return Decision(allowed=False, decided_by="error", reason="The rate limiter can't decide this.", error=error)

    def too_late(self, decision: Decision) -> Decision | None:
        """Returns a refusal if a delayed request may not wait for its turn."""
        if self.held < self.max_held and decision.delay <= self.max_delay:
            return None
        reason = f"Too many wait for their turn; retry in {span(decision.delay)}."
        refused = replace(decision, allowed=False, retry_after=decision.delay, reason=reason, violated=(decision.rule,))
        return with_retry(refused)


def own_limits(on_error: str, limits: Sequence[Limit] | None) -> Sequence[Limit]:
    """Returns the local limits of a client whose checks all bring these."""
    return limits if limits is not None and on_error == "local" else ()


def complete(key: Key | None, missing_key: str, inline: bool = False) -> Key | Decision:
    """Returns a key that lacks nothing; or, if it does, what missing_key says: a decision, or an error.

    Of limits that come with the call, an empty text is a value.
    """

    def absent(value: object) -> bool:
        return value is None or (value == "" and isinstance(value, str) and not inline)

    several = isinstance(key, (list, tuple))
    values: list[Any] = list(key) if isinstance(key, (list, tuple)) else [key]
    lacking = [i for i, value in enumerate(values) if absent(value)]
    if not lacking:
        return key  # type: ignore[return-value]  # it is not None
    if missing_key not in ("refuse", "error", "allow"):
        filled = [missing_key if absent(value) else value for value in values]
        return filled if several else filled[0]
    error = MissingKeyError(f"key[{lacking[0]}] is missing" if several else "key is missing")
    if missing_key == "error":
        raise error
    if missing_key == "allow":
        return Decision(allowed=True, decided_by="none")
    return Decision(allowed=False, decided_by="error", reason="This request does not say whose it is.", error=error)


def with_retry(decision: Decision) -> Decision:
    """Returns a refusal with Retry-After where waiting helps."""
    if not 0 < decision.retry_after < NEVER:
        return decision
    return replace(decision, headers={**decision.headers, "Retry-After": str(max(1, -int(-decision.retry_after // 1)))})


def refusal(decision: Decision) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of what a refused request gets.

    That is what the rule's refusal says, or 429, 403 if it is denied, 400 if its key is missing, and 503 if no node decided.
    """
    body: dict[str, Any]
    headers = dict(decision.headers)
    if decision.denied:
        status = 403
        body = {"type": "about:blank", "title": "The rules deny this", "status": status, "code": "denied", "detail": decision.reason}
    elif isinstance(decision.error, MissingKeyError):
        status = 400
        title = "A required field is missing"
        body = {"type": "about:blank", "title": title, "status": status, "code": "missing-key", "detail": decision.reason}
    elif decision.decided_by == "error" and not decision.limit:
        status = 503
        body = {"type": "about:blank", "title": "Service Unavailable", "status": status, "detail": decision.reason}
        headers["Retry-After"] = "1"
    else:
        status = 429
        body = {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": status,
            "code": decision.code or "rate-limited",
            "detail": decision.reason,
            "violated-policies": list(decision.violated),
        }
    headers.update({"Content-Type": "application/problem+json", "Cache-Control": "no-store"})
    if decision.refusal is not None:
        status, text = _own_refusal(decision.refusal, status, headers, body)
    else:
        text = json.dumps(body).encode()
    headers["Content-Length"] = str(len(text))
    return status, headers, text


def _own_refusal(own: Mapping[str, Any], status: int, headers: dict[str, str], problem: dict[str, Any]) -> tuple[int, bytes]:
    """Returns status and body of a rule's own refusal, and adds its headers. problem is what the answer would be without it."""
    told = own.get("status")
    if isinstance(told, int) and (400 <= told <= 499 or told == 503):
        status = told
    headers.update({str(name): str(value) for name, value in (own.get("headers") or {}).items()})
    body = own.get("body")
    if isinstance(body, str):
        headers["Content-Type"] = "text/plain; charset=utf-8"
        return status, body.encode()
    if body is not None:
        headers["Content-Type"] = "application/json"
        return status, json.dumps(body).encode()
    problem.pop("violated-policies", None)
    problem.update({name: own[name] for name in ("type", "title", "detail", "code") if own.get(name)})
    return status, json.dumps({**problem, "status": status}).encode()
