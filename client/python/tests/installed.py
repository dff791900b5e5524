"""Uses the installed package, with a real node, and nothing else installed."""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import rlnode
import rlnode.asgi
import rlnode.wsgi
from nodes import Node

found = Path(rlnode.__file__).resolve()
assert sys.prefix in str(found), found
assert (found.parent / "py.typed").exists()
assert importlib.metadata.version("rlnode") == rlnode.__version__
with tempfile.TemporaryDirectory() as folder:
    node = Node(Path(folder), "version: 1\n")
    try:
        with rlnode.Client(node.url, on_error="closed") as client:
            decisions = [client.check(key="k", limits=[{"limit": 2, "per": "1h"}]) for _ in range(3)]
    finally:
        node.stop()
assert [d.allowed for d in decisions] == [True, True, False], decisions
print(f"rlnode {rlnode.__version__} works, installed in {found.parent}")
