"""The client against real nodes."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import RULES
from nodes import PATIENCE, Driven, Node, cluster, eventually, free_port, release
from rlnode import NEVER, Client, LimitUsage, NodeError, RequestError

Connect = Callable[..., Any]


def test_all_calls(connect: Connect, start: Callable[..., Node]) -> None:
    node = start(RULES, "--api-token", "secret", "--name", "n1")
    client = connect(node.url, token="secret", timeout=PATIENCE)
    for i in range(6):
        d = client.check(attributes={"ip": "192.0.2.1"})
        assert (d.allowed, d.rule, d.limit, d.remaining, d.node, d.window, d.unit) == (i < 5, "address", 5, max(4 - i, 0), "n1", 3600, "requests")
        assert (d.retry_after > 0) is not d.allowed
    assert d.reason
    assert d.violated == ("address",)
    assert client.peek("address", "192.0.2.2", cost=6).retry_after == NEVER
    assert client.check(attributes={"nobody": "asks"}).decided_by == "none"
    d = client.check(attributes={"user": "u"}, costs={"tokens": 400}, detail=True)
    assert (d.unit, d.remaining, len(d.limits)) == ("tokens", 600, 2)
    usage = client.adjust("address", "192.0.2.1", costs={"requests": -3})
    assert (usage.rule, usage.key, usage.limits[0].used) == ("address", ("192.0.2.1",), 2)
    usage = client.reset("address", "192.0.2.1")
    assert usage.limits[0].used == 0
    assert client.check(attributes={"ip": "203.0.113.66"}).denied
    limits: Any = [{"limit": 3, "per": "1h", "algorithm": "token-bucket"}]
    both = client.check(subjects=[{"key": "a", "limits": limits}, {"namespace": "b", "key": ["x", "y"], "limits": limits, "cost": 4}])
    assert (both.allowed, both.retry_after) == (False, NEVER)
    assert client.usage(namespace="b", key=["x", "y"]).limits == ()
    assert client.count(key="a", limits=limits, cost=5, request_id="id").counted
    assert client.count(key="a", limits=limits, cost=5, request_id="id").used == 5
    assert client.usage(key="a", limits=limits).limits[0].used == 5
    reserved = client.reserve("llm", "r", costs={"tokens": 800})
    assert reserved.id
    assert not client.reserve("llm", "r", costs={"tokens": 300})
    assert client.settle(reserved.id, {"tokens": 500}).remaining == 500
    assert client.settle(reserved.id, {"tokens": 900}).remaining == 500
    with pytest.raises(NodeError, match="unknown-rule"):
        client.check("nosuch", "x")
    with pytest.raises(NodeError, match="unauthorized"):
        connect(node.url, token="wrong").check("address", "x")
    hostile = client.check(attributes={"ip": '\udcff\x00"' * 5000, "user": "<" * 100_000, "tenant": "a\u2028b"})
    assert hostile.rule
    assert client.ready()


def test_ten_thousand_at_once(connect: Connect, start: Callable[..., Node]) -> None:
    """10,000 concurrent checks get exactly what the limit has, and each is answered by a node."""
    client = connect(start().url, timeout=60, on_error="closed", max_queue=20_000)
    if isinstance(client, Driven):

        async def crowd() -> list[Any]:
            return await asyncio.gather(*(client.client.check("crowd", "acme") for _ in range(10_000)))

        found = client.run(crowd())
    else:
        # As many threads as are sensible, each with its share.
        with ThreadPoolExecutor(200) as pool:
            found = list(pool.map(lambda _: client.check("crowd", "acme"), range(10_000)))
    assert len(found) == 10_000
    assert not [d for d in found if d.decided_by == "error"]
    assert sum(d.allowed for d in found) == 700


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_node_dies_under_load(number: int, connect: Connect, tmp_path: Path) -> None:
    """With two nodes named, no call fails when one of them dies."""
    nodes = cluster(tmp_path, RULES, 3)
    try:
        client = connect([nodes[2].url, nodes[1].url], timeout=10, on_error="closed")
        failed: list[Any] = []
        done = [0] * 8
        stop = threading.Event()

        def load(i: int) -> None:
            while not stop.is_set():
                d = client.check(key=f"user-{i}-{done[i] % 50}", limits=[{"limit": 10**9, "per": "1h"}])
                if d.decided_by == "error" or not d.allowed:
                    failed.append(d)
                done[i] += 1

        threads = [threading.Thread(target=load, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()

        def more(n: int) -> None:
            want = sum(done) + n
            for _ in range(6000):
                if sum(done) >= want or failed:
                    return
                threading.Event().wait(0.01)
            raise AssertionError(f"{sum(done)} checks in a minute, not {want}")

        more(500)
        nodes[2].signal(number)
        more(500)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not failed
    finally:
        for node in nodes:
            node.stop()


TTL = 20.0

SLOTS = f"""version: 1
rules:
  - {{name: render, key: [tenant], limits: [{{limit: 2, ttl: {TTL:.0f}s, algorithm: concurrency}}]}}
