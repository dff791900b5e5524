"""Slots beside nodes that do what a test wants, and in middlewares over connections that are cut."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import fastapi
import pytest
import uvicorn
from fastapi.responses import StreamingResponse

from nodes import PATIENCE, Answer, Fake, as_answer, eventually, release
from rlnode import AsyncClient, Client, ClosedError, NodeError, RefusedError, SlotLostError
from rlnode.asgi import RateLimitMiddleware as ASGI
from rlnode.fastapi import _until_gone, limit
from rlnode.wsgi import RateLimitMiddleware as WSGI

HELD = {
    "allowed": True,
    "rule": "r",
    "limit": 2,
    "used": 1,
    "remaining": 1,
    "unit": "requests",
    "ttl_ms": 30000,
    "retry_after_ms": 0,
    "delay_ms": 0,
    "decided_by": "owner",
    "node": "n1",
    "slot": "abc",
    "expires_ms": 30000,
}
FULL = {
    **HELD,
    "allowed": False,
    "remaining": 0,
    "retry_after_ms": 1500,
    "code": "rate-limited",
    "detail": "All are held.",
    "slot": "",
    "expires_ms": 0,
}


def problem(status: int, code: str) -> Answer:
    return as_answer(status, {"type": "about:blank", "title": "x", "status": status, "code": code, "detail": "why"})


class Slots:
    """What a fake node answers, by the last part of a path."""

    def __init__(self, fake: Callable[..., Fake]) -> None:
        self.on: dict[str, Callable[[], Answer | None]] = {
            "acquire": lambda: as_answer(200, HELD),
            "renew": lambda: as_answer(200, {"expires_ms": 30000}),
            "release": lambda: as_answer(200, {"released": True}),
            "settle": lambda: as_answer(200, {"settled": True}),
        }
        self.node = fake(lambda path, body: self.on[path.rpartition("/")[2]]())
        self.url = self.node.url

    def names(self) -> list[str]:
        return [path.rpartition("/")[2] for path, _, _ in self.node.requests]

    def count(self, name: str) -> int:
        return self.names().count(name)

    def expire(self, acquired: int, renewed: int) -> None:
        self.on["acquire"] = lambda: as_answer(200, {**HELD, "expires_ms": acquired})
        self.on["renew"] = lambda: as_answer(200, {"expires_ms": renewed})


@pytest.fixture
def slots(fake: Callable[..., Fake]) -> Slots:
    return Slots(fake)


async def until(ok: Callable[[], bool]) -> None:
    """Polls in a loop."""
    for _ in range(2000):
        if ok():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 20 s")


def test_a_slot_renews_itself(slots: Slots, connect: Callable[..., Any]) -> None:
    slots.expire(1500, 1500)
    client = connect(slots.url, timeout=20)
    slot = client.acquire("r", "k", n=2, who="me", ttl=3)
    sent = dict(slots.node.requests[0][2])
    assert sent.pop("request_id")
    assert sent == {"rule": "r", "key": "k", "n": 2, "who": "me", "ttl_ms": 3000}
    assert (bool(slot), slot.id, slot.decision.ttl, slot.lost) == (True, "abc", 30, False)
    eventually("it is renewed", lambda: slots.count("renew") > 1)
    assert not slot.lost
    assert release(client, slot)
    assert release(client, slot)
    renewals = slots.count("renew")
    time.sleep(0.15)
    assert (slots.count("renew") - renewals <= 1, slots.count("release")) == (True, 1)
    assert not client._core.slots


def test_a_slot_that_is_over_is_lost(slots: Slots, connect: Callable[..., Any]) -> None:
    slots.expire(100, 0)
    slots.on["renew"] = lambda: problem(404, "unknown-slot")
    client = connect(slots.url, timeout=20)
    slot = client.acquire("r", "k")
    heard = threading.Event()
    slot.on_lost(heard.set)
    eventually("it is lost", lambda: slot.lost)
    assert heard.wait(PATIENCE)
    with pytest.raises(SlotLostError):
        slot.raise_if_lost()
    assert release(client, slot)
    assert slots.count("release") == 0


@pytest.mark.parametrize(
    "renew", [lambda: problem(503, "try-again"), lambda: time.sleep(1), lambda: as_answer(200, {})], ids=["later", "silence", "odd"]
)
def test_a_slot_that_is_not_renewed_in_time_is_lost(slots: Slots, connect: Callable[..., Any], renew: Any) -> None:
    slots.expire(500, 0)
    slots.on["renew"] = renew
    client = connect(slots.url, timeout=20)
    began = time.monotonic()
    slot = client.acquire("r", "k")
    eventually("it is lost", lambda: slot.lost)
    assert time.monotonic() - began >= 0.49
    assert 1 <= slots.count("renew") < 40
    assert release(client, slot)
    assert slots.count("release") == 1


def test_with(slots: Slots) -> None:
    client = Client(slots.url, timeout=20)
    with client.acquire("r", "k") as slot:
        assert slot.id == "abc"
    with pytest.raises(ZeroDivisionError), client.acquire("r", "k"):
        raise ZeroDivisionError
    assert slots.names() == ["acquire", "release", "acquire", "release"]
    slots.on["acquire"] = lambda: as_answer(429, FULL)
    refused = client.acquire("r", "k")
    assert (bool(refused), refused.id, refused.decision.retry_after) == (False, "", 1.5)
    with pytest.raises(RefusedError, match="All are held") as caught, refused:
        raise AssertionError
    assert caught.value.decision.retry_after == 1.5
    client.close()


def test_async_with(slots: Slots) -> None:
    async def main() -> None:
        async with AsyncClient(slots.url, timeout=20) as client:
            async with client.acquire("r", "k") as slot:
                assert slot.id == "abc"
            with pytest.raises(ZeroDivisionError):
                async with client.acquire("r", "k"):
                    raise ZeroDivisionError
            assert slots.names() == ["acquire", "release", "acquire", "release"]

            async def works() -> None:
                async with client.acquire("r", "k"):
                    await asyncio.sleep(60)

            task = asyncio.ensure_future(works())
            await until(lambda: slots.count("acquire") == 3)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert slots.count("release") == 3

            slots.expire(100, 0)
            slots.on["renew"] = lambda: problem(404, "unknown-slot")
            with pytest.raises(SlotLostError):
                await works()
            slots.on["acquire"] = lambda: as_answer(429, FULL)
            with pytest.raises(RefusedError):
                await works()

    asyncio.run(main())


@pytest.mark.parametrize("wait", [False, True])
def test_a_slot_that_is_granted_to_a_cancelled_task_is_released(slots: Slots, wait: bool) -> None:
    answer = threading.Event()

    def acquire() -> Answer:
        answer.wait(PATIENCE)
        return as_answer(200, HELD)

    slots.on["acquire"] = acquire

    async def main() -> None:
        async with AsyncClient(slots.url, timeout=20) as client:
            task = asyncio.ensure_future(client._acquire(client_question(wait), None, None, None))
            await until(lambda: bool(slots.names()))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answer.set()
            await until(lambda: slots.count("release") == 1)

    asyncio.run(main())


def client_question(wait: bool) -> Any:
    from rlnode._requests import question

    return question("r", "k", wait=wait)


def test_waiting_for_a_slot(slots: Slots, connect: Callable[..., Any]) -> None:
    slots.on["acquire"] = lambda: as_answer(200, HELD) if slots.count("acquire") > 4 else as_answer(429, FULL)
    client = connect(slots.url, timeout=20)
    slot = client.acquire("r", "k", wait=True)
    assert slot
    assert slots.count("acquire") == 5
    assert release(client, slot)


def test_no_node_decides(slots: Slots, connect: Callable[..., Any]) -> None:
    slots.on["acquire"] = lambda: problem(503, "too-many-slots")
    for on_error, passes in (("open", True), ("closed", False)):
        client = connect(slots.url, timeout=20, on_error=on_error)
        slot = client.acquire("r", "k")
        assert (bool(slot), slot.id, slot.decision.error.code) == (passes, "", "too-many-slots")
        assert release(client, slot)
    client = connect(slots.url, on_error="local", local_limits=[{"limit": 1, "per": "1m"}])
    alone = client.acquire(key="k", limits=[{"limit": 1, "ttl": "1s", "algorithm": "concurrency"}])
    assert (bool(alone), alone.decision.decided_by, alone.decision.retry_after) == (False, "local", 1)
    slots.on["acquire"] = lambda: problem(400, "bad-value")
    with pytest.raises(NodeError):
        connect(slots.url).acquire("r", "k")
    assert slots.count("release") == 0


def test_close_releases(slots: Slots, connect: Callable[..., Any]) -> None:
    client = connect(slots.url, timeout=20)
    held = [client.acquire("r", "k") for _ in range(3)]
    assert release(client, held[0])
    together = threading.Barrier(2)
    slots.on["release"] = lambda: as_answer(200, {"released": together.wait(PATIENCE) >= 0})
    client.close()
    assert slots.count("release") == 3
    if isinstance(client, Client):
        with pytest.raises(ClosedError):
            client.acquire("r", "k")


def test_a_reservation_holds_its_slot_until_it_is_settled(slots: Slots, connect: Callable[..., Any]) -> None:
    slots.expire(1500, 1500)
    slots.on["reserve"] = lambda: as_answer(200, {**HELD, "reservation": "def", "expires_ms": 1500})
    client = connect(slots.url, timeout=20)
    reserved = client.reserve("r", "k")
    assert reserved.slot == "abc"
    eventually("it is renewed", lambda: slots.count("renew") > 1)
    client.settle(reserved.id, {})
    renewals = slots.count("renew")
    time.sleep(0.15)
    assert slots.count("renew") - renewals <= 1
    assert slots.count("release") == 0
    assert not client._core.slots


def test_a_reservation_that_is_never_settled_is_forgotten(slots: Slots, connect: Callable[..., Any]) -> None:
    slots.on["reserve"] = lambda: as_answer(200, {**HELD, "reservation": "def", "expires_ms": 100})
    slots.on["renew"] = lambda: problem(404, "unknown-slot")
    client = connect(slots.url, timeout=20)
    client.reserve("r", "k")
    eventually("its slot is lost", lambda: not client._core.slots)
    eventually("it is forgotten", lambda: not client._core.reserved)


def test_a_delay_ends_with_the_task_and_with_the_client(slots: Slots) -> None:
    slots.on["reserve"] = lambda: as_answer(200, {**HELD, "reservation": "def", "delay_ms": 30000})

    async def run() -> None:
        client = AsyncClient(slots.url, timeout=20)
        waiting = asyncio.ensure_future(client.reserve("r", "k", wait=True))
        await until(lambda: bool(client._attach().reserved))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: slots.count("settle") == 1)  # nobody else knows it
        waiting = asyncio.ensure_future(client.reserve("r", "k", wait=True))
        await until(lambda: bool(client._attach().reserved))
        await client.close()
        with pytest.raises(ClosedError):
            await asyncio.wait_for(waiting, 10)
        assert slots.count("release") == 1

    asyncio.run(run())


@pytest.mark.parametrize("also", [{}, {"slot": "", "expires_ms": 0}])
def test_a_reservation_that_is_made_for_a_cancelled_task_is_settled(slots: Slots, also: dict[str, Any]) -> None:
    go_on = threading.Event()

    def reserve() -> Answer:
        go_on.wait(PATIENCE)
        return as_answer(200, {**HELD, "reservation": "def", **also})

    slots.on["reserve"] = reserve

    async def main() -> None:
        async with AsyncClient(slots.url, timeout=20) as client:
            task = asyncio.ensure_future(client.reserve("r", "k"))
            await until(lambda: bool(slots.names()))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            await until(lambda: slots.count("settle") == 1)
            assert slots.node.requests[-1][2] == {"reservation": "def", "costs": {}}
            assert not client._attach().slots

    asyncio.run(main())


def test_listeners_of_lost_slots(slots: Slots) -> None:
    slots.on["acquire"] = lambda: as_answer(200, {**HELD, "expires_ms": 300})
    slots.on["renew"] = lambda: problem(404, "unknown-slot")
    client = Client(slots.url, timeout=20)

    def raises() -> None:
        raise ZeroDivisionError

    one, other = client.acquire("r", "k"), client.acquire("r", "k")
    one.on_lost(raises)
    eventually("both are lost", lambda: one.lost and other.lost)
    late = client.acquire("r", "k")
    eventually("what came later is lost, too", lambda: late.lost)
    heard: list[str] = []
    late.on_lost(lambda: heard.append("late"))
    assert heard == ["late"]
    client.close()


def test_a_watch_keeps_nothing_for_each_message() -> None:
    async def main() -> None:
        from rlnode.asgi import Watch

        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        watch = Watch(messages.get, lambda: None)
        for _ in range(20):
            waiting = asyncio.ensure_future(watch.receive())
            await asyncio.sleep(0)
            await messages.put({"type": "websocket.receive"})
            await waiting
        assert len(watch._task._callbacks) == 1
        watch.stop()

    asyncio.run(main())


def test_threads_end(slots: Slots) -> None:
    slots.expire(1500, 1500)
    client = Client(slots.url, timeout=20)
    slot = client.acquire("r", "k")
    eventually("it is renewed", lambda: slots.count("renew") > 1)
    slot.release()
    eventually("no thread is left", lambda: not any(thread.name.startswith("rlnode") for thread in threading.enumerate()))
    client.close()


def _cannot_start(thread: threading.Thread, start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
    if thread.name.startswith("rlnode"):
        raise RuntimeError("can't start new thread")
    start(thread)


def test_slots_are_renewed_although_no_thread_could_be_started_once(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    slots.expire(1500, 1500)
    with Client(slots.url, timeout=20) as client:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _cannot_start)
            with pytest.raises(RuntimeError):
                client.acquire("r", "k")
        client.acquire("r", "k")
        eventually("it is renewed", lambda: slots.count("renew") > 1)


def test_a_node_is_not_passed_over_for_ever_if_no_thread_can_be_started(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    slots.on["check"] = lambda: problem(500, "internal")
    with Client(slots.url, timeout=20) as client:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _cannot_start)
            assert client.check("r", "k").decided_by == "error"
        node = client._core.nodes[0]
        assert (node.condition, node.watched) == (0, False)


def test_a_wsgi_request_that_is_ended_during_its_delay_releases_its_slot(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    slots.on["acquire"] = lambda: as_answer(200, {**HELD, "delay_ms": 600})

    def end(seconds: float) -> None:
        raise SystemExit

    with Client(slots.url, timeout=20) as client:
        app = WSGI(lambda environ, start: [], client=client, slots=True)
        with monkeypatch.context() as patched:
            patched.setattr(time, "sleep", end)
            with pytest.raises(SystemExit):
                app({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "1.2.3.4"}, lambda *_: None)
        assert (slots.count("release"), len(client._core.slots)) == (1, 0)


def test_a_release_goes_on_when_the_dependency_of_a_request_that_hung_up_ends(slots: Slots) -> None:
    go_on = threading.Event()

    def release_late() -> Answer:
        if slots.count("release") > 1:
            return as_answer(200, {"released": True})
        go_on.wait(PATIENCE)
        return problem(503, "no-owner")

    slots.on["release"] = release_late

    class Gone(fastapi.Request):
        async def receive(self) -> Any:
            return {"type": "http.disconnect"}

    async def main() -> None:
        async with AsyncClient(slots.url, timeout=20) as client:
            held = (await client.acquire("r", "k"))._held
            watching = asyncio.ensure_future(_until_gone(Gone({"type": "http", "headers": []}), held))
            await until(lambda: slots.count("release") == 1)
            watching.cancel()
            go_on.set()
            await until(lambda: slots.count("release") == 2)

    asyncio.run(main())


# The middlewares. Each application begins something at /waits, /streams and /times-out, and counts that.


class App:
    def __init__(self) -> None:
        self.begun = 0
        self.port = 0
        self.stop: Callable[[], None] = lambda: None


def asgi_app(seen: App, **options: Any) -> Any:
    app = fastapi.FastAPI()
    given = options.pop("dependency", None)
    more: dict[str, Any] = {"dependencies": [fastapi.Depends(given)]} if given else {}

    @app.get("/", **more)
    async def index() -> str:
        return "ok"

    @app.get("/fails", **more)
    async def fails() -> str:
        raise ZeroDivisionError

    @app.get("/waits", **more)
    async def waits() -> str:
        seen.begun += 1
        await asyncio.sleep(5)
        return "late"

    @app.get("/times-out", **more)
    async def times_out() -> None:
        seen.begun += 1
        await asyncio.sleep(60)

    @app.get("/streams", **more)
    async def streams() -> StreamingResponse:
        async def events() -> Any:
            yield b"some"
            seen.begun += 1
            await asyncio.sleep(60)

        return StreamingResponse(events())

    @app.post("/echo", **more)
    async def echo(request: fastapi.Request) -> fastapi.Response:
        return fastapi.Response(await request.body())

    if not given:
        app.add_middleware(ASGI, **options)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        begun = seen.begun
        serving = asyncio.ensure_future(app(scope, receive, send))
        if scope.get("path") == "/times-out":
            await until(lambda: seen.begun > begun)
            serving.cancel()
            await send({"type": "http.response.start", "status": 504, "headers": []})
            await send({"type": "http.response.body", "body": b"late"})
            return
        await serving

    return outer


def serve_asgi(app: Any, seen: App) -> None:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually("it is served", lambda: server.started)
    seen.port = server.servers[0].sockets[0].getsockname()[1]

    def stop() -> None:
        server.should_exit = True
        thread.join()

    seen.stop = stop


def serve_wsgi(seen: App, **options: Any) -> None:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        path = environ["PATH_INFO"]
        if path == "/fails":
            raise ZeroDivisionError
        start("200 OK", [])
        if path == "/times-out":
            environ["test.connection"].settimeout(0.1)
        if path in ("/streams", "/times-out"):
            return events()
        return [environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"ok"]

    def events() -> Iterator[bytes]:
        seen.begun += 1
        while True:
            yield b"some" * 1000

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class Handler(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def get_environ(self) -> dict[str, Any]:
            return {**super().get_environ(), "test.connection": self.connection}

        def get_stderr(self) -> Any:
            import io

            return io.StringIO()

    server = make_server("127.0.0.1", 0, WSGI(app, **options), Server, Handler)
    seen.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    seen.stop = stop


def ask(port: int, path: str, method: str = "GET", body: bytes = b"") -> socket.socket:
    conn = socket.create_connection(("127.0.0.1", port), PATIENCE)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    conn.sendall(head.encode() + body)
    return conn


def answer_of(conn: socket.socket) -> bytes:
    found = b""
    while part := conn.recv(65536):
        found += part
    conn.close()
    return found


def serve_kind(kind: str, slots: Slots, seen: App) -> None:
    if kind == "asgi":
        serve_asgi(asgi_app(seen, nodes=slots.url, slots=True, slot_ttl=3), seen)
    elif kind == "fastapi":
        serve_asgi(
            asgi_app(seen, dependency=limit(AsyncClient(slots.url, timeout=20), attributes=lambda request: {"a": "b"}, slots=True, slot_ttl=3)), seen
        )
    else:
        serve_wsgi(seen, client=Client(slots.url, timeout=20), slots=True, slot_ttl=3)


@pytest.mark.parametrize("kind", ["asgi", "fastapi", "wsgi"])
def test_middleware_with_a_delay(kind: str, slots: Slots) -> None:
    seen = App()
    serve_kind(kind, slots, seen)
    try:
        slots.on["acquire"] = lambda: as_answer(200, {**HELD, "delay_ms": 60000})
        assert b" 429 " in answer_of(ask(seen.port, "/"))
        eventually("released after a delay that is too long", lambda: slots.count("release") == 1)
        slots.on["acquire"] = lambda: as_answer(200, {**HELD, "delay_ms": 600, "expires_ms": 200})
        slots.on["renew"] = lambda: problem(404, "unknown-slot")
        assert b" 503 " in answer_of(ask(seen.port, "/"))
    finally:
        seen.stop()


@pytest.mark.parametrize("kind", ["asgi", "fastapi", "wsgi"])
def test_middleware(kind: str, slots: Slots) -> None:
    seen = App()
    serve_kind(kind, slots, seen)
    try:
        assert b"ok" in answer_of(ask(seen.port, "/"))
        assert slots.node.requests[0][2]["ttl_ms"] == 3000
        eventually("released after success", lambda: slots.count("release") == 1)
        assert b" 500 " in answer_of(ask(seen.port, "/fails"))
        eventually("released after an error", lambda: slots.count("release") == 2)
        assert b"hello" in answer_of(ask(seen.port, "/echo", "POST", b"hello"))
        eventually("released after a body was read", lambda: slots.count("release") == 3)
        for path in ["/streams"] if kind == "wsgi" else ["/waits", "/streams"]:
            begun = seen.begun
            conn = ask(seen.port, path)
            eventually("it is under way", lambda begun=begun: seen.begun > begun)  # type: ignore[misc]
            assert slots.count("release") == slots.count("acquire") - 1
            conn.close()
            eventually(f"released after a disconnect: {path}", lambda: slots.count("release") == slots.count("acquire"))
        begun = seen.begun
        late = ask(seen.port, "/times-out")  # the server of WSGI gives up, because nobody reads what it sends
        eventually("it is under way", lambda: seen.begun > begun)
        eventually("released after a time-out", lambda: slots.count("release") == slots.count("acquire"))
        assert b" 200 " in answer_of(late) if kind == "wsgi" else b" 504 " in answer_of(late)
        slots.on["acquire"] = lambda: as_answer(429, FULL)
        refused = answer_of(ask(seen.port, "/"))
        assert b" 429 " in refused
        assert b"All are held." in refused
        assert b"retry-after: 2" in refused.lower()
        assert slots.count("release") == slots.count("acquire") - 1
    finally:
        seen.stop()
