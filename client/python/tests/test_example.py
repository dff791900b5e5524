"""The example applications, as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_fastapi(node: Node, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / "examples" / "fastapi"), "--port", str(port), "app:app"]
    path = str(ROOT / "client" / "python" / "src")
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "RLNODE_NODES": node.url, "PYTHONPATH": path})
    try:
        here = f"http://127.0.0.1:{port}"
        status, body, header = eventually("the example serves", lambda: (found := get(here + "/"))[0] and found)
        assert (status, '"decided_by":"owner"' in body) == (200, True), body
        assert header.startswith('"address"')
        found = [get(here + "/report") for _ in range(4)]
        assert [status for status, _, _ in found] == [200, 200, 200, 429], found
        assert found[0][1] == '{"report":"all is well"}'
    finally:
        server.terminate()
        server.wait(20)
