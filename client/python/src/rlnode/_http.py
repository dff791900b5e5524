"""The part of HTTP/1.1 that a client of a node needs, without any I/O."""

from __future__ import annotations

from .errors import BadAnswerError

MAX_HEAD = 64 << 10


class ResponseReader:
    """Reads one answer from the bytes that arrive."""

    def __init__(self, bound: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.keep = False  # the connection may be used again
        self.started = False  # a byte has arrived
        self.done = False
        self._bound = bound
        self._buffer = bytearray()
        self._need = -1  # bytes of the body, or of the chunk, that are to come; -1: until the end
        self._chunks: list[bytes] | None = None
        self._size = 0  # of the chunks
        self._trailer = False  # the last chunk was read
        self._head = True

    def feed(self, data: bytes) -> bool:
        """Takes what has arrived, nothing at the end of the connection, and reports whether the answer is complete."""
        if not data:
            return self._end()
        self.started = True
        self._buffer += data
        while self._head and not self.done:
            if not self._read_head():
                return False
        if self._chunks is not None:
            self._read_chunks(self._chunks)
        elif self._need >= 0 and len(self._buffer) >= self._need:
            self._finish(bytes(self._buffer[: self._need]), len(self._buffer) > self._need)
        elif len(self._buffer) > self._bound:
            raise self._too_long()
        return self.done

    def _finish(self, body: bytes, more: bool) -> None:
        self.body, self.done = body, True
        self.keep = self.keep and not more

    def _end(self) -> bool:
        if self.started and not self._head and self._chunks is None and self._need < 0:
            self.keep = False
            self._finish(bytes(self._buffer), False)
            return True
        raise ConnectionResetError("the connection ended before the answer")

    def _too_long(self) -> BadAnswerError:
        return BadAnswerError(f"an answer of over {self._bound} bytes")

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > MAX_HEAD:
            if len(self._buffer) > MAX_HEAD or (len(self._buffer) >= 5 and not self._buffer.startswith(b"HTTP/")):
                raise BadAnswerError("it does not begin like HTTP")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = lines[0].partition(" ")
        status = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (len(status) == 3 and status.isascii() and status.isdigit()):
            raise BadAnswerError(f"it begins with {lines[0][:80]!r}")
        self.status = int(status)
        self.headers.clear()
        headers = self.headers
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadAnswerError(f"a header line is {line[:80]!r}")
            name, value = name.strip().lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if 100 <= self.status < 200:
            return True  # the answer is still to come
        self._head = False
        connection = headers.get("connection", "").lower()
        self.keep = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
        self._measure()
        return True

    def _measure(self) -> None:
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._need = 0
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunks = []
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 16):
                raise BadAnswerError(f"its length is {length[:80]!r}")
            self._need = int(length)
            if self._need > self._bound:
                raise self._too_long()

    def _read_chunks(self, chunks: list[bytes]) -> None:
        while True:
            if self._need < 0 or self._trailer:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    if len(self._buffer) > MAX_HEAD:
                        raise BadAnswerError("a line between chunks has no end")
                    return
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 2]
                if self._trailer:
                    if not line:
                        self._finish(b"".join(chunks), bool(self._buffer))
                        return
                    continue
                size = line.partition(b";")[0].strip()
                self._need = int(size, 16) if size and not size.strip(b"0123456789abcdefABCDEF") else -1
                if not 0 <= self._need <= self._bound - self._size:
                    raise BadAnswerError(f"a chunk is said to have {size[:20]!r} bytes")
                self._trailer = self._need == 0
            else:
                if len(self._buffer) < self._need + 2:
                    return
                chunks.append(bytes(self._buffer[: self._need]))
                self._size += self._need
                del self._buffer[: self._need + 2]
                self._need = -1


def request(method: str, target: str, host: str, authorization: str, body: bytes | None) -> bytes:
    """Returns a request's bytes."""
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: rlnode-python\r\n"
    if authorization:
        head += f"Authorization: {authorization}\r\n"
    if body is None:
        return f"{head}\r\n".encode("latin-1")
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body
