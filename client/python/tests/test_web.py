"""The middlewares, in applications as people write them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import flask
import pytest
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocket

from nodes import Fake, Node, allowed, as_answer, decide, eventually, free_port
from rlnode import AsyncClient, MissingKeyError
from rlnode._web import Seen, address_of
from rlnode.asgi import RateLimitMiddleware as ASGI
from rlnode.fastapi import limit
from rlnode.wsgi import RateLimitMiddleware as WSGI

Ask = Callable[..., Any]  # an application's GET, which returns an answer with status_code, headers, json


async def index(request: Request) -> PlainTextResponse:
    decision = request.state.rlnode
    return PlainTextResponse(f"{decision.rule} {decision.remaining}")


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def starlette_app(**options: Any) -> Ask:
    """Returns the GET of a Starlette application."""
    app = Starlette(routes=[Route("/", index), WebSocketRoute("/ws", talk)], middleware=[Middleware(ASGI, **options)])
    return TestClient(app, client=("192.0.2.99", 1234)).get


def flask_app(**options: Any) -> Ask:
    """Returns the GET of a Flask application."""
    app = flask.Flask(__name__)

    @app.route("/")
    def hello() -> str:
        decision = flask.request.environ["rlnode.decision"]
        return f"{decision.rule} {decision.remaining}"

    app.wsgi_app = WSGI(app.wsgi_app, **options)  # type: ignore[method-assign]

    def get(path: str, headers: Any = None) -> Any:
        return app.test_client().get(path, headers=headers, environ_overrides={"REMOTE_ADDR": "192.0.2.99"})

    return get


def json_of(answer: Any) -> Any:
    return answer.json() if callable(answer.json) else answer.json


@pytest.fixture(params=[starlette_app, flask_app], ids=["asgi", "wsgi"])
def serve(request: pytest.FixtureRequest) -> Callable[..., Ask]:
    found: Callable[..., Ask] = request.param
    return found


def test_rules(serve: Callable[..., Ask], start: Callable[..., Node]) -> None:
    """The server's rules decide, and its headers reach the end user."""
    get = serve(nodes=[start().url], on_error="closed", trusted_hops=1)
    for i in range(5):
        answer = get("/", headers={"X-Forwarded-For": "198.51.100.7"})
        assert (answer.status_code, answer.text) == (200, f"address {4 - i}")
        assert answer.headers["RateLimit-Policy"] == '"address";q=5;w=3600'
        assert answer.headers["RateLimit"].startswith(f'"address";r={4 - i};t=')
        assert answer.headers["X-RateLimit-Limit"] == "5"
        assert answer.headers["X-RateLimit-Remaining"] == str(4 - i)
        assert int(answer.headers["X-RateLimit-Reset"]) > time.time()
        assert "Retry-After" not in answer.headers
    refused = get("/", headers={"X-Forwarded-For": "203.0.113.66, 198.51.100.7"})
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 3600
    assert refused.headers["RateLimit"].startswith('"address";r=0;t=')
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert json_of(refused)["violated-policies"] == ["address"]
    assert json_of(refused)["type"].endswith("#quota-exceeded")
    denied = get("/", headers={"X-Forwarded-For": "203.0.113.66"})
    assert denied.status_code == 403
    assert json_of(denied)["code"] == "denied"
    assert "Retry-After" not in denied.headers
    assert get("/", headers={"X-Forwarded-For": "198.51.100.8"}).status_code == 200


def test_limits_in_the_application(serve: Callable[..., Ask], node: Node) -> None:
    get = serve(nodes=[node.url], limits=[{"limit": 2, "per": "1h", "name": "mine"}], namespace=f"web-{serve.__name__}")
    assert [get("/").status_code for _ in range(3)] == [200, 200, 429]
    assert get("/").headers["RateLimit-Policy"] == '"mine";q=2;w=3600'
    quiet = serve(nodes=[node.url], limits=[{"limit": 2, "per": "1h"}], namespace=f"web-{serve.__name__}", headers=False)
    assert "RateLimit" not in quiet("/").headers
    assert "Retry-After" in quiet("/").headers


