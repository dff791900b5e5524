"""What a client makes of a node's answer."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cmp_to_key
from http import HTTPStatus
from typing import Any

from ._requests import Question
from .errors import BadAnswerError, NodeError

#: The retry_after of what can never be allowed: the cost is above the limit's capacity, or a list refuses.
NEVER = math.inf

RATE_HEADERS = ("RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
MAX_FIELD_INTEGER = 999_999_999_999_999  # of a structured field (RFC 9651)
MAX_HEADER_ITEMS = 64  # as in nodes


@dataclass(frozen=True)
class Rate:
    """What a limit allows over time, as the rules say it: limit units in each per seconds."""

    limit: int = 0
    per: float = 0.0


@dataclass(frozen=True)
class LimitDecision:
    """The verdict of one limit."""

    rule: str
    name: str  #: of the limit; the rule's if that has only one
    algorithm: str
    unit: str
    limit: int
    window: float
    rate: Rate
    used: int
    remaining: int
    reset_after: float
    retry_after: float
    more_after: float | None  #: None if that is not known, or if remaining can't grow
    allowed: bool
    shadow: bool  #: it only reports, and refuses nothing
    unlimited: bool = False  #: there is no limit in unit, which is empty for all units; the figures are 0
    ttl: float = 0.0  #: of slots, in place of window and rate: how long one lasts unless it is renewed


@dataclass(frozen=True)
class Decision:
    """The answer to a check. It is true if the check is allowed. Durations are in seconds.

    The fields describe the tightest limit: the one that refused, or else the one with the smallest share left. Where no
    limit was looked at, rule is empty and the figures are 0.
    """

    allowed: bool
    counted: bool = False  #: not allowed, and the cost was taken all the same
    granted: int = 0  #: with the mode at_most, how much of the cost was taken
    unlimited: bool = False  #: rule applies without limit, and no other rule has one: the figures are 0
    rule: str = ""  #: ``inline``, or that, a slash and the namespace, of limits that came with the call
    unit: str = "requests"
    limit: int = 0
    used: int = 0  #: rounded up; above limit after counts and penalties; an estimate from a lease
    remaining: int = 0
    window: float = 0.0  #: in which limit comes back; of a bucket, in which all of it refills
    ttl: float = 0.0  #: of slots, in place of window and rate: how long one lasts unless it is renewed
    rate: Rate = field(default_factory=Rate)  #: what the limit allows over time
    reset_after: float = 0.0  #: until the counter is fresh again if left alone
    retry_after: float = 0.0  #: until the same check could be allowed; NEVER, which is infinite
    more_after: float | None = None  #: until more than remaining is available; None if that is not known, or if it can't grow
    delay: float = 0.0  #: how long to hold an allowed request to keep the rule's rate
    #: owner, forward, lease, standby, fallback, list, none; ``error`` if no node decided, but on_error did
    decided_by: str = ""
    node: str = ""  #: the name of the node
    rules_version: int = 0
    #: why it is refused: rate-limited, cost-above-limit (see never), reduced, blocked, denied; empty if no node decided
    code: str = ""
    reason: str = ""  #: why it is refused, in a sentence
    #: what the rule that refused says to the end user: status, type, title, detail, code, headers, body
    refusal: Mapping[str, Any] | None = None
    violated: tuple[str, ...] = ()  #: the names of the limits that refused, as far as they are known
    limits: tuple[LimitDecision, ...] = ()  #: all that were looked at, with ``detail=True``
    #: for the end user: the rate headers that the rules turn on, with ``headers=True``; Retry-After where it helps
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Exception | None = None  #: why no node decided

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def never(self) -> bool:
        """It can never be allowed as it is: its cost is above the limit's capacity, or it is denied. Repeating it is no use."""
        return not self.allowed and self.retry_after == NEVER

    @property
    def denied(self) -> bool:
        """The deny list refuses, or no rule applies and the default is to deny: a web server answers 403, not 429."""
        return not self.allowed and self.decided_by in ("list", "none")


@dataclass(frozen=True)
class Reservation(Decision):
    """A decision about an estimate that was taken, and that is to be settled."""

    #: for settle, at any node; empty if nothing was reserved
    id: str = ""
    #: of the slot that is held until settle, where the rules limit slots, too; else empty
    slot: str = ""


@dataclass(frozen=True)
class Settlement:
    """How a reservation was settled."""

    settled: bool = False
    costs: Mapping[str, int] = field(default_factory=dict)  #: by unit; a repeated call gets those of the first
    remaining: int = 0
    expired: bool = False  #: it came after the reservation's end


@dataclass(frozen=True)
class Holder:
    """Who holds slots."""

    slot: str  #: its id, short, for people
    n: int  #: how many
    age: float
    expires: float  #: until it ends, unless it is renewed
    who: str