"""


def test_slots_outlive_the_node_that_their_holder_uses(connect: Connect, tmp_path: Path) -> None:
    nodes = cluster(tmp_path, SLOTS, 3)
    stop = threading.Event()
    try:
        client = connect([nodes[0].url, nodes[1].url], timeout=PATIENCE, on_error="closed")
        other = Client([nodes[2].url, nodes[1].url], timeout=PATIENCE, on_error="closed")

        def take(by: Any, tenant: str) -> Any:
            slot = by.acquire("render", tenant)
            assert slot.id, (tenant, slot.decision)
            return slot

        def assert_full(tenant: str) -> None:
            slot = other.acquire("render", tenant)
            assert (slot.allowed, slot.decision.error) == (False, None), tenant
            assert 0 < slot.decision.retry_after <= TTL

        def usage(tenant: str) -> LimitUsage:
            return other.usage("render", tenant).limits[0]

        # Two clients share a limit. A second release frees nothing.
        first, evicted = take(client, "shared"), take(client, "shared")
        assert_full("shared")
        assert release(client, first)
        take(other, "shared")
        assert release(client, first)
        assert_full("shared")
        other.reset("render", "shared")

        held = {f"held-{i}": (take(client, f"held-{i}"), take(client, f"held-{i}")) for i in range(6)}  # with owners on all nodes
        for tenant in held:
            assert_full(tenant)
        turns = [0] * 6
        failed: list[Any] = []

        def work(i: int) -> None:
            while not stop.is_set() and not failed:
                # What is released just before its owner dies may be held until its end.
                slot = client.acquire("render", f"busy-{i}", wait=True)
                if not slot.id or not release(client, slot):
                    failed.append(slot.decision)
                turns[i] += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(turns))]
        for thread in threads:
            thread.start()
        eventually("the client is busy", lambda: failed or sum(turns) > 100)

        # Before the kill, which may lose a reset that no copy has yet.
        eventually("the slot that a reset freed is lost", lambda: evicted.lost)
        nodes[0].stop()
        killed, before = time.monotonic(), sum(turns)

        # What is released while other nodes take over can be had by others, once.
        for tenant, (one, _) in held.items():
            assert release(client, one)
            eventually("it can be had", lambda tenant=tenant: other.acquire("render", tenant))  # type: ignore[misc]
            assert_full(tenant)
        eventually("the client is busy at another node", lambda: failed or sum(turns) > before + 100)

        def renewed(tenant: str) -> bool:
            # A copy of a slot may end a little later than the slot did where it was granted.
            least = TTL - (time.monotonic() - killed) + 0.5
            return all(one.expires >= least for one in usage(tenant).slots)

        for tenant, (_, kept) in held.items():
            eventually("slots are renewed at another node", lambda tenant=tenant: renewed(tenant))  # type: ignore[misc]
            assert_full(tenant)
            assert not kept.lost

        stop.set()
        for thread in threads:
            thread.join()
        assert not failed
        client.close()
        assert [usage(tenant).used for tenant in held] == [1] * len(held)  # the other client's
        eventually("no slot is left", lambda: not any(usage(f"busy-{i}").used for i in range(len(turns))), TTL + PATIENCE)
        other.close()
    finally:
        stop.set()
        for node in nodes:
            node.stop()


ONE_LIMIT = """version: 1
rules:
  - name: api
    key: [user]
    usage: monthly
    limits: [{name: hour, limit: 10, per: 1h, algorithm: fixed-window}, {name: day, limit: 100, per: 24h, algorithm: fixed-window}]
  - {name: plain, key: [user], limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}