def test_no_node(serve: Callable[..., Ask], fake: Callable[..., Fake]) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert serve(nodes=[nobody])("/").status_code == 200
    closed = serve(nodes=[nobody], on_error="closed")("/")
    assert closed.status_code == 503
    assert closed.headers["Retry-After"] == "1"
    local = serve(nodes=[nobody], on_error="local", limits=[{"limit": 1, "per": "1h"}])
    assert [local("/").status_code for _ in range(2)] == [200, 429]
    # What a node rejects passes nobody.
    stranger = fake(lambda path, body: as_answer(401, {"status": 401, "code": "unauthorized", "title": "x", "detail": "x"}))
    assert serve(nodes=[stranger.url])("/").status_code == 503


def test_delay(serve: Callable[..., Ask], fake: Callable[..., Fake]) -> None:
    url = fake(lambda path, body: as_answer(200, allowed(delay_ms=300))).url
    began = time.monotonic()
    assert serve(nodes=[url])("/").status_code == 200
    assert 0.3 <= time.monotonic() - began < 5
    refused = serve(nodes=[url], max_delay=0.2)("/")
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "1"
    assert serve(nodes=[url], ignore_delay=True)("/").status_code == 200
    get = serve(nodes=[url], max_held=1)
    with ThreadPoolExecutor(4) as pool:
        assert sorted(a.status_code for a in pool.map(get, ["/"] * 4))[-1] == 429


def test_choices(serve: Callable[..., Ask], fake: Callable[..., Fake]) -> None:
    node = fake(lambda path, body: as_answer(429, allowed(allowed=False, retry_after_ms=10)))
    serve(nodes=[node.url], skip=lambda request: True, on_refuse=None)
    serve(nodes=[node.url], token="t", attributes=lambda request: {"a": "b"}, costs=lambda request: {"tokens": 7})("/")
    serve(nodes=[node.url], rule="r", key=lambda request: ["x", "y"])("/")
    serve(nodes=[node.url], rule="r")("/")
    assert [body for path, _, body in node.requests if path == "/v1/check"] == [
        {"attributes": {"a": "b"}, "costs": {"tokens": 7}},
        {"rule": "r", "key": ["x", "y"]},
        {"rule": "r", "attributes": {"ip": "192.0.2.99", "endpoint": "/", "method": "GET"}},
    ]
    with pytest.raises(ValueError, match="key needs"):
        serve(nodes=[node.url], key=lambda request: "x")("/")


def test_own_refusals(fake: Callable[..., Fake]) -> None:
    url = fake(lambda path, body: as_answer(429, allowed(allowed=False, retry_after_ms=10))).url

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse(f"slow down: {scope['state']['rlnode'].reason}", 420)(scope, receive, send)

    def wsgi(environ: Any, start: Any) -> list[bytes]:
        start("420 Slow", [("Content-Type", "text/plain")])
        return [f"slow down: {environ['rlnode.decision'].reason}".encode()]

    for answer in (starlette_app(nodes=[url], on_refuse=asgi)("/"), flask_app(nodes=[url], on_refuse=wsgi)("/")):
        assert answer.status_code == 420
        assert answer.text.startswith("slow down: The limit of 10")
        assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("own", "status", "kind", "body"),
    [
        ({"status": 402, "body": "Pay."}, 402, "text/plain; charset=utf-8", "Pay."),
        ({"status": 420, "body": {"error": "busy"}}, 420, "application/json", '{"error": "busy"}'),
        ({"status": 200, "title": "Slow", "code": "slow"}, 429, "application/problem+json", None),
    ],
)
def test_refusals_of_rules(serve: Callable[..., Ask], fake: Callable[..., Fake], own: Any, status: int, kind: str, body: str | None) -> None:
    own = {**own, "headers": {"X-Why": "r", "Cache-Control": "private"}}
    url = fake(lambda path, body: as_answer(429, allowed(allowed=False, retry_after_ms=10, refusal=own))).url
    answer = serve(nodes=[url])("/")
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == kind
    assert (answer.headers["X-Why"], answer.headers["Cache-Control"], answer.headers["Retry-After"]) == ("r", "private", "1")
    if body is None:
        problem = json.loads(answer.text)
        assert (problem["title"], problem["status"], problem["code"]) == ("Slow", 429, "slow")
        assert "violated-policies" not in problem
    else:
        assert answer.text == body


