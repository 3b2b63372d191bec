"""One peer of the hub: who it is, what it may do, and what it sends.

Everything that the peer sends goes to the journal before the hub acts on it (`journaled_peer`). `outbox` holds the
events for the peer, and queues them if it reads slowly.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from wireloom.hub.access import ANONYMOUS, EVERYTHING, Grants, Right
from wireloom.hub.config import ListenerConfig
from wireloom.hub.exchanges import TOO_MANY, UNSUPPORTED
from wireloom.hub.journaled_peer import JournaledPeer, RecordedPipe
from wireloom.hub.limits import Bucket, OverRate, address_of
from wireloom.hub.logs import about
from wireloom.hub.publish_filter import Screened, screen
from wireloom.journal.blocks import record_comment
from wireloom.journal.context import Principal
from wireloom.journal.exclusions import DENIED, TAKEN, excluding
from wireloom.model import Kind, Message, WireloomError
from wireloom.peers.driver import Driver
from wireloom.peers.send_queue import fresh
from wireloom.protocols.column_session import CallSession, ColumnSession
from wireloom.protocols.contract import CUT, LOGIN, Batch, Calls, Publishes, Role, Sessions
from wireloom.protocols.publish_rules import published
from wireloom.transports.base import EndedPipe, Pipe

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

_NOTHING: frozenset[str | None] = frozenset()
_DENIED_TOLD = 64
"""How many refusals of one connection are logged. All are counted."""
_TOPIC_TOLD = 200
"""How many characters of a refused topic a notice contains."""


def _logins(batch: Batch) -> int:
    """How many messages of a batch present a token. Such a message is always the last one of its batch."""
    return sum(each.topic == LOGIN and each.kind is Kind.REQUEST for each in batch.messages[-1:])


def _without(batch: Batch, answered: Sequence[Message]) -> Batch:
    """The same batch without the messages that are already answered."""
    gone = {id(each) for each in answered}
    rest = [each for each in batch.messages if id(each) not in gone]
    added = len(batch.messages) - batch.count
    kept = Batch(batch.data, rest, ignored=max(-added, 0) + len(answered), added=max(added, 0), refused=batch.refused)
    kept.numbers = batch.numbers
    return kept


class Connection(JournaledPeer):
    """The owner of one accepted pipe."""

    # Most connections are idle on a hub with many. Slots keep each one small.
    __slots__ = (
        "_bucket",
        "_denied",
        "_pays_until",
        "_proved",
        "_shown",
        "_violation_told",
        "address",
        "contacted",
        "grants",
        "identities",
        "is_guarded",
        "listener",
        "over",
        "protocol",
        "quiet_since",
        "taken",
    )

    def __init__(self, hub: Hub, listener: ListenerConfig, sessions: Sessions, *, contacted: bool = False) -> None:
        super().__init__(hub, listener.protocol.name)
        self.listener = listener
        self.protocol = listener.protocol
        unique = self.id & 0xFFFFFFFF
        session = sessions.contact(unique=unique) if contacted else sessions.new(Role.SERVER, unique=unique)
        session.enable_columns()
        self._record_for(session)
        self.driver = Driver(
            self.session,
            on_batch=self.on_batch,
            on_read=self._after_read,
            on_open=self._subscribe_unasked,
            on_end=self._on_end,
        )
        self.contacted = contacted
        """Whether the hub opened this connection."""
        self.over: asyncio.Event | None = None
        """Set once this connection is gone."""
        self.address = ""
        """The peer's address, without its port."""
        self.identities: tuple[str, ...] = ()
        """The identities that the peer has proved."""
        self.grants: Grants = EVERYTHING
        self._shown: tuple[str, ...] = ()
        """Identities from tokens."""
        self._proved: tuple[str, ...] = ()
        """The identities that the session reported last."""
        self._bucket: Bucket | None = None
        self._pays_until = 0.0
        """When the peer's token bucket has refilled and reading resumes; 0 if reading is not paused for its rate."""
        self._violation_told = False
        self.is_guarded = False
        """Whether rules or rates apply to what this peer publishes."""
        self._denied: set[int] | None = None
        """Hashes of the refusals that were logged."""
        self.taken: frozenset[str | None] = _NOTHING
        """Ids of requests of this read that go to a provider, in a protocol whose other requests are publishes."""
        self.quiet_since = (-1, 0.0)
        """How many messages had come when the hub last checked, and since when this number is unchanged."""

    def talks_over(self, pipe: Pipe) -> bool:
        """Whether this connection owns a pipe."""
        return self._pipe is pipe

    def __repr__(self) -> str:
        return f"<{self.name} connection {self.id:016x} from {self.peer}>"

    # Called by the transport. The most frequent calls go straight to the driver.

    def received(self, data: bytes) -> None:
        """Take bytes that arrived.

        If the protocol has a kernel, `Turn` takes them together with those of other peers.
        """
        if self.session.columns is None:
            self.hub.watch.took(len(data))
            self.driver.received(data)
        else:
            self.hub.turn.add(self, data)

    @property
    def received_datagrams(self) -> Callable[[bytes, Sequence[int]], None]:
        """Take datagrams that arrived together."""
        return self.driver.received_datagrams

    def input_ended(self) -> None:
        """The peer will send no more."""
        self.hub.turn.take_now(self)
        self.driver.input_ended()

    def ended(self, error: Exception | None) -> None:
        """The pipe is gone."""
        self.hub.turn.take_now(self)
        self.driver.ended(error)
        if self.driver.failure is None and self._pipe is not None:
            self._pipe = EndedPipe(self._pipe)  # bytes that it delivered are still being taken

    def opened(self, pipe: Pipe) -> None:
        """The pipe is open: record it and start the session."""
        self._pipe = pipe
        self.peer, self.local = pipe.peername, pipe.sockname
        self.address = sys.intern(address_of(self.peer))
        if not self.hub.admit(self):
            pipe.abort()
            return
        self.authorise()
        self.hub.journal.record(
            "opened",
            {
                "protocol": self.name,
                "listener": self.listener.url,
                "peer": self.peer,
                "local": self.local,
                "role": "client" if self.contacted else "server",
                "principal": self.principal if self.identities else None,
                "tls": pipe.tls.version if pipe.tls else None,
            },
            self.id,
            protocol=self.name,
            source=self.peer or None,
            destination=self.local or None,
        )
        log.debug("%r is open", self, extra=about("connection.opened", self))
        self.driver.opened(RecordedPipe(pipe, self))
        kind, _, token = pipe.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.login(token.strip()) != "accepted":
            self.driver.close("the token is not known here")

    # Who the peer is

    @property
    def principal(self) -> str:
        """The first thing the peer has proved to be."""
        return self.identities[0] if self.identities else ANONYMOUS

    @property
    def payer(self) -> str:
        """Who is charged for this peer's messages: its principal, or its address if it has proved nothing."""
        return self.principal if self.identities else self.address

    @property
    def is_stranger(self) -> bool:
        """Whether the peer has no rights at all so far."""
        return self.grants.nothing and not self.session.authored

    def authorise(self) -> None:
        """Determine again who the peer is and what it may do. Revoke what it may no longer have."""
        hub, pipe = self.hub, self._pipe
        self._proved = self.session.identities
        self.identities = (*self._shown, *(pipe.identities if pipe is not None else ()), *self._proved)
        known = self._principal
        if self.identities and (known is None or known.name != self.principal):
            self._principal = Principal(self.id, self.principal)
        self.grants = self.grants_of()
        self._bucket = None
        if not self.listener.internal:  # events posted over HTTP are charged there
            self._bucket = hub.doorkeeper.bucket(self.payer, self.address, stranger=self.is_stranger)
        self.is_guarded = not self.grants.everything or self._bucket is not None
        self._denied = None
        hub.router.revoke(self)
        if self.driver.is_open:
            self._subscribe_unasked()

    def _subscribe_unasked(self) -> None:
        """Subscribe the peer to the listener's own patterns, as far as its rights allow."""
        for pattern in self.listener.subscribe:
            if self.grants.may(Right.SUBSCRIBE, pattern):
                self.hub.router.subscriptions.add(pattern, self)
            else:
                extra = about("access.denied", self)
                log.info(
                    "%r, %s, may not subscribe %r: it is not sent that", self, self.principal, pattern, extra=extra
                )

    def grants_of(self, *authors: str) -> Grants:
        """The rights of the peer, plus those of the authors whose messages it passes on."""
        if self.listener.internal:
            return EVERYTHING
        return self.hub.access.grants((*self.identities, *authors), local=self.listener.local)

    def grants_for(self, message: Message) -> Grants:
        """What the sender of a message may do."""
        author = self.session.written_by(message)
        return self.grants if not author else self.grants_of(author)

    def may_publish(self, topic: str, author: str | None) -> bool:
        """Whether the peer, or the author of the message that it passes on, may publish to a topic."""
        return (self.grants if not author else self.grants_of(author)).may(Right.PUBLISH, topic)

    def login(self, token: str) -> str:
        """Check a token. Returns `accepted`, `refused`, or `limited` after too many wrong tokens from this address."""
        hub, now = self.hub, self.hub.now()
        attempts = hub.doorkeeper.attempts.of(self.address)
        holder = None if attempts.is_empty(now) else hub.access.config.tokens.holder(token)
        outcome = "accepted" if holder is not None else "limited" if attempts.is_empty(now) else "refused"
        hub.metrics.logins.add(1, self.name, outcome)
        if holder is None:
            attempts.take(1 if outcome == "refused" else 0, now)
            log.warning("%r showed a token that is not known here", self, extra=about(f"login.{outcome}", self))
        else:
            self._shown = (f"token:{holder}",)
            self.authorise()
            self.charge(1)
            log.info("%r is %s", self, self.principal, extra=about("login.accepted", self))
        return outcome

    def log_denied(self, right: Right, topic: str, count: int = 1) -> None:
        """Count a refusal. Log it once for each topic."""
        self.hub.metrics.denied.add(count, self.name, right)
        if self._is_news(right, topic):
            extra = about("access.denied", self)
            log.warning("%r, %s, may not %s %r", self, self.principal, right, topic, extra=extra)
            if right is Right.PUBLISH:
                self.hub.router.refused(self, topic, f"{self.principal} may not publish there")

    def _is_news(self, what: str, topic: str) -> bool:
        """Whether to log this: not logged before for this connection, and not too many lines already."""
        if self._denied is None:
            self._denied = set()
        key = hash((what, topic))
        if key in self._denied or len(self._denied) >= _DENIED_TOLD:
            return False
        self._denied.add(key)
        return True

    # What the peer sends

    def on_batch(self, batch: Batch) -> None:
        """Check, record and route what the peer sent."""
        hub = self.hub
        if self.session.identities is not self._proved:
            self.authorise()
        denied: Sequence[str | None] = ()
        if isinstance(batch, Calls) and not self._passes(batch):
            batch = batch.as_messages()
        has_fault = not hub.topic_limits.allow(batch)
        if self.is_guarded or has_fault:
            batch, denied = self._guard(batch, has_fault)
        if self.session.refuses and not isinstance(batch, Publishes):
            batch, meant = self._refuse_unmeant(batch)
            denied = (*denied, *meant)
        if self.protocol.request_is_publish:
            self.taken = _NOTHING
            if hub.router.providers or hub.router.routes:
                if isinstance(batch, Publishes) and hub.router.may_call(self, batch):
                    batch = self._as_calls(batch) or batch.as_messages()[0]
                if isinstance(batch, Calls):
                    self.taken = _NOTHING if batch.is_answers else frozenset(batch.ids)
                else:
                    self.taken = frozenset(hub.router.calls_among(self, batch.messages))
        ticket, data = 0, batch.data
        if data:
            said = self._say(denied) if denied or self.taken else ()
            ticket = self._record(batch, said)
            hub.metrics.received.add(batch.count, self.name)
            hub.metrics.received_bytes.add(len(data), self.name)
        hub.router.route((self,), batch, ticket)
        for refused in batch.refused:
            self._record_refused(refused.clause, refused.detail, refused.data)

    def _as_calls(self, batch: Publishes) -> Calls | None:
        """The batch as calls, if all its requests go to providers and can be passed on together; otherwise None."""
        providers = self.hub.router.providers
        if not self._may_pass or not all(providers.lookup(topic) for topic, _ in batch.topics()):
            return None
        return batch.as_calls()

    def _passes(self, calls: Calls) -> bool:
        """Whether requests or answers can be passed on together."""
        fault = self.hub.topic_limits.fault
        return self._may_pass and (calls.is_answers or all(fault(topic) is None for topic in calls.topics))

    @property
    def _may_pass(self) -> bool:
        """Whether no rule, rate or route applies to the peer's requests and answers."""
        if not self.grants.everything or self.hub.router.routes:
            return False
        return self._bucket is None or self.hub.config.limits.over_rate is not OverRate.REFUSE

    def _after_read(self) -> None:
        """All batches of a read are routed: write the resulting output."""
        if self.session.violation is not None and not self._violation_told:
            self._violation_told = True
            self._record_violation()
        if self.session.remembers:
            # The read may have confirmed events that others wait for.
            self._write_queued()
        self.hub.after_read()

    def _guard(self, batch: Batch, has_fault: bool) -> tuple[Batch, Sequence[str | None]]:
        """Apply rules, rate and topic limits to a batch. Returns the rest of it, and the ids of refused publishes."""
        bucket = self._bucket
        if bucket is not None and batch.count:
            now = self.hub.now()
            refusing = self.hub.config.limits.over_rate is OverRate.REFUSE
            # A login has its own rate. Otherwise one peer could keep others of its address from logging in.
            count = batch.count - _logins(batch)
            if refusing and count and bucket.is_empty(now):
                return self._refuse_all(batch)
            self.charge(count)
        if has_fault:
            batch = self._without_faults(batch)
        elif self.grants.everything:
            return batch, ()
        if isinstance(batch, Publishes) and all(self.may_publish(*each) for each in batch.topics()):
            return batch, ()
        if not self.grants.everything:
            left = screen(self, batch, self.may_publish)
            for topic, count in left.refused.items():
                self.log_denied(Right.PUBLISH, topic, count)
            self._record_screened(left, "access.publish", f"{self.principal} may not publish there")
            batch = left.batch
        events = [(each.id, published(each)) for each in batch.messages if each.kind is Kind.REQUEST]
        written_by, fault = self.session.written_by, self.hub.topic_limits.fault
        denied = [
            number
            for number, event in events
            if event is not None
            and (fault(event.topic or "") or not self.may_publish(event.topic or "", written_by(event)))
        ]
        return batch, denied

    def _without_faults(self, batch: Batch) -> Batch:
        """A batch without the events whose topic is invalid in every protocol."""
        fault = self.hub.topic_limits.fault
        left = screen(self, batch, lambda topic, _: not topic or fault(topic) is None)
        for topic, count in left.refused.items():
            found = fault(topic)
            assert found is not None
            self.hub.reached(found.setting, count)
            if self._is_news("topic", topic):
                log.warning("%r: %s", self, found.text, extra=about("topic.refused", self))
                self.hub.router.refused(self, topic[:_TOPIC_TOLD], found.text)
        self._record_screened(left, "hub.topic", "nobody may publish to such a topic")
        return left.batch

    def _refuse_all(self, batch: Batch) -> tuple[Batch, Sequence[str | None]]:
        """The sender is over its rate: drop events, answer requests with an error, and pass the rest."""
        self.hub.metrics.over_rate.add(1, self.name, OverRate.REFUSE)
        self.hub.reached("stranger_messages_per_second" if self.is_stranger else "messages_per_second")
        left = screen(self, batch, lambda *_: False)
        self._record_screened(left, "limits.rate", f"{self.principal} sends more than it may")
        batch = left.batch
        requests = [each for each in batch.messages if each.kind is Kind.REQUEST]
        for message in requests:
            self.hub.router.exchanges.fail(self, message, TOO_MANY, "too many messages; try again later")
        denied = [each.id for each in requests if published(each) is not None]
        return (_without(batch, requests) if requests else batch), denied

    def _refuse_unmeant(self, batch: Batch) -> tuple[Batch, Sequence[str | None]]:
        """Answer requests with an error that look like publishes but are meant for something else."""
        providers, refused = self.hub.router.providers, list[Message]()
        for message in batch.messages:
            why = self.session.refusal(message) if message.kind is Kind.REQUEST else None
            if why is not None and not providers.lookup(message.topic or ""):
                self.hub.router.exchanges.fail(self, message, UNSUPPORTED, why)
                refused.append(message)
        return (_without(batch, refused) if refused else batch), [each.id for each in refused]

    # Called by `Turn`

    def turn_key(self, now: float) -> Hashable | None:
        """Connections with equal keys may have their next reads decoded together. None: decode this one by itself."""
        # Only sessions with a kernel have a key. A connection that has failed has none.
        session: ColumnSession = self.session  # type: ignore[assignment]
        bucket = self._bucket
        if (
            self.driver.holds  # nor has one with a part of a read that waits
            or session.identities is not self._proved
            or not self._is_open_book
            or self._denied
            or (bucket is not None and bucket.is_empty(now))
        ):
            return None
        key = session.batch_key(now)
        return None if key is None else (id(self.listener), key)

    def may_publish_topics(self, topics: Iterable[str]) -> bool:
        """Whether the peer may publish to all these topics."""
        return self.grants.everything or all(self.grants.may(Right.PUBLISH, topic) for topic in topics)

    def charge(self, count: int) -> None:
        """Charge messages to the peer's rate. If it is over, stop reading from it until its token bucket refills."""
        if self._bucket is None:
            return
        now = self.hub.now()
        delay = self._bucket.take(count, now)
        if delay > 0 and self.hub.config.limits.over_rate is not OverRate.REFUSE:
            self.hub.metrics.over_rate.add(1, self.name, OverRate.PAUSE)
            self.hub.reached("stranger_messages_per_second" if self.is_stranger else "messages_per_second")
            if not self._pays_until:
                self.driver.hold("rate")
                self.hub.call_later(delay, self._paid)
            self._pays_until = max(self._pays_until, now + delay)

    # Journal records of the peer

    def _record_screened(self, left: Screened, clause: str, detail: str) -> None:
        for frame in left.frames:
            self._record_refused(clause, detail, frame)

    def _paid(self) -> None:
        left = self._pays_until - self.hub.now()
        if self.driver.failure is not None:
            return
        if left > 0.001:
            self.hub.call_later(left, self._paid)
        else:
            self._pays_until = 0.0
            self.driver.release("rate")

    def _say(self, denied: Iterable[str | None]) -> Sequence[bytes]:
        """The records that precede a run. They tell readers which requests in it are not publishes."""
        kinds = ((DENIED, denied), (TAKEN, self.taken))
        return [record_comment(name, each, self.id) for name, ids in kinds for each in excluding(ids)]

    def _record_violation(self) -> None:
        violation = self.session.violation
        assert violation is not None
        log.warning("%r refused: %s", self, violation, extra=about("connection.refused", self))
        self._record_refused(violation.clause, violation.detail, self.session.refused)

    def _on_end(self, failure: WireloomError) -> None:
        self._tell_room()
        if self._lost:
            self._report_lost()
        self._count_queued(-self._queued_bytes)
        self._end_records()
        cut = self.session.unread()
        if cut and self.session.violation is None:
            self._record_refused(CUT, "the connection ended inside a frame", cut)
        self.session.discard()
        for what, count in self.session.counters.items():
            self.hub.metrics.ignored.add(count, self.name, what)
        reason = self.session.close_reason or ("reset" if isinstance(failure.__cause__, OSError) else "close")
        log.debug("%r is closed: %s", self, failure, extra=about("connection.closed", self))
        self.hub.journal.record(
            "closed",
            {"reason": reason, "detail": str(failure)},
            self.id,
            protocol=self.name,
            source=self.peer or None,
            destination=self.local or None,
        )
        self.hub.forget(self)

    # What the hub sends to the peer

    def send(self, message: Message) -> Message:
        """Send a request, an answer or a control message, and record it in the journal. Returns it with its id.

        `Hub.write_out` writes it at the end of the read or of the commit, together with other output for this peer.
        """
        if self.driver.failure is not None:
            raise fresh(self.driver.failure)
        if self.driver.writing_is_paused:
            self.unsent += len(message.body)
        sent = self.session.send(message, self.hub.now())
        self.hub.unwritten[self] = None
        return sent

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Send answers that are already encoded. `Hub.write_out` writes them, too."""
        if self.driver.failure is None and encoded:
            self.session.send_frames(encoded, count)
            self.hub.unwritten[self] = None

    def ask_all(self, topic: str, content_type: str | None, bodies: Sequence[bytes]) -> Sequence[str] | None:
        """Send requests that differ only in their bodies.

        Returns their ids, or None if they must be sent one by one.
        """
        session = self.session
        if self.driver.failure is not None or not isinstance(session, CallSession):
            return None
        ids = session.ask_all(topic, content_type, bodies, self.hub.now())
        if ids is not None:
            self._called(bodies)
        return ids

    def answer_all(
        self, topic: str | None, content_type: str | None, ids: Sequence[str], bodies: Sequence[bytes]
    ) -> bool:
        """Send successful responses to requests of this peer. Returns False if they must be sent one by one."""
        session = self.session
        if self.driver.failure is not None or not isinstance(session, CallSession):
            return False
        if not session.answer_all(topic, content_type, ids, bodies, self.hub.now()):
            return False
        self._called(bodies)
        return True

    def _called(self, bodies: Sequence[bytes]) -> None:
        """Count requests or responses that were queued."""
        if self.driver.writing_is_paused:
            self.unsent += sum(map(len, bodies))
        self.hub.unwritten[self] = None

    def cut_off(self, limit: str) -> None:
        """A limit is reached: drop the connection now."""
        extra = about(f"limit.{limit}", self)
        log.warning("%r is dropped with %d bytes unsent: %s", self, self._queued_bytes, limit, extra=extra)
        self.hub.metrics.cut_off.add(1, self.name, limit)
        self.hub.reached("memory_bytes" if limit == "memory" else None)
        self.session.close_reason = "error"
        self._forget_queue()
        self.hub.forget(self)
        self.driver.abort()

    def dismiss(self, limit: str, why: str) -> None:
        """A time limit is reached: close the connection politely."""
        log.info("%r is told to go: %s", self, why, extra=about(f"limit.{limit}", self))
        self.hub.metrics.cut_off.add(1, self.name, limit)
        self.hub.reached(f"{limit}_seconds")
        self.driver.close(why)
        if limit == "idle":
            self.session.close_reason = "idle"

    @property
    def held_bytes(self) -> int:
        """Bytes of input held in memory: incomplete messages, and reads that are not taken yet."""
        return self.session.buffered + self.driver.waiting_bytes
