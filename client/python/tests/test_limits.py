"""Storage for limits, by all of its strategies, and flask-limiter and slowapi on top of it."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastapi
import flask
import flask_limiter
import flask_limiter.util
import pytest
import slowapi
import slowapi.errors
import slowapi.util
from fastapi.testclient import TestClient
from limits import RateLimitItemPerDay, RateLimitItemPerHour, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.aio.strategies import STRATEGIES as ASYNC_STRATEGIES
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES

import rlnode.limits
from nodes import Fake, Node, eventually, free_port
from rlnode import RlnodeError


class Waiting:
    """Calls an asynchronous storage or limiter as if it were the other kind."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.target, self.loop = target, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        return lambda *args, **more: asyncio.run_coroutine_threadsafe(found(*args, **more), self.loop).result(60)


class Kind:
    """One of the two kinds of storage."""

    def __init__(self, scheme: str, loop: asyncio.AbstractEventLoop) -> None:
        self.scheme, self.loop = scheme, loop
        self.made: list[Any] = []

    def storage(self, node: Node | str, **options: Any) -> Any:
        address = node if isinstance(node, str) else node.url.removeprefix("http://")
        made = storage_from_string(f"{self.scheme}://{address}", **options)
        self.made.append(Waiting(made, self.loop) if "async" in self.scheme else made)
        return self.made[-1]

    def limiter(self, strategy: str, storage: Any) -> Any:
        if isinstance(storage, Waiting):
            made: Any = ASYNC_STRATEGIES[strategy]
            return Waiting(made(storage.target), self.loop)
        return STRATEGIES[strategy](storage)


