"""Requests on their way from one peer to another: who asked, who answers, and what if nobody does.

A request gets a new id on the provider's connection; its progress, answer, error and cancel are matched by that id
and go back under the id the requester knows.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireloom.hub.logs import about
from wireloom.model import (
    Authenticity,
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
"""Statuses of errors that the hub itself answers with; numbers, because hsp's error codes are."""


# Looking up members of an enum takes as long as a call.
_REQUEST, _RESPONSE, _PROGRESS, _NOBODY = Kind.REQUEST, Kind.RESPONSE, Kind.PROGRESS, Authenticity.NONE
_DONE = "done"
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


@dataclass(slots=True, eq=False)
class Portion:
    """Requests of one read that went to one provider together, as bytes; each may leave it to be an exchange."""

    requester: Connection
    topic: str
    provider: Connection
    ids: dict[str, str]
    """Those that wait: the ids that the requester gave them, by those that the provider knows."""
    deadline: float


class Exchanges:
    """All requests that wait for a provider."""

    def __init__(self, hub: Hub, timeout: float) -> None:
        self._hub = hub
        self.timeout = timeout
        self._by_provider: dict[Connection, dict[str, Exchange | Portion]] = {}
        """By provider, then by the id that a request has there; `_by_requester` likewise."""
        self._by_requester: dict[Connection, dict[str, Exchange | Portion]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_provider.values()))

    def forward(self, requester: Connection, request: Message, provider: Connection, routed: Message) -> None:
        """Hand a request, as routes have left it, to its provider; failures are answered at once."""
        attributes = request.attributes
        if attributes:
            attributes = {key: value for key, value in attributes.items() if key in _PASSED_ON}
        asked = message_of((
            _REQUEST, routed.topic, routed.body, None, None, None, routed.content_type, attributes,
            "", None, None, None, _NOBODY,
        ))  # fmt: skip
        try:
            provider_id = provider.ask(asked)
        except WireloomError as error:
            status = UNAVAILABLE if isinstance(error, PeerClosed) else UNSUPPORTED
            self.fail(requester, request, status, str(error))
            return
        exchange = Exchange(requester, request, provider, provider_id, self._hub.now() + self.timeout)
        try:
            self._by_provider[provider][provider_id] = exchange
        except KeyError:
            self._by_provider[provider] = {provider_id: exchange}
        try:
            self._by_requester[requester][request.id or ""] = exchange
        except KeyError:
            self._by_requester[requester] = {request.id or "": exchange}

    def forward_all(self, requester: Connection, calls: Calls, provider: Connection) -> None:
        """Hand requests of one read to a provider that can take them as they are."""
        provider_ids = provider.relay(calls)
        ids = dict(zip(provider_ids, calls.ids, strict=True))
        portion = Portion(requester, calls.topic, provider, ids, self._hub.now() + self.timeout)
        self._by_provider.setdefault(provider, {}).update(dict.fromkeys(provider_ids, portion))
        self._by_requester.setdefault(requester, {}).update(dict.fromkeys(calls.ids, portion))

    def answer_all(self, provider: Connection, calls: Calls) -> None:
        """Answers of one read came from a provider: those to one portion go back together."""
        asked = self._by_provider.get(provider, {})
        start = 0
        for found, group in itertools.groupby(map(asked.get, calls.ids)):
            end = start + sum(1 for _ in group)
            part = calls if end - start == calls.count else calls.part(slice(start, end))
            start = end
            if isinstance(found, Portion) and found.topic == calls.topic and found.requester.can_relay(part):
                self._answer_portion(found, part)
            else:
                for message in part.messages():
                    self.answer(provider, message)

    def _answer_portion(self, portion: Portion, calls: Calls) -> None:
        asked, waiting = self._by_provider[portion.provider], self._by_requester[portion.requester]
        ids = list(map(portion.ids.pop, calls.ids))
        for provider_id, requester_id in zip(calls.ids, ids, strict=True):
            del asked[provider_id], waiting[requester_id]
        self._hub.metrics.requests.add(calls.count, portion.requester.name, _DONE)
        portion.requester.relay_back(calls, ids)

    def asked(self, provider: Connection, provider_id: str) -> Exchange | None:
        """The request that has this id at its provider; by itself from now on."""
        found = self._by_provider.get(provider, {}).get(provider_id)
        return self._single_out(found, provider_id) if isinstance(found, Portion) else found

    def waiting(self, requester: Connection, request_id: str) -> Exchange | None:
        """The request that has this id at its requester; likewise."""
        found = self._by_requester.get(requester, {}).get(request_id)
        if isinstance(found, Portion):
            provider_id = next(key for key, value in found.ids.items() if value == request_id)
            return self._single_out(found, provider_id)
        return found

    def _single_out(self, portion: Portion, provider_id: str) -> Exchange:
        """One request leaves its portion: something happens to it alone."""
        request = Message(_REQUEST, portion.topic, id=portion.ids.pop(provider_id))
        exchange = Exchange(portion.requester, request, portion.provider, provider_id, portion.deadline)
        self._by_provider[portion.provider][provider_id] = exchange
        self._by_requester[portion.requester][request.id or ""] = exchange
        return exchange

    def _all(self, asked: dict[str, Exchange | Portion]) -> list[Exchange]:
        """The exchanges of a provider or of a requester, each by itself."""
        for portion in {each for each in asked.values() if isinstance(each, Portion)}:
            for provider_id in list(portion.ids):
                self._single_out(portion, provider_id)
        return [each for each in asked.values() if isinstance(each, Exchange)]

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
        try:
            if message.kind is _RESPONSE and message.status == _DONE:
                requester.respond(request, message.body, message.content_type)
            else:
                back = Message(
                    message.kind,
                    request.topic,
                    message.body,
                    correlation_id=request.id,
                    status=message.status,
                    content_type=message.content_type,
                )
                requester.send(back)
        except (NotSupported, LimitExceeded) as error:
            self._hub.metrics.undeliverable.add(1, requester.name)
            # hsp and emp have no word for progress: the requester just waits. An answer must not get lost that way.
            if message.kind is not _PROGRESS:
                self.fail(requester, request, UNSUPPORTED, f"there is an answer, but {error}")
        except WireloomError as error:
            extra = about("answer.unsent", requester)
            log.info("%r: an answer could not be sent: %s", requester, error, extra=extra)

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
        self._send(requester, error)

    def _send(self, connection: Connection, message: Message) -> None:
        try:
            connection.send(message)
        except WireloomError as error:
            extra = about("answer.unsent", connection)
            log.info("%r: an answer could not be sent: %s", connection, error, extra=extra)

    def _forget(self, exchange: Exchange) -> None:
        self._by_provider.get(exchange.provider, {}).pop(exchange.provider_id, None)
        self._by_requester.get(exchange.requester, {}).pop(exchange.request.id or "", None)

    def drop(self, connection: Connection) -> None:
        """A connection is gone: its requests are forgotten, those it should have answered fail at once."""
        for exchange in self._all(self._by_provider.get(connection, {})):
            self._forget(exchange)
            self.fail(exchange.requester, exchange.request, UNAVAILABLE, "the provider's connection was lost")
        for exchange in self._all(self._by_requester.get(connection, {})):
            self._forget(exchange)
            self._stop(exchange, kill=True)
        self._by_provider.pop(connection, None)
        self._by_requester.pop(connection, None)

    def expire(self, now: float) -> None:
        """Fail what has waited too long."""
        waiting = [asked for asked in self._by_provider.values() if any(e.deadline <= now for e in asked.values())]
        for exchange in [each for asked in waiting for each in self._all(asked) if each.deadline <= now]:
            self._forget(exchange)
            self._stop(exchange, kill=True)
            self.fail(exchange.requester, exchange.request, TIMED_OUT, "the provider did not answer in time")
