"""What all clients send and understand, whatever their language."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from nodes import ROOT, Answer, Fake
from rlnode import Decision, LimitUsage, NodeError, RequestError, Reservation, Settlement, Usage
from rlnode._answers import make_headers, read_decision, with_headers
from rlnode._requests import question, scrub
from rlnode._web import Seen, address_of

VECTORS = json.loads((ROOT / "client" / "vectors.json").read_text())


def milliseconds(seconds: float) -> int:
    return -1 if seconds == math.inf else round(seconds * 1000)


def as_json(found: Any) -> dict[str, Any]:
    """Returns a result with the fields of the API."""
    if isinstance(found, Settlement):
        return {"settled": found.settled, "costs": found.costs, "remaining": found.remaining}
    fields = dict(found.__dict__)
    for name in ("window", "ttl", "age", "expires", "reset_after", "retry_after", "delay", "more_after", "blocked_until"):
        if fields.get(name) is not None:
            fields[f"{name}_ms"] = milliseconds(fields[name])
    if "rate" in fields:
        fields["rate"] = {"limit": found.rate.limit, "per_ms": milliseconds(found.rate.per)}
    if isinstance(found, (Decision, Usage)):
        fields["limits"] = [as_json(one) for one in found.limits]
    if isinstance(found, Usage):
        fields["key"] = list(found.key)
    if isinstance(found, LimitUsage):
        fields["slots"] = [as_json(one) for one in found.slots]
    if isinstance(found, Decision):
        fields["denied"], fields["never"], fields["reservation"] = found.denied, found.never, fields.get("id")
    return fields


def make(client: Any, call: str, request: dict[str, Any]) -> Any:
    request = dict(request)
    if call == "settle":
        return client.settle(request["reservation"], request["costs"])
    if "ttl_ms" in request:
        request["ttl"] = request.pop("ttl_ms") / 1000
    made = getattr(client, call)(**request)
    if call != "acquire":
        return made
    return Reservation(**made.decision.__dict__, slot=made.id)


def agrees(have: Any, want: Any) -> bool:
    """Compares what want names."""
    if isinstance(want, dict):
        return isinstance(have, dict) and all(agrees(have.get(name), value) for name, value in want.items())
    if isinstance(want, list):
        return isinstance(have, list) and len(have) == len(want) and all(map(agrees, have, want))
    return bool(have == want and type(have) is type(want))


@pytest.fixture(scope="module")
def answering() -> Iterator[tuple[Fake, list[Answer]]]:
    answer: list[Answer] = []
    fake = Fake(lambda path, body: answer[-1])
    yield fake, answer
    fake.close()


@pytest.mark.parametrize("vector", VECTORS["calls"], ids=lambda v: v["name"])
def test_calls(vector: dict[str, Any], answering: tuple[Fake, list[Answer]], connect: Callable[..., Any]) -> None:
    fake, answer = answering
    text = b"<html>" if vector["answer"] is None else json.dumps(vector["answer"]).encode()
    answer.append((vector["status"], vector.get("answer_headers", {}), text))
    fake.requests.clear()
    client = connect([fake.url], timeout=5)
    want = vector.get("error")
    if want is None or want.get("on_error"):
        result = make(client, vector["call"], vector["request"])
    else:
        with pytest.raises(NodeError) as caught:
            make(client, vector["call"], vector["request"])
        assert (caught.value.status, caught.value.code) == (want["status"], want["code"])
        if "detail" in want:
            assert caught.value.detail == want["detail"]
        result = None
    path, headers, body = fake.requests[0]
    assert (path, body) == (vector["path"], vector["sent"])
    assert headers["Content-Type"] == "application/json"
    if want is None:
        for name, value in vector["result"].items():
            assert agrees(as_json(result)[name], value), (name, as_json(result)[name], value)
        for name, value in vector.get("headers", {}).items():
            assert result.headers[name] == value
    elif want.get("on_error"):
        refused = make(connect([fake.url], timeout=5, on_error="closed"), vector["call"], vector["request"])
        assert result.allowed
        assert not refused.allowed
        assert result.decided_by == refused.decided_by == "error"
        assert refused.error is not None


@pytest.mark.parametrize("vector", VECTORS["headers"], ids=lambda v: v["name"])
def test_headers(vector: dict[str, Any]) -> None:
    """From an answer without headers, as in a batch, the client makes those that a node sends for a single check."""
    for check in vector["checks"]:
        answer = check["answer"]
        decision = read_decision(answer, "n1", False)
        have = with_headers(decision, make_headers(decision, "ietf x-ratelimit reset-delta"))
        assert have.headers == check["headers"]
        assert (have.code, have.never) == (answer.get("code", ""), answer["retry_after_ms"] == -1)
        assert agrees(as_json(have), {"rate": answer["rate"]})
        assert as_json(have).get("more_after_ms") == answer.get("more_after_ms")
        assert [as_json(one).get("more_after_ms") for one in have.limits] == [one.get("more_after_ms") for one in answer["limits"]]


def test_invalid(connect: Callable[..., Any], fake: Callable[..., Fake]) -> None:
    node = fake(lambda path, body: None)
    client = connect([node.url])
    for vector in VECTORS["invalid"]:
        request = dict(vector["request"])
        if vector["call"] == "adjust":
            request.setdefault("costs", {})
        with pytest.raises(RequestError):
            make(client, vector["call"], request)
    assert not node.requests


def test_addresses() -> None:
    peer = "192.0.2.1"
    for address in VECTORS["addresses"]:
        assert address_of(Seen("GET", "/", peer, [address["have"]]), 1) == (address["want"] or peer), address


def value_of(vector: dict[str, Any]) -> Any:
    return eval(vector["python"]) if "python" in vector else json.loads(vector["json"])


def ours(vectors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [v for v in vectors if ("python" in v or "json" in v) and "python" in v.get("for", ["python"])]


def test_values(connect: Callable[..., Any], fake: Callable[..., Fake]) -> None:
    node = fake(lambda path, body: None)
    client = connect([node.url])
    for vector in ours(VECTORS["values"]):
        node.requests.clear()
        value = value_of(vector)
        if vector.get("wrong"):
            with pytest.raises(RequestError, match=r"attributes\['a'\]"):
                client.check(attributes={"a": value})
            assert not node.requests
            continue
        client.check(attributes={"a": value})
        assert node.requests[0][2]["attributes"] == ({} if vector.get("absent") else {"a": vector["text"]}), vector


def test_keys(connect: Callable[..., Any], fake: Callable[..., Fake]) -> None:
    node = fake(lambda path, body: None)
    client = connect([node.url])
    for vector in ours(VECTORS["keys"]):
        node.requests.clear()
        more: dict[str, Any] = {"limits": [{"limit": 1, "per": "1m"}]} if vector.get("limits") else {"rule": "r"}
        if vector.get("invalid"):
            with pytest.raises(RequestError, match="key"):
                client.check(key=value_of(vector), **more)
            assert not node.requests
            continue
        client.check(key=value_of(vector), **more)
        sent = node.requests[0][2].get("key")
        values = sent if isinstance(sent, list) else [sent]
        if "text" in vector:
            assert values == vector["text"], vector
        elif vector["error"] == "missing-key":
            assert None in values or "" in values, vector


def test_values_are_kept_apart() -> None:
    """Of many values, each is sent as itself or refused. What is sent of two different ones is different."""
    random = Random(1)
    pieces = ["a", "B", "7", "07", " ", "\0", "é", "\ud800", "\udfff", "\U0001f600", "None", "nan", "True", "x" * 300]
    odd = [True, False, 1.0, math.nan, math.inf, 1j, b"a", [], ["a"], {}, {"a": 1}, {1}, ("a",), object(), Random, 10**5000]
    seen: dict[str, str] = {}
    for _ in range(100_000):
        value: Any = random.choice(
            [
                "".join(random.choices(pieces, k=random.randrange(5))),
                random.randrange(-(10 ** random.randrange(1, 30)), 10**9),
                random.choice(odd),
                None,
            ]
        )
        try:
            body = question("r", [value, "b"]).body()
        except RequestError:
            assert any(value is one for one in odd), value
            continue
        sent = json.loads(body)["key"][0]
        if value is None:
            assert sent is None
            continue
        assert type(value) in (str, int), value
        text = str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if len(text.encode()) > 1024:
            assert len(sent.encode()) <= 1024
            continue
        assert scrub(str(value)) == sent
        assert seen.setdefault(sent, scrub(str(value))) == scrub(str(value))


def test_other_mistakes(connect: Callable[..., Any]) -> None:
    client = connect("http://127.0.0.1:1")
    limits = [{"limit": 1, "per": "1m"}]
    calls: list[dict[str, Any]] = [
        {"rule": 7, "key": "k"},
        {"rule": "r", "attributes": "ip"},
        {"rule": "r", "attributes": {7: "a"}},
        {"key": "k", "limits": 7},
        {"key": "k", "limits": [7]},
        {"key": "k", "limits": limits, "namespace": 7},
        {"subjects": 7},
        {"subjects": [7]},
        {"rule": "r", "key": "k", "costs": 7},
        {"rule": "r", "key": "k", "costs": {7: 1, "a": 1}},
        {"rule": "r", "key": "k", "cost": "1"},
        {"rule": "r", "key": "k", "request_id": 7},
    ]
    for call in calls:
        with pytest.raises(RequestError):
            client.check(**call)