def test_websockets(fake: Callable[..., Fake]) -> None:
    answers = [as_answer(200, allowed()), as_answer(429, allowed(allowed=False, retry_after_ms=1500))]
    url = fake(lambda path, body: answers.pop(0)).url
    app = Starlette(routes=[WebSocketRoute("/ws", talk)], middleware=[Middleware(ASGI, nodes=[url])])
    client = TestClient(app)
    with client.websocket_connect("/ws") as websocket:
        assert websocket.receive_text() == "hello"
    with pytest.raises(WebSocketDenialResponse) as caught:
        with client.websocket_connect("/ws"):
            pass
    assert caught.value.status_code == 429
    assert caught.value.headers["Retry-After"] == "2"


def test_the_reason_of_a_closed_websocket_fits_its_frame(fake: Callable[..., Fake]) -> None:
    url = fake(lambda path, body: as_answer(429, {**allowed(allowed=False, retry_after_ms=1500), "detail": "x" + "é" * 200})).url
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        async with AsyncClient(url) as client:
            app = ASGI(Starlette(), client=client)
            await app({"type": "websocket", "path": "/ws", "headers": [], "client": ("192.0.2.1", 1)}, receive, send)

    asyncio.run(main())
    assert sent == [{"type": "websocket.close", "code": 1013, "reason": "x" + "é" * 59}]


def test_the_lifespan_closes_the_client(fake: Callable[..., Fake]) -> None:
    client: list[AsyncClient] = []

    def keep(app: Any, **options: Any) -> ASGI:
        made = ASGI(app, **options)
        client.append(made.client)
        return made

    kept: Any = keep
    url = fake(lambda path, body: as_answer(200, allowed())).url
    with TestClient(Starlette(routes=[Route("/", index)], middleware=[Middleware(kept, nodes=[url])])) as test:
        assert test.get("/").status_code == 200
        assert not client[0]._closed
    assert client[0]._closed


def test_fastapi_dependency(node: Node) -> None:
    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        async with limiter:
            yield

    limiter = AsyncClient(node.url, on_error="closed")
    app = fastapi.FastAPI(lifespan=lifespan)
    limited = limit(limiter, limits=[{"limit": 2, "per": "1h"}], namespace="depends", key=lambda request: request.headers["x-user"])

    @app.get("/", dependencies=[fastapi.Depends(limited)])
    async def hello() -> str:
        return "hello"

    @app.get("/denied", dependencies=[fastapi.Depends(limit(limiter, attributes=lambda request: {"ip": "203.0.113.66"}))])
    async def never() -> str:
        return "hello"

    with TestClient(app) as client:
        answers = [client.get("/", headers={"x-user": "a"}) for _ in range(3)]
        assert [a.status_code for a in answers] == [200, 200, 429]
        assert answers[0].headers["RateLimit"].startswith('"inline";r=1')
        assert 0 < int(answers[2].headers["Retry-After"]) <= 7200
        assert answers[2].json()["detail"]
        assert client.get("/", headers={"x-user": "b"}).status_code == 200
        assert client.get("/denied").status_code == 403
    assert "limited" not in str(app.openapi())