@dataclass(frozen=True)
class LimitUsage:
    """What a subject has used of one limit."""

    name: str
    algorithm: str
    unit: str
    limit: int
    window: float
    rate: Rate
    used: int  #: without what is leased; above share in debt
    remaining: int  #: share less used and leased; 0 while the subject is blocked
    reset_after: float
    more_after: float | None  #: None if that is not known, or if remaining can't grow
    share: int = 0  #: what there is to use where the subject is counted: limit, or the region's or the node's part of it
    leased: int = 0  #: held by nodes that may allow checks with it, and not used yet
    unlimited: bool = False  #: there is no limit in unit, which is empty for all units; the figures are 0
    estimated: bool = False  #: a node did not say how much it holds: that counts as used
    applied: int = 0  #: after an adjustment: by how much used rose
    ttl: float = 0.0  #: of slots, in place of window and rate
    holders: int = 0  #: of slots: how many hold some
    slots: tuple[Holder, ...] = ()  #: of slots: those that end first, at most 100


@dataclass(frozen=True)
class Usage:
    """What a subject has used of its limits."""

    rule: str  #: empty for a subject that brings its limits
    namespace: str  #: of such a subject
    key: tuple[str, ...]
    limits: tuple[LimitUsage, ...]
    unknown: int  #: further counters of the subject, whose limits the node has not met
    blocked_until: float = 0.0  #: Unix time when the rule's block of the subject ends; 0 if it has none, the year 9999 if it has no end
    #: after an adjustment: by how much usage rose in each unit. A reward takes off no more than there was; of several limits, the most
    applied: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Reply:
    """A node's answer as it came."""

    node: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    sent: float = 0.0  # by the monotonic clock: no later than the request was sent

    def json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BadAnswerError(f"{self.node}: its answer is {self.body[:80]!r}, not a JSON object")
        return found

    def problem(self) -> NodeError:
        """Returns the answer as an error."""
        try:
            return problem_of(json.loads(self.body), self.status, self.node)
        except (ValueError, TypeError, AttributeError, KeyError):
            try:
                title = HTTPStatus(self.status).phrase
            except ValueError:
                title = ""
            return NodeError(self.status, "unknown", title, repr(self.body[:200]), self.node)


def problem_of(found: dict[str, Any], status: int, node: str) -> NodeError:
    """Returns the error that found describes. What it lacks is a KeyError."""
    return NodeError(status, str(found["code"]), str(found.get("title", "")), str(found.get("detail", "")), node)


def decision_of(reply: Reply, counts: bool, headers: bool) -> tuple[Decision, dict[str, Any]]:
    """Reads the answer to a check or a reservation. Some of it may count: the status is then that of an allowed one."""
    ok = reply.status == 200
    if reply.status not in (200, 403, 429):
        raise reply.problem()
    if reply.status == 403 and (problem := reply.problem()).code != "denied":
        raise problem
    try:
        found = reply.json()
        decision = read_decision(found, reply.node, counts and ok)
        if ok != (decision.allowed or decision.counted):
            raise BadAnswerError(f"{reply.node}: status {reply.status}, and allowed is {decision.allowed}")
    except BadAnswerError as e:
        if not ok:  # whatever sent this answer, it refuses
            raise NodeError(reply.status, "unknown", "", str(e), reply.node) from e
        raise
    told = {name: reply.headers[name.lower()] for name in RATE_HEADERS if name.lower() in reply.headers} if headers else {}
    return with_headers(decision, told), found


def read_decision(found: dict[str, Any], node: str, counts: bool) -> Decision:
    """Reads a decision from JSON."""
    allowed, by = found.get("allowed"), found.get("decided_by")
    if not isinstance(allowed, bool) or not isinstance(by, str) or by in ("", "error"):
        raise BadAnswerError(f"{node}: its answer decides nothing")
    try:
        limits = tuple(_limit(one) for one in found.get("limits") or ())
        decision = Decision(
            allowed=allowed,
            granted=_whole(found, "granted"),
            unlimited=bool(found.get("unlimited")),
            rule=str(found.get("rule", "")),
            unit=str(found.get("unit", "")),
            limit=_whole(found, "limit"),
            used=_whole(found, "used"),
            remaining=_whole(found, "remaining"),
            window=_seconds(found, "window_ms"),
            ttl=_seconds(found, "ttl_ms"),
            rate=_rate(found),
            reset_after=_seconds(found, "reset_after_ms"),
            retry_after=_wait(found),
            more_after=_more(found),
            delay=_seconds(found, "delay_ms"),
            decided_by=by,
            node=str(found.get("node", "")),
            rules_version=_whole(found, "rules_version"),
            code=str(found.get("code", "")),
            reason=str(found.get("detail", "")),
            refusal=found["refusal"] if isinstance(found.get("refusal"), dict) else None,
            violated=tuple(str(name) for name in found.get("violated-policies") or ()),
            limits=limits,
        )
    except (TypeError, ValueError, AttributeError) as e:
        raise BadAnswerError(f"{node}: {e}") from e
    if allowed:
        return decision
    counted = counts and not decision.denied
    return replace(decision, counted=counted, violated=_violated(decision), reason=decision.reason or explain(decision))


