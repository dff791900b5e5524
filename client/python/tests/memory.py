"""Makes checks, and shows how the memory of this process grows meanwhile.

python tests/memory.py sync|async http://127.0.0.1:8080 [--checks 1000000] [--bound MiB]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlnode import AsyncClient, Client

LIMITS: Any = [{"limit": 10**9, "per": "1h"}]


def resident() -> float:
    """Returns this process's memory in MiB."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def asynchronously(url: str, parts: int, size: int) -> list[float]:
    seen = []
    async with AsyncClient(url, on_error="closed", timeout=60) as client:
        for part in range(parts):
            for _ in range(size // 1000):
                found = await asyncio.gather(*(client.check(key=f"{part}-{i}", limits=LIMITS) for i in range(1000)))
                assert all(found), found[0].error
            seen.append(resident())
    return seen


def synchronously(url: str, parts: int, size: int) -> list[float]:
    seen = []
    with Client(url, on_error="closed", timeout=60) as client, ThreadPoolExecutor(16) as pool:

        def some(i: int) -> bool:
            return all(client.check(key=f"{i}-{n}", limits=LIMITS).allowed for n in range(size // 16))

        for _ in range(parts):
            assert all(pool.map(some, range(16)))
            seen.append(resident())
    return seen


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["sync", "async"])
    parser.add_argument("url")
    parser.add_argument("--checks", type=int, default=1_000_000)
    parser.add_argument("--bound", type=float, default=2.0, help="MiB that it may grow after the first tenth")
    options = parser.parse_args()
    began = time.monotonic()
    size = options.checks // 10
    seen = synchronously(options.url, 10, size) if options.kind == "sync" else asyncio.run(asynchronously(options.url, 10, size))
    grown = seen[-1] - seen[0]
    took = time.monotonic() - began
    print(f"{options.checks} checks in {took:.1f} s; MiB after each tenth: {', '.join(f'{n:.1f}' for n in seen)}; grown by {grown:.1f}")
    return 0 if grown <= options.bound else 1


if __name__ == "__main__":
    sys.exit(main())
