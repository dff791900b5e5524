"""What can go wrong in a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._answers import Decision


class RlnodeError(Exception):
    """The base of all errors of this package."""


class RequestError(RlnodeError, ValueError):
    """No node could decide this call, so nothing is sent."""


class MissingKeyError(RequestError):
    """The key, or a part of it, is missing, so that nobody knows whose the call is."""


class ClosedError(RlnodeError):
    """The client is closed."""


class QueueFullError(RlnodeError):
    """Too many calls wait already, or nodes kept answering others and this call's turn came too late."""


class UnavailableError(RlnodeError):
    """No node answers."""


class DeadlineError(UnavailableError, TimeoutError):
    """No node answered in time."""


class ConnectError(UnavailableError):
    """No connection came about, so the call was not carried out."""


class BadAnswerError(UnavailableError):
    """The answer does not come from an rlnode node, or breaks the protocol."""


class SlotLostError(RlnodeError):
    """The slot may no longer be held: it is over, or no node has renewed it in time."""


class RefusedError(RlnodeError):
    """There is no slot. Its decision says why."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class NodeError(RlnodeError):
    """A node's answer that is an error. Below status 500 the node is healthy, and rejects the call."""

    def __init__(self, status: int, code: str, title: str, detail: str, node: str) -> None:
        super().__init__(status, code, title, detail, node)
        self.status = status
        #: such as ``unknown-rule``, ``unauthorized``, ``bad-value``, ``unknown-reservation``
        self.code = code
        self.title = title
        #: a sentence that names the field and the bound
        self.detail = detail
        #: the address of the node
        self.node = node

    @property
    def rejects(self) -> bool:
        """Whether the node rejects this client: its token is wrong, or lacks the scope."""
        return self.status == 401 or (self.status == 403 and self.code == "forbidden")

    def __str__(self) -> str:
        return f"{self.node} answers {self.status} {self.code}: {self.detail}"
