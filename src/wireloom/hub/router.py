"""Where messages go: subscriptions, providers, and the operations of the hub profile.

An event goes to every subscriber of its topic. A request under `$hub/` is an operation of the hub. Any other request
goes to a provider of its topic. In some protocols a request is an acknowledged publish: if nobody provides its topic,
it is published. An acknowledged publish is answered once the journal has it on disk.

Theory of operation: fan-out
----------------------------
The problem: a batch has many events of several topics, and each topic may have thousands of subscribers. To encode and
write each event for each subscriber would cost events times subscribers.

The idea: subscribers that need the same bytes share them.

1. Look up the subscribers once for each topic, not once for each event.
2. Group the subscribers by `Session.event_style`: sessions of one style encode an event to the same bytes.
3. Within a style, group them by the set of topics that they want.
4. Encode the events of each group once, and write to all its sockets by one `write_each` call. If no two groups share a
   topic, one encoding pass and one call serve all groups.

The invariant: each subscriber gets the events of its topics in the order of the batch. A subscriber that must wait (its
socket is full, or older events wait for it) gets the same bytes through its `Outbox`.

Events are encoded one by one for each subscriber in two cases: a style is None, or the joint encoding fails. Then one
event that a protocol cannot express does not hold up the others.

Example: a batch has topics `a` and `b`. Subscribers 1 and 2 want `a`; subscriber 3 wants both; all have one style. The
groups are {a: [1, 2]} and {a, b: [3]}. Two encodings serve three subscribers.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from wireloom.hub.access import Right
from wireloom.hub.exchanges import BAD_REQUEST, FORBIDDEN, NOT_FOUND, TOO_MANY, UNKNOWN_TOKEN, Exchanges, answer_to
from wireloom.hub.limits import LimitReached
from wireloom.hub.logs import about
from wireloom.hub.routes import Routes
from wireloom.model import BodyError, ConfigError, Kind, LimitExceeded, Message, NotSupported, PeerClosed, type_of_json
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH, Batch, Calls, EventList, Events, Publishes
from wireloom.protocols.publish_rules import validate_publish
from wireloom.topics import Subscriptions

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub
    from wireloom.hub.outbox import Outbox
    from wireloom.transports.base import Pipe

log = logging.getLogger("wireloom.hub")

MAX_OPERATION = 256 * 1024
"""Maximum bytes of an operation's body. It is parsed on the event loop."""
UNDELIVERABLE = HUB_PREFIX + "undeliverable"
_ANSWERS = frozenset((Kind.RESPONSE, Kind.PROGRESS, Kind.ERROR))
# Local names, here and in other modules: access to a member of an enum costs as much as a function call.
_EVENT, _REQUEST = Kind.EVENT, Kind.REQUEST


