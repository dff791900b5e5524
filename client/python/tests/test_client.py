"""The client against fake nodes, which answer as a test wants."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from nodes import PATIENCE, Answer, Driven, Fake, allowed, as_answer, decide, eventually, free_port
from rlnode import (
    AsyncClient,
    BadAnswerError,
    Client,
    ClosedError,
    DeadlineError,
    NodeError,
    QueueFullError,
    RequestError,
    RlnodeError,
    UnavailableError,
    fingerprint,
)
from rlnode._answers import span
from rlnode._requests import question

MakeFake = Callable[..., Fake]
Connect = Callable[..., Any]
LIMIT: Any = [{"limit": 3, "per": "1m"}]


def together(client: Any, count: int, **question: Any) -> list[Any]:
    """Makes checks at once, by threads or on the loop."""
    if isinstance(client, Driven):

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(client.client.check(**question) for _ in range(count)), return_exceptions=True)

        return client.run(all_of_them())

    def one(_: int) -> Any:
        try:
            return client.check(**question)
        except Exception as e:
            return e

    with ThreadPoolExecutor(min(count, 64)) as pool:
        return list(pool.map(one, range(count)))


def problem(status: int, code: str) -> Answer:
    return as_answer(status, {"type": "about:blank", "title": "x", "status": status, "code": code, "detail": "x"})


def test_options() -> None:
    for wrong, options in {
        "nodes": {"nodes": []},
        "nodes[0]": {"nodes": ["localhost:8080"]},
        "nodes[1]": {"nodes": ["http://a", "http://b/?x=1"]},
        "timeout": {"timeout": 0},
        "on_error": {"on_error": "ignore"},
        "max_in_flight": {"max_in_flight": 257},
        "max_batch": {"max_batch": 0},
        "max_queue": {"max_queue": 0},
        "token": {"token": "a\nb"},
        "local_limits": {"on_error": "local", "local_limits": [{"limit": -1, "per": "1m"}]},
    }.items():
        given: Any = {"nodes": ["http://127.0.0.1:1"]}
        given.update(options)
        with pytest.raises(ValueError, match=wrong.replace("[", r"\[")):
            Client(**given)
    with pytest.raises(ValueError, match="nodes") as caught:
        Client(["http://me:secret@127.0.0.1:8080"])
    assert "secret" not in str(caught.value)
    with pytest.raises(TypeError):
        Client("http://127.0.0.1:1").check("r", "k", colour="red")  # type: ignore[call-arg]


def test_token_and_path(connect: Connect, fake: MakeFake) -> None:
    node = fake(decide)
    assert connect(node.url + "/limits/", token="secret").check("r", "k")
    path, headers, _ = node.requests[0]
    assert path == "/limits/v1/check"
    assert headers["Authorization"] == "Bearer secret"


def test_decision_is_true_if_allowed(connect: Connect, fake: MakeFake) -> None:
    node = fake(lambda path, body: as_answer(429, allowed(allowed=False, retry_after_ms=1500)))
    d = connect(node.url).check("r", "k")
    assert not d
    assert d.retry_after == 1.5
    assert d.headers == {"Retry-After": "2"}
    assert d.violated == ("r",)
    assert d.reason == "The limit of 10 requests per 1m is used up; retry in 1.5s."


def test_failover(connect: Connect, fake: MakeFake) -> None:
    """A node that is not there is passed over without a pause, and asked again when it is back."""
    port = free_port()
    second = fake(decide)
    client = connect([f"http://127.0.0.1:{port}", second.url], timeout=5)
    began = time.monotonic()
    for _ in range(20):
        assert client.check("r", "k").decided_by == "owner"
    assert time.monotonic() - began < 4  # a pause for each would take longer
    assert len(second.requests) == 20
    first = Fake(decide, port)
    try:
        eventually("the first node is asked again", lambda: client.check("r", "k") and first.requests)
    finally:
        first.close()


def test_silent_node(connect: Connect, fake: MakeFake) -> None:
    """A node that does not answer costs one call half of its time, and is then left alone."""
    hang = threading.Event()

    def silent(path: str, body: Any) -> Answer | None:
        hang.wait(20)
        return None

    first, second = fake(silent), fake(decide)
    client = connect([first.url, second.url], timeout=4)
    try:
        assert [client.check("r", "k").decided_by for _ in range(30)] == ["owner"] * 30
        assert len(first.requests) == 1
    finally:
        hang.set()


@pytest.mark.parametrize(("status", "code"), [(503, "not-ready"), (500, "internal"), (502, "")])
def test_failing_node(status: int, code: str, connect: Connect, fake: MakeFake) -> None:
    first, second = fake(lambda path, body: problem(status, code)), fake(decide)
    client = connect([first.url, second.url], timeout=5)
    assert [client.check("r", "k").decided_by for _ in range(5)] == ["owner"] * 5
    assert len(first.requests) == 1
    alone = connect(first.url, timeout=5)
    decision = alone.check("r", "k")
    assert decision
    assert isinstance(decision.error, NodeError)
    assert decision.error.status == status


def test_healthy_node_that_is_overloaded(connect: Connect, fake: MakeFake) -> None:
    first, second = fake(lambda path, body: problem(503, "overloaded")), fake(decide)
    client = connect([first.url, second.url], timeout=5)
    assert [client.check("r", "k").decided_by for _ in range(5)] == ["owner"] * 5
    assert len(first.requests) == 5


def test_node_without_room_for_another_reservation_is_well(connect: Connect, fake: MakeFake) -> None:
    def answer(path: str, body: Any) -> Answer:
        return problem(503, "too-many-reservations") if path == "/v1/reserve" else decide(path, body)

    first, second = fake(answer), fake(decide)
    client = connect([first.url, second.url], timeout=5)
    error = client.reserve("r", "k").error
    assert isinstance(error, NodeError)
    assert error.code == "too-many-reservations"
    assert [client.check("r", "k").decided_by for _ in range(3)] == ["owner"] * 3
    assert len(second.requests) == 0


def test_on_error(connect: Connect) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    opened = connect(nobody).check("r", "k")
    assert opened
    assert opened.decided_by == "error"
    assert isinstance(opened.error, UnavailableError)
    closed = connect(nobody, on_error="closed")
    refused = closed.check("r", "k")
    assert not refused
    assert not refused.denied
    assert refused.reason == "Nothing passes while the rate limiter does not answer."
    reserved = connect(nobody).reserve("r", "k")
    assert reserved
    assert reserved.id == ""
    assert not closed.settle(reserved.id).settled
    for name, arguments in (("settle", {"reservation": "abc"}), ("usage", {"rule": "r"}), ("adjust", {"rule": "r", "costs": {"tokens": 1}})):
        call: Any = getattr(closed, name)
        with pytest.raises(UnavailableError):
            call(**arguments)


def test_on_error_local(connect: Connect) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RequestError, match="local_limits"):
        connect(nobody, on_error="local")
    client = connect(nobody, on_error="local", local_limits=[{"limit": 9, "per": "1h"}])
    seen = [client.check(key="k", limits=LIMIT) for _ in range(4)]
    assert [d.allowed for d in seen] == [True, True, True, False]
    assert [d.remaining for d in seen] == [2, 1, 0, 0]
    assert {d.decided_by for d in seen} == {"local"}
    assert seen[-1].error is not None
    assert 0 < seen[-1].retry_after <= 60
    assert seen[-1].headers["Retry-After"] == "60"
    assert client.check(key="other", limits=LIMIT, cost=3)
    assert client.check(key="other", limits=LIMIT, cost=4).retry_after == math.inf
    assert client.peek(key="third", limits=LIMIT)
    assert client.peek(key="third", limits=LIMIT).used == 0
    counted = client.count(key="third", limits=LIMIT, cost=5)
    assert (counted.allowed, counted.counted, counted.used) == (False, True, 5)
    # All or nothing, over subjects and units.
    tokens: Any = [{"limit": 10, "per": "1h", "unit": "tokens"}, {"limit": 5, "per": "1h"}]
    assert not client.check(subjects=[{"key": "a", "limits": tokens, "costs": {"tokens": 9}}, {"key": "k", "limits": LIMIT}])
    assert client.check(key="a", limits=tokens, costs={"tokens": 10})
    assert client.check(key="k", limits=LIMIT, shadow=True)
    ruled = connect(nobody, on_error="local", local_limits=[{"limit": 2, "per": "1m"}])
    assert [ruled.check("r", "k").allowed for _ in range(3)] == [True, True, False]
    assert ruled.check("r", "l")
    assert [ruled.check(attributes={"ip": "192.0.2.1", "endpoint": str(i)}).allowed for i in range(3)] == [True, True, False]


def test_local_windows_begin_with_a_hit(connect: Connect) -> None:
    client = connect(f"http://127.0.0.1:{free_port()}", on_error="local", local_limits=[{"limit": 2, "per": "1h"}])
    assert (client.peek("r", "k").allowed, client.check("r", "k", cost=3).allowed) == (True, False)
    assert len(client._core.local) == 0
    assert [client.check("r", "k").remaining for _ in range(2)] == [1, 0]
    twice = [{"key": "k", "limits": [{"limit": 2, "per": "1h"}]}] * 2
    assert [client.check(subjects=twice).allowed, client.check(key="k", limits=[{"limit": 2, "per": "1h"}]).allowed] == [True, False]


def test_local_memory_is_bounded() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", on_error="local", local_limits=LIMIT)
    client._core.nodes[0].condition = 2  # as after a failure
    local = client._core.local
    for i in range(100_000):
        local.decide(question(key=str(i), limits=LIMIT), RlnodeError("x"))
    assert not client.check(key="one more", limits=LIMIT)
    assert client.check(key="one more", limits=LIMIT).retry_after == 1
    for counter in local._counters.values():
        counter.ends = 0  # as after their windows
    eventually("there is room again", lambda: client.check(key="one more", limits=LIMIT).allowed)
    assert len(local) < 10
    client.close()


def test_what_a_node_rejects_never_passes(connect: Connect, fake: MakeFake) -> None:
    for status, code in ((400, "bad-value"), (401, "unauthorized"), (403, "forbidden"), (404, "unknown-rule"), (413, "too-large")):
        for options in ({}, {"on_error": "local", "local_limits": LIMIT}):
            node = fake(lambda path, body, status=status, code=code: problem(status, code))
            with pytest.raises(NodeError, match=code):
                connect(node.url, **dict(options)).check("r", "k")
            assert len(node.requests) == 1


def test_rejected_calls_try_one_other_node(connect: Connect, fake: MakeFake, caplog: pytest.LogCaptureFixture) -> None:
    for status, code in ((401, "unauthorized"), (403, "forbidden")):
        rejecting = [fake(lambda path, body, status=status, code=code: problem(status, code)) for _ in range(3)]
        good = fake(decide)
        assert connect([rejecting[0].url, good.url]).check("r", "k")
        assert (len(rejecting[0].requests), len(good.requests)) == (1, 1)
        assert not caplog.records
        urls = [one.url for one in rejecting]
        client = connect(urls)
        for _ in range(5):
            with pytest.raises(NodeError, match=code):
                client.check("r", "k")
        assert [r.levelname for r in caplog.records if "reject" in r.getMessage()] == ["ERROR"]  # once a minute
        opened = connect(urls, on_rejected="open", on_error="closed").check("r", "k")
        assert (opened.allowed, opened.decided_by) == (True, "error")
        assert isinstance(opened.error, NodeError)
        assert not rejecting[2].requests
        with pytest.raises(NodeError, match=code):
            connect([urls[0], f"http://127.0.0.1:{free_port()}"]).check("r", "k")
        caplog.clear()
    with pytest.raises(ValueError, match="on_rejected"):
        connect("http://127.0.0.1:1", on_rejected="local")


def test_unknown_rules_of_the_program(connect: Connect, fake: MakeFake) -> None:
    """A constant of the program that is wrong is the operator's mistake. Any other may come from a stranger."""
    url = fake(lambda path, body: problem(404, "unknown-rule")).url
    for on_error, passes in (("open", True), ("closed", False)):
        client = connect(url, on_error=on_error, rules="mine")
        assert client.check("mine", "k").allowed is passes
        with pytest.raises(NodeError, match="unknown-rule"):
            client.check("other", "k")
    local = connect(url, on_error="local", local_limits=[{"limit": 1, "per": "1m"}], rules=["mine"])
    assert [local.check("mine", "k").allowed for _ in range(2)] == [True, False]


