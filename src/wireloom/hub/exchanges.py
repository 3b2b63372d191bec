"""Requests on their way from one peer to another: who asked, who answers, and what if nobody does.

A request gets a new id on the provider's connection; its progress, answer, error and cancel are matched by that id
and go back under the id the requester knows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireloom.hub.logs import about
from wireloom.model import Kind, LimitExceeded, Message, NotSupported, PeerClosed, WireloomError

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

NOT_FOUND, UNAVAILABLE, TIMED_OUT, BAD_REQUEST, UNSUPPORTED = "404", "503", "504", "400", "501"
UNKNOWN_TOKEN, FORBIDDEN, TOO_MANY = "401", "403", "429"
"""Statuses of errors that the hub itself answers with; numbers, because hsp's error codes are."""


@dataclass(slots=True)
class _Exchange:
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
        self._by_provider: dict[tuple[Connection, str], _Exchange] = {}
        self._by_requester: dict[tuple[Connection, str], _Exchange] = {}

    def __len__(self) -> int:
        return len(self._by_provider)

    def forward(self, requester: Connection, request: Message, provider: Connection, routed: Message) -> None:
        """Hand a request, as routes have left it, to its provider; failures are answered at once."""
        asked = Message(
            Kind.REQUEST,
            routed.topic,
            routed.body,
            content_type=routed.content_type,
            attributes={key: value for key, value in request.attributes.items() if key == "progressive"},
        )
        try:
            sent = provider.send(asked)
        except (PeerClosed, NotSupported, WireloomError) as error:
            status = UNAVAILABLE if isinstance(error, PeerClosed) else UNSUPPORTED
            self.fail(requester, request, status, str(error))
            return
        exchange = _Exchange(requester, request, provider, sent.id or "", self._hub.now() + self.timeout)
        self._by_provider[provider, exchange.provider_id] = exchange
        self._by_requester[requester, request.id or ""] = exchange

    def answer(self, provider: Connection, message: Message) -> None:
        """Progress, an answer or an error came from a provider."""
        exchange = self._by_provider.get((provider, message.correlation_id or ""))
        if exchange is None:
            return
        if message.kind is not Kind.PROGRESS:
            self._forget(exchange)
            self._hub.metrics.requests.add(1, exchange.requester.name, message.status or str(message.kind))
        else:
            # A provider that tells of its progress has the time anew.
            exchange.deadline = self._hub.now() + self.timeout
        back = Message(
            message.kind,
            exchange.request.topic,
            message.body,
            correlation_id=exchange.request.id,
            status=message.status,
            content_type=message.content_type,
        )
        try:
            exchange.requester.send(back)
        except (NotSupported, LimitExceeded) as error:
            self._hub.metrics.undeliverable.add(1, exchange.requester.name)
            # hsp and emp have no word for progress: the requester just waits. An answer must not get lost that way.
            if message.kind is not Kind.PROGRESS:
                self.fail(exchange.requester, exchange.request, UNSUPPORTED, f"there is an answer, but {error}")
        except WireloomError as error:
            extra = about("answer.unsent", exchange.requester)
            log.info("%r: an answer could not be sent: %s", exchange.requester, error, extra=extra)

    def cancel(self, requester: Connection, message: Message) -> None:
        """The requester no longer wants the answer, or wants it cut short."""
        exchange = self._by_requester.get((requester, message.correlation_id or ""))
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

    def _stop(self, exchange: _Exchange, *, kill: bool) -> bool:
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

    def _forget(self, exchange: _Exchange) -> None:
        self._by_provider.pop((exchange.provider, exchange.provider_id), None)
        self._by_requester.pop((exchange.requester, exchange.request.id or ""), None)

    def drop(self, connection: Connection) -> None:
        """A connection is gone: its requests are forgotten, those it should have answered fail at once."""
        for exchange in list(self._by_provider.values()):
            if exchange.provider is connection:
                self._forget(exchange)
                self.fail(exchange.requester, exchange.request, UNAVAILABLE, "the provider's connection was lost")
            elif exchange.requester is connection:
                self._forget(exchange)
                self._stop(exchange, kill=True)

    def expire(self, now: float) -> None:
        """Fail what has waited too long."""
        for exchange in [each for each in self._by_provider.values() if each.deadline <= now]:
            self._forget(exchange)
            self._stop(exchange, kill=True)
            self.fail(exchange.requester, exchange.request, TIMED_OUT, "the provider did not answer in time")
