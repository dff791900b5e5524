"""A dependency for FastAPI, which limits single routes.

>>> @app.get("/search", dependencies=[Depends(limit(client, "search"))])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from fastapi import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ._aio import AsyncClient
from ._answers import Decision
from ._requests import Key, Limit, Value
from ._web import Guard, refusal
from .asgi import decide, see


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
) -> Callable[[Request, Response], Awaitable[Decision]]:
    """Returns a dependency whose value is the decision. The arguments are those of asgi.RateLimitMiddleware.

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

    async def limited(request: Request, response: Response) -> Decision:
        decision = await decide(client, guard, request)
        if not decision.allowed:
            status, headers, _ = refusal(decision)
            told = {name: value for name, value in headers.items() if name not in ("Content-Type", "Content-Length")}
            own = decision.refusal or {}
            raise HTTPException(status, own.get("body") or own.get("detail") or decision.reason, told)
        response.headers.update(decision.headers)
        return decision

    return limited