def _limit(one: dict[str, Any]) -> LimitDecision:
    return LimitDecision(
        rule=str(one.get("rule", "")),
        name=str(one.get("name", "")),
        algorithm=str(one.get("algorithm", "")),
        unit=str(one.get("unit", "")),
        limit=_whole(one, "limit"),
        window=_seconds(one, "window_ms"),
        ttl=_seconds(one, "ttl_ms"),
        rate=_rate(one),
        used=_whole(one, "used"),
        remaining=_whole(one, "remaining"),
        reset_after=_seconds(one, "reset_after_ms"),
        retry_after=_wait(one),
        more_after=_more(one),
        allowed=bool(one.get("allowed")),
        shadow=bool(one.get("shadow")),
        unlimited=bool(one.get("unlimited")),
    )


def _whole(found: dict[str, Any], name: str) -> int:
    n = found.get(name, 0)
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"{name} is {n!r:.80}")
    return max(n, 0)


def _seconds(found: dict[str, Any], name: str) -> float:
    return _whole(found, name) / 1000


def _more(found: dict[str, Any]) -> float | None:
    return _seconds(found, "more_after_ms") if "more_after_ms" in found else None


def _rate(found: dict[str, Any]) -> Rate:
    rate = found.get("rate") or {}
    return Rate(_whole(rate, "limit"), _seconds(rate, "per_ms"))


def _wait(found: dict[str, Any]) -> float:
    n = found.get("retry_after_ms", 0)
    return NEVER if isinstance(n, int) and n < 0 else _seconds(found, "retry_after_ms")


def _violated(d: Decision) -> tuple[str, ...]:
    if d.violated:
        return d.violated
    return tuple(one.name for one in d.limits if not one.allowed and not one.shadow) or ((d.rule,) if d.rule else ())


def explain(d: Decision) -> str:
    """Says why d refuses: the answers of batches don't."""
    if d.decided_by == "list":
        return "The deny list refuses this."
    if d.decided_by == "none":
        return "No rule applies, and the default is to deny."
    if not d.rule:
        return "This is not allowed."
    rate = d.rate if d.rate.per else Rate(d.limit, d.window)
    once = "" if rate.limit == d.limit else f" at once, {rate.limit}"
    limit = f"The limit of {d.limit} {d.unit}{once} per {span(rate.per)}" if not d.ttl else f"The limit of {d.limit} {d.unit} at once"
    if d.retry_after == NEVER:
        return f"{limit} can never allow this: its cost is above the capacity of {d.limit}."
    return f"{limit} is used up; retry in {span(d.retry_after)}."


def span(seconds: float) -> str:
    """Writes a duration as people do: 15m, not 900s."""
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    whole = math.ceil(seconds)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{n}{unit}" for n, unit in parts if n)


def with_headers(d: Decision, told: Mapping[str, str]) -> Decision:
    """Returns d with headers for the end user, Retry-After among them where waiting helps."""
    headers = dict(told)
    if not d.allowed and 0 < d.retry_after < NEVER:
        headers["Retry-After"] = str(max(1, math.ceil(d.retry_after)))
    return replace(d, headers=headers) if headers else d


def make_headers(d: Decision, style: str) -> Mapping[str, str]:
    """Makes the rate headers of a decision that came in a batch. style says which ones the rules turn on."""
    styles = style.split()
    headers: dict[str, str] = {}
    if not d.rule or d.unlimited:
        return headers
    if "ietf" in styles:
        headers.update(_ietf(d))
    if "x-ratelimit" in styles:
        reset = d.reset_after if "reset-delta" in styles else time.time() + d.reset_after
        headers["X-RateLimit-Limit"] = str(d.limit)
        headers["X-RateLimit-Remaining"] = str(d.remaining)
        if d.retry_after != NEVER:
            headers["X-RateLimit-Reset"] = str(math.ceil(reset))
    return headers


def _ietf(d: Decision) -> dict[str, str]:
    """Lists all limits that may refuse, the tightest first.

    A time until there is more is left out where it is later than Retry-After, and everywhere if d can never be allowed.
    """
    policies, rates = [], []
    latest = 0 if d.retry_after == NEVER else math.ceil(d.retry_after) or math.inf
    for one in sorted((one for one in d.limits if not one.shadow and not one.unlimited), key=cmp_to_key(_tighter))[:MAX_HEADER_ITEMS]:
        name = quoted(one.name)
        unit = "" if one.unit == "requests" else f";qu={quoted(one.unit)}"
        quota, window = _quota(one)
        policies.append(f"{name};q={min(quota, MAX_FIELD_INTEGER)}{unit};w={window}")
        after = math.ceil(one.more_after or 0)
        more = f";t={after}" if 0 < after <= latest else ""
        rates.append(f"{name};r={min(one.remaining, MAX_FIELD_INTEGER)}{more}")
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(rates)} if policies else {}


