"""Requests on their way from one peer to another: who asked, who answers, and what if nobody does.

A request gets a new id on the provider's connection; its progress, answer, error and cancel are matched by that id
and go back under the id the requester knows.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING

from wireloom.hub.logs import about
from wireloom.model import (
    NO_ATTRIBUTES,
    Authenticity,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    WireloomError,
    message_of,
)
from wireloom.protocols.column_session import CallSession
from wireloom.protocols.contract import TRACE, Calls

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

NOT_FOUND, UNAVAILABLE, TIMED_OUT, BAD_REQUEST, UNSUPPORTED = "404", "503", "504", "400", "501"
UNKNOWN_TOKEN, FORBIDDEN, TOO_MANY = "401", "403", "429"
"""Statuses of errors that the hub itself answers with; numbers, because hsp's error codes are."""


# Looking up members of an enum takes as long as a call.
_REQUEST, _PROGRESS, _NOBODY = Kind.REQUEST, Kind.PROGRESS, Authenticity.NONE
_PORTION = 64
"""Requests that fail together before others on the loop have their turn."""
_PASSED_ON = ("progressive", *TRACE)
"""Attributes of a request that its provider learns."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request that waits for its answer."""

    requester: Connection
    request: Message
    provider: Connection
    provider_id: str
    deadline: float


