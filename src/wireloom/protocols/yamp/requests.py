"""Requests of one yamp connection that wait for their response: the ones we sent, and the ones the peer sent.

Implements the sections "request", "cancel" and "response" of the yamp specification. Both books are kept by id, the
text of the uid, and hold at most `limit` requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wireloom.model import LimitExceeded
from wireloom.protocols.yamp import frames
from wireloom.protocols.yamp.frames import ResponseType
from wireloom.protocols.yamp.uids import uid_text

_PROGRESS = ResponseType.PROGRESS


class Unanswered(NamedTuple):
    """A request that waits for its response."""

    uri: str
    progressive: bool


class Sent(dict[str, Unanswered]):
    """Requests we sent, until they are answered.

    >>> sent = Sent(limit=1)
    >>> sent["00010203-0405-0607-0809-0a0b0c0d0e0f"] = Unanswered("a/b", progressive=False)
    >>> response = frames.Response(bytes(16), "a/b", bytes(range(16)), ResponseType.DONE, b"")
    >>> sent.why_ignored(response), sent.why_ignored(response)
    (None, 'yamp.response.unknown')
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._cancelled: dict[str, None] = {}
        """Those of them we asked to cancel, the oldest first."""

    def make_room(self) -> None:
        """Forget a cancelled request if there are too many: a peer that never answers must not use up the limit."""
        if len(self) < self._limit:
            return
        if not self._cancelled:
            raise LimitExceeded(f"{len(self)} requests wait for a response; max_requests allows no more")
        self._settle(next(iter(self._cancelled)))

    def ask_all(self, ids: Sequence[str], uri: str) -> bool:
        """So many requests go out for one uri; False, and nothing done, if those are too many."""
        if len(self) + len(ids) > self._limit:
            return False
        self.update(dict.fromkeys(ids, Unanswered(uri, progressive=False)))
        return True

    def settle_all(self, ids: Sequence[str]) -> bool:
        """Responses arrived, each to a request that waits; False, and nothing done, if one did not."""
        answered = set(ids)
        if len(answered) < len(ids) or not self.keys() >= answered:
            return False
        for request_id in ids:
            self._settle(request_id)
        return True

    def why_ignored(self, response: frames.Response) -> str | None:
        """Take a response; returns the clause to count if nobody waits for it."""
        request_id = uid_text(response.request_uid)
        request = self.get(request_id)
        if request is None:
            return "yamp.response.unknown"
        if response.type is not _PROGRESS:
            self._settle(request_id)
        elif not request.progressive:
            return "yamp.progress.unrequested"
        return None

    def cancel(self, request_id: str, *, kill: bool) -> None:
        """We have sent a cancel; with `kill` no response follows."""
        if kill:
            self._settle(request_id)
        else:
            self._cancelled[request_id] = None

    def _settle(self, request_id: str) -> None:
        del self[request_id]
        self._cancelled.pop(request_id, None)


class Received(dict[str, Unanswered]):
    """Requests the peer sent, until we have answered them."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self.killed: dict[str, None] = {}
        """Requests the peer killed, whose late answers must not be sent; the oldest are forgotten first."""

    def add(self, request_id: str, request: frames.Request, others: int = 0) -> None:
        """Take a request; a violation if its uid is in use, or if there are too many, with `others` elsewhere."""
        if request_id in self:
            raise frames.violation("yamp.request.uid-reused", f"{request_id} is still unanswered")
        if len(self) + others >= self._limit:
            raise frames.violation(
                "yamp.request.too-many", f"{len(self) + others} requests are unanswered; max_requests allows no more"
            )
        self.killed.pop(request_id, None)
        self[request_id] = Unanswered(request.uri, request.progressive)

    def add_all(self, ids: Sequence[str], uris: Sequence[str]) -> bool:
        """Take requests; False, and nothing done, if one may break a rule."""
        asked = dict(zip(ids, [Unanswered(uri, progressive=False) for uri in uris], strict=True))
        if self.killed or len(asked) < len(ids) or not self.keys().isdisjoint(asked):
            return False
        if len(self) + len(ids) > self._limit:
            return False
        self.update(asked)
        return True

    def answer_all(self, ids: Sequence[str]) -> str | None:
        """Requests are answered, each of which waits, all for one uri: that one. None, and nothing done, if not so."""
        uris = {self[request_id].uri for request_id in ids if request_id in self}
        if len(uris) != 1 or len(set(ids)) < len(ids) or not self.keys() >= set(ids):
            return None
        for request_id in ids:
            del self[request_id]
        return uris.pop()

    def kill(self, request_id: str) -> None:
        """The peer has killed a request: no response may follow."""
        del self[request_id]
        self.killed[request_id] = None
        if len(self.killed) > self._limit:
            del self.killed[next(iter(self.killed))]