def _quota(one: LimitDecision) -> tuple[int, int]:
    """Returns limit and window in seconds or, where that is under a second, what comes back in one."""
    if one.window >= 1 or not one.rate.per:
        return one.limit, max(1, math.ceil(one.window))
    return one.rate.limit * 1000 // round(one.rate.per * 1000), 1


def _tighter(a: LimitDecision, b: LimitDecision) -> int:
    """Sorts refusals first, the longest wait before the others, and then by the smallest share left."""
    if a.allowed != b.allowed:
        return 1 if a.allowed else -1
    if not a.allowed:
        return (b.retry_after > a.retry_after) - (b.retry_after < a.retry_after)
    x, y = a.remaining * b.limit, b.remaining * a.limit
    return (x > y) - (x < y)


def quoted(text: str) -> str:
    """Writes text as a string of a structured field (RFC 9651). Bytes other than printable ASCII are percent-encoded."""
    out = []
    for byte in text.encode("utf-8", "replace"):
        char = chr(byte)
        out.append(f"\\{char}" if char in '"\\' else char if " " <= char <= "~" else f"%{byte:02X}")
    return f'"{"".join(out)}"'


def reservation_of(reply: Reply, question: Question) -> Reservation:
    decision, found = decision_of(reply, False, question.headers)
    ident = found.get("reservation", "")
    if not isinstance(ident, str) or (decision.allowed and not ident):
        raise BadAnswerError(f"{reply.node} reserves without an id")
    return Reservation(**{**decision.__dict__, "id": ident, "slot": slot_of(reply, found)[0]})


def slot_of(reply: Reply, found: dict[str, Any]) -> tuple[str, float]:
    """Returns the slot of an answer, and until when it is held, by the monotonic clock."""
    slot, expires = found.get("slot", ""), found.get("expires_ms", 0)
    if not isinstance(slot, str) or not isinstance(expires, int) or (slot and expires <= 0):
        raise BadAnswerError(f"{reply.node} gives a slot without a time")
    return slot, reply.sent + expires / 1000


def settlement_of(reply: Reply) -> Settlement:
    if reply.status != 200:
        raise reply.problem()
    found = reply.json()
    try:
        costs = {str(unit): int(n) for unit, n in (found.get("costs") or {}).items()}
        return Settlement(bool(found.get("settled")), costs, _whole(found, "remaining"), bool(found.get("expired")))
    except (TypeError, ValueError, AttributeError) as e:
        raise BadAnswerError(f"{reply.node}: {e}") from e


def usage_of(reply: Reply, key: Any) -> Usage:
    """Reads what a subject has used. key is the subject's if the answer has none."""
    if reply.status != 200:
        raise reply.problem()
    found = reply.json()
    try:
        key = found.get("key", key)
        return Usage(
            rule=str(found.get("rule", "")),
            namespace=str(found.get("namespace", "")),
            key=(key,) if isinstance(key, str) else tuple(str(one) for one in key or ()),
            limits=tuple(
                LimitUsage(
                    name=str(one.get("name", "")),
                    algorithm=str(one.get("algorithm", "")),
                    unit=str(one.get("unit", "")),
                    limit=_whole(one, "limit"),
                    window=_seconds(one, "window_ms"),
                    ttl=_seconds(one, "ttl_ms"),
                    holders=_whole(one, "holders"),
                    slots=tuple(
                        Holder(str(h.get("slot", "")), _whole(h, "n"), _seconds(h, "age_ms"), _seconds(h, "expires_ms"), str(h.get("who", "")))
                        for h in one.get("slots") or ()
                    ),
                    rate=_rate(one),
                    used=_whole(one, "used"),
                    remaining=_whole(one, "remaining"),
                    reset_after=_seconds(one, "reset_after_ms"),
                    more_after=_more(one),
                    share=_whole(one, "share"),
                    leased=_whole(one, "leased"),
                    estimated=bool(one.get("estimated")),
                    unlimited=bool(one.get("unlimited")),
                    applied=int(one.get("applied", 0)),
                )
                for one in found.get("limits") or ()
            ),
            unknown=_whole(found, "unknown"),
            blocked_until=_seconds(found, "blocked_until_ms"),
            applied={str(unit): int(n) for unit, n in (found.get("applied") or {}).items()},
        )
    except (TypeError, ValueError, AttributeError) as e:
        raise BadAnswerError(f"{reply.node}: {e}") from e
