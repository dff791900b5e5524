"""A dependency for FastAPI, which limits single routes.

>>> @app.get("/search", dependencies=[Depends(limit(client, "search"))])
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from fastapi import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ._aio import AsyncClient
from ._answers import Decision
from ._requests import Key, Limit, Value
from ._slots import AsyncSlot, Held
from ._web import Guard, refusal
from .asgi import decide, give_back, see


def limit(
    client: AsyncClient,
    rule: str | None = None,
    *,
    key: Callable[[Request], Key | None] | None = None,
    attributes: Callable[[Request], Mapping[str, Value]] | None = None,
    limits: Sequence[Limit] | None = None,
    namespace: str | None = None,
    trusted_hops: int = 0,
    costs: Callable[[Request], Mapping[str, int] | None] | None = None,
    missing_key: str = "refuse",
    slots: bool = False,
    slot_ttl: float | None = None,
) -> Callable[..., Any]:
    """Returns a dependency whose value is the decision. The arguments are those of asgi.RateLimitMiddleware.

    With slots, FastAPI ends the dependency, which releases them, when the answer has been sent. Versions before 0.118 did so before.

    What is refused gets an HTTPException: 429, 403 if it is denied, 400 if its key is missing, 503 if no node decided.
    """

    def see_request(request: HTTPConnection) -> object:
        return see(request.scope)

    guard: Guard[Request] = Guard(
        see_request,  # type: ignore[arg-type]
        rule,
        key,
        attributes,
        limits,
        namespace,
        trusted_hops,
        costs,
        missing_key=missing_key,
    )
    if rule is not None:
        client.expect_rules(rule)

    async def decided(request: Request, response: Response) -> tuple[Decision, Held | None]:
        decision, held = await decide(client, guard, request, slots, slot_ttl)
        if not decision.allowed:
            status, headers, _ = refusal(decision)
            told = {name: value for name, value in headers.items() if name not in ("Content-Type", "Content-Length")}
            own = decision.refusal or {}
            raise HTTPException(status, own.get("body") or own.get("detail") or decision.reason, told)
        response.headers.update(decision.headers)
        return decision, held

    async def limited(request: Request, response: Response) -> Decision:
        return (await decided(request, response))[0]

    async def holding(request: Request, response: Response) -> AsyncIterator[Decision]:
        decision, held = await decided(request, response)
        if held is None:
            yield decision
            return
        request.state.rlnode_slot = AsyncSlot(decision, held)
        watching = asyncio.ensure_future(_until_gone(request, held))
        try:
            yield decision
        finally:
            watching.cancel()
            held.keeper.spawn(lambda: give_back(held))

    return holding if slots else limited


async def _until_gone(request: Request, held: Held) -> None:
    """Releases a slot when the caller hangs up, if nobody else has to read what the server sends."""
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if has_body and not hasattr(request, "_body"):
        return
    while (await request.receive())["type"] != "http.disconnect":
        pass
    held.keeper.spawn(lambda: give_back(held))  # the dependency's end does not cancel that
