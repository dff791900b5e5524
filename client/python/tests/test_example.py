"""The example applications, as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from nodes import ROOT, Node, eventually, free_port


def get(url: str) -> tuple[int, str, str]:
    """Returns status, body and the header RateLimit."""
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers.get("RateLimit", "")
    except HTTPError as e:
        return e.code, e.read().decode(), e.headers.get("RateLimit", "")
    except URLError:
        return 0, "", ""


@contextmanager
def serving(nodes: str, log: Path) -> Iterator[str]:
    """Runs the FastAPI example with nodes, and returns its address."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / "examples" / "fastapi"), "--port", str(port), "app:app"]
    path = str(ROOT / "client" / "python" / "src")
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "RLNODE_NODES": nodes, "PYTHONPATH": path})
    try:
        here = f"http://127.0.0.1:{port}"
        eventually("the example serves", lambda: get(here + "/nothing")[0])
        yield here
    finally:
        server.terminate()
        server.wait(20)


def test_fastapi(node: Node, tmp_path: Path) -> None:
    with serving(node.url, tmp_path / "log") as here:
        status, body, header = get(here + "/")
        assert (status, '"decided_by":"owner"' in body) == (200, True), body
        assert header.startswith('"address"')
        found = [get(here + "/report") for _ in range(4)]
        assert [status for status, _, _ in found] == [200, 200, 200, 429], found
        assert found[0][1] == '{"report":"all is well"}'


def test_fastapi_without_a_node(tmp_path: Path) -> None:
    """It then limits by itself, as its comments say, and logs that."""
    with serving(f"http://127.0.0.1:{free_port()}", tmp_path / "log") as here:
        found = [get(here + "/report")[0] for _ in range(4)]
        assert found == [200, 200, 200, 429]
        pages = [get(here + "/")[0] for _ in range(130)]
        assert pages.count(200) == 95, pages  # 100, of which the start and the reports took five
        assert set(pages[95:]) == {429}
    assert "is passed over" in (tmp_path / "log").read_text()
