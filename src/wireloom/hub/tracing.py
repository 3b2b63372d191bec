"""OpenTelemetry traces: what the hub did with a message, across protocols.

Only a hub with `[tracing]` in its configuration uses this module. Its router and its exchanges are then the subclasses
here, so a hub without traces pays nothing. Each message has a span `receive`. Its children are `journal`, which ends
when the message is on disk, and one span for each receiver: `deliver` for a subscriber, `request` for a provider. In a
large read each topic has these spans once, with the number of messages.

The sender's context (W3C Trace Context) is in attributes of its message (`TRACE`). Protocols with a field for it use
that field; HTTP uses headers. A message without a context begins a new trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from wireloom.hub.exchanges import Exchange, Exchanges
from wireloom.hub.router import Router
from wireloom.model import Kind, Message
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH, Batch, Calls, Events, Publishes

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from wireloom.hub.config import TracingSettings
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

PATH = "/v1/traces"
_TRACED = (Kind.EVENT, Kind.REQUEST)
_FLUSH = 5000
"""Milliseconds for the last spans to be sent when the hub stops."""


class Tracing:
    """Makes the hub's spans, and sends them."""

    def __init__(self, settings: TracingSettings) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample)),
            resource=Resource.create({"service.name": settings.service}),
            shutdown_on_exit=False,
        )
        if settings.url:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            exporter = OTLPSpanExporter(endpoint=settings.url.rstrip("/") + PATH, timeout=_FLUSH / 1000)
            self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self.provider.get_tracer("wireloom.hub")
        self._propagator = TraceContextTextMapPropagator()
        self._kinds, self._codes, self._in_context = SpanKind, StatusCode, set_span_in_context

    def close(self) -> None:
        """Send the remaining spans. Blocks: call it on a thread."""
        self.provider.force_flush(_FLUSH)
        self.provider.shutdown()

    def received(self, source: Connection, topic: str | None, kind: Kind, brought: Mapping[str, str]) -> Span:
        """The span of a received message. `brought` holds the sender's context."""
        span_kind = self._kinds.SERVER if kind is Kind.REQUEST else self._kinds.CONSUMER
        parent = self._propagator.extract(brought)
        return self._start(f"receive {topic or source.name}", span_kind, source, topic, "receive", parent)

    def journal(self, parent: Span) -> Span:
        """The span of the journal write."""
        return self._tracer.start_span("journal", self._in_context(parent))

    def sent(self, parent: Span, target: Connection, topic: str | None, kind: Kind) -> Span:
        """The span of a message that is sent to a peer."""
        asks = kind is Kind.REQUEST
        return self._start(
            f"{'request' if asks else 'deliver'} {topic}",
            self._kinds.CLIENT if asks else self._kinds.PRODUCER,
            target,
            topic,
            "send",
            self._in_context(parent),
        )

    def posted(self, message: Message, webhook: str, url: str) -> Span:
        """The span of an event that is posted to a webhook, in the trace of its publisher."""
        parent = self._propagator.extract(message.attributes)
        attributes = {"messaging.destination.name": message.topic or "", "wireloom.webhook": webhook, "url.full": url}
        return self._tracer.start_span(f"deliver {message.topic}", parent, self._kinds.PRODUCER, attributes)

    def _start(self, name: str, kind: object, peer: Connection, topic: str | None, type_: str, parent: Context) -> Span:
        span = self._tracer.start_span(name, parent, kind)  # type: ignore[arg-type]
        if span.is_recording():
            span.set_attributes(
                {
                    "messaging.system": "wireloom",
                    "messaging.operation.type": type_,
                    "messaging.destination.name": topic or "",
                    "network.protocol.name": peer.name,
                    "wireloom.connection": f"{peer.id:016x}",
                    "wireloom.principal": peer.principal,
                }
            )
        return span

    def failed(self, span: Span, text: str) -> None:
        """Mark a span as failed."""
        span.set_status(self._codes.ERROR, text)

    def carried(self, span: Span) -> dict[str, str]:
        """The attributes that carry a span's context in a message."""
        found: dict[str, str] = {}
        self._propagator.inject(found, self._in_context(span))
        return found


