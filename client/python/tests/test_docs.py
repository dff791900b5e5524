"""What the README says, as typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodes import Node

HERE = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)


def typed(text: str, node: Node) -> str:
    """Runs text in a process of its own."""
    text = text.replace("127.0.0.1:8080", node.url.removeprefix("http://"))
    env = {**os.environ, "PYTHONPATH": str(HERE / "src"), "RLNODE_NODES": node.url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env["DJANGO_SETTINGS_MODULE"] = "rlnode"  # without settings of its own
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_lines(node: Node) -> None:
    out = typed(BLOCKS[0], node)
    assert out.count("go on") == 5
    assert out.count("retry in") == 2


@pytest.mark.parametrize("i", range(1, len(BLOCKS)))
def test_readme(i: int, node: Node) -> None:
    typed(BLOCKS[i], node)
