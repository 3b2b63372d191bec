"""Requests on their way from one peer to another: who asked, who answers, and what happens without an answer.

Theory of operation
-------------------
The problem: requester and provider number their requests independently, and may speak different protocols. Two
requesters may use the same id.

The idea: a request gets a new id on the provider's connection. An `Exchange` maps this id to the id that the requester
knows. Progress, answer and error come back with the provider's id; the hub replaces it. A cancel travels the other way.

Requests of one read for one topic and one provider share an `Exchange`. So they are encoded, stored and answered
together. The exchanges are ordered by deadline, because each one gets the same timeout when it is made. So `expire`
looks only at the front of the order.

The invariant: every request ends exactly once, and at that moment its ids leave both indexes. It ends with the
provider's answer, with an error of the hub (no answer in time, or the provider's connection is lost), with a cancel by
the requester, or with the requester's connection.

Example: peers A and B both send a request with id 1 to provider P. P receives the ids 7 and 8. P answers id 8: the hub
finds (B, 1), sends the response to B with id 1, and forgets id 8.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING

from wireloom.hub.logs import about
from wireloom.model import (
    NO_ATTRIBUTES,
    Authenticity,
    InvalidState,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    WireloomError,
    message_of,
)
from wireloom.protocols.contract import TRACE, Calls

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

NOT_FOUND, UNAVAILABLE, TIMED_OUT, BAD_REQUEST, UNSUPPORTED = "404", "503", "504", "400", "501"
UNKNOWN_TOKEN, FORBIDDEN, TOO_MANY = "401", "403", "429"
"""Statuses of errors that the hub itself sends. They are numbers because hsp's error codes are numbers."""


_REQUEST, _PROGRESS, _NOBODY = Kind.REQUEST, Kind.PROGRESS, Authenticity.NONE
_PORTION = 64
"""How many requests fail in one go before the event loop runs other tasks."""
_PASSED_ON = ("progressive", *TRACE)
"""Attributes of a request that are passed on to its provider."""


@dataclass(slots=True, eq=False)
class Exchange:
    """Requests that went from one peer to one provider together: a single one, or several of one read."""

    requester: Connection
    provider: Connection
    topic: str | None
    """The topic as the requester named it."""
    deadline: float
    waiting: dict[str, str]
    """The requests without an answer: the id at the provider, mapped to the id at the requester."""


