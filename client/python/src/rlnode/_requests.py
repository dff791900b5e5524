"""What a client sends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from .errors import MissingKeyError, RequestError

if TYPE_CHECKING:
    from typing import TypeGuard

MAX_VALUE = 1024  # bytes of a key or attribute value
MAX_AMOUNT = (1 << 53) - 1
MAX_BODY = 64 << 10  # bytes of a check
MAX_ID = 64  # bytes of a request id
MAX_WHO = 32  # bytes of what a slot says of its holder
MAX_LIMITS = 8
MAX_SUBJECTS = 16
DEFAULT_TTL = 60.0

#: Text, or an integer, which counts as its digits: 7 and "7" are one subject. None and "" are absent: rules with such an attribute
#: in their key don't apply, and nodes refuse a key that lacks a value with the code missing-key. With limits, "" is a value of a key.
Value = Union[str, int, None]
Key = Union[str, int, Sequence[Value]]
Mode = Literal["check", "peek", "count", "at_most"]

Limit = TypedDict(
    "Limit",
    {
        "limit": int,
        "per": str,
        "per_ms": int,
        "ttl": str,
        "ttl_ms": int,
        "algorithm": str,
        "burst": int,
        "unit": str,
        "name": str,
        "tz": str,
        "from": str,
    },
    total=False,
)
Limit.__doc__ = """A limit that comes with the call.

