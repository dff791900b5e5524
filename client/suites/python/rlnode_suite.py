"""A plugin of pytest: rlnode's storage in place of the libraries' own, and a node's clock that follows the tests'."""

from __future__ import annotations

import fnmatch
import os
import re
import time
import uuid
from pathlib import Path
from typing import Any

import limits.storage
import pytest

import rlnode._core
import rlnode.limits  # noqa: F401  # registers rlnode:// and async+rlnode://

SUITE = os.environ["SUITE"]
NODE = os.environ["SUITE_NODE"].removeprefix("http://")
OTHERS = ("docker", "redis", "memcached", "mongo", "valkey", "sentinel", "etcd")  # storages that a test needs

_request = rlnode._core.request
_from_string = limits.storage.storage_from_string


def request(*arguments: Any) -> bytes:
    """Makes a request that says what time it is in the test."""
    first, _, rest = _request(*arguments).partition(b"\r\n")
    return first + f"\r\nSuite-Clock: {round(time.time() * 1000)}\r\n".encode() + rest


def storage_from_string(uri: str, **options: Any) -> Any:
    """Makes a storage that nobody else has, as one in memory is."""
    scheme, _, rest = uri.partition("://")
    if scheme not in ("memory", "async+memory"):
        return _from_string(uri, **options)
    return _from_string(f"{scheme.replace('memory', 'rlnode')}://{NODE}{rest}", namespace=uuid.uuid4().hex, timeout=20, **options)


rlnode._core.request = request
limits.storage.storage_from_string = storage_from_string


def differences() -> list[tuple[str, str]]:
    """Returns the tests that are different on purpose, and why."""
    found = []
    for line in Path(__file__).with_name("different.txt").read_text().splitlines():
        suite, pattern, reason = re.match(r"(\S*) *(\S*) *(.*)", line).groups()  # type: ignore[union-attr]
        if suite == SUITE:
            found.append((pattern, reason))
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Leaves out what is about another storage, and marks what is different on purpose."""
    out = [item for item in items if needs_another(item)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
    for item in items:
        for pattern, reason in differences():
            if fnmatch.fnmatch(item.nodeid.replace("[", "(").replace("]", ")"), "*" + pattern.replace("[", "(").replace("]", ")")):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def needs_another(item: Any) -> bool:
    names = [*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers()), item.name]
    return any(other in name for name in names for other in OTHERS)


def route(app: Any, path: str, **options: Any) -> Any:
    """Is the decorator that slowapi's tests expect of an application, and that Starlette no longer has."""

    def add(function: Any) -> Any:
        app.add_route(path, function, **options)
        return function

    return add


if SUITE == "slowapi":
    import starlette.applications

    if not hasattr(starlette.applications.Starlette, "route"):
        starlette.applications.Starlette.route = route  # type: ignore[attr-defined]