"""


def test_one_limit(connect: Connect, start: Callable[..., Node]) -> None:
    """An adjustment or a reset of one limit leaves the others as they are; a check takes what there is."""
    client = connect(start(ONE_LIMIT).url, timeout=PATIENCE, on_error="closed")
    for granted in (7, 3, 0):
        d = client.check("plain", "u", cost=7, mode="at_most")
        assert (d.allowed, d.granted) == (granted > 0, granted)

    client.count("api", "u", cost=4)
    usage = client.adjust("api", "u", costs={"requests": -50}, limit_name="hour", bill=True)
    assert [(one.name, one.used, one.applied) for one in usage.limits] == [("hour", 0, -4)]
    assert usage.applied == {"requests": -4}
    assert [one.used for one in client.usage("api", "u").limits] == [0, 4]
    usage = client.reset("api", "u", limit_name="day")
    assert ([one.name for one in usage.limits], usage.applied) == (["day"], {})
    assert [one.used for one in client.usage("api", "u").limits] == [0, 0]

    with pytest.raises(NodeError, match="unknown-limit"):
        client.reset("api", "u", limit_name="nobody")
    with pytest.raises(NodeError, match="bad-value"):
        client.adjust("plain", "u", costs={"requests": 1}, bill=True)
    for name in ("", 7):
        with pytest.raises(RequestError, match="limit_name"):
            client.reset("api", "u", limit_name=name)
    with pytest.raises(RequestError, match="bill"):
        client.adjust("api", "u", costs={"requests": 1}, bill="yes")


def test_tls(connect: Connect, start: Callable[..., Node], tmp_path: Path) -> None:
    import ssl

    if not shutil.which("openssl"):
        pytest.skip("no openssl here, to make a certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run([*made, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    key.chmod(0o600)
    node = start(RULES, "--http-cert", str(certificate), "--http-key", str(key))
    url = node.url.replace("http://", "https://")
    trusting = ssl.create_default_context(cafile=str(certificate))
    client = connect(url, tls=trusting, timeout=PATIENCE, on_error="closed")
    for _ in range(3):
        assert client.check(key="tls", limits=[{"limit": 100, "per": "1h"}]).decided_by in ("owner", "lease")
    stranger = connect(url, timeout=PATIENCE, on_error="closed").check("address", "x")
    assert not stranger
    assert "CERTIFICATE_VERIFY_FAILED" in str(stranger.error)
    plain = connect(url.replace("https://", "http://"), timeout=PATIENCE, on_error="closed").check("address", "x")
    assert plain.decided_by == "error"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_memory_is_steady(kind: str, node: Node) -> None:
    """What the script tests/memory.py shows of a million checks, of some of them."""
    script = Path(__file__).with_name("memory.py")
    path = str(script.parent.parent / "src")
    done = subprocess.run(
        [sys.executable, script, kind, node.url, "--checks", "30000", "--bound", "3"], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_node_that_comes_late(connect: Connect, start: Callable[..., Node]) -> None:
    port = free_port()
    client = connect(f"http://127.0.0.1:{port}", timeout=PATIENCE)
    assert client.check("address", "192.0.2.9").decided_by == "error"
    start(RULES, "--http-port", str(port))
    for _ in range(2000):
        if client.check("address", "192.0.2.9").decided_by != "error":
            return
        threading.Event().wait(0.01)
    raise AssertionError("the node is not asked again")


def test_the_node_restarts(tmp_path: Path) -> None:
    """Connections to a process that is gone do no harm to the next one's."""
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", timeout=PATIENCE, on_error="closed") as client:
        for i in range(2):
            node = Node(tmp_path / str(i), RULES, "--http-port", str(port))
            try:
                for _ in range(2000):
                    if client.check("llm", "restart").allowed:
                        break
                    threading.Event().wait(0.01)
                assert client.check("llm", "restart").allowed
            finally:
                node.stop()