class TracedExchanges(Exchanges):
    """Exchanges that end the spans of each request: the one at the provider, and the one in which it was received."""

    def __init__(self, hub: Hub, timeout: float, tracing: Tracing) -> None:
        super().__init__(hub, timeout)
        self._tracing = tracing
        self.received: dict[tuple[Connection, str], Span] = {}
        """Spans of requests, and of publishes that wait for their acknowledgement, by requester and id."""
        self._asked: dict[Exchange, Span] = {}
        """Spans of requests that were sent to their providers."""

    def forward(self, requester: Connection, request: Message, provider: Connection, routed: Message) -> None:
        """Send a request to its provider, in its own span."""
        received = self.received.get((requester, request.id or ""))
        if received is None:
            super().forward(requester, request, provider, routed)
            return
        span = self._tracing.sent(received, provider, routed.topic, Kind.REQUEST)
        inside = request.with_(attributes={**request.attributes, **self._tracing.carried(span)})
        super().forward(requester, inside, provider, routed)
        exchange = self.waiting(requester, request.id or "")
        if exchange is None:
            self._tracing.failed(span, "not sent")
            span.end()
        else:
            self._asked[exchange] = span

    def answer(self, provider: Connection, message: Message) -> None:
        """Pass on an answer from a provider, and end both spans."""
        provider_id = message.correlation_id or ""
        exchange = self.asked(provider, provider_id)
        request_id = "" if exchange is None else exchange.waiting[provider_id]
        error = (message.status or "error") if message.kind is Kind.ERROR else None
        span = None if exchange is None else self._asked.get(exchange)
        if span is not None and message.kind is Kind.PROGRESS:
            span.add_event("progress")
        elif span is not None:
            span.set_attribute("wireloom.status", message.status or str(message.kind))
            if error is not None:
                self._tracing.failed(span, error)
        super().answer(provider, message)
        if exchange is not None and message.kind is not Kind.PROGRESS:
            self.answered(exchange.requester, request_id, error)

    def answered(self, requester: Connection, request_id: str, error: str | None = None) -> None:
        """The requester has its answer: end its span."""
        span = self.received.pop((requester, request_id), None)
        if span is not None:
            if error is not None:
                self._tracing.failed(span, error)
            span.end()

    def fail(self, requester: Connection, request: Message, status: str, text: str) -> None:
        """Answer a request with an error of the hub."""
        super().fail(requester, request, status, text)
        self.answered(requester, request.id or "", f"{status}: {text}")

    def cancel(self, requester: Connection, message: Message) -> None:
        """Handle a cancel, and end the spans."""
        request_id = message.correlation_id or ""
        exchange = self.waiting(requester, request_id)
        super().cancel(requester, message)
        if exchange is not None and self.waiting(requester, request_id) is None:
            self.answered(requester, request_id, "cancelled")

    def expire(self, now: float) -> None:
        """Fail requests whose deadline has passed, and end their spans."""
        for exchange, span in self._asked.items():
            if exchange.deadline <= now:
                self._tracing.failed(span, "no answer in time")
        super().expire(now)

    def _forget(self, exchange: Exchange, provider_ids: Iterable[str]) -> list[str]:
        forgotten = super()._forget(exchange, provider_ids)
        # With tracing, each request is sent by itself and has its own exchange.
        span = self._asked.pop(exchange, None)
        if span is not None:
            span.end()
        return forgotten

    def drop(self, connection: Connection) -> None:
        """Handle a lost connection: end the spans of its requests, and of those it should have answered."""
        for exchange, span in self._asked.items():
            if exchange.provider is connection:
                self._tracing.failed(span, "the provider's connection was lost")
        super().drop(connection)
        for key in [key for key in self.received if key[0] is connection]:
            span = self.received.pop(key)
            self._tracing.failed(span, "the requester's connection was lost")
            span.end()