@pytest.fixture(params=["rlnode", "async+rlnode"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    kind = Kind(request.param, loop)
    yield kind
    for storage in kind.made:
        storage.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def fresh() -> str:
    return uuid.uuid4().hex


def test_registered(kind: Kind, node: Node) -> None:
    storage = kind.storage(node)
    want = rlnode.limits.RlnodeStorage if kind.scheme == "rlnode" else rlnode.limits.AsyncRlnodeStorage
    assert isinstance(getattr(storage, "target", storage), want)
    assert storage.check() is True
    with pytest.raises(NotImplementedError, match="can't forget all keys"):
        storage.reset()
    storage.close()


def test_options(kind: Kind, fake: Callable[..., Fake]) -> None:
    for uri, name in {
        "127.0.0.1:1?colour=red": "colour",
        "127.0.0.1:1?timeout=soon": "timeout",
        "127.0.0.1:1?on_error=ignore": "on_error",
        "127.0.0.1:1?tls=maybe": "tls",
        "127.0.0.1:1/0": "rlnode://",
        "127.0.0.1:1?x": "address",
        "": "address",
    }.items():
        with pytest.raises(ConfigurationError, match=name):
            kind.storage(uri)
    with pytest.raises(ConfigurationError, match="key_prefix"):
        kind.storage("127.0.0.1", key_prefix="x")
    with pytest.raises(ConfigurationError) as caught:
        kind.storage("me:secret@127.0.0.1")
    assert "secret" not in str(caught.value)
    storage = kind.storage("10.0.0.1,10.0.0.2:81,[::1]?tls=true&token=t&timeout=0.5&max_queue=7&namespace=mine")
    options = storage.client._options
    assert [a.base for a in options.nodes] == ["https://10.0.0.1:8080", "https://10.0.0.2:81", "https://[::1]:8080"]
    assert (options.authorization, options.timeout, options.max_queue) == ("Bearer t", 0.5, 7)


def test_incr(kind: Kind, node: Node) -> None:
    """Counts, looks, tells the expiry, clears; keys don't meet."""
    storage, key = kind.storage(node), fresh()
    assert storage.get(key) == 0
    assert abs(storage.get_expiry(key) - time.time()) < 10
    assert storage.incr(key, 10) == 1
    assert storage.incr(key, 10, amount=4) == 5
    assert storage.get(key) == 5
    assert 8 < storage.get_expiry(key) - time.time() <= 10.1
    assert storage.get(fresh()) == 0
    storage.clear(key)
    assert storage.get(key) == 0
    assert storage.incr(key, 10) == 1
    # Another process, to which the key does not tell its window.
    other = kind.storage(node)
    assert other.get(key) == 1
    assert 5 < other.get_expiry(key) - time.time() <= 10.1


def test_windows_begin_with_the_first_hit_and_expire(kind: Kind, node: Node) -> None:
    storage, key = kind.storage(node), fresh()
    began = time.time()
    assert storage.incr(key, 1) == 1
    ends = storage.get_expiry(key)
    assert began + 0.9 < ends <= time.time() + 1.1
    eventually("the window ends", lambda: storage.get(key) == 0)
    assert time.time() >= ends - 0.2
    assert storage.incr(key, 1) == 1


def test_keys_that_are_long_or_odd(kind: Kind, node: Node) -> None:
    storage, long = kind.storage(node), "x" * 3000
    one, two = f"{fresh()}{long}a{long}", f"{fresh()}{long}b{long}"
    same = one[:2000] + "!" + one[2001:]
    for key in (one, two, same, f"é\udc00{fresh()}\n/", f"/{fresh()}/1/1/minute"):
        assert storage.incr(key, 60) == 1
        assert storage.get(key) == 1


def test_concurrent_hits(kind: Kind, node: Node) -> None:
    """Of what comes at once all is counted, and as much passes as the limit has, by each strategy."""
    storage = kind.storage(node, timeout=20)
    for strategy in STRATEGIES:
        limiter, item, who = kind.limiter(strategy, storage), RateLimitItemPerHour(50), fresh()
        with ThreadPoolExecutor(32) as pool:
            hits = list(pool.map(lambda _, limiter=limiter, item=item, who=who: limiter.hit(item, who), range(200)))
        assert sum(hits) == 50, strategy
        assert not limiter.test(item, who)
        assert limiter.get_window_stats(item, who).remaining == 0


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_strategy(strategy: str, kind: Kind, node: Node) -> None:
    limiter, who = kind.limiter(strategy, kind.storage(node)), fresh()
    item = RateLimitItemPerMinute(10, 2)
    assert limiter.get_window_stats(item, who).remaining == 10
    unused = 120 if strategy == "moving-window" else 0  # as the library's own storages have it
    assert abs(limiter.get_window_stats(item, who).reset_time - time.time() - unused) < 10
    assert limiter.test(item, who, cost=10)
    assert not limiter.test(item, who, cost=11)
    assert limiter.hit(item, who)
    assert limiter.hit(item, who, cost=5)
    stats = limiter.get_window_stats(item, who)
    assert stats.remaining == 4
    assert time.time() < stats.reset_time <= time.time() + 121
    assert limiter.test(item, who, cost=4)
    assert not limiter.test(item, who, cost=5)
    assert limiter.hit(item, who, cost=4)
    assert not limiter.hit(item, who)
    assert not limiter.test(item, who)
    assert limiter.test(item, fresh())
    assert limiter.hit(RateLimitItemPerMinute(20, 2), who)  # the amount is part of the key
    limiter.clear(item, who)
    assert limiter.get_window_stats(item, who).remaining == 10
    assert limiter.hit(item, who, cost=10)


def test_fixed_window_counts_what_it_refuses(kind: Kind, node: Node) -> None:
    storage, item, who = kind.storage(node), RateLimitItemPerDay(3), fresh()
    limiter = kind.limiter("fixed-window", storage)
    assert [limiter.hit(item, who) for _ in range(5)] == [True, True, True, False, False]
    assert storage.get(item.key_for(who)) == 5
    assert limiter.get_window_stats(item, who).remaining == 0
    assert not limiter.hit(item, who, cost=20)


@pytest.mark.parametrize("strategy", ["moving-window", "sliding-window-counter"])
def test_others_take_nothing_when_they_refuse(strategy: str, kind: Kind, node: Node) -> None:
    limiter, item, who = kind.limiter(strategy, kind.storage(node)), RateLimitItemPerDay(3), fresh()
    assert limiter.hit(item, who, cost=2)
    assert not limiter.hit(item, who, cost=2)
    assert not limiter.hit(item, who, cost=4)
    assert limiter.get_window_stats(item, who).remaining == 1
    assert limiter.hit(item, who)


def test_moving_window_moves(kind: Kind, node: Node) -> None:
    storage, item, who = kind.storage(node), RateLimitItemPerSecond(2), fresh()
    limiter = kind.limiter("moving-window", storage)
    began = time.time()
    assert limiter.hit(item, who)
    threading.Event().wait(0.4)  # the second hit is to be that much later
    assert limiter.hit(item, who)
    start, count = storage.get_moving_window(item.key_for(who), 2, 1)
    assert count in (1, 2)  # 1 if the machine was slow
    assert began - 0.2 <= start <= time.time()
    assert limiter.get_window_stats(item, who).reset_time == pytest.approx(start + 1, abs=0.3)
    eventually("the first hit leaves", lambda: limiter.test(item, who))
    assert time.time() >= began + 0.9
    eventually("both leave", lambda: limiter.get_window_stats(item, who).remaining == 2)
    start, count = storage.get_moving_window(item.key_for(who), 2, 1)
    assert count == 0
    assert abs(start - time.time()) < 10


def test_sliding_window_weighs_the_last_one(kind: Kind, node: Node) -> None:
    storage, item, who = kind.storage(node), RateLimitItemPerSecond(100), fresh()
    limiter = kind.limiter("sliding-window-counter", storage)
    assert limiter.hit(item, who, cost=100)
    seen: set[int] = set()

    def over() -> bool:
        _, _, current, ttl = storage.get_sliding_window(item.key_for(who), 1)
        seen.add(current)
        assert 0 <= ttl <= 1
        return bool(current == 0)

    eventually("it is over", over)
    assert any(0 < n < 100 for n in seen)
    assert limiter.hit(item, who)
    storage.clear_sliding_window(item.key_for(who), 1)
    assert storage.get_sliding_window(item.key_for(who), 1)[2] == 0


def test_two_processes_share_one_limit(kind: Kind, node: Node) -> None:
    item, who = RateLimitItemPerHour(10), fresh()
    for strategy in STRATEGIES:
        one, two = kind.limiter(strategy, kind.storage(node)), kind.limiter(strategy, kind.storage(node))
        assert sum(limiter.hit(item, who) for _ in range(10) for limiter in (one, two)) == 10


def test_errors(kind: Kind) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    item, who = RateLimitItemPerMinute(2), fresh()
    storage = kind.storage(nobody)
    assert storage.check() is False
    with pytest.raises(RlnodeError):
        storage.incr("k", 60)
    with pytest.raises(RlnodeError):
        kind.limiter("moving-window", storage).hit(item, who)
    with pytest.raises(StorageError):
        kind.limiter("fixed-window", kind.storage(nobody, wrap_exceptions=True)).hit(item, who)
    for on_error, want in (("open", [True] * 4), ("closed", [False] * 4), ("local", [True, True, False, False])):
        for strategy in STRATEGIES:
            limiter = kind.limiter(strategy, kind.storage(nobody, on_error=on_error))
            assert [limiter.hit(item, who) for _ in range(4)] == want, (on_error, strategy)
            assert limiter.test(item, who) is (on_error == "open")
            assert limiter.get_window_stats(item, who).remaining <= 2


def test_rejected_by_a_node(kind: Kind, fake: Callable[..., Fake]) -> None:
    text = b'{"status": 401, "code": "unauthorized", "title": "x", "detail": "x"}'
    address = fake(lambda path, body: (401, {}, text)).url.removeprefix("http://")
    with pytest.raises(RlnodeError, match="unauthorized"):
        kind.storage(address, on_error="open").incr("k", 60)


def flask_app(uri: str, **options: Any) -> Any:
    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(flask_limiter.util.get_remote_address, app=app, storage_uri=uri, headers_enabled=True, **options)

    @app.route("/")
    @limiter.limit("3/hour")
    def index() -> str:
        return "hello"

    return app.test_client()


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_flask(strategy: str, node: Node) -> None:
    address = node.url.replace("http", "rlnode") + f"?namespace={fresh()}"
    one, two = flask_app(address, strategy=strategy), flask_app(address, strategy=strategy)
    answers = [client.get("/") for _ in range(2) for client in (one, two)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert [a.headers["X-RateLimit-Remaining"] for a in answers] == ["2", "1", "0", "0"]
    assert answers[0].headers["X-RateLimit-Limit"] == "3"
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 3600


def test_flask_falls_back(start: Callable[..., Node]) -> None:
    node = start()
    client = flask_app(node.url.replace("http", "rlnode"), in_memory_fallback=["2/hour"], strategy="fixed-window")
    assert client.get("/").status_code == 200
    node.stop()
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_slowapi(strategy: str, node: Node) -> None:
    address = node.url.replace("http", "rlnode") + f"?namespace={fresh()}"
    limiter = slowapi.Limiter(slowapi.util.get_remote_address, storage_uri=address, strategy=strategy, headers_enabled=True)
    app = fastapi.FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/")
    @limiter.limit("3/hour")  # type: ignore[untyped-decorator]
    async def index(request: fastapi.Request, response: fastapi.Response) -> str:
        return "hello"

    with TestClient(app) as client:
        answers = [client.get("/") for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert answers[2].headers["X-RateLimit-Remaining"] == "0"
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 3601


def test_what_libraries_look_at(kind: Kind, node: Node) -> None:
    """flask-limiter shows the storage's storage, which has no token."""
    storage = kind.storage(node, token="secret")
    assert node.url in repr(storage.storage)
    assert "secret" not in repr(storage.storage)


def test_sliding_window_resets_with_its_window(kind: Kind, node: Node) -> None:
    """As with the library's own storages: with hits in the current window alone, that is when it ends."""
    limiter = kind.limiter("sliding-window-counter", kind.storage(node))
    item, who = RateLimitItemPerHour(5), fresh()
    for _ in range(3):
        assert limiter.hit(item, who)
    now = time.time()
    reset = limiter.get_window_stats(item, who).reset_time
    assert abs(reset - (now + 3600 - now % 3600)) < 60 or 3600 - now % 3600 < 60