class Exchanges:
    """All requests that wait for an answer."""

    def __init__(self, hub: Hub, timeout: float) -> None:
        self._hub = hub
        self.timeout = timeout
        self._by_provider: dict[Connection, dict[str, Exchange]] = {}
        """By provider, then by the request's id at the provider."""
        self._by_requester: dict[Connection, dict[str, tuple[Exchange, str]]] = {}
        """By requester, then by the request's id at the requester. The value includes the id at the provider."""
        self._waiting: OrderedDict[Exchange, None] = OrderedDict()
        """All exchanges, ordered by deadline."""
        self._count = 0

    def __len__(self) -> int:
        """How many requests wait for an answer."""
        return self._count

    def forward(self, requester: Connection, request: Message, provider: Connection, routed: Message) -> None:
        """Send a request, after routes have changed it, to its provider.

        If that fails, the requester gets an error at once.
        """
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
        self._remember(requester, provider, request.topic, {provider_id: request.id or ""})

    def forward_all(self, requester: Connection, calls: Calls, rows: Sequence[int], provider: Connection) -> None:
        """Send requests of a batch to their provider: each run of one topic together, if possible.

        Requests for several topics stay in order.
        """
        limits, codes = self._hub.config.limits, calls.codes
        for code, run in ((0, rows),) if len(calls.topics) == 1 else _runs(rows, codes):
            topic, ids = calls.topics[code], None
            if provider.unsent <= limits.queue_bytes and len(self) + len(run) <= limits.requests:
                ids = provider.ask_all(topic, calls.content_types[code], calls.bodies(run))
            if ids is not None:
                waiting = dict(zip(ids, [calls.ids[row] for row in run], strict=True))
                self._remember(requester, provider, topic, waiting)
                continue
            for row in run:
                request = calls.message(row)
                self.forward(requester, request, provider, request)

    def _remember(
        self, requester: Connection, provider: Connection, topic: str | None, waiting: dict[str, str]
    ) -> None:
        """Store requests that now wait for their answers."""
        exchange = Exchange(requester, provider, topic, self._hub.now() + self.timeout, waiting)
        self._waiting[exchange] = None
        self._count += len(waiting)
        by_provider = self._by_provider.setdefault(provider, {})
        by_requester = self._by_requester.setdefault(requester, {})
        for provider_id, request_id in waiting.items():
            by_provider[provider_id] = exchange
            by_requester[request_id] = exchange, provider_id

    def asked(self, provider: Connection, provider_id: str) -> Exchange | None:
        """The exchange of the request with this id at its provider."""
        return self._by_provider.get(provider, {}).get(provider_id)

    def waiting(self, requester: Connection, request_id: str) -> Exchange | None:
        """The exchange of the request with this id at its requester."""
        return self._by_requester.get(requester, {}).get(request_id, (None, ""))[0]

    def answer(self, provider: Connection, message: Message) -> None:
        """Pass on progress, an answer or an error from a provider."""
        provider_id = message.correlation_id or ""
        exchange = self.asked(provider, provider_id)
        if exchange is None:
            return
        requester, request = exchange.requester, _request(exchange, exchange.waiting[provider_id])
        if message.kind is not _PROGRESS:
            self._forget(exchange, (provider_id,))
            self._hub.metrics.requests.add(1, requester.name, message.status or str(message.kind))
        else:
            self._renew(exchange, provider_id)
        if requester.unsent > self._hub.config.limits.queue_bytes:
            self._hub.reached("queue_bytes")
            requester.cut_off("slow-consumer")
            return
        try:
            requester.send(message_of((
                message.kind, request.topic, message.body, None, request.id, message.status, message.content_type,
                NO_ATTRIBUTES, "", None, None, None, _NOBODY,
            )))  # fmt: skip
        except (NotSupported, InvalidState, LimitExceeded) as error:
            if message.kind is Kind.ERROR and isinstance(error, NotSupported | InvalidState):
                self._untold(requester, request, error)
                return
            self._hub.metrics.undeliverable.add(1, requester.name)
            # hsp and emp cannot express progress: it is dropped, and the requester just waits for the answer. An answer
            # is never dropped: the requester gets an error instead.
            if message.kind is not _PROGRESS:
                self.fail(requester, request, UNSUPPORTED, f"there is an answer, but {error}")
        except WireloomError as error:
            extra = about("answer.unsent", requester)
            log.info("%r: an answer could not be sent: %s", requester, error, extra=extra)

    def _renew(self, exchange: Exchange, provider_id: str) -> None:
        """Give a request a new deadline, because its provider reported progress."""
        if len(exchange.waiting) > 1:
            (request_id,) = self._forget(exchange, (provider_id,))
            self._remember(exchange.requester, exchange.provider, exchange.topic, {provider_id: request_id})
        else:
            exchange.deadline = self._hub.now() + self.timeout
            self._waiting.move_to_end(exchange)

    def answer_all(self, provider: Connection, calls: Calls) -> None:
        """Pass on answers from a provider: together if they belong to one exchange, otherwise one by one."""
        asked, most = self._by_provider.get(provider, {}), self._hub.config.limits.queue_bytes
        groups: dict[tuple[Exchange, int], list[int]] = {}
        last, rows = None, list[int]()
        for row, key in enumerate(zip(map(asked.get, calls.ids), calls.codes, strict=True)):
            exchange, code = key
            if exchange is None:
                continue
            if key != last:
                last, rows = key, groups.setdefault((exchange, code), [])
            rows.append(row)
        for (exchange, code), rows in groups.items():
            if exchange not in self._waiting:
                continue  # the requester was dropped: it was too slow for earlier answers
            requester, ids = exchange.requester, [calls.ids[row] for row in rows]
            if requester.unsent <= most and requester.answer_all(
                exchange.topic, calls.content_types[code], [*map(exchange.waiting.__getitem__, ids)], calls.bodies(rows)
            ):
                self._forget(exchange, ids)
                self._hub.metrics.requests.add(len(rows), requester.name, "done")
                continue
            for row in rows:
                self.answer(provider, calls.message(row))

    def cancel(self, requester: Connection, message: Message) -> None:
        """Handle a cancel: the requester no longer wants the answer, or wants it cut short."""
        request_id = message.correlation_id or ""
        exchange, provider_id = self._by_requester.get(requester, {}).get(request_id, (None, ""))
        if exchange is None:
            return
        kill = message.attributes.get("kill") == "true"
        told = self._stop(exchange, provider_id, kill=kill)
        if kill:
            self._forget(exchange, (provider_id,))
            self._hub.metrics.requests.add(1, requester.name, "killed")
        elif not told:
            self._forget(exchange, (provider_id,))
            text = f"the provider speaks {exchange.provider.name}, which has no cancel; its answer will be ignored"
            self.fail(requester, _request(exchange, request_id), UNSUPPORTED, text)

    def _stop(self, exchange: Exchange, provider_id: str, *, kill: bool) -> bool:
        """Tell a provider that its answer is no longer wanted. Returns False if its protocol cannot say so."""
        attributes = {"kill": "true"} if kill else {}
        cancel = Message(Kind.CANCEL, exchange.topic, correlation_id=provider_id, attributes=attributes)
        try:
            exchange.provider.send(cancel)
        except (NotSupported, InvalidState, PeerClosed):
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
        except (NotSupported, InvalidState) as unsaid:
            self._untold(requester, request, unsaid)
        except WireloomError as unsent:
            extra = about("answer.unsent", requester)
            log.info("%r: an answer could not be sent: %s", requester, unsent, extra=extra)

    def _untold(self, requester: Connection, request: Message, why: WireloomError) -> None:
        """Report a failed request whose requester cannot be told: publish a notice instead."""
        extra = about("answer.unsaid", requester)
        log.info("%r: request %s failed, and %s", requester, request.id, why, extra=extra)
        self._hub.router.undeliverable(requester, request, f"a request failed, and {why}")

    def _forget(self, exchange: Exchange, provider_ids: Iterable[str]) -> list[str]:
        """Remove requests of an exchange that no longer wait. Returns their ids at the requester."""
        waiting = exchange.waiting
        by_provider, by_requester = self._by_provider[exchange.provider], self._by_requester[exchange.requester]
        request_ids = []
        for provider_id in provider_ids:
            request_id = waiting.pop(provider_id)
            request_ids.append(request_id)
            del by_provider[provider_id]
            by_requester.pop(request_id, None)
        self._count -= len(request_ids)
        if not waiting:
            del self._waiting[exchange]
        return request_ids

    def drop(self, connection: Connection) -> None:
        """Handle a lost connection: forget its own requests, and fail at once those it should have answered."""
        lost = [(exchange, number) for number, exchange in self._by_provider.get(connection, {}).items()]
        self._fail_all(self._failing(lost), UNAVAILABLE, "the provider's connection was lost")
        for exchange, provider_id in list(self._by_requester.get(connection, {}).values()):
            self._forget(exchange, (provider_id,))
            self._stop(exchange, provider_id, kill=True)
        self._by_provider.pop(connection, None)
        self._by_requester.pop(connection, None)
        self._hub.write_out()

    def expire(self, now: float) -> None:
        """Fail requests whose deadline has passed."""
        late: list[tuple[Exchange, str]] = []
        for exchange in self._waiting:
            if exchange.deadline > now or len(late) == _PORTION:
                break
            late += [(exchange, number) for number in islice(exchange.waiting, _PORTION - len(late))]
        for exchange, provider_id in late:
            self._stop(exchange, provider_id, kill=True)
            self._hub.reached("request_timeout")
        if len(late) == _PORTION:
            self._hub.call_soon(self.expire, now)
        self._fail_all(self._failing(late), TIMED_OUT, "the provider did not answer in time")
        self._hub.write_out()

    def _failing(self, lost: Iterable[tuple[Exchange, str]]) -> deque[tuple[Connection, Message]]:
        """Remove requests that nobody will answer. Returns each with its requester."""
        return deque(
            (exchange.requester, _request(exchange, *self._forget(exchange, (provider_id,))))
            for exchange, provider_id in lost
        )

    def _fail_all(self, requests: deque[tuple[Connection, Message]], status: str, text: str) -> None:
        """Answer many requests with an error, `_PORTION` at a time."""
        for _ in range(min(_PORTION, len(requests))):
            self.fail(*requests.popleft(), status, text)
        if requests:
            self._hub.call_soon(self._fail_more, requests, status, text)

    def _fail_more(self, requests: deque[tuple[Connection, Message]], status: str, text: str) -> None:
        self._fail_all(requests, status, text)
        self._hub.write_out()


def _request(exchange: Exchange, request_id: str) -> Message:
    """A request of an exchange, without its body: only the provider has that."""
    return Message(_REQUEST, exchange.topic, b"", request_id)


def _runs(rows: Sequence[int], codes: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Group consecutive rows with the same code."""
    return ((code, list(run)) for code, run in groupby(rows, codes.__getitem__))


def answer_to(request: Message, body: bytes, content_type: str | None) -> Message:
    """The response to a request that succeeded."""
    return Message(Kind.RESPONSE, request.topic, body, None, request.id, "done", content_type)