``limit`` is the capacity, and ``per`` the window: a duration of 10 ms to 366 days such as ``"10s"`` or ``"7d"``, or ``"day"``
and other units of the calendar; or ``per_ms``. ``algorithm`` is ``sliding-window``, ``sliding-window-log``,
``fixed-window``, ``token-bucket``, ``leaky-bucket`` or, for how many are held at once, ``concurrency``. In place of ``per``
that has ``ttl`` or ``ttl_ms``: how long a slot is held unless it is renewed, such as ``"30s"``. ``unit`` is what is counted,
such as ``tokens``. With ``"from": "first"`` a fixed window begins with its first hit."""

_LIMIT_FIELDS = dict.fromkeys(("limit", "per_ms", "ttl_ms", "burst"), int) | dict.fromkeys(
    ("per", "ttl", "algorithm", "unit", "name", "tz", "from"), str
)


class Subject(TypedDict, total=False):
    """A subject that brings its limits, for a decision about several. See Check for the fields."""

    namespace: str
    key: Key
    limits: Sequence[Limit]
    consistency: Literal["exact", "hybrid"]
    shadow: bool
    mode: Mode
    cost: int
    costs: Mapping[str, int]


class Target(TypedDict, total=False):
    """Further arguments of usage, reset and adjust: a subject that brings its limits."""

    #: keeps subjects with equal keys apart, such as those of two services; ``inline`` if left out
    namespace: str
    limits: Sequence[Limit]
    #: seconds from start to answer, over all nodes; the client's if left out
    timeout: float


class Check(Target, total=False):
    """Further arguments of check, peek, count and reserve.

    Values that strangers choose need no special care. Of a value over 1,024 bytes the first and the last 512 are sent; what
    is no valid text is sent as U+FFFD, and a cost over 2**53-1 as that. Two subjects may thereby become one and share a limit.
    """

    #: describe the request, such as ip, tenant, api_key, endpoint; every rule that matches is asked
    attributes: Mapping[str, Value]
    #: ``exact`` asks the subject's owner each time; else nodes lease quota, which is faster. With limits.
    consistency: Literal["exact", "hybrid"]
    #: count and report, but never refuse. With limits.
    shadow: bool
    #: 1 to 16 that bring their limits, for one decision: all or nothing
    subjects: Sequence[Subject]
    #: of the whole call; see peek and count
    mode: Mode
    #: in requests; without it the rule's cost table, or 1
    cost: int
    #: by unit, such as tokens. A unit that is not named costs 0, but requests cost 1.
    costs: Mapping[str, int]
    #: an allowed check returns when its turn has come, after Decision.delay
    wait: bool
    #: fill in Decision.limits
    detail: bool
    #: fill in Decision.headers
    headers: bool
    #: for count and reserve: within a minute, calls about one subject with the same id are decided once
    request_id: str


@dataclass
class Question:
    """A call about subjects, ready to be sent."""

    fields: dict[str, Any]
    counts: bool  # some of it takes its cost also where the answer is no
    mixed: bool  # some of it counts, and some does not
    peeks: bool
    detail: bool
    headers: bool
    wait: bool
    timeout: float | None

    def body(self) -> bytes:
        return encode(self.fields)

    def most(self) -> int:
        """Returns what the mode at_most takes if there is enough; 0 in other modes."""
        subject = self.fields.get("subjects", [self.fields])[0]
        if subject.get("mode") != "at_most":
            return 0
        costs = subject.get("costs")
        return int(max(subject.get("cost", 0), *costs.values()) if costs else subject.get("cost", 1))


def encode(fields: Mapping[str, Any]) -> bytes:
    """Returns fields as the body of a request."""
    body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    if len(body) > MAX_BODY:
        raise RequestError(f"too large: {len(body)} bytes are more than the {MAX_BODY} of a check")
    return body


def question(
    rule: str | None = None,
    key: Key | None = None,
    *,
    mode: Mode | None = None,
    attributes: Mapping[str, Value] | None = None,
    namespace: str | None = None,
    limits: Sequence[Limit] | None = None,
    consistency: str | None = None,
    shadow: bool = False,
    subjects: Sequence[Subject] | None = None,
    cost: int | None = None,
    costs: Mapping[str, int] | None = None,
    wait: bool = False,
    detail: bool = False,
    headers: bool = False,
    request_id: str | None = None,
    timeout: float | None = None,
) -> Question:
    """Makes the question of a check. Without a mode, each of several subjects has its own."""
    if mode not in (None, "check", "peek", "count", "at_most"):
        raise RequestError(f"mode is {mode!r:.80}; check, peek, count or at_most is wanted")
    inline = limits is not None or bool(namespace) or consistency is not None or shadow
    if subjects is not None:
        given = inline or rule or key is not None or attributes is not None or cost is not None or costs is not None
        if given:
            raise RequestError("subjects exclude rule, key, attributes, limits, namespace, consistency, shadow, cost and costs")
        if not isinstance(subjects, (list, tuple)):
            raise RequestError(f"subjects are {subjects!r:.80}; a list is wanted")
        if not 1 <= len(subjects) <= MAX_SUBJECTS:
            raise RequestError(f"there are {len(subjects)} subjects; 1 to {MAX_SUBJECTS} are wanted")
        several = [_subject_of(s, i, mode) for i, s in enumerate(subjects)]
        fields: dict[str, Any] = {"subjects": several}
        modes = [s.get("mode", "check") for s in several]
    else:
        modes = [mode or "check"]
        if inline:
            if rule or attributes is not None:
                raise RequestError("limits, namespace, consistency and shadow exclude rule and attributes")
            fields = _subject(namespace, key, limits, consistency, shadow, mode, cost, costs, "")
        else:
            fields = _of_rules(rule, key, attributes, mode, cost, costs)
    if detail:
        fields["detail"] = True
    if request_id:
        fields["request_id"] = _id(request_id)
    counting = [m == "count" for m in modes]
    return Question(
        fields=fields,
        counts=any(counting),
        mixed=any(counting) and not all(counting),
        peeks=all(m == "peek" for m in modes),
        detail=detail,
        headers=headers,
        wait=wait,
        timeout=timeout,
    )


def _of_rules(
    rule: str | None, key: Key | None, attributes: Mapping[str, Value] | None, mode: Mode | None, cost: int | None, costs: Mapping[str, int] | None
) -> dict[str, Any]:
    if not rule and attributes is None:
        raise RequestError("neither rule nor attributes are given, nor limits")
    if key is not None and attributes is not None:
        raise RequestError("key and attributes exclude each other")
    fields: dict[str, Any] = {}
    if rule:
        fields["rule"] = _text(rule, "rule")
    if key is not None:
        fields["key"] = key_of(key)
    if attributes is not None:
        fields["attributes"] = _attributes_of(attributes)
    _put_cost(fields, cost, costs, "")
    if mode == "peek":
        fields["peek"] = True  # nodes of older releases know that
    elif mode is not None and mode != "check":
        fields["mode"] = mode
    return fields


def _subject_of(subject: Subject, i: int, mode: Mode | None) -> dict[str, Any]:
    where = f"subjects[{i}]."
    if not isinstance(subject, Mapping):
        raise RequestError(f"subjects[{i}] is {subject!r:.80}; a dictionary is wanted")
    unknown = set(subject) - set(Subject.__annotations__)
    if unknown:
        raise RequestError(f"{where}{min(unknown)} is not known")
    return _subject(
        subject.get("namespace"),
        subject.get("key"),
        subject.get("limits"),
        subject.get("consistency"),
        subject.get("shadow", False),
        mode or subject.get("mode"),
        subject.get("cost"),
        subject.get("costs"),
        where,
    )


def _subject(
    namespace: str | None,
    key: Key | None,
    limits: Sequence[Limit] | None,
    consistency: str | None,
    shadow: bool,
    mode: str | None,
    cost: int | None,
    costs: Mapping[str, int] | None,
    where: str,
) -> dict[str, Any]:
    if key is None:
        raise RequestError(f"{where}key is not given")
    fields: dict[str, Any] = {}
    if namespace:
        fields["namespace"] = fit(_text(namespace, f"{where}namespace"))
    fields["key"] = key_of(key, f"{where}key", inline=True)
    fields["limits"] = limits_of(limits or (), f"{where}limits")
    if consistency not in (None, "exact", "hybrid"):
        raise RequestError(f"{where}consistency is {consistency!r:.80}; exact or hybrid is wanted")
    if consistency == "exact":
        fields["consistency"] = "exact"
    if shadow:
        fields["shadow"] = True
    _put_cost(fields, cost, costs, where)
    if mode not in (None, "check", "peek", "count", "at_most"):
        raise RequestError(f"{where}mode is {mode!r:.80}; check, peek, count or at_most is wanted")
    if mode is not None and mode != "check":
        fields["mode"] = mode
    return fields


def target(
    rule: str | None,
    key: Key | None,
    namespace: str | None = None,
    limits: Sequence[Limit] | None = None,
    timeout: float | None = None,
) -> tuple[dict[str, Any], float | None]:
    """Returns the fields of a call about one subject that is not a check, and the call's timeout."""
    inline = limits is not None or bool(namespace)
    if bool(rule) == inline:
        raise RequestError("either rule, or namespace or limits, must be given")
    if inline and key is None:
        raise RequestError("key is not given")
    fields: dict[str, Any] = {}
    if rule:
        fields["rule"] = _text(rule, "rule")
    if namespace:
        fields["namespace"] = fit(_text(namespace, "namespace"))
    if key is not None:
        fields["key"] = key_of(key, inline=inline)
    if limits is not None:
        fields["limits"] = limits_of(limits, "limits")
    return fields, timeout