class Exchanges:
    """All requests that wait for a provider."""

    def __init__(self, hub: Hub, timeout: float) -> None:
        self._hub = hub
        self.timeout = timeout
        self._by_provider: dict[Connection, dict[str, Exchange]] = {}
        """By provider, then by the id that a request has there; `_by_requester` likewise."""
        self._by_requester: dict[Connection, dict[str, Exchange]] = {}
        self._waiting: OrderedDict[Exchange, None] = OrderedDict()
        """All of them, those that expire first at first."""

    def __len__(self) -> int:
        return len(self._waiting)

    def forward(self, requester: Connection, request: Message, provider: Connection, routed: Message) -> None:
        """Hand a request, as routes have left it, to its provider; failures are answered at once."""
        limits = self._hub.config.limits
        if len(self) >= limits.requests:
            self._hub.reached("requests")
            most = f"{limits.requests} requests wait for their answers already (requests in [limits])"
            self.fail(requester, request, TOO_MANY, most)
            return
        if provider.unsent > limits.queue_bytes:
            self._hub.reached("queue_bytes")
            most = f"the provider does not read what waits for it (queue_bytes in [limits], {limits.queue_bytes})"
            self.fail(requester, request, UNAVAILABLE, most)
            return
        attributes = request.attributes
        if attributes:
            attributes = {key: value for key, value in attributes.items() if key in _PASSED_ON}
        asked = message_of((
            _REQUEST, routed.topic, routed.body, None, None, None, routed.content_type, attributes,
            "", None, None, None, _NOBODY,
        ))  # fmt: skip
        try:
            provider_id = provider.send(asked).id or ""
        except WireloomError as error:
            status = UNAVAILABLE if isinstance(error, PeerClosed) else UNSUPPORTED
            self.fail(requester, request, status, str(error))
            return
        if request.body:
            request = request.with_(body=b"")  # the provider has it
        self._remember(requester, provider, ((request, provider_id),))

    def forward_all(self, requester: Connection, calls: Calls, rows: Sequence[int], provider: Connection) -> None:
        """Hand requests of a batch to their provider: together, or one by one where that cannot be."""
        limits, ids = self._hub.config.limits, list[str]()
        frames = None
        if (
            provider.driver.failure is None
            and provider.unsent <= limits.queue_bytes
            and len(self) + len(rows) <= limits.requests
        ):

            def draw(session: CallSession) -> Sequence[str] | None:
                ids.extend(session.new_ids(len(rows)) or ())
                return ids or None

            frames = calls.frames(rows, provider.session, draw)
        if frames is None:
            for row in rows:
                request = calls.message(row)
                self.forward(requester, request, provider, request)
            return
        provider.send_frames(frames, len(rows))
        topics = calls.topics_of(rows)
        requests = [Message(_REQUEST, topic, b"", calls.ids[row]) for row, topic in zip(rows, topics, strict=True)]
        self._remember(requester, provider, zip(requests, ids, strict=True))

    def _remember(self, requester: Connection, provider: Connection, asked: Iterable[tuple[Message, str]]) -> None:
        """Requests, without their bodies, wait for their answers under these ids of their provider."""
        deadline, waiting = self._hub.now() + self.timeout, self._waiting
        by_provider = self._by_provider.setdefault(provider, {})
        by_requester = self._by_requester.setdefault(requester, {})
        for request, provider_id in asked:
            exchange = Exchange(requester, request, provider, provider_id, deadline)
            waiting[exchange] = None
            by_provider[provider_id] = exchange
            by_requester[request.id or ""] = exchange

    def asked(self, provider: Connection, provider_id: str) -> Exchange | None:
        """The request that has this id at its provider."""
        return self._by_provider.get(provider, {}).get(provider_id)

    def waiting(self, requester: Connection, request_id: str) -> Exchange | None:
        """The request that has this id at its requester."""
        return self._by_requester.get(requester, {}).get(request_id)

    def answer(self, provider: Connection, message: Message) -> None:
        """Progress, an answer or an error came from a provider."""
        exchange = self.asked(provider, message.correlation_id or "")
        if exchange is None:
            return
        requester, request = exchange.requester, exchange.request
        if message.kind is not _PROGRESS:
            self._forget(exchange)
            self._hub.metrics.requests.add(1, requester.name, message.status or str(message.kind))
        else:
            # A provider that tells of its progress has the time anew.
            exchange.deadline = self._hub.now() + self.timeout
            self._waiting.move_to_end(exchange)
        if requester.unsent > self._hub.config.limits.queue_bytes:
            self._hub.reached("queue_bytes")
            requester.cut_off("slow-consumer")
            return
        try:
            requester.send(message_of((
                message.kind, request.topic, message.body, None, request.id, message.status, message.content_type,
                NO_ATTRIBUTES, "", None, None, None, _NOBODY,
            )))  # fmt: skip
        except (NotSupported, LimitExceeded) as error:
            if message.kind is Kind.ERROR and isinstance(error, NotSupported):
                self._untold(requester, request, error)
                return
            self._hub.metrics.undeliverable.add(1, requester.name)
            # hsp and emp have no word for progress: the requester just waits. An answer must not get lost that way.
            if message.kind is not _PROGRESS:
                self.fail(requester, request, UNSUPPORTED, f"there is an answer, but {error}")
        except WireloomError as error:
            extra = about("answer.unsent", requester)
            log.info("%r: an answer could not be sent: %s", requester, error, extra=extra)

    def answer_all(self, provider: Connection, calls: Calls) -> None:
        """Answers came from a provider: those for one requester go to it together, or else one by one."""
        asked = self._by_provider.get(provider, {})
        groups: dict[tuple[Connection, str | None], list[tuple[int, Exchange]]] = {}
        for row, provider_id in enumerate(calls.ids):
            exchange = asked.get(provider_id)
            if exchange is not None:
                groups.setdefault((exchange.requester, exchange.request.topic), []).append((row, exchange))
        for (requester, topic), found in groups.items():
            rows = [row for row, _ in found]
            frames = None
            if requester.driver.failure is None and requester.unsent <= self._hub.config.limits.queue_bytes:
                ids = [exchange.request.id or "" for _, exchange in found]
                frames = calls.frames(rows, requester.session, methodcaller("answer_all", ids), topic)
            if frames is None:
                for row in rows:
                    self.answer(provider, calls.message(row))
                continue
            requester.send_frames(frames, len(rows))
            for _, exchange in found:
                self._forget(exchange)
            self._hub.metrics.requests.add(len(rows), requester.name, "done")

    def cancel(self, requester: Connection, message: Message) -> None:
        """The requester no longer wants the answer, or wants it cut short."""
        exchange = self.waiting(requester, message.correlation_id or "")
        if exchange is None:
            return
        kill = message.attributes.get("kill") == "true"
        told = self._stop(exchange, kill=kill)
        if kill:
            self._forget(exchange)
            self._hub.metrics.requests.add(1, requester.name, "killed")
        elif not told:
            self._forget(exchange)
            text = f"the provider speaks {exchange.provider.name}, which has no cancel; its answer will be ignored"
            self.fail(requester, exchange.request, UNSUPPORTED, text)

    def _stop(self, exchange: Exchange, *, kill: bool) -> bool:
        """Tell a provider that its answer is no longer wanted; False where its protocol has no way to say so."""
        attributes = {"kill": "true"} if kill else {}
        cancel = Message(
            Kind.CANCEL, exchange.request.topic, correlation_id=exchange.provider_id, attributes=attributes
        )
        try:
            exchange.provider.send(cancel)
        except (NotSupported, PeerClosed):
            self._hub.metrics.undeliverable.add(1, exchange.provider.name)
            return False
        return True

    def fail(self, requester: Connection, request: Message, status: str, text: str) -> None:
        """Answer a request with an error of the hub."""
        self._hub.metrics.requests.add(1, requester.name, status)
        error = Message(
            Kind.ERROR,
            request.topic,
            text.encode(),
            correlation_id=request.id,
            status=status,
            content_type="text/plain",
        )
        try:
            requester.send(error)
        except NotSupported as unsaid:
            self._untold(requester, request, unsaid)
        except WireloomError as unsent:
            extra = about("answer.unsent", requester)
            log.info("%r: an answer could not be sent: %s", requester, unsent, extra=extra)

    def _untold(self, requester: Connection, request: Message, why: NotSupported) -> None:
        """A request failed, and the peer cannot be told: others are."""
        extra = about("answer.unsaid", requester)
        log.info("%r: request %s failed, and %s", requester, request.id, why, extra=extra)
        self._hub.router.undeliverable(requester, request, f"a request failed, and {why}")

    def _forget(self, exchange: Exchange) -> None:
        self._waiting.pop(exchange, None)
        self._by_provider.get(exchange.provider, {}).pop(exchange.provider_id, None)
        self._by_requester.get(exchange.requester, {}).pop(exchange.request.id or "", None)

    def drop(self, connection: Connection) -> None:
        """A connection is gone: its requests are forgotten, those it should have answered fail at once."""
        lost = list(self._by_provider.get(connection, {}).values())
        for exchange in lost:
            self._forget(exchange)
        self._fail_all(deque(lost), UNAVAILABLE, "the provider's connection was lost")
        for exchange in list(self._by_requester.get(connection, {}).values()):
            self._forget(exchange)
            self._stop(exchange, kill=True)
        self._by_provider.pop(connection, None)
        self._by_requester.pop(connection, None)
        self._hub.write_out()

    def expire(self, now: float) -> None:
        """Fail what has waited too long."""
        late: deque[Exchange] = deque()
        while self._waiting and (exchange := next(iter(self._waiting))).deadline <= now and len(late) < _PORTION:
            self._forget(exchange)
            self._stop(exchange, kill=True)
            self._hub.reached("request_timeout")
            late.append(exchange)
        if len(late) == _PORTION:
            self._hub.call_soon(self.expire, now)
        self._fail_all(late, TIMED_OUT, "the provider did not answer in time")
        self._hub.write_out()

    def _fail_all(self, exchanges: deque[Exchange], status: str, text: str) -> None:
        """Answer many requests with an error, a portion at a time."""
        for _ in range(min(_PORTION, len(exchanges))):
            exchange = exchanges.popleft()
            self.fail(exchange.requester, exchange.request, status, text)
        if exchanges:
            self._hub.call_soon(self._fail_more, exchanges, status, text)

    def _fail_more(self, exchanges: deque[Exchange], status: str, text: str) -> None:
        self._fail_all(exchanges, status, text)
        self._hub.write_out()


def answer_to(request: Message, body: bytes, content_type: str | None) -> Message:
    """The response to a request that was done."""
    return Message(Kind.RESPONSE, request.topic, body, None, request.id, "done", content_type)
