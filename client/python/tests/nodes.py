"""Real nodes and fake ones, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from rlnode import AsyncClient

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 20.0  # bounds every wait for another process

T = TypeVar("T")


def eventually(what: str, ok: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Polls until ok returns something true."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = ok()
        if found:
            return found
        threading.Event().wait(0.01)
    raise AssertionError(f"{what}: not within {patience} s")


_program: list[Path] = []


def program() -> Path:
    """Returns the node's program: RLNODE, or built once."""
    if not _program:
        given = os.environ.get("RLNODE")
        path = Path(given) if given else Path(tempfile.mkdtemp(prefix="rlnode-python-")) / "rlnode"
        if not given:
            if not shutil.which("go"):
                raise RuntimeError("The tests need a node: install Go, so that it can be built here, or set RLNODE to its program.")
            subprocess.run(["go", "build", "-o", path, "./cmd/rlnode"], cwd=ROOT, check=True)
        _program.append(path.resolve())
    return _program[0]


class Node:
    """A running node, on free ports of a loopback address."""

    def __init__(self, folder: Path, rules: str, *flags: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "rules.yaml"
        file.write_text(rules)
        command: list[str | Path] = [
            program(),
            "serve",
            "--rules",
            file,
            "--data-dir",
            folder / "data",
            "--http-port",
            "0",
            "--admin-port",
            "0",
            *flags,
        ]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]})
        self.url, self.admin = eventually("the node is ready", self._ready)

    def _ready(self) -> tuple[str, str] | tuple[()]:
        text = self.log.read_text(errors="replace")
        assert self.process.poll() is None, text
        found = re.search(r"msg=ready .*data=(\S+) admin=(\S+)", text)
        return (found[1], found[2]) if found else ()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


def cluster(folder: Path, rules: str, count: int) -> list[Node]:
    """Starts nodes of one cluster, each on a loopback address of its own, where the ports between nodes are free."""
    net = f"127.{random.randrange(1, 250)}.{random.randrange(1, 250)}"
    numbers = range(1, count + 1)
    together = ["--bootstrap-expect", str(count), "--join", ",".join(f"{net}.{i}" for i in numbers)]
    program()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda i: Node(folder / str(i), rules, "--name", f"n{i}", "--bind", f"{net}.{i}", *together), numbers))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


Answer = tuple[int, dict[str, str], bytes]


class Fake:
    """A node that answers as a test wants, and remembers what it was sent."""

    def __init__(self, answer: Callable[[str, Any], Answer | None], port: int = 0) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.connections = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                fake.connections += 1
                super().setup()

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append((self.path, dict(self.headers.items()), body))
                self.answer(body)

            def answer(self, body: Any) -> None:
                found = answer(self.path, body)
                if found is None:  # hang up
                    self.close_connection = True
                    return
                status, headers, text = found
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Transfer-Encoding" not in headers:
                    self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # the client hung up

        self.server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=lambda: self.server.serve_forever(0.01), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def allowed(**fields: Any) -> dict[str, Any]:
    """Returns the JSON of an allowed check."""
    plain = {"allowed": True, "rule": "r", "limit": 10, "used": 1, "remaining": 9, "unit": "requests", "window_ms": 60000}
    return {**plain, "reset_after_ms": 6000, "retry_after_ms": 0, "delay_ms": 0, "decided_by": "owner", "node": "n1", "rules_version": 3, **fields}


def as_answer(status: int, found: Any) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(found).encode()


def decide(path: str, body: Any) -> Answer:
    """Answers as a node that allows all."""
    if path == "/v1/check/batch":
        return as_answer(200, {"results": [allowed() for _ in body["checks"]]})
    return as_answer(200, allowed(reservation="abc") if path == "/v1/reserve" else allowed())


def release(client: Any, slot: Any) -> bool:
    """Releases a slot of either kind of client."""
    found = slot.release()
    return bool(client.run(found) if asyncio.iscoroutine(found) else found)


class Driven:
    """An AsyncClient on a loop in a thread of its own, called as a Client is: so tests are written once for both."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.client = AsyncClient(*args, **options)

    @property
    def _core(self) -> Any:
        async def find() -> Any:
            return self.client._attach()

        return self.run(find())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE * 3)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        async def call(*args: Any, **more: Any) -> Any:
            return await method(*args, **more)

        return lambda *args, **more: self.run(call(*args, **more))

    def close(self) -> None:
        if self.loop.is_closed():
            return
        self.run(self.client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
