from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes import Driven, Fake, Node
from rlnode import Client

RULES = """version: 1
lists:
  deny: [{ip: 203.0.113.66}]
rules:
  - {name: address, key: [ip], limits: [{limit: 5, per: 1h, algorithm: fixed-window}]}
  - {name: crowd, key: [tenant], limits: [{limit: 700, per: 8760h, algorithm: fixed-window}]}
  - {name: llm, key: [user], limits: [{limit: 100, per: 1h, algorithm: fixed-window}, {limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: queue, key: [queue], limits: [{limit: 10, per: 1s, algorithm: leaky-bucket, burst: 5}]}
"""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that all tests share: each takes keys of its own."""
    started = Node(tmp_path_factory.mktemp("node"), RULES)
    yield started
    started.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts nodes that end with the test."""
    started: list[Node] = []

    def one(rules: str = RULES, *flags: str) -> Node:
        node = Node(tmp_path / f"node{len(started)}", rules, *flags)
        started.append(node)
        return node

    yield one
    for node in started:
        node.stop()


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    """Starts fake nodes that end with the test."""
    started: list[Fake] = []

    def one(answer: Any) -> Fake:
        started.append(Fake(answer))
        return started[-1]

    yield one
    for node in started:
        node.close()


@pytest.fixture(params=[Client, Driven], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of either kind, which are called alike."""
    made: list[Any] = []

    def one(*args: Any, **options: Any) -> Any:
        made.append(request.param(*args, **options))
        return made[-1]

    yield one
    for client in made:
        client.close()
