"""Asks rlnode, a rate limiter, whether something may happen now.

>>> from rlnode import Client
>>> client = Client(nodes=["http://127.0.0.1:8080"])
>>> client.check(key="user-42", limits=[{"limit": 5, "per": "1m"}]).allowed
True
"""

from ._aio import AsyncClient
from ._answers import NEVER, Decision, LimitDecision, LimitUsage, Rate, Reservation, Settlement, Usage
from ._requests import Check, Limit, Subject, Target, fingerprint
from ._sync import Client
from .errors import (
    BadAnswerError,
    ClosedError,
    ConnectError,
    DeadlineError,
    MissingKeyError,
    NodeError,
    QueueFullError,
    RequestError,
    RlnodeError,
    UnavailableError,
)

__version__ = "0.1.0"

__all__ = [
    "NEVER",
    "AsyncClient",
    "BadAnswerError",
    "Check",
    "Client",
    "ClosedError",
    "ConnectError",
    "DeadlineError",
    "Decision",
    "Limit",
    "LimitDecision",
    "LimitUsage",
    "MissingKeyError",
    "NodeError",
    "QueueFullError",
    "Rate",
    "RequestError",
    "Reservation",
    "RlnodeError",
    "Settlement",
    "Subject",
    "Target",
    "UnavailableError",
    "Usage",
    "fingerprint",
]
