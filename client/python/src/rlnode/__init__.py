"""Asks rlnode, a rate limiter, whether something may happen now.

>>> from rlnode import Client
>>> client = Client(nodes=["http://127.0.0.1:8080"])
>>> client.check(key="user-42", limits=[{"limit": 5, "per": "1m"}]).allowed
True
"""

from ._aio import AsyncClient
from ._answers import NEVER, Decision, Holder, LimitDecision, LimitUsage, Rate, Reservation, Settlement, Usage
from ._requests import Check, Limit, Subject, Target, fingerprint
from ._slots import AsyncSlot, Slot
from ._sync import Client
from .errors import (
    BadAnswerError,
    ClosedError,
    ConnectError,
    DeadlineError,
    MissingKeyError,
    NodeError,
    QueueFullError,
    RefusedError,
    RequestError,
    RlnodeError,
    SlotLostError,
    UnavailableError,
)

__version__ = "0.1.0"

__all__ = [
    "NEVER",
    "AsyncClient",
    "AsyncSlot",
    "BadAnswerError",
    "Check",
    "Client",
    "ClosedError",
    "ConnectError",
    "DeadlineError",
    "Decision",
    "Holder",
    "Limit",
    "LimitDecision",
    "LimitUsage",
    "MissingKeyError",
    "NodeError",
    "QueueFullError",
    "Rate",
    "RefusedError",
    "RequestError",
    "Reservation",
    "RlnodeError",
    "Settlement",
    "Slot",
    "SlotLostError",
    "Subject",
    "Target",
    "UnavailableError",
    "Usage",
    "fingerprint",
]