class TracedRouter(Router):
    """A router that records its work in spans."""

    exchanges: TracedExchanges

    def __init__(self, hub: Hub, request_timeout: float, tracing: Tracing) -> None:
        super().__init__(hub, request_timeout)
        self.exchanges = TracedExchanges(hub, request_timeout, tracing)
        self._tracing = tracing
        self._now: Span | None = None
        """The span of the message that is being handled."""
        self._of_batch: dict[str, Span] = {}
        """The spans of the current batch in columns, by topic."""

    def _route_messages(self, source: Connection, messages: Sequence[Message], ticket: int) -> None:
        """Act on messages, each in its own span."""
        for message in messages:
            self._route_in_span(source, message, ticket)

    def _route_in_span(self, source: Connection, message: Message, ticket: int) -> None:
        topic = (message.topic or "").removeprefix(PUBLISH)
        is_traced = message.kind in _TRACED or (message.kind is Kind.OTHER and bool(self.routes))
        if not is_traced or topic.startswith(HUB_PREFIX):
            super()._route_messages(source, (message,), ticket)
            return
        span = self._tracing.received(source, topic, message.kind, message.attributes)
        if span.is_recording():
            span.set_attribute("messaging.message.body.size", len(message.body))
            span.set_attribute("messaging.message.id", message.id or "")
        self._journal(span, ticket, ends=message.kind is not Kind.REQUEST)
        if message.kind is Kind.REQUEST:
            self.exchanges.received[source, message.id or ""] = span
        self._now = span
        try:
            super()._route_messages(source, (message,), ticket)
        finally:
            self._now = None

    def _journal(self, span: Span, ticket: int, *, ends: bool) -> None:
        """Start a span that ends when the message is on disk. With `ends`, the parent span ends then, too."""
        child = self._tracing.journal(span)

        def stored() -> None:
            child.end()
            if ends:
                span.end()

        self._hub.commit.when_durable(ticket, stored)

    def route(self, sources: Sequence[Connection], batch: Batch, ticket: int) -> None:
        """Act on a batch. A batch in columns has one span for each topic."""
        if isinstance(batch, Publishes):
            events = batch.events()
            for code, topic in enumerate(events.topics):
                span = self._of_batch[topic] = self._tracing.received(sources[0], topic, Kind.EVENT, {})
                if span.is_recording():
                    span.set_attribute("messaging.batch.message_count", len(events.of((code,))))
                self._journal(span, ticket, ends=True)
        try:
            super().route(sources, batch, ticket)
        finally:
            self._of_batch.clear()

    def _route_calls(self, source: Connection, calls: Calls, ticket: int) -> None:
        """Handle each call as a message, because each has its own span."""
        self._route_messages(source, calls.as_messages().messages, ticket)

    def _routed_copies(self, source: Connection, message: Message) -> list[Message]:
        before = self._now
        self._now = before or self._of_batch.get(message.topic or "")
        try:
            return super()._routed_copies(source, message)
        finally:
            self._now = before

    def _deliver_all(self, subscribers: Sequence[Connection], events: Events, *, is_shared: bool) -> None:
        if self._now is not None:
            # Each subscriber gets the context of its own span, so it needs its own bytes.
            super()._deliver_all(subscribers, events, is_shared=False)
            return
        received = [(topic, self._of_batch[topic]) for topic in events.topics if topic in self._of_batch]
        spans = [self._tracing.sent(span, each, topic, Kind.EVENT) for each in subscribers for topic, span in received]
        super()._deliver_all(subscribers, events, is_shared=is_shared)
        for span in spans:
            span.end()

    def _deliver(self, subscriber: Connection, message: Message) -> None:
        if self._now is None:
            super()._deliver(subscriber, message)
            return
        sending = self._tracing.sent(self._now, subscriber, message.topic, Kind.EVENT)
        attributes = {**message.attributes, **self._tracing.carried(sending)}
        super()._deliver(subscriber, message.with_(attributes=attributes))
        sending.end()

    def _acknowledge(self, source: Connection, requests: Sequence[Message]) -> None:
        super()._acknowledge(source, requests)
        for request in requests:
            self.exchanges.answered(source, request.id or "")
