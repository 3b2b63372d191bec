"""Pending requests in both directions: the rules of the request-response extension.

An id is in use from the request until its response. Our ids count up from 1 and are never used twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from wireloom.model import LimitExceeded
from wireloom.protocols.emp.extensions import MAX_ID
from wireloom.protocols.emp.frames import violation
from wireloom.protocols.pending_acks import Owed, OwedBatches


class Pending:
    """The requests of one connection that are not answered yet.

    >>> pending = Pending(max_requests=1)
    >>> pending.asked(pending.next_id())
    >>> pending.next_id()
    Traceback (most recent call last):
    wireloom.errors.LimitExceeded: 1 requests wait for a response, as many as max_requests allows
    """

    def __init__(self, max_requests: int) -> None:
        self.max_requests = max_requests
        """The limit of each direction."""
        self.last_id = 0
        """The id of the last request that we sent."""
        self.waiting: set[str] = set()
        """Ids of requests that we sent."""
        self.owed: dict[str, int] = {}
        """Pending requests of the peer: their ids as in messages, mapped to the ids on the wire."""
        self.owed_batches = OwedBatches()
        """Pending publishes that are kept a batch at a time; their ids are not in `owed`."""

    # Requests that we send

    def next_id(self) -> str:
        """The id that the next request gets; raises LimitExceeded where none can be sent."""
        if self.last_id >= MAX_ID:
            raise LimitExceeded("all request identifiers of this connection are used: open another")
        if len(self.waiting) >= self.max_requests:
            raise LimitExceeded(f"{len(self.waiting)} requests wait for a response, as many as max_requests allows")
        return str(self.last_id + 1)

    def asked(self, request_id: str) -> None:
        """A request is sent with the id from `next_id`."""
        self.waiting.add(request_id)
        self.last_id += 1

    def settle(self, request_id: str) -> None:
        """A response arrived: its request is no longer pending."""
        if request_id not in self.waiting:
            raise violation("emp.response.unknown-id", f"no request {request_id} waits for a response")
        self.waiting.remove(request_id)

    # Many at once: nothing changes if one of them may break a rule

    def ask_all(self, count: int) -> list[str] | None:
        """Draw the ids of `count` requests."""
        first = self.last_id + 1
        if self.last_id + count > MAX_ID or len(self.waiting) + count > self.max_requests:
            return None
        ids = list(map(str, range(first, first + count)))
        self.waiting.update(ids)
        self.last_id += count
        return ids

    def settle_all(self, ids: Sequence[str]) -> bool:
        """Responses arrived; False unless each answers a pending request."""
        answered = set(ids)
        if len(answered) < len(ids) or not answered <= self.waiting:
            return False
        self.waiting -= answered
        return True

    def owe_all(self, ids: Sequence[str]) -> bool:
        """Requests arrived; False if one of their ids is in use."""
        asked = dict(zip(ids, map(int, ids), strict=True))
        batches = self.owed_batches
        if len(asked) < len(ids) or not self.owed.keys().isdisjoint(asked):
            return False
        if batches and any(map(batches.has, asked.values())):
            return False
        if len(self.owed) + batches.size + len(ids) > self.max_requests:
            return False
        self.owed.update(asked)
        return True

    def answer_all(self, ids: Sequence[str]) -> bool:
        """Requests are answered; False unless each is pending."""
        if len(answered := set(ids)) < len(ids) or not self.owed.keys() >= answered:
            return False
        for request_id in ids:
            del self.owed[request_id]
        return True

    # Requests that the peer sends

    @property
    def owes(self) -> bool:
        """Whether any request of the peer is pending."""
        return bool(self.owed or self.owed_batches)

    def owe(self, request_id: str) -> None:
        """A request arrived: its id is in use until its answer."""
        batches = self.owed_batches
        if request_id in self.owed or (batches and batches.has(int(request_id))):
            raise violation("emp.request.reused-id", f"request {request_id} is still unanswered")
        count = len(self.owed) + batches.size
        if count >= self.max_requests:
            raise violation("emp.request.too-many", f"{count} requests are unanswered, as many as max_requests allows")
        self.owed[request_id] = int(request_id)

    def admit(self, owed: Owed) -> bool:
        """Register the requests of a batch; False if one may break a rule. The caller then decodes frame by frame."""
        return self.owed_batches.admit(owed, self.owed.values(), len(self.owed), self.max_requests)