def part_of(fields: dict[str, Any], limit_name: str | None, bill: bool = False) -> dict[str, Any]:
    """Returns the fields of a change of one limit, or of all, and of the bill."""
    if limit_name is not None:
        if not _text(limit_name, "limit_name"):
            raise RequestError("limit_name is empty")
        fields["limit_name"] = limit_name
    if not isinstance(bill, bool):
        raise RequestError(f"bill is {bill!r:.80}; it must be True or False")
    if bill:
        fields["bill"] = True
    return fields


def limits_of(limits: Iterable[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Checks limits, as far as that does not depend on the node."""
    if not isinstance(limits, (list, tuple)):
        raise RequestError(f"{where} is {limits!r:.80}; a list is wanted")
    out = []
    for i, limit in enumerate(limits):
        at = f"{where}[{i}]"
        if not isinstance(limit, Mapping):
            raise RequestError(f"{at} is {limit!r:.80}; limits are dictionaries such as {{'limit': 5, 'per': '1m'}}")
        one: dict[str, Any] = {}
        value: Any
        for name, value in limit.items():
            kind = _LIMIT_FIELDS.get(name)
            if kind is None:
                raise RequestError(f"{at}.{name} is not known")
            if not isinstance(value, kind) or isinstance(value, bool):
                raise RequestError(f"{at}.{name} is {value!r:.80}; {'a whole number' if kind is int else 'text'} is wanted")
            if isinstance(value, str):
                if len(value.encode("utf-8", "replace")) > MAX_VALUE or scrub(value) != value:
                    raise RequestError(f"{at}.{name} is not text of at most {MAX_VALUE} bytes")
            elif isinstance(value, int) and not (least := int(name != "limit")) <= value <= MAX_AMOUNT:
                raise RequestError(f"{at}.{name} is {value}; it must be {least} to {MAX_AMOUNT}")
            one[name] = value
        if "limit" not in one:
            raise RequestError(f"{at}.limit is not given")
        window, ttl = one.get("per") or "per_ms" in one, one.get("ttl") or "ttl_ms" in one
        if one.get("algorithm") == "concurrency":
            if window or not ttl:
                raise RequestError(f"{at}.ttl is to be given, and no per: how long a slot is held unless it is renewed, such as 30s")
        elif ttl:
            raise RequestError(f"{at}.ttl is for the algorithm concurrency")
        elif not window:
            raise RequestError(f"{at}.per is not given: the window, such as 10s, 1m or day")
        out.append(one)
    if not 1 <= len(out) <= MAX_LIMITS:
        raise RequestError(f"{where} has {len(out)} limits; 1 to {MAX_LIMITS} are wanted")
    return out


def _put_cost(fields: dict[str, Any], cost: int | None, costs: Mapping[str, int] | None, where: str) -> None:
    if cost is not None:
        fields["cost"] = _amount(cost, f"{where}cost")
    if costs is not None:
        fields["costs"] = costs_of(costs, where)


def costs_of(costs: Mapping[str, int], where: str = "") -> dict[str, int]:
    """Checks costs by unit, which are not negative."""
    if not isinstance(costs, Mapping):
        raise RequestError(f"{where}costs is {costs!r:.80}; a dictionary of amounts by unit is wanted")
    return {unit: _amount(costs[unit], f"{where}costs[{unit!r:.80}]") for unit in sorted(_text(unit, f"{where}costs") for unit in costs)}


def changes_of(costs: Mapping[str, int]) -> dict[str, int]:
    """Checks what is to be added to usage, which may be negative."""
    if not isinstance(costs, Mapping) or not costs:
        raise RequestError("costs are empty, or no dictionary")
    for unit, n in costs.items():
        if not _whole(n) or n == 0 or abs(n) > MAX_AMOUNT:
            raise RequestError(f"costs[{unit!r:.80}] is {n!r:.80}; it must be a whole number, not 0, and within ±{MAX_AMOUNT}")
    return dict(costs)


def _whole(n: object) -> TypeGuard[int]:
    return isinstance(n, int) and not isinstance(n, bool)


def _amount(n: int, where: str) -> int:
    if not _whole(n) or n < 0:
        raise RequestError(f"{where} is {n!r:.80}; it must be a whole number, and not negative")
    return min(n, MAX_AMOUNT)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{where}: {value!r:.80} is not text")
    return value


def _id(request_id: str) -> str:
    if len(_text(request_id, "request_id").encode("utf-8", "replace")) > MAX_ID:
        raise RequestError(f"the request_id must have at most {MAX_ID} bytes")
    return request_id


def with_id(fields: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Returns fields with the id of a request."""
    return {**fields, "request_id": _id(request_id)}


def ttl_ms(ttl: float) -> int:
    """Returns the time for which a reservation can be settled, rounded up to milliseconds."""
    if not 0 < ttl <= 3600:
        raise RequestError(f"ttl is {ttl!r}; it must be above 0 and at most 3600 seconds")
    return ceil(round(ttl * 1000, 6))


def acquire_of(asked: Question, n: int | None, ttl: float | None, who: str | None) -> dict[str, Any]:
    """Returns the fields of an acquire, without its id."""
    fields = dict(asked.fields)
    modes = [one.get("mode") for one in fields.get("subjects", [fields])]
    if fields.get("peek") or any(modes):
        raise RequestError("mode must be check: a slot is either held or not")
    if n is not None:
        if not _whole(n) or n < 1:
            raise RequestError(f"n is {n!r:.80}; it must be a whole number of at least 1")
        fields["n"] = n
    if ttl is not None:
        if not 0 < ttl <= 86400:
            raise RequestError(f"ttl is {ttl!r}; it must be above 0 and at most 86400 seconds")
        fields["ttl_ms"] = ceil(round(ttl * 1000, 6))
    if who is not None:
        if not 1 <= len(_text(who, "who").encode("utf-8", "replace")) <= MAX_WHO:
            raise RequestError(f"who must have 1 to {MAX_WHO} bytes")
        fields["who"] = scrub(who)
    return fields


def expiry_of(on_expiry: object) -> object:
    """Returns what becomes of a reservation that nobody settles, in a node's form."""
    if isinstance(on_expiry, Mapping):
        return {"costs": costs_of(on_expiry)}
    if on_expiry not in ("charge", "refund"):
        raise RequestError(f"on_expiry is {on_expiry!r}; it must be charge, refund, or costs by unit")
    return on_expiry


def value_of(value: object, where: str) -> str | None:
    """Returns what a value of a key or an attribute counts as; None if it is absent."""
    if value is None:
        return None
    if isinstance(value, str):
        return fit(str.__str__(value))
    if _whole(value):
        try:
            return fit(int.__repr__(value))
        except ValueError:
            raise RequestError(f"{where} has too many digits") from None
    raise RequestError(f"{where} is of the type {type(value).__name__}; text or an integer is wanted")


def key_of(key: object, where: str = "key", inline: bool = False) -> str | list[str | None] | None:
    """Returns a key in a node's form: one value, or a list. What is absent is for the node to refuse: only it knows the rule."""
    several = isinstance(key, (list, tuple))
    values = [value_of(v, f"{where}[{i}]") for i, v in enumerate(key)] if isinstance(key, (list, tuple)) else [value_of(key, where)]
    if inline and None in values:
        raise MissingKeyError(f"{where}[{values.index(None)}] is missing" if several else f"{where} is missing")
    return values[0] if len(values) == 1 else values


def _attributes_of(attributes: object) -> dict[str, str]:
    """Returns the attributes that are there."""
    if not isinstance(attributes, Mapping):
        raise RequestError(f"attributes are of the type {type(attributes).__name__}; a dictionary of values by name is wanted")
    named = {fit(_text(name, "attributes")): value_of(value, f"attributes[{name!r:.80}]") for name, value in attributes.items()}
    return {name: value for name, value in named.items() if value}  # an empty one is absent, too


_SURROGATES = re.compile("[\ud800-\udfff]")


def scrub(value: str) -> str:
    """Returns value with U+FFFD in place of what UTF-8 can't encode."""
    return value if value.isascii() else _SURROGATES.sub("\ufffd", value)


def fit(value: str) -> str:
    """Turns a key or attribute value into one that a node accepts.

    It keeps both the beginning and the end, because rules match by either.
    """
    value = scrub(value)
    if len(value) * 4 <= MAX_VALUE:
        return value
    text = value.encode()
    if len(text) <= MAX_VALUE:
        return value
    head, tail = text[: MAX_VALUE // 2], text[-(MAX_VALUE // 2) :]
    return head.decode("utf-8", "ignore") + tail.decode("utf-8", "ignore")


def fingerprint(secret: str) -> str:
    """Returns a stand-in for a secret, such as an API key, to use in keys and attributes.

    Subjects are visible in rlnode's lists, logs, bills and dashboard. It is the first half of the SHA-256 in hexadecimal, as
    a profile's ``fingerprint:`` makes it of a header. Of an empty secret it is empty: a caller without one is nobody.
    """
    if not secret:
        return ""
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:32]
