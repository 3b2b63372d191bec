"""Requests on their way from one peer to another: who asked, who answers, and what if nobody does.

A request gets a new id on the provider's connection; its progress, answer, error and cancel are matched by that id
and go back under the id the requester knows.
"""

from __future__ import annotations

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
from wireloom.protocols.stretches import Stretches

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
    asked: range
    """The numbers that they have at the provider."""
    shift: int
    """What to add to get the numbers that the requester gave them."""
    deadline: float
    left: Stretches
    """Those that wait, by their numbers at the provider."""


class Exchanges:
    """All requests that wait for a provider."""

    def __init__(self, hub: Hub, timeout: float) -> None:
        self._hub = hub
        self.timeout = timeout
        self._by_provider: dict[Connection, dict[str, Exchange]] = {}
        """By provider, then by the id that a request has there; `_by_requester` likewise."""
        self._by_requester: dict[Connection, dict[str, Exchange]] = {}
        self._portions: dict[Connection, list[Portion]] = {}
        """By provider, in the order of their numbers."""

    def __len__(self) -> int:
        together = sum(len(portion.left) for portions in self._portions.values() for portion in portions)
        return together + sum(map(len, self._by_provider.values()))

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
        self._remember(Exchange(requester, request, provider, provider_id, self._hub.now() + self.timeout))

    def _remember(self, exchange: Exchange) -> None:
        provider, requester, known = exchange.provider, exchange.requester, exchange.request.id or ""
        try:
            self._by_provider[provider][exchange.provider_id] = exchange
        except KeyError:
            self._by_provider[provider] = {exchange.provider_id: exchange}
        try:
            self._by_requester[requester][known] = exchange
        except KeyError:
            self._by_requester[requester] = {known: exchange}

    def forward_all(self, requester: Connection, calls: Calls, provider: Connection) -> None:
        """Hand requests of one read, numbered one after the other, to a provider that can take them as they are."""
        asked = provider.relay(calls)
        left = Stretches()
        left.add(asked)
        shift = calls.numbers[0] - asked.start
        portion = Portion(requester, calls.topic, provider, asked, shift, self._hub.now() + self.timeout, left)
        self._portions.setdefault(provider, []).append(portion)

    def answer_all(self, provider: Connection, calls: Calls) -> None:
        """Answers of one read came from a provider: those to one portion go back together."""
        numbers, start = calls.numbers, 0
        while isinstance(numbers, range) and start < calls.count:
            portion = self._portion(provider, numbers[start])
            if portion is None:
                break
            end = min(calls.count, start + portion.asked.stop - numbers[start])
            part = calls if end - start == calls.count else calls.part(slice(start, end))
            if portion.topic == calls.topic and portion.requester.can_relay(part):
                self._answer_portion(portion, part, numbers[start:end])
            else:
                self._answer_each(provider, part)
            start = end
        if start < calls.count:
            self._answer_each(provider, calls.part(slice(start, None)) if start else calls)

    def _answer_each(self, provider: Connection, calls: Calls) -> None:
        for message in calls.messages():
            self.answer(provider, message)

    def _answer_portion(self, portion: Portion, calls: Calls, numbers: range) -> None:
        if not portion.left.remove(numbers):
            # Some have left it, to be answered by themselves.
            self._answer_each(portion.provider, calls)
            return
        if not portion.left:
            self._portions[portion.provider].remove(portion)
        self._hub.metrics.requests.add(calls.count, portion.requester.name, _DONE)
        first = numbers.start + portion.shift
        portion.requester.relay_back(calls, range(first, first + calls.count))

    def _portion(self, provider: Connection, number: int) -> Portion | None:
        """What a request belongs to that has this number at its provider; None if that is by itself."""
        for portion in self._portions.get(provider, ()):
            if number in portion.asked:
                return portion
        return None

    def asked(self, provider: Connection, provider_id: str) -> Exchange | None:
        """The request that has this id at its provider; by itself from now on."""
        found = self._by_provider.get(provider, {}).get(provider_id)
        if found is None and provider_id.isdecimal() and (portion := self._portion(provider, int(provider_id))):
            return self._single_out(portion, int(provider_id))
        return found

    def waiting(self, requester: Connection, request_id: str) -> Exchange | None:
        """The request that has this id at its requester; likewise."""
        found = self._by_requester.get(requester, {}).get(request_id)
        if found is None and request_id.isdecimal():
            for portion in self._portions_of(requester):
                number = int(request_id) - portion.shift
                # It may be a portion that it is to answer instead, with ids of somebody else's.
                if portion.requester is requester and number in portion.left:
                    return self._single_out(portion, number)
        return found

    def _portions_of(self, connection: Connection) -> list[Portion]:
        """Those that a connection asked for, or is to answer."""
        every = [portion for portions in self._portions.values() for portion in portions]
        return [each for each in every if connection in (each.requester, each.provider)]

    def _single_out(self, portion: Portion, number: int) -> Exchange | None:
        """One request leaves its portion, unless it has already: something happens to it alone."""
        if not portion.left.remove(range(number, number + 1)):
            return None
        if not portion.left:
            self._portions[portion.provider].remove(portion)
        request = Message(_REQUEST, portion.topic, id=str(number + portion.shift))
        exchange = Exchange(portion.requester, request, portion.provider, str(number), portion.deadline)
        self._remember(exchange)
        return exchange

    def _dissolve(self, portion: Portion) -> None:
        """All requests that still wait leave their portion."""
        for number in list(portion.left):
            self._single_out(portion, number)

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
        for portion in self._portions_of(connection):
            self._dissolve(portion)
        for exchange in list(self._by_provider.get(connection, {}).values()):
            self._forget(exchange)
            self.fail(exchange.requester, exchange.request, UNAVAILABLE, "the provider's connection was lost")
        for exchange in list(self._by_requester.get(connection, {}).values()):
            self._forget(exchange)
            self._stop(exchange, kill=True)
        self._portions.pop(connection, None)
        self._by_provider.pop(connection, None)
        self._by_requester.pop(connection, None)

    def expire(self, now: float) -> None:
        """Fail what has waited too long."""
        for portion in [each for portions in self._portions.values() for each in portions if each.deadline <= now]:
            self._dissolve(portion)
        asked = [each for exchanges in self._by_provider.values() for each in exchanges.values()]
        for exchange in [each for each in asked if each.deadline <= now]:
            self._forget(exchange)
            self._stop(exchange, kill=True)
            self.fail(exchange.requester, exchange.request, TIMED_OUT, "the provider did not answer in time")