@pytest.mark.parametrize(
    ("peer", "forwarded", "hops", "want"),
    [
        ("192.0.2.1", [], 0, "192.0.2.1"),
        ("192.0.2.1:80", ["198.51.100.1"], 0, "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.1"], 1, "198.51.100.1"),
        ("192.0.2.1", ["203.0.113.1, 198.51.100.1"], 1, "198.51.100.1"),
        ("192.0.2.1", ["203.0.113.1, 198.51.100.1"], 2, "203.0.113.1"),
        ("192.0.2.1", ["203.0.113.1", "198.51.100.1"], 2, "203.0.113.1"),
        ("192.0.2.1", ["203.0.113.1, 198.51.100.1"], 9, "203.0.113.1"),
        ("192.0.2.1", ["unknown"], 1, "192.0.2.1"),
        ("192.0.2.1", ["[2001:db8::1]:443"], 1, "2001:db8::1"),
        ("::ffff:192.0.2.1", [], 0, "192.0.2.1"),
        ("fe80::1%eth0", [], 0, "fe80::1"),
        ("192.0.2.1", ["198.51.100.1:8080"], 1, "198.51.100.1"),
        ("unix:", [], 0, "unix:"),
        ("", [], 1, ""),
    ],
)
def test_address(peer: str, forwarded: list[str], hops: int, want: str) -> None:
    assert address_of(Seen("GET", "/", peer, forwarded), hops) == want


def test_a_node_that_comes_back(serve: Callable[..., Ask]) -> None:
    """An application begins without a node, and uses it when it is there."""
    port = free_port()
    get = serve(nodes=[f"http://127.0.0.1:{port}"])
    assert get("/").status_code == 200
    node = Fake(lambda path, body: as_answer(429, allowed(allowed=False, retry_after_ms=10)), port)
    try:
        eventually("the node refuses", lambda: get("/").status_code == 429)
    finally:
        node.close()


def test_missing_key(serve: Callable[..., Ask], fake: Callable[..., Fake]) -> None:
    node = fake(decide)

    def ask(missing_key: str | None, key: Any, **more: Any) -> tuple[int, Any, Any]:
        node.requests.clear()
        option = {} if missing_key is None else {"missing_key": missing_key}
        answer = serve(nodes=[node.url], rule=None if more else "llm", key=lambda _: key, **option, **more)("/")
        sent = [body["key"] for path, _, body in node.requests if "key" in body]
        return answer.status_code, json_of(answer)["code"] if answer.status_code == 400 else None, sent

    for absent in (None, "", [None], [""], ["a", ""]):
        for option in (None, "refuse"):
            assert ask(option, absent) == (400, "missing-key", [])
        assert ask("allow", absent) == (200, None, [])
        with pytest.raises(MissingKeyError, match="key"):
            ask("error", absent)
    assert ask("anonymous", None) == (200, None, ["anonymous"])
    assert ask("anonymous", ["a", ""]) == (200, None, [["a", "anonymous"]])
    assert ask(None, 7) == (200, None, ["7"])
    limits = {"limits": [{"limit": 1, "per": "1m"}]}
    assert ask(None, "", **limits) == (200, None, [""])
    assert ask(None, None, **limits) == (400, "missing-key", [])


def test_wrong_keys_are_refused(serve: Callable[..., Ask], fake: Callable[..., Fake], caplog: pytest.LogCaptureFixture) -> None:
    node = fake(decide)
    get = serve(nodes=[node.url], rule="llm", key=lambda _: {"a": 1})
    assert [get("/").status_code for _ in range(3)] == [503, 503, 503]
    assert [r.levelname for r in caplog.records if "requests are refused" in r.getMessage()] == ["ERROR"]  # once a minute


def test_unknown_rule_of_a_middleware(serve: Callable[..., Ask], start: Callable[..., Node]) -> None:
    """It is the operator's mistake, so on_error decides."""
    url = start().url
    assert serve(nodes=[url], rule="nonsense")("/").status_code == 200
    assert serve(nodes=[url], rule="nonsense", on_error="closed")("/").status_code == 503