def test_setup_is_checked(fake: MakeFake, caplog: pytest.LogCaptureFixture) -> None:
    def about(code: str) -> Fake:
        return fake(lambda path, body: as_answer(200, {"results": [{"error": {"status": 400, "code": code}} for _ in body["checks"]]}))

    def logged(text: str) -> bool:
        return any(r.levelno == logging.ERROR and text in r.getMessage() for r in caplog.records)

    known, unknown, rejecting = about("bad-value"), about("unknown-rule"), fake(lambda path, body: problem(401, "unauthorized"))
    clients = [Client(known.url, rules=["known"]), Client(unknown.url, rules=["misspelt"]), Client(rejecting.url, token="wrong")]
    eventually("all is logged", lambda: logged("'misspelt'") and logged("reject") and known.requests)
    assert len(caplog.records) == 2
    assert known.requests[0][2] == {"checks": [{"rule": "known", "key": [], "peek": True}]}
    for client in clients:
        client.close()
    caplog.clear()
    again = Driven(unknown.url, rules=["misspelt"])
    assert again._core  # which the first call makes
    eventually("it is logged", lambda: logged("'misspelt'"))
    again.close()


def test_lost_nodes_are_logged(connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(f"http://127.0.0.1:{free_port()}")
    for _ in range(20):
        client.check("r", "k")
    warned = [r for r in caplog.records if "passed over" in r.getMessage()]
    assert [r.levelname for r in warned] == ["WARNING"]
    later = time.monotonic() + 61
    monkeypatch.setattr("rlnode._setup.time.monotonic", lambda: later)
    client._core.options.setup.log(logging.WARNING, client._core.nodes[0].address.base, "node is passed over")
    assert len([r for r in caplog.records if "passed over" in r.getMessage()]) == 2


def test_checks_share_requests(connect: Connect, fake: MakeFake) -> None:
    def slowly(path: str, body: Any) -> Answer:
        threading.Event().wait(0.02)
        return decide(path, body)

    node = fake(slowly)
    client = connect(node.url, timeout=20)
    found = together(client, 1000, rule="r", key="k")
    assert all(d.decided_by == "owner" for d in found)
    assert len(node.requests) < 150
    assert sum(len(body.get("checks", [1])) for _, _, body in node.requests) == 1000


def test_a_bad_check_does_not_spoil_a_batch(connect: Connect, fake: MakeFake) -> None:
    def odd(path: str, body: Any) -> Answer:
        if path == "/v1/check":
            threading.Event().wait(0.05)
            return decide(path, body)
        results: list[Any] = []
        limits = [{"name": "r", "limit": 10, "unit": "tokens", "remaining": 9, "window_ms": 60000, "allowed": True}]
        for i, one in enumerate(body["checks"]):
            bad = {"error": {"status": 404, "code": "unknown-rule", "title": "x", "detail": "x"}}
            denied = allowed(allowed=False, decided_by="list", code="denied", retry_after_ms=-1, rule="")
            results.append(bad if i == 1 else denied if i == 2 else allowed(limits=limits if one.get("detail") else []))
        status, headers, text = as_answer(200, {"results": results})
        return status, {**headers, "Rlnode-Headers": "ietf x-ratelimit reset-delta"}, text

    client = connect(fake(odd).url, timeout=20, max_in_flight=1)
    found = together(client, 20, rule="r", key="k", headers=True)
    errors = [d for d in found if isinstance(d, Exception)]
    denied = [d for d in found if d not in errors and not d.allowed]
    shared = [d for d in found if d not in errors and d.allowed and d.headers]
    assert errors
    assert all(isinstance(e, NodeError) and e.code == "unknown-rule" for e in errors)
    assert denied
    assert all(d.denied and d.reason == "The deny list refuses this." and not d.headers for d in denied)
    assert shared[0].headers == {
        "RateLimit-Policy": '"r";q=10;qu="tokens";w=60',
        "RateLimit": '"r";r=9',
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "9",
        "X-RateLimit-Reset": "6",
    }
    assert not shared[0].limits


def test_queue_is_bounded(connect: Connect, fake: MakeFake) -> None:
    hang = threading.Event()

    def slow(path: str, body: Any) -> Answer:
        hang.wait(20)
        return decide(path, body)

    node = fake(slow)
    threading.Timer(0.3, hang.set).start()
    found = together(connect(node.url, timeout=20, max_in_flight=1, max_batch=1, max_queue=10), 60, rule="r", key="k")
    full = [d for d in found if d.decided_by == "error"]
    assert full
    assert not any(full)
    assert all(isinstance(d.error, QueueFullError) for d in full)
    assert len(found) - len(full) >= 10
    hang.clear()
    threading.Timer(0.3, hang.set).start()
    assert all(together(connect(node.url, timeout=20, max_in_flight=1, max_batch=1, max_queue=10, open_when_full=True), 60, rule="r", key="k"))


def test_changes_are_repeated_with_one_id(connect: Connect, fake: MakeFake) -> None:
    usage = as_answer(200, {"rule": "r", "key": "k", "limits": []})
    hung_up: list[int] = []

    def hang_up_once(path: str, body: Any) -> Answer | None:
        if not hung_up:
            hung_up.append(1)
            return None
        return usage

    node, other = fake(hang_up_once), fake(lambda path, body: usage)
    connect([node.url, other.url], timeout=5).adjust("r", "k", costs={"requests": -1})
    ids = [body["request_id"] for _, _, body in node.requests + other.requests]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert connect(other.url).reset("r", "k", request_id="mine").rule == "r"
    assert other.requests[-1][2]["request_id"] == "mine"


def test_a_node_without_ids_is_asked_once(connect: Connect, fake: MakeFake) -> None:
    def old(path: str, body: Any) -> Answer | None:
        return problem(400, "unknown-field") if "request_id" in body else None

    node, other = fake(old), fake(old)
    with pytest.raises(RlnodeError):
        connect([node.url, other.url], timeout=5).adjust("r", "k", costs={"requests": -1})
    assert sum("request_id" not in body for _, _, body in node.requests + other.requests) == 1


def test_settle_waits_for_the_owner(connect: Connect, fake: MakeFake) -> None:
    answers = [problem(503, "no-owner"), problem(503, "no-owner"), as_answer(200, {"settled": True, "costs": {"tokens": 7}, "remaining": 3})]
    down = f"http://127.0.0.1:{free_port()}"  # asked last as soon as that is known
    settled = connect([down, fake(lambda path, body: answers.pop(0)).url], timeout=10).settle("abc", {"tokens": 7})
    assert (settled.settled, settled.costs, settled.remaining) == (True, {"tokens": 7}, 3)


def test_a_mixed_check_shares_no_request(connect: Connect, fake: MakeFake) -> None:
    node = fake(lambda path, body: as_answer(200, allowed(allowed=False)))
    subjects: Any = [{"key": "a", "limits": LIMIT, "mode": "count"}, {"key": "b", "limits": LIMIT}]
    d = connect(node.url).check(subjects=subjects)
    assert (d.allowed, d.counted) == (False, True)
    assert node.requests[0][0] == "/v1/check"


def test_a_closed_connection_is_replaced(connect: Connect, fake: MakeFake) -> None:
    """A node may close a connection that is idle: the next call does not fail."""
    node = fake(decide)
    client = connect(node.url, timeout=5)
    assert client.check("r", "k")
    connections = node.connections
    for stream in list(client._core.nodes[0].idle):
        stream.close()
    assert client.check("r", "k").decided_by == "owner"
    assert node.connections == connections + 1
    port = int(node.url.rpartition(":")[2])
    node.close()
    again = Fake(decide, port)
    try:
        assert client.check("r", "k").decided_by == "owner"
    finally:
        again.close()


def test_an_endless_answer_is_not_read_to_its_end(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def stream() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    peer.sendall(b" " * 65536)

        thread = threading.Thread(target=stream, daemon=True)
        thread.start()
        error = connect(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=PATIENCE).check("r", "k").error
        assert isinstance(error, BadAnswerError), error
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_connections_are_kept_and_bounded(connect: Connect, fake: MakeFake) -> None:
    node = fake(decide)
    client = connect(node.url, timeout=20)
    for _ in range(50):
        assert client.check("r", "k")
    assert node.connections == 1
    together(client, 500, rule="r", key="k")
    assert node.connections <= 4


def test_deadline(connect: Connect, fake: MakeFake) -> None:
    hang = threading.Event()

    def silent(path: str, body: Any) -> None:
        hang.wait(20)

    client = connect(fake(silent).url, timeout=30)
    began = time.monotonic()
    d = client.check("r", "k", timeout=0.2)
    assert time.monotonic() - began < 5
    assert isinstance(d.error, DeadlineError)
    with pytest.raises(TimeoutError):
        client.usage("r", "k", timeout=0.2)
    hang.set()


def test_wait(connect: Connect, fake: MakeFake) -> None:
    client = connect(fake(lambda path, body: as_answer(200, allowed(delay_ms=200))).url, timeout=5)
    began = time.monotonic()
    assert client.check("r", "k", wait=True).delay == 0.2
    assert 0.2 <= time.monotonic() - began < 3


def test_close_ends_calls(connect: Connect, fake: MakeFake) -> None:
    hang, begun = threading.Event(), threading.Event()

    def silent(path: str, body: Any) -> None:
        begun.set()
        hang.wait(20)

    client = connect(fake(silent).url, timeout=30, max_in_flight=1)
    ended: list[BaseException] = []

    def call() -> None:
        try:
            client.check("r", "k")
        except RlnodeError as e:
            ended.append(e)

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    began = time.monotonic()
    if isinstance(client, Driven):
        client.run(client.client.close())
    else:
        client.close()
    for thread in threads:
        thread.join(20)
    assert time.monotonic() - began < 10
    assert [type(e) for e in ended] == [ClosedError] * 5
    with pytest.raises(ClosedError):
        client.check("r", "k")
    hang.set()


def test_an_interrupted_thread_hands_on(fake: MakeFake) -> None:
    """Who sends for others and is interrupted leaves nobody waiting."""
    release = threading.Event()

    def slow(path: str, body: Any) -> Answer:
        release.wait(20)
        return decide(path, body)

    class Interrupt(BaseException):
        pass

    client = Client(fake(slow).url, timeout=20, max_in_flight=1, max_batch=2)
    send = client._core.send
    count = [0]

    async def interrupted(batch: Any) -> None:
        count[0] += 1
        if count[0] == 2:
            raise Interrupt
        await send(batch)

    client._core.send = interrupted  # type: ignore[method-assign]
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(client.check("r", "k"))
        except BaseException as e:
            found.append(e)

    threads = [threading.Thread(target=call) for _ in range(9)]
    for thread in threads:
        thread.start()
    eventually("eight wait", lambda: len(client._core.queue) == 8)
    release.set()
    for thread in threads:
        thread.join(20)
    assert sum(isinstance(one, Interrupt) for one in found) == 1
    assert sum(isinstance(one, ClosedError) for one in found) == 1  # it was to be sent with that one
    assert sum(getattr(one, "allowed", False) for one in found) == 7
    assert client._core.in_flight == 0
    client.close()


def test_cancelled_tasks_spoil_nothing(fake: MakeFake) -> None:
    def slow(path: str, body: Any) -> Answer:
        threading.Event().wait(0.05)
        return decide(path, body)

    async def main(url: str) -> None:
        async with AsyncClient(url, timeout=20, max_in_flight=1) as client:
            tasks = [asyncio.create_task(client.check("r", "k")) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
            assert all(not isinstance(one, BaseException) and one.decided_by == "owner" for one in found[1::2])
            # Turns of other calls come back, too.
            looks = [asyncio.create_task(client.usage("r", "k")) for _ in range(200)]
            await asyncio.sleep(0.01)
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)
            core: Any = client._attach()
            assert core.runtime.turns == 64
            assert core.direct == 0
            assert (await client.check("r", "k")).decided_by == "owner"

    asyncio.run(main(fake(slow).url))


def test_another_loop(fake: MakeFake) -> None:
    """A client that outlives its loop goes on in the next one, as frameworks' tests need."""
    client = AsyncClient(fake(decide).url, timeout=5)
    for _ in range(3):
        assert asyncio.run(client.check("r", "k")).decided_by == "owner"
    # And several loops at once have connections of their own.
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: asyncio.run(client.check("r", "k")), range(50)))
    assert all(d.decided_by == "owner" for d in found)
    asyncio.run(client.close())
    with pytest.raises(ClosedError):
        asyncio.run(client.check("r", "k"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork(fake: MakeFake) -> None:
    node = fake(decide)
    client = Client(node.url, timeout=5)
    assert client.check("r", "k")
    client._core.lock.acquire()  # as another thread might, at the moment of the fork
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ok = all(client.check("r", "child").decided_by == "owner" for _ in range(5))
            client.close()
            code = 0 if ok else 2
        finally:
            os._exit(code)
    client._core.lock.release()
    assert os.waitpid(child, 0)[1] == 0
    connections = node.connections
    assert client.check("r", "k").decided_by == "owner"
    assert node.connections == connections == 2  # the parent still uses its own


def test_small_things() -> None:
    assert [span(s) for s in (0.001, 1.5, 59, 60, 90, 3600, 5400, 86400)] == ["0.001s", "1.5s", "59s", "1m", "1m30s", "1h", "1h30m", "24h"]
    assert fingerprint("") == ""
    assert fingerprint("secret") == "2bb80d537b1da3e38bd30361aa855686"


def test_what_passes_without_a_node_is_granted(connect: Connect) -> None:
    limits: Any = [{"limit": 9, "per": "1h"}]
    tokens: Any = [{"limit": 9, "per": "1h", "unit": "tokens"}]
    for options in ({}, {"on_error": "local", "local_limits": limits}):
        client = connect("http://127.0.0.1:1", **options)
        d = client.check(key="u", limits=limits, mode="at_most", cost=4)
        assert (d.allowed, d.granted) == (True, 4)
        assert client.check(key="u", limits=tokens, mode="at_most", costs={"tokens": 9}).granted == 9
        assert client.check(key="u", limits=limits, mode="at_most").granted == 1
        assert client.check(key="u", limits=limits).granted == 0
