"""An API that is limited by rlnode: all of it by the server's rules, and its reports by a limit that comes with the call (an inline limit).

go run ./cmd/rlnode serve                                          in one terminal
examples/fastapi/run                                               in another: it makes a virtual environment and serves

curl -i http://127.0.0.1:8000/                      a page, and the headers that say what is left
for i in $(seq 4); do curl -s http://127.0.0.1:8000/report; done   three a minute, then 429
"""

import os

from fastapi import Depends, FastAPI, Request

from rlnode import AsyncClient
from rlnode.asgi import RateLimitMiddleware
from rlnode.fastapi import limit

nodes = os.environ.get("RLNODE_NODES", "http://127.0.0.1:8080").split(",")
# Without a node, each process limits by itself: each address to this, where the rules would decide, and reports to their own limit.
client = AsyncClient(nodes, token=os.environ.get("RLNODE_API_TOKEN"), on_error="local", local_limits=[{"limit": 100, "per": "1m"}])

app = FastAPI(on_shutdown=[client.close])
app.add_middleware(RateLimitMiddleware, client=client)

reports = limit(
    client, limits=[{"limit": 3, "per": "1m"}], namespace="reports", key=lambda request: request.client.host if request.client else "unknown"
)


@app.get("/")
async def page(request: Request) -> dict[str, object]:
    """Is limited by the server's rules."""
    decision = request.state.rlnode
    return {"rule": decision.rule, "left": decision.remaining, "decided_by": decision.decided_by}


@app.get("/report", dependencies=[Depends(reports)])
async def report() -> dict[str, str]:
    """Costs more, so it has a limit of its own."""
    return {"report": "all is well"}