class Router:
    """Decides for every message of every peer."""

    def __init__(self, hub: Hub, request_timeout: float) -> None:
        self._hub = hub
        self.subscriptions: Subscriptions[Connection] = Subscriptions()
        self.providers: Subscriptions[Connection] = Subscriptions()
        self.exchanges = Exchanges(hub, request_timeout)
        self._turn = 0
        """How many requests went to providers. Providers of one topic take requests in rotation."""
        self._note_last = hub.last_values.note
        self.routes = Routes(hub.config.routes)

    def route(self, sources: Sequence[Connection], batch: Batch, ticket: int) -> None:
        """Act on a batch. `ticket` is its place in the journal: callbacks wait until this ticket is durable.

        `sources` are the connections that sent it. There are several only if the batch has columns; all have one
        listener.
        """
        if isinstance(batch, Publishes):
            self._publish(sources[0], batch.events(), ticket)
            if batch.unanswered:
                self._hub.commit.when_durable(ticket, lambda: self._hub.turn.acknowledge(sources, batch))
        elif isinstance(batch, Calls):
            self._route_calls(sources[0], batch, ticket)
        else:
            self._route_messages(sources[0], batch.messages, ticket)

    def _route_calls(self, source: Connection, calls: Calls, ticket: int) -> None:
        """Pass requests on to their providers, or answers back to their requesters."""
        if calls.is_answers:
            self.exchanges.answer_all(source, calls)
            return
        providers = [self.providers.lookup(topic) for topic in calls.topics]
        if not all(providers):
            # Some requests get an error. So handle each message by itself.
            self._route_messages(source, calls.as_messages().messages, ticket)
            return
        if len(providers) == 1 and len(providers[0]) == 1:
            self._turn += calls.count
            self.exchanges.forward_all(source, calls, range(calls.count), providers[0][0])
            return
        parts: dict[Connection, list[int]] = {}
        for row, code in enumerate(calls.codes):
            found = providers[code]
            parts.setdefault(found[self._turn % len(found)], []).append(row)
            self._turn += 1
        for provider, rows in parts.items():
            self.exchanges.forward_all(source, calls, rows, provider)

    def _route_messages(self, source: Connection, messages: Sequence[Message], ticket: int) -> None:
        """Act on messages in order. Consecutive publishes are delivered together."""
        events: list[Message] = []
        acknowledged: list[Message] = []
        for message in messages:
            kind = message.kind
            event = None
            if kind is _EVENT:
                if message.topic is not None and message.topic.startswith(HUB_PREFIX):
                    # Only the hub itself publishes under this prefix.
                    self._hub.metrics.unmatched.add(1, source.name)
                    continue
                event = message
            elif kind is _REQUEST:
                event = self._acknowledged_event(source, message)
                if event is not None:
                    # The answer needs only the id.
                    acknowledged.append(Message(_REQUEST, id=message.id))
            if event is not None:
                events.append(event)
                continue
            if events:
                self._publish(source, EventList(events), ticket)
                events = []
            self._act(source, message, ticket)
        if events:
            self._publish(source, EventList(events), ticket)
        if acknowledged:
            self._hub.commit.when_durable(ticket, lambda: self._acknowledge(source, acknowledged))

    def _act(self, source: Connection, message: Message, ticket: int) -> None:
        """Act on a message that is not a publish."""
        kind = message.kind
        if kind is _REQUEST:
            self._request(source, message)
        elif kind in _ANSWERS and message.correlation_id is not None:
            self.exchanges.answer(source, message)
        elif kind is Kind.CANCEL:
            self.exchanges.cancel(source, message)
        elif kind is Kind.OTHER and self.routes:
            self._fan_out(source, EventList(self._routed_copies(source, message)), ticket)

    def calls_among(self, source: Connection, messages: Sequence[Message]) -> list[str | None]:
        """Ids of the requests that go to a provider, in a protocol whose other requests are publishes.

        This is decided once for each read, before the read is journaled. So the journal and the router agree.
        """
        return [each.id for each in messages if each.kind is _REQUEST and self._is_call(source, each)]

    def _is_call(self, source: Connection, request: Message) -> bool:
        topic = request.topic or ""
        if topic.startswith(HUB_PREFIX):
            return False
        if self.routes:
            try:
                topic = self.routes.request(source.listener.url, request).topic or ""
            except BodyError:
                return True  # the request gets an error
        return bool(topic and self.providers.lookup(topic))

    def may_call(self, source: Connection, batch: Publishes) -> bool:
        """Whether any request of a batch may go to a provider, in a protocol whose other requests are publishes."""
        url = source.listener.url
        return bool(batch.unanswered) and any(
            self.providers.lookup(topic) or (self.routes and self.routes.concerning(url, topic, _REQUEST))
            for topic, _ in batch.topics()
        )

    def _publish(self, source: Connection, events: Events, ticket: int) -> None:
        """Deliver events to the subscribers of their topics, together with the copies that routes make."""
        routes, url = self.routes, source.listener.url
        concerned = [
            code for code, topic in enumerate(events.topics if routes else ()) if routes.concerning(url, topic or None)
        ]
        if concerned and events.is_signed:
            copied = events.of(concerned).messages()
            self._fan_out(source, events, ticket)
            events = EventList([copy for event in copied for copy in self._routed_copies(source, event)])
        elif concerned:
            events = EventList(
                [
                    each
                    for event in events.messages()
                    for each in (*([event] if event.topic else ()), *self._routed_copies(source, event))
                ]
            )
        self._fan_out(source, events, ticket)

    def _routed_copies(self, source: Connection, message: Message) -> list[Message]:
        """The copies of a message that routes make, each under its new topic."""
        copies: list[Message] = []
        for route in self.routes.concerning(source.listener.url, message.topic):
            try:
                copy = route.take(message)
            except BodyError as error:
                self._hub.metrics.undeliverable.add(1, source.name)
                self._notify({"topic": message.topic, "route": route.to, "why": str(error), "size": len(message.body)})
                continue
            if copy is None or not copy.topic:
                continue
            fault = self._hub.topic_limits.fault(copy.topic)
            if fault is None:
                copies.append(copy)
            else:
                self._hub.reached(fault.setting)
                self._hub.metrics.undeliverable.add(1, source.name)
                self._notify({"topic": message.topic, "route": route.to, "why": fault.text, "size": len(message.body)})
        return copies

    def _fan_out(self, source: Connection, events: Events, ticket: int) -> None:
        """Give each subscriber the events of its topics, in order, in one write.

        The theory of operation at the top of this module explains the grouping.
        """
        wanted: dict[Connection, list[int]] = {}
        unwanted: list[int] = []
        for code, topic in enumerate(events.topics):
            if topic:
                self._note_last(topic, ticket)
            subscribers = self.subscriptions.lookup(topic) if topic else ()
            if not subscribers:
                unwanted.append(code)
            for subscriber in subscribers:
                if subscriber in wanted:
                    wanted[subscriber].append(code)
                else:
                    wanted[subscriber] = [code]
        if unwanted:
            self._hub.metrics.unmatched.add(len(events.of(unwanted)), source.name)
        styles: dict[object, dict[tuple[int, ...], list[Connection]]] = {}
        for subscriber, codes in wanted.items():
            if subscriber is not source or source.session.hears_itself:
                groups = styles.setdefault(subscriber.session.event_style, {})
                groups.setdefault(tuple(codes), []).append(subscriber)
        for style, groups in styles.items():
            if style is None or not self._deliver_apart(groups, events):
                for chosen, readers in groups.items():
                    self._deliver_all(readers, events.of(chosen), is_shared=style is not None)

    def _deliver_apart(self, groups: Mapping[tuple[int, ...], Sequence[Connection]], events: Events) -> bool:
        """Deliver to several groups of one style in one pass, if no two groups share a topic.

        Returns False, and delivers nothing, if this is not possible.
        """
        if len(groups) == 1 or sum(map(len, groups)) > len(events.topics):
            return False
        first = next(iter(groups.values()))[0]
        written = events.frames_apart(list(groups), first.session, self._hub.now())
        if written is None:
            return False
        self._deliver_frames(groups.values(), *written)
        return True

    def _deliver_all(self, subscribers: Sequence[Connection], events: Events, *, is_shared: bool) -> None:
        """Deliver events to subscribers of one style: encode once for all if `is_shared`, otherwise one by one."""
        encoded = None
        if is_shared:
            # If one event cannot be encoded, the loop below finds it and reports it.
            with contextlib.suppress(NotSupported, LimitExceeded):
                encoded = events.frames(subscribers[0].session, self._hub.now())
        if encoded is not None:
            self._deliver_frames((subscribers,), encoded, (len(encoded),), (len(events),))
            return
        for event in events.messages():
            for subscriber in subscribers:
                self._deliver(subscriber, event)

    def _deliver_frames(
        self, groups: Iterable[Sequence[Connection]], encoded: bytes, ends: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Write encoded events to groups of subscribers. One call writes to all sockets that have nothing queued."""
        writes: list[tuple[Pipe, int, int]] = []
        start = delivered = 0
        name = ""
        for subscribers, end, count in zip(groups, ends, counts, strict=True):
            for subscriber in subscribers:
                pipe = subscriber.count_events(count)
                if pipe is None:
                    is_all = end - start == len(encoded)
                    subscriber.deliver_frames(encoded if is_all else encoded[start:end], count)
                else:
                    writes.append((pipe, start, end))
                    name = subscriber.name
                    delivered += count
            start = end
        if writes:
            self._hub.metrics.delivered.add(delivered, name)
            self._hub.metrics.sent.add(delivered, name)
            pipes, starts, ends = zip(*writes, strict=True)
            self._hub.turn.write_each(pipes, encoded, starts, ends)

    def _deliver(self, subscriber: Connection, message: Message) -> None:
        try:
            subscriber.deliver(message)
        except (NotSupported, LimitExceeded) as error:
            self.undeliverable(subscriber, message, str(error))
        except PeerClosed:
            pass

    async def deliver_now(self, subscriber: Connection, message: Message) -> None:
        """Send an event that was read from the journal. Raises PeerClosed if the connection is gone."""
        try:
            await subscriber.deliver_now(message)
        except (NotSupported, LimitExceeded) as error:
            self.undeliverable(subscriber, message, str(error))

    def undeliverable(self, subscriber: Outbox, message: Message, why: str) -> None:
        """Publish a notice that an event could not be delivered. A notice that fails causes no further notice."""
        self._hub.metrics.undeliverable.add(1, subscriber.name)
        if message.topic == UNDELIVERABLE:
            return
        self._notify(
            {"topic": message.topic, "connection": f"{subscriber.id:016x}", "why": why, "size": len(message.body)}
        )

    def _notify(self, notice: dict[str, type_of_json]) -> None:
        event = Message(Kind.EVENT, UNDELIVERABLE, json.dumps(notice).encode(), content_type="application/json")
        for listener in self.subscriptions.lookup(UNDELIVERABLE):
            self._deliver(listener, event)

    # Requests

    def _acknowledged_event(self, source: Connection, request: Message) -> Message | None:
        """The event of an acknowledged publish. None if the request is not a publish, or if it is not allowed."""
        topic = request.topic or ""
        if topic.startswith(PUBLISH):
            topic = topic.removeprefix(PUBLISH)
        elif topic.startswith(HUB_PREFIX) or not source.protocol.request_is_publish or request.id in source.taken:
            return None
        elif self.routes:
            try:
                topic = self.routes.request(source.listener.url, request).topic or ""
            except BodyError:
                return None
        if topic.startswith(HUB_PREFIX) or self._hub.topic_limits.fault(topic) is not None:
            return None
        if not source.grants.everything and not source.grants_for(request).may(Right.PUBLISH, topic):
            return None
        return request if topic == request.topic else request.with_(topic=topic)

    def _request(self, source: Connection, message: Message) -> None:
        """Handle a request that is not published: an operation, a call, or a publish that is refused."""
        topic = message.topic or ""
        if topic.startswith(HUB_PREFIX) and not topic.startswith(PUBLISH):
            self._operate(source, message, topic.removeprefix(HUB_PREFIX))
            return
        is_call = not topic.startswith(PUBLISH) and (
            not source.protocol.request_is_publish or message.id in source.taken
        )
        asked = message
        if self.routes and not topic.startswith(PUBLISH):
            try:
                asked = self.routes.request(source.listener.url, message)
            except BodyError as error:
                self.exchanges.fail(source, message, BAD_REQUEST, str(error))
                return
            topic = asked.topic or ""
        if not is_call:
            self._refuse_publish(source, message, topic.removeprefix(PUBLISH))
            return
        if (topic and not self._is_topic(source, message, topic)) or not self._allowed(
            source, message, Right.REQUEST, topic
        ):
            return
        providers = self.providers.lookup(topic) if topic else ()
        if providers:
            turn, self._turn = self._turn, self._turn + 1
            self.exchanges.forward(source, message, providers[turn % len(providers)], asked)
        else:
            self.exchanges.fail(source, message, NOT_FOUND, f"nobody provides {topic!r}")

    def _refuse_publish(self, source: Connection, message: Message, topic: str) -> None:
        """Answer a refused publish with the reason."""
        if self._is_topic(source, message, topic):
            try:
                validate_publish(topic)
            except ConfigError as error:
                self.exchanges.fail(source, message, BAD_REQUEST, str(error))
            else:
                self._allowed(source, message, Right.PUBLISH, topic)

    def _is_topic(self, source: Connection, message: Message, topic: str) -> bool:
        """Whether the topic of a request is valid. If not, the request is answered with an error."""
        fault = self._hub.topic_limits.fault(topic)
        if fault is None:
            return True
        self._hub.reached(fault.setting)
        self.exchanges.fail(source, message, BAD_REQUEST, fault.text)
        return False

    def _allowed(self, source: Connection, message: Message, right: Right, topic: str) -> bool:
        """Whether the rules allow a request. If not, the request is answered with an error."""
        if source.grants.everything or source.grants_for(message).may(right, topic):
            return True
        source.log_denied(right, topic)
        self.exchanges.fail(source, message, FORBIDDEN, f"{source.principal} may not {right} {topic!r}")
        return False

    def _login(self, source: Connection, message: Message) -> None:
        """`$hub/login`: the peer presents a token."""
        try:
            token = json.loads(message.body)["token"]
            if not isinstance(token, str):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            self.exchanges.fail(source, message, BAD_REQUEST, 'a JSON body such as {"token": "..."} is needed')
            return
        outcome = source.login(token)
        if outcome == "accepted":
            self._answer(source, message, json.dumps({"principal": source.principal}).encode())
        elif outcome == "refused":
            self.exchanges.fail(source, message, UNKNOWN_TOKEN, "this token is not known here")
        else:
            self.exchanges.fail(source, message, TOO_MANY, "too many wrong tokens came from this address")
            source.driver.close("too many wrong tokens")

    def _acknowledge(self, source: Connection, requests: Sequence[Message]) -> None:
        """Answer acknowledged publishes that are now durable."""
        self._hub.metrics.acknowledged.add(len(requests), source.name)
        with contextlib.suppress(PeerClosed):
            for request in requests:
                source.send(answer_to(request, b"", source.session.content_type))

    def _answer(self, source: Connection, request: Message, body: bytes = b"") -> None:
        with contextlib.suppress(PeerClosed):
            source.send(answer_to(request, body, "application/json" if body else None))

    def _operate(self, source: Connection, message: Message, operation: str) -> None:
        """Run an operation of the hub profile."""
        if len(message.body) > MAX_OPERATION:
            text = f"a body of {len(message.body)} bytes; an operation has at most {MAX_OPERATION}"
            self.exchanges.fail(source, message, BAD_REQUEST, f"{HUB_PREFIX}{operation}: {text}")
            return
        try:
            if operation == "map":
                # The session has already learnt valid numbers. Only the answer is left to send.
                wanted = {int(number): topic for number, topic in json.loads(message.body)["topics"].items()}
                if not wanted.items() <= source.session.topic_numbers().items():
                    raise ConfigError(
                        "these numbers cannot stand for these topics on this connection: they are reserved, or too many"
                    )
                self._answer(source, message)
                return
            if operation == "login":
                self._login(source, message)
                return
            index, add = {
                "subscribe": (self.subscriptions, True),
                "unsubscribe": (self.subscriptions, False),
                "provide": (self.providers, True),
                "withdraw": (self.providers, False),
            }[operation]
            options = json.loads(message.body)
            pattern = options["topic"]
            if not isinstance(pattern, str):
                raise TypeError("the topic is no text")
            if add:
                self._check_pattern(source, index, pattern)
                if not self._allowed(source, message, Right(operation), pattern):
                    return
            if index is self.subscriptions and self._reads_journal(source, pattern, options, add):
                self._answer(source, message)
                return
            (index.add if add else index.remove)(pattern, source)
        except KeyError as missing:
            example = {"topic": '{"topic": "sensors/#"}', "topics": '{"topics": {"7": "sensors/kitchen"}}'}
            needed = example.get(str(missing.args[0]))
            text = "there is no such operation" if needed is None else f"a JSON body such as {needed} is needed"
            self.exchanges.fail(source, message, BAD_REQUEST, f"{HUB_PREFIX}{operation}: {text}")
        except (ValueError, TypeError, AttributeError, RecursionError, ConfigError) as error:
            self.exchanges.fail(source, message, BAD_REQUEST, f"{HUB_PREFIX}{operation}: {error}")
        except LimitReached as reached:
            self._hub.reached(reached.setting)
            self.exchanges.fail(source, message, TOO_MANY, f"{HUB_PREFIX}{operation}: {reached}")
        else:
            self._answer(source, message)

    def _check_pattern(self, source: Connection, index: Subscriptions[Connection], pattern: str) -> None:
        """Raise ConfigError or LimitReached if a connection may not add this pattern."""
        hub, limits = self._hub, self._hub.config.limits
        fault = hub.topic_limits.pattern_fault(pattern)
        if fault is not None:
            hub.reached(fault.setting)
            raise ConfigError(fault.text)
        if index.has(pattern, source):
            return
        own = self.subscriptions.count(source) + self.providers.count(source)
        if own >= limits.subscriptions_per_connection:
            raise LimitReached(
                "subscriptions_per_connection",
                f"a connection has at most {limits.subscriptions_per_connection} patterns",
            )
        if self.patterns >= limits.subscriptions:
            raise LimitReached(
                "subscriptions", f"all connections together have at most {limits.subscriptions} patterns"
            )
        if not index.has_shape(pattern) and self.shapes >= limits.wildcard_shapes:
            most = f"wildcards stand in {limits.wildcard_shapes} different ways at most in all patterns together"
            raise LimitReached("wildcard_shapes", most)

    @property
    def patterns(self) -> int:
        """How many patterns are subscribed to or provided."""
        return len(self.subscriptions) + len(self.providers)

    @property
    def shapes(self) -> int:
        """How many different wildcard shapes these patterns have."""
        return self.subscriptions.shapes + self.providers.shapes

    def refused(self, source: Connection, topic: str, why: str) -> None:
        """Publish a notice that an event was refused."""
        self._notify({"topic": topic, "connection": f"{source.id:016x}", "principal": source.principal, "why": why})

    def revoke(self, connection: Connection) -> None:
        """Remove subscriptions and providers that a connection may no longer have, after the rules changed."""
        for index, right in ((self.subscriptions, Right.SUBSCRIBE), (self.providers, Right.PROVIDE)):
            for pattern in index.patterns(connection):
                if not connection.grants.may(right, pattern) and not connection.session.authored:
                    index.remove(pattern, connection)
                    extra = about("access.revoked", connection)
                    log.warning("%r may no longer %s %s", connection, right, pattern, extra=extra)
        for readers in (self._hub.replays, self._hub.last_values):
            readers.revoke(connection, lambda pattern: connection.grants.may(Right.SUBSCRIBE, pattern))

    def _reads_journal(self, source: Connection, pattern: str, options: Mapping[str, object], add: bool) -> bool:
        """Handle the options of a subscription that read the journal. Returns True if nothing else is left to do."""
        name = options.get("as", "0")
        if not add:
            if "as" in options:
                self._hub.replays.stop(source, str(name))
            return "as" in options
        retained = options.get("retained", False)
        if not isinstance(retained, bool):
            raise ConfigError(f"retained is {retained!r}; it must be true or false")
        if "since" in options:
            if retained:
                raise ConfigError("since and retained exclude each other: what came since holds the last values, too")
            self._hub.replays.start(source, pattern, options["since"], name)
            return True
        if retained:
            self._hub.last_values.send(source, pattern)
        return False

    def drop(self, connection: Connection) -> None:
        """Remove a connection that is gone."""
        self._hub.replays.drop(connection)
        self.subscriptions.drop(connection)
        self.providers.drop(connection)
        self.exchanges.drop(connection)
