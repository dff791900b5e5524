"""Answers as bytes, in pieces of any size."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from rlnode import BadAnswerError
from rlnode._http import MAX_HEAD, ResponseReader, request


def read(text: bytes, size: int, bound: int = 1000, end: bool = False) -> ResponseReader:
    reader = ResponseReader(bound)
    for i in range(0, len(text), size):
        reader.feed(text[i : i + size])
    if end and not reader.done:
        reader.feed(b"")
    return reader


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100_000])
def test_answers(size: int) -> None:
    one = read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: a\r\nx: b\r\n\r\nhello", size)
    assert (one.done, one.status, one.body, one.keep) == (True, 200, b"hello", True)
    assert one.headers["x"] == "a, b"
    chunked = b"HTTP/1.1 429 \r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
    assert (read(chunked, size).body, read(chunked, size).keep) == (b"hello", True)
    assert not read(chunked[:-1], size).done
    early = read(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", size)
    assert (early.done, early.status, early.body) == (True, 204, b"")
    until = read(b"HTTP/1.0 200 OK\r\n\r\nhello", size, end=True)
    assert (until.done, until.body, until.keep) == (True, b"hello", False)
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", size).keep is False
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", size).done


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD + b"\r\n\r\n",
        b"x" * (MAX_HEAD + 1),
    ],
    ids=range(14),
)
def test_what_is_no_answer(text: bytes, size: int) -> None:
    with pytest.raises(BadAnswerError):
        read(text, size)


def test_broken_off() -> None:
    text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    for i in range(len(text)):
        with pytest.raises(ConnectionResetError):
            read(text[:i], 1000, end=True)


def test_random_bytes() -> None:
    """Nothing that arrives makes the reader fail in another way, or loop."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    parts = [
        b"HTTP/1.1 ",
        b"200",
        b" OK",
        b"\r\n",
        b"\r\n\r\n",
        b"Content-Length: ",
        b"Transfer-Encoding: chunked",
        b"5",
        b"0",
        b"a",
        b":",
        b";",
        b"\xff",
    ]
    for _ in range(3000):
        text = b"HTTP/1.1 200 OK\r\n" * rng.randrange(2) + b"".join(rng.choice(parts) for _ in range(rng.randrange(40)))
        with suppress(BadAnswerError, ConnectionResetError):
            read(text, rng.randrange(1, 20), 100, end=True)


def test_request() -> None:
    assert request("GET", "/readyz", "h:1", "", None) == b"GET /readyz HTTP/1.1\r\nHost: h:1\r\nUser-Agent: rlnode-python\r\n\r\n"
    post = request("POST", "/v1/check", "h", "Bearer t", b"{}")
    assert post.endswith(b"Authorization: Bearer t\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
