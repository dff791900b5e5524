"""What a client is configured with."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from ._requests import Limit, limits_of
from ._setup import Setup
from .errors import RequestError

OnError = Literal["open", "closed", "local"]

OnRejected = Literal["closed", "open"]


@dataclass(frozen=True)
class Address:
    """Where a node is."""

    base: str
    host: str
    port: int
    name: str  # for the Host header
    tls: bool
    path: str


@dataclass(frozen=True)
class Options:
    """The options of a client; see Client."""

    nodes: tuple[Address, ...]
    authorization: str
    on_error: OnError
    on_rejected: OnRejected
    setup: Setup
    timeout: float
    max_in_flight: int
    max_batch: int
    max_queue: int
    open_when_full: bool
    local_limits: tuple[Mapping[str, object], ...]
    tls: ssl.SSLContext | None


def options_of(
    nodes: Sequence[str] | str,
    token: str | None,
    on_error: str,
    timeout: float,
    max_in_flight: int,
    max_batch: int,
    max_queue: int,
    open_when_full: bool,
    local_limits: Sequence[Limit],
    tls: ssl.SSLContext | None,
    on_rejected: str = "closed",
    rules: Sequence[str] | str = (),
) -> Options:
    """Checks options. A mistake is a ValueError that names the option."""
    if isinstance(nodes, str):
        nodes = [nodes]
    addresses = tuple(_address(i, node) for i, node in enumerate(nodes))
    if on_error not in ("open", "closed", "local"):
        raise ValueError(f"on_error is {on_error!r}; open, closed or local is wanted")
    if on_rejected not in ("open", "closed"):
        raise ValueError(f"on_rejected is {on_rejected!r}; open or closed is wanted")
    if on_error == "local" and not local_limits:
        raise RequestError('local_limits are not given: on_error="local" needs the limits of checks that bring none')
    if not 0 < timeout <= 3600:
        raise ValueError(f"timeout is {timeout!r}; it must be above 0 and at most 3600 seconds")
    for name, have, most in (
        ("len(nodes)", len(addresses), 64),
        ("max_in_flight", max_in_flight, 256),
        ("max_batch", max_batch, 10_000),
        ("max_queue", max_queue, 1_000_000),
    ):
        if not 1 <= have <= most:
            raise ValueError(f"{name} is {have}; it must be 1 to {most}")
    if token and not (token.isascii() and token.isprintable()):
        raise ValueError("token must be one line of printable ASCII")
    if local_limits and on_error != "local":
        raise ValueError('local_limits are for on_error="local"')
    if tls is None and any(a.tls for a in addresses):
        tls = ssl.create_default_context()
    try:
        local = tuple(limits_of(local_limits, "local_limits")) if local_limits else ()
    except RequestError as e:
        raise ValueError(str(e)) from None
    return Options(
        nodes=addresses,
        authorization=f"Bearer {token}" if token else "",
        on_error=on_error,  # type: ignore[arg-type]  # compared above
        on_rejected=on_rejected,  # type: ignore[arg-type]  # compared above
        setup=Setup([rules] if isinstance(rules, str) else rules),
        timeout=timeout,
        max_in_flight=max_in_flight,
        max_batch=max_batch,
        max_queue=max_queue,
        open_when_full=open_when_full,
        local_limits=local,
        tls=tls,
    )


def _address(i: int, text: str) -> Address:
    try:
        u = urlsplit(text)
        host, port = u.hostname, u.port
    except ValueError:
        u, host, port = urlsplit(""), None, None
    if u.scheme not in ("http", "https") or not host or "@" in u.netloc or u.query or u.fragment:
        shown = text.rpartition("@")[2]  # what stands before may be a password
        raise ValueError(f"nodes[{i}] is {shown!r}: an address such as http://127.0.0.1:8080 is wanted")
    if not (u.netloc.isascii() and u.path.isascii() and (u.netloc + u.path).isprintable() and " " not in u.path):
        raise ValueError(f"nodes[{i}] is {text!r}: an address has printable ASCII only")
    path = u.path.rstrip("/")
    tls = u.scheme == "https"
    return Address(f"{u.scheme}://{u.netloc}{path}", host, port or (443 if tls else 80), u.netloc, tls, path)
