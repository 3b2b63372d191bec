"""Where messages go: subscriptions, providers, and the operations of the hub profile.

Events go to everybody who subscribed to their topic. Requests under `$hub/` are operations. Other requests go to a
provider of their topic; where a protocol's requests are acknowledged publishes and nobody provides the topic, they are
published. An acknowledged publish is answered once the journal has it on disk.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wireloom.hub.access import Right
from wireloom.hub.exchanges import BAD_REQUEST, FORBIDDEN, NOT_FOUND, TOO_MANY, UNKNOWN_TOKEN, Exchanges, answer_to
from wireloom.hub.logs import about
from wireloom.hub.routes import Routes
from wireloom.model import BodyError, ConfigError, Kind, LimitExceeded, Message, NotSupported, PeerClosed, type_of_json
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH, Bulk
from wireloom.protocols.published import validate_publish
from wireloom.topics import Subscriptions

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub
    from wireloom.hub.outbox import Outbox

log = logging.getLogger("wireloom.hub")

UNDELIVERABLE = HUB_PREFIX + "undeliverable"
_ANSWERS = frozenset((Kind.RESPONSE, Kind.PROGRESS, Kind.ERROR))
# Looking up members of an enum takes as long as a call.
_EVENT, _REQUEST = Kind.EVENT, Kind.REQUEST


class Router:
    """Decides for every message of every peer."""

    def __init__(self, hub: Hub, request_timeout: float) -> None:
        self._hub = hub
        self.subscriptions: Subscriptions[Connection] = Subscriptions()
        self.providers: Subscriptions[Connection] = Subscriptions()
        self.exchanges = Exchanges(hub, request_timeout)
        self._turn = 0
        """Requests that went to providers so far: several take turns."""
        self._last = hub.last_values.tickets
        self.routes = Routes(hub.config.routes)

    def route_all(self, source: Connection, messages: Sequence[Message], ticket: int) -> None:
        """Act on the messages of a read; `ticket` is durable once the journal has them on disk."""
        start, count = 0, len(messages)
        while start < count:
            message, end = messages[start], start + 1
            if message.kind is _EVENT:
                while end < count and messages[end].kind is _EVENT and messages[end].topic == message.topic:
                    end += 1
            if end - start > 1:
                self._publish_many(source, messages[start:end], ticket)
            else:
                self.route(source, message, ticket)
            start = end

    def _publish_many(self, source: Connection, events: Sequence[Message], ticket: int) -> None:
        """Publish events of one topic that came one after the other."""
        topic = events[0].topic
        if self.routes or not topic or topic.startswith(HUB_PREFIX):
            for event in events:
                self.route(source, event, ticket)
            return
        self._last[topic] = ticket
        subscribers = self.subscriptions.lookup(topic)
        if subscribers:
            self._deliver_all(subscribers, events)
        else:
            self._hub.metrics.unmatched.add(len(events), source.name)

    def route(self, source: Connection, message: Message, ticket: int) -> None:
        """Act on one message."""
        kind = message.kind
        if kind is _EVENT:
            if message.topic is not None and message.topic.startswith(HUB_PREFIX):
                # Under this prefix only the hub itself speaks.
                self._hub.metrics.unmatched.add(1, source.name)
                return
            self._publish(source, message, ticket)
        elif kind is _REQUEST:
            self._request(source, message, ticket)
        elif kind in _ANSWERS and message.correlation_id is not None:
            self.exchanges.answer(source, message)
        elif kind is Kind.CANCEL:
            self.exchanges.cancel(source, message)
        elif kind is Kind.OTHER and self.routes:
            self._publish_routed(source, message, ticket)

    def calls_among(self, source: Connection, messages: Sequence[Message]) -> list[str | None]:
        """Ids of the requests that go to a provider, of a protocol whose other requests are publishes.

        It is decided once for a read, before the journal has it: what the journal says is what is done.
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
                return True  # it gets an error
        return bool(topic and self.providers.lookup(topic))

    def take_calls(self, source: Connection, bulk: Bulk) -> list[Message]:
        """Take the topics out of a bulk whose requests may go to a provider; returns their messages."""
        taken: list[Message] = []
        for topic in list(bulk.topics()) if bulk.unanswered else ():
            if topic.startswith(HUB_PREFIX):
                continue
            routed = self.routes and self.routes.concerning(source.listener.url, topic, _REQUEST)
            if routed or self.providers.lookup(topic):
                taken += bulk.take(topic)
        return taken

    def route_bulk(self, source: Connection, bulk: Bulk, ticket: int) -> None:
        """Act on a whole read: no object is made for what nobody asked to see."""
        for topic in bulk.topics():
            if topic.startswith(HUB_PREFIX):
                self._hub.metrics.unmatched.add(bulk.count_of(topic), source.name)
                continue
            self._last[topic] = ticket
            if self.routes and self.routes.concerning(source.listener.url, topic):
                for message in bulk.messages(topic):
                    self._publish_routed(source, message, ticket)
            subscribers = self.subscriptions.lookup(topic)
            if subscribers:
                self._fan_out(source, bulk, topic, subscribers)
            else:
                self._hub.metrics.unmatched.add(bulk.count_of(topic), source.name)
        self.route_all(source, bulk.others(), ticket)
        if bulk.unanswered:
            self._hub.commit.when_durable(ticket, lambda: self._acknowledge_bulk(source, bulk))

    def _acknowledge_bulk(self, source: Connection, bulk: Bulk) -> None:
        count = bulk.unanswered
        self._hub.metrics.acknowledged.add(count, source.name)
        with contextlib.suppress(PeerClosed):
            source.send_frames(bulk.acknowledgements(), count)

    def _fan_out(self, source: Connection, bulk: Bulk, topic: str, subscribers: tuple[Connection, ...]) -> None:
        """Frames of one topic as they are to peers that read them the same way; others get them as messages."""
        encoded: bytes | None = None
        others: list[Connection] = []
        for subscriber in subscribers:
            if subscriber is source and not source.session.hears_itself:
                continue
            if subscriber.session.can_forward(bulk, topic):
                encoded = bulk.forward(topic) if encoded is None else encoded
                subscriber.deliver_frames(encoded, bulk.count_of(topic))
            else:
                others.append(subscriber)
        if others:
            self._deliver_all(others, bulk.messages(topic))

    def _deliver_all(self, subscribers: Sequence[Connection], events: Sequence[Message]) -> None:
        """Deliver events of one topic: written once for all who read them alike, one by one where that takes more."""
        now, written = self._hub.now(), dict[object, bytes | None]()
        for subscriber in subscribers:
            style = subscriber.session.event_style
            if style not in written:
                written[style] = None
                # What is wrong with one of them is found out when it is sent by itself.
                with contextlib.suppress(NotSupported, LimitExceeded):
                    written[style] = None if style is None else subscriber.session.write_events(events, now)
            encoded = written[style]
            if encoded is not None:
                subscriber.deliver_frames(encoded, len(events))
                continue
            for event in events:
                self._deliver(subscriber, event)

    def _publish(self, source: Connection, message: Message, ticket: int) -> None:
        if message.topic:
            self._last[message.topic] = ticket
        routed = bool(self.routes) and self._publish_routed(source, message, ticket)
        subscribers = self.subscriptions.lookup(message.topic) if message.topic else ()
        if subscribers:
            self._deliver_all(subscribers, (message,))
        elif not routed:
            self._hub.metrics.unmatched.add(1, source.name)

    def _publish_routed(self, source: Connection, message: Message, ticket: int) -> bool:
        """Publish copies of an event where routes send it; False if none does."""
        routed = False
        for route in self.routes.concerning(source.listener.url, message.topic):
            try:
                taken = route.take(message)
            except BodyError as error:
                self._hub.metrics.undeliverable.add(1, source.name)
                self._notify({"topic": message.topic, "route": route.to, "why": str(error), "size": len(message.body)})
                continue
            if taken is not None and taken.topic:
                routed = True
                self._last[taken.topic] = ticket
                self._deliver_all(self.subscriptions.lookup(taken.topic), (taken,))
        return routed

    def _deliver(self, subscriber: Connection, message: Message) -> None:
        try:
            subscriber.deliver(message)
        except (NotSupported, LimitExceeded) as error:
            self.undeliverable(subscriber, message, str(error))
        except PeerClosed:
            pass

    async def deliver_now(self, subscriber: Connection, message: Message) -> None:
        """Send an event that was read from the journal; raises PeerClosed if nobody is there any more."""
        try:
            await subscriber.deliver_now(message)
        except (NotSupported, LimitExceeded) as error:
            self.undeliverable(subscriber, message, str(error))

    def undeliverable(self, subscriber: Outbox, message: Message, why: str) -> None:
        """Say on a topic of its own what could not be delivered; never about that topic itself."""
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

    def _request(self, source: Connection, message: Message, ticket: int) -> None:
        topic = message.topic or ""
        if topic.startswith(PUBLISH):
            self._publish_acknowledged(source, message, topic.removeprefix(PUBLISH), ticket)
        elif topic.startswith(HUB_PREFIX):
            self._operate(source, message, topic.removeprefix(HUB_PREFIX))
        else:
            asked = message
            if self.routes:
                try:
                    asked = self.routes.request(source.listener.url, message)
                except BodyError as error:
                    self.exchanges.fail(source, message, BAD_REQUEST, str(error))
                    return
                topic = asked.topic or ""
            is_call = not source.protocol.request_is_publish or message.id in source.taken
            may = not is_call or source.grants.everything
            if not may and not self._allowed(source, message, Right.REQUEST, topic):
                return
            providers = self.providers.lookup(topic) if topic and is_call else ()
            if providers:
                turn, self._turn = self._turn, self._turn + 1
                self.exchanges.forward(source, message, providers[turn % len(providers)], asked)
            elif is_call:
                self.exchanges.fail(source, message, NOT_FOUND, f"nobody provides {topic!r}")
            else:
                self._publish_acknowledged(source, message, topic, ticket)

    def _publish_acknowledged(self, source: Connection, message: Message, topic: str, ticket: int) -> None:
        try:
            validate_publish(topic)
        except ConfigError as error:
            self.exchanges.fail(source, message, BAD_REQUEST, str(error))
            return
        if not self._allowed(source, message, Right.PUBLISH, topic):
            return
        self._publish(source, message if topic == message.topic else message.with_(topic=topic), ticket)
        # Without its topic: the id says it all.
        acknowledged = Message(_REQUEST, id=message.id)
        self._hub.commit.when_durable(ticket, lambda: self._acknowledge(source, acknowledged))

    def _allowed(self, source: Connection, message: Message, right: Right, topic: str) -> bool:
        """Whether the rules allow what a request asks for; if not, it is answered."""
        if source.grants.everything or source.grants_for(message).may(right, topic):
            return True
        source.log_denied(right, topic)
        self.exchanges.fail(source, message, FORBIDDEN, f"{source.principal} may not {right} {topic!r}")
        return False

    def _login(self, source: Connection, message: Message) -> None:
        """`$hub/login`: the peer shows a token."""
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

    def _acknowledge(self, source: Connection, message: Message) -> None:
        self._hub.metrics.acknowledged.add(1, source.name)
        with contextlib.suppress(PeerClosed):
            source.send(answer_to(message, b"", source.session.content_type))

    def _answer(self, source: Connection, request: Message, body: bytes = b"") -> None:
        with contextlib.suppress(PeerClosed):
            source.send(answer_to(request, body, "application/json" if body else None))

    def _operate(self, source: Connection, message: Message, operation: str) -> None:
        """An operation of the hub profile."""
        try:
            if operation == "map":
                # The session has learnt the numbers already, if they make sense; here they only want their answer.
                wanted = {int(number): topic for number, topic in json.loads(message.body)["topics"].items()}
                if not wanted.items() <= source.session.topic_numbers().items():
                    raise ConfigError("these numbers cannot stand for these topics on this connection")
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
            if add and not self._allowed(source, message, Right(operation), pattern):
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
        else:
            self._answer(source, message)

    def refused(self, source: Connection, topic: str, why: str) -> None:
        """Tell those who listen for it that an event was not taken."""
        self._notify({"topic": topic, "connection": f"{source.id:016x}", "principal": source.principal, "why": why})

    def revoke(self, connection: Connection) -> None:
        """Take back what a connection may no longer have: the rules have changed."""
        for index, right in ((self.subscriptions, Right.SUBSCRIBE), (self.providers, Right.PROVIDE)):
            for pattern in index.patterns(connection):
                if not connection.grants.may(right, pattern) and not connection.session.authored:
                    index.remove(pattern, connection)
                    extra = about("access.revoked", connection)
                    log.warning("%r may no longer %s %s", connection, right, pattern, extra=extra)
        self._hub.replays.revoke(connection, lambda pattern: connection.grants.may(Right.SUBSCRIBE, pattern))

    def _reads_journal(self, source: Connection, pattern: str, options: Mapping[str, object], add: bool) -> bool:
        """Options of a subscription that concern the past; True if that is all there is to do."""
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
        """A connection is gone."""
        self._hub.replays.drop(connection)
        self.subscriptions.drop(connection)
        self.providers.drop(connection)
        self.exchanges.drop(connection)
