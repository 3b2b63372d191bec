"""The hub: starts and stops listeners, journal, router and HTTP pages together."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from wireloom import peers
from wireloom.hub import session_restore
from wireloom.hub.access import TOKEN_PREFIX, Access
from wireloom.hub.archiver import Archiver
from wireloom.hub.config import HttpConfig, HubConfig, ListenerConfig
from wireloom.hub.connection import Connection
from wireloom.hub.http import HttpServer, Page
from wireloom.hub.limits import Doorkeeper, TopicLimits
from wireloom.hub.logs import about
from wireloom.hub.loop_lag import LoopStalls
from wireloom.hub.metrics import Metrics
from wireloom.hub.outbound import keep_in_touch
from wireloom.hub.replay import Replays
from wireloom.hub.retained import LastValues
from wireloom.hub.retention import DiskWatch, Retention
from wireloom.hub.router import Router
from wireloom.hub.status import status
from wireloom.hub.turn import Turn
from wireloom.hub.watchdog import Watchdog
from wireloom.hub.webhooks import Webhooks
from wireloom.journal.blocks import MAX_REFUSED
from wireloom.journal.commit import GroupCommit
from wireloom.journal.daemon_executor import DaemonExecutor
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.writer import Journal
from wireloom.model import ConfigError, Direction
from wireloom.protocols.contract import Role, Scheme, Sessions, Settings
from wireloom.protocols.registry import INTERNAL
from wireloom.protocols.registry import protocol as find_protocol
from wireloom.transports.address import Address
from wireloom.transports.base import Listener, Options, Owner
from wireloom.transports.registry import transport

if TYPE_CHECKING:
    from wireloom.hub.tracing import Tracing

log = logging.getLogger("wireloom.hub")

_TICK = 0.5
_SHORTLY = 1.0
"""Seconds that a start waits for state to be restored from the journal.

After that, restoring goes on in the background.
"""
_TOKEN = re.compile(TOKEN_PREFIX.encode() + rb"[A-Za-z0-9_-]+")
"""Matches tokens, so that they are removed from refused frames before these are journaled."""
_AROUND = 64 * 1024
"""Bytes that a WebSocket message may have beside its body. The protocol checks the body itself."""
_GRACE = 0.5
"""Seconds for the last steps after the drain deadline. The journal gets as long as a sync takes, if that is more."""
_FULL = {"connections": "max_connections", "address": "max_connections_per_address"}
"""The limit behind each reason to refuse a connection."""
_TOO_LARGE = (".too-large", ".too-long")
"""Endings of the clauses about message size, in every protocol."""
_REFUSALS = 100
"""How many refused frames are recorded each second. Datagrams can be refused by the million."""


class Hub:
    """A running hub.

    async with Hub(default_config(Path("data"))) as hub:
        print(hub.urls)
        await hub.stopped()
    """

    def __init__(self, config: HubConfig, *, disk: Disk = LOCAL, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.config = config
        self.disk, self.now_ns = disk, now_ns
        """The disk, and the time of day. Tests pass their own."""
        self.metrics = Metrics()
        self.last_values = LastValues(self)
        self.replays = Replays(self)
        self.tracing: Tracing | None = None
        self.archiver: Archiver | None = None
        self.router = self._router()
        self.access = Access(config.access)
        self.doorkeeper = Doorkeeper(config.limits, config.access.attempts_per_minute)
        self.topic_limits = TopicLimits(config.limits)
        self.watch = Watchdog(self)
        self.connections: dict[int, Connection] = {}
        self.queued_bytes = 0
        """Bytes in all queues."""
        self.posted_bytes = 0
        """Bytes of bodies that are being posted over HTTP."""
        self.unwritten: dict[Connection, None] = {}
        """Connections with output that `write_out` writes at the end of a read or of a commit."""
        self.packing: set[asyncio.Future[object]] = set()
        """Large events that other threads are encoding."""
        self.urls: dict[str, str] = {}
        """The actual URL of each listener, by the URL in the configuration."""
        self._listeners: list[Listener] = []
        self._by_url: dict[str, Listener] = {}
        self._sessions: list[Sessions] = []
        """One for each listener, in the order of `_configured`."""
        self._configured: list[ListenerConfig] = []
        self._contacts: list[asyncio.Task[None]] = []
        self._http: HttpServer | None = None
        self.webhooks = Webhooks(self)
        self._ticker: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._paused = False
        self._refusals = (0.0, float(_REFUSALS))
        self._draining = False
        self._empty = asyncio.Event()
        self._disk = DiskWatch()
        self._stalls = LoopStalls(self.metrics.stalls)

    def _router(self) -> Router:
        timeout = self.config.limits.request_timeout
        if self.config.tracing is None:
            return Router(self, timeout)
        from wireloom.hub.tracing import TracedRouter, Tracing

        self.tracing = Tracing(self.config.tracing)
        return TracedRouter(self, timeout, self.tracing)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the journal, then the listeners."""
        self._loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self._loop.time
        self.call_later, self.call_soon = self._loop.call_later, self._loop.call_soon
        self.turn = Turn(self)
        settings = self.config.journal
        self.journal = Journal.open(
            self.config.journal_folder,
            segment_bytes=settings.segment_bytes,
            sync=settings.sync,
            refused_quota=settings.refused_quota,
            hub=self.config.id,
            disk=self.disk,
            now_ns=self.now_ns,
        )
        if self.journal.new_epoch:
            extra = about("journal.epoch")
            log.warning("the journal goes on as epoch %s: %s", self.journal.epoch, self.journal.new_epoch, extra=extra)
        for cut in self.journal.recovery.cuts:
            extra = about("journal.recovered")
            log.warning(
                "recovered after a crash: cut %d bytes from the end of %s", cut.cut_bytes, cut.segment, extra=extra
            )
        self.commit = GroupCommit(self.journal, self._loop, high_water=self._high_water)
        self.commit.on_commit = self.turn.take_all
        self.commit.on_told = self.write_out
        self.commit.on_failed = self._disk.look
        if self.config.archive is not None:
            self.archiver = Archiver(self.config.archive, self.journal, self.metrics)
        self.retention = Retention(
            settings,
            self.config.journal_folder,
            self.metrics,
            is_archived=None if self.archiver is None else self.archiver.is_archived,
            disk=self.disk,
            now_ns=self.now_ns,
        )
        self.last_values.start()
        self._gauges()
        self.webhooks.prepare(self.config.webhooks)
        inside = self._listener_inside(self.config.http)
        try:
            # Load every kernel before any listener opens: compiling them blocks the loop for seconds.
            prepared = [(each, self._prepare(each)) for each in (*self.config.listeners, *inside)]
            for listener, sessions in prepared:
                await self._listen(listener, sessions)
            if self.config.http is not None:
                await self._serve_http(self.config.http, *inside)
        except BaseException:
            await self.stop()
            raise
        self.webhooks.start()
        self._ticker = self._loop.create_task(self._tick())
        self._stalls.start(self._loop)
        if self.archiver is not None:
            self.archiver.start()
        self._recalling = self._loop.create_task(
            session_restore.recall(self.config.journal_folder, self._sessions, self.disk)
        )
        await asyncio.wait((self._recalling,), timeout=_SHORTLY)

    @property
    def read_disk(self) -> Disk:
        """Where replays read from: the journal's folder, and its archive if there is one."""
        return self.disk if self.archiver is None else self.archiver.disk

    def _listener_inside(self, config: HttpConfig | None) -> tuple[ListenerConfig, ...]:
        """The in-memory listener for events posted over HTTP, if these are enabled."""
        if config is None or not config.events:
            return ()
        protocol = find_protocol(INTERNAL)
        name = f"events-{self.journal.new_connection_id():016x}"
        scheme, address = Scheme("memory", "memory", 0, local=True), Address(INTERNAL, 0, name)
        url, settings = f"memory://{INTERNAL}/{name}", protocol.settings({})
        return (ListenerConfig(url, protocol, scheme, address, settings, internal=True),)

    async def _serve_http(self, config: HttpConfig, inside: ListenerConfig | None = None) -> None:
        connect = None if inside is None else functools.partial(peers.connect, inside.url)
        server = HttpServer(self, config, self._page_table(), connect)
        port = await server.start()
        self._http = server
        self.urls["http"] = f"{'https' if config.tls else 'http'}://{config.address.with_port(port)}"

    def _prepare(self, listener: ListenerConfig) -> Sessions:
        """The session factory of a listener, with its kernels compiled or loaded."""
        sessions = listener.protocol.sessions(self._held_down(listener), listener.topics)
        sessions.join([each for each in self._sessions if each.protocol is listener.protocol])
        session_restore.begin(sessions)
        self._sessions.append(sessions)
        self._configured.append(listener)
        sessions.new(Role.SERVER).enable_columns()
        return sessions

    async def _listen(self, listener: ListenerConfig, sessions: Sessions) -> None:
        strangers = self.journal.new_connection_id()

        def owner() -> Owner:
            return Connection(self, listener, sessions)

        def admit(datagram: bytes, source: str) -> bool:
            refusal = sessions.admit(datagram, source, time.time())
            if refusal is not None:
                name = listener.protocol.name
                self.refused(
                    name,
                    strangers,
                    Direction.DGRAM,
                    datagram,
                    refusal.clause,
                    refusal.detail,
                    source,
                    str(listener.address),
                )
            return refusal is None

        try:
            options = Options(
                tls=listener.tls,
                certificates=listener.certificates,
                admit=admit,
                max_sources=self.config.limits.max_connections,
                handshake_timeout=self.config.limits.handshake_seconds,
                max_handshakes=self.config.limits.handshakes,
                max_handshakes_per_address=self.config.limits.handshakes_per_address,
                origins=listener.origins,
                max_message=self.config.limits.message_bytes + _AROUND,
                busy_poll=self.config.limits.busy_poll_seconds,
            )
            opened = await transport(listener.scheme.transport).listen(listener.address, owner, options)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {listener.url}: {error.strerror or error}; "
                "stop whoever listens there, or name another place in the configuration"
            ) from None
        self._listeners.append(opened)
        if not listener.internal:
            self._by_url[listener.url] = opened
            self.urls[listener.url] = f"{listener.scheme.name}://{opened.address}"
            log.info("listening on %s", self.urls[listener.url], extra=about("listener.open"))
        for address in listener.contacts:
            self._contacts.append(
                self._loop.create_task(
                    keep_in_touch(
                        opened, address, lambda: Connection(self, listener, sessions, contacted=True), self.connections
                    )
                )
            )

    def listener(self, url: str) -> Listener:
        """The listener with this URL in the configuration."""
        return self._by_url[url]

    def listener_at(self, protocol: str, local: str | None) -> str | None:
        """The configured URL of the listener of a protocol at an address; None if this is ambiguous."""
        host, _, port = (local or "").rpartition(":")
        found = {
            listener.address.host: config.url
            for config, listener in zip(self._configured, self._listeners, strict=False)
            if config.protocol.name == protocol and str(listener.address.port) == port
        }
        return next(iter(found.values())) if len(found) == 1 else found.get(host.strip("[]"))

    def _held_down(self, listener: ListenerConfig) -> Settings:
        """A listener's settings, with its message size capped by the hub's limits."""
        if listener.internal:
            return listener.settings
        return self.config.limits.hold_down(listener.protocol, listener.settings)

    def apply_limits(self) -> None:
        """Pass new limits on to the parts that hold copies of them."""
        for listener, sessions in zip(self._configured, self._sessions, strict=True):
            sessions.renew(self._held_down(listener))
        self.commit.high_water = self._high_water
        self.router.exchanges.timeout = self.config.limits.request_timeout
        self.topic_limits = TopicLimits(self.config.limits)
        self.last_values.latest.most = self.config.limits.last_values_bytes

    def _listener_counts(self) -> dict[tuple[str, ...], float]:
        """The counters of listeners, by protocol and name."""
        found: dict[tuple[str, ...], float] = {}
        for sessions, listener in zip(self._sessions, self._listeners, strict=False):
            for what, count in (*sessions.counters.items(), *listener.counters.items()):
                key = (sessions.protocol.name, what)
                found[key] = found.get(key, 0) + count
        return found

    def _limits_used(self) -> dict[tuple[str, ...], float]:
        """How much of each hub-wide limit is in use."""
        used = {
            "max_connections": len(self.connections),
            "memory_bytes": self.watch.memory(),
            "pending_bytes": self.journal.pending_bytes,
            "subscriptions": self.router.patterns,
            "wildcard_shapes": self.router.shapes,
            "last_values_bytes": self.last_values.latest.memory,
            "replays": len(self.replays),
            "replay_bytes": self.replays.backlogs.held_bytes,
            "requests": len(self.router.exchanges),
            "http_connections": len(self._http or ()),
            "http_body_bytes": self.posted_bytes,
        }
        return {(name,): amount for name, amount in used.items()}

    def _gauges(self) -> None:
        self.metrics.listeners.read = self._listener_counts
        self.metrics.limits.read = lambda: {(name,): most for name, most in self.config.limits.amounts().items()}
        self.metrics.limits_used.read = self._limits_used
        gauge = self.metrics.gauge
        gauge("wireloom_connections", "Connections open now.", lambda: len(self.connections))
        gauge("wireloom_subscriptions", "Subscriptions in force.", lambda: len(self.router.subscriptions))
        gauge("wireloom_replays", "Subscriptions that read the journal.", lambda: len(self.replays))
        gauge("wireloom_requests_in_flight", "Requests that wait for a provider.", lambda: len(self.router.exchanges))
        gauge("wireloom_journal_pending_bytes", "Bytes that wait for the sync.", lambda: self.journal.pending_bytes)
        gauge("wireloom_journal_durable_packet", "Last packet id on disk.", lambda: self.journal.durable)
        gauge("wireloom_journal_healthy", "Whether the disk takes what is written.", lambda: int(self.commit.healthy))
        gauge(
            "wireloom_journal_held_segments",
            "Segments past their time that a pipeline has not read.",
            lambda: self.retention.held,
        )
        archiver = self.archiver
        gauge(
            "wireloom_archive_healthy",
            "Whether segments can be archived.",
            lambda: int(archiver is None or archiver.healthy),
        )
        gauge(
            "wireloom_archive_waiting_segments",
            "Sealed segments that are not archived yet.",
            lambda: 0 if archiver is None else archiver.waiting,
        )
        gauge(
            "wireloom_archive_waiting_bytes",
            "Bytes of sealed segments that are not archived yet.",
            lambda: 0 if archiver is None else archiver.waiting_bytes,
        )
        gauge(
            "wireloom_queued_bytes",
            "Bytes of events that wait for slow subscribers.",
            lambda: self.queued_bytes,
        )
        gauge(
            "wireloom_loop_stall_worst_seconds",
            "The longest that the event loop was held since the start.",
            lambda: self._stalls.worst,
        )
        gauge("wireloom_memory_bytes", "Bytes that count for `memory_bytes`.", self.watch.memory)

    def _page_table(self) -> dict[str, Callable[[], Page]]:
        def ready() -> Page:
            if self._draining:
                return Page("draining\n", 503)
            if not self.commit.healthy:
                return Page(f"the journal cannot be written: {self.commit.last_error}\n", 503)
            return Page("ready\n")

        return {
            "/metrics": lambda: Page(self.metrics.text(), version="; version=0.0.4"),
            "/healthz": lambda: Page("alive\n"),
            "/readyz": ready,
            "/status": lambda: Page(json.dumps(status(self)) + "\n", content_type="application/json"),
            "/listeners": lambda: Page(json.dumps(self.urls) + "\n", content_type="application/json"),
        }

    # Called by connections

    def admit(self, connection: Connection) -> bool:
        """Accept one more peer, if the limits allow it. Returns whether it was accepted."""
        refusal = "draining" if self._draining else self.doorkeeper.refusal(connection.address)
        if refusal is not None:
            self.metrics.turned_away.add(1, refusal)
            self.reached(_FULL.get(refusal))
            return False
        self.doorkeeper.enter(connection.address)
        self.connections[connection.id] = connection
        self.watch.arrived(connection)
        self.metrics.connections.add(1, connection.name)
        if self._paused:
            connection.driver.hold("journal")
        return True

    def refused(
        self,
        protocol: str,
        connection: int,
        direction: Direction,
        data: bytes,
        clause: str,
        detail: str,
        source: str,
        destination: str,
    ) -> None:
        """Bytes were refused: count them always, and record them up to `_REFUSALS` a second."""
        self.metrics.refused.add(1, protocol, clause)
        if clause.endswith(_TOO_LARGE):
            self.reached("decompressed_bytes" if ".compression." in clause else "message_bytes")
        now = self.now()
        then, left = self._refusals
        left = min(float(_REFUSALS), left + (now - then) * _REFUSALS)
        self._refusals = (now, max(left - 1, 0))
        if left >= 1:
            self.journal.refuse(
                protocol,
                connection,
                direction,
                _TOKEN.sub(lambda found: b"*" * len(found[0]), data[:MAX_REFUSED]),
                size=len(data),
                clause=clause,
                detail=detail,
                source=source or None,
                destination=destination or None,
            )

    def reached(self, setting: str | None, count: int = 1) -> None:
        """Count that something was refused, cut or delayed because of a setting of `[limits]`.

        None: no such setting.
        """
        if setting is not None:
            self.metrics.limits_reached.add(count, setting)

    def forget(self, connection: Connection) -> None:
        """Remove a peer that is gone."""
        if self.connections.pop(connection.id, None) is not None:
            self.doorkeeper.leave(connection.address)
            self.router.drop(connection)
            if connection.over is not None:
                connection.over.set()
        if not self.connections:
            self._empty.set()

    @property
    def _high_water(self) -> int:
        limits = self.config.limits
        return min(limits.pending_bytes, limits.memory_bytes)

    def write_out(self) -> None:
        """Write the output of a read or of a commit: once for each peer."""
        while self.unwritten:
            self.unwritten.popitem()[0].driver.write_out()

    def after_read(self) -> None:
        """All batches of a read, or of a turn, are routed: write the resulting output."""
        self.write_out()
        self.watch_pending()

    def watch_memory(self) -> None:
        """Something was queued: if all queues together are too large, shorten the longest."""
        if self.queued_bytes + self.journal.pending_bytes > self.config.limits.memory_bytes:
            self.watch.shed()

    def watch_pending(self) -> None:
        """Stop reading from peers while too many bytes wait for the disk."""
        if self.journal.pending_bytes >= self.commit.high_water and not self._paused:
            self._paused = True
            self.reached("pending_bytes")
            for connection in self.connections.values():
                connection.driver.hold("journal")
            self.commit.when_room(self._resume)

    def _resume(self) -> None:
        self._paused = False
        for connection in list(self.connections.values()):
            connection.driver.release("journal")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.router.exchanges.expire(self.now())
            if not self.commit.is_writing:  # a commit checks this itself
                self.journal.check()
            self._disk.look(self.commit.last_error)
            self.retention.tick(self._loop)
            if self.archiver is not None and not self._draining:
                self.archiver.tick()
            self.watch.tick(self.now())
            self.last_values.tick(self._loop)

    # Stopping

    def ask_to_stop(self) -> None:
        """Ask the hub to stop; for signal handlers. `stopped` returns then."""
        self._stop_asked.set()

    async def stopped(self) -> None:
        """Wait until the hub is asked to stop."""
        await self._stop_asked.wait()

    async def stop(self) -> None:
        """Drain: accept no connections, journal and acknowledge what was received, and close all peers politely.

        One deadline, `drain_seconds` from now, applies to all of this. If the disk is not done about one sync later,
        the hub gives up waiting. What was acknowledged is safe, and recovery completes the rest at the next start.
        """
        if self._draining:
            return
        self._draining = True
        deadline = self.now() + self.config.limits.drain_seconds
        self._stalls.stop()
        log.info("draining: %d connections", len(self.connections), extra=about("hub.draining"))
        for task in self._contacts:
            task.cancel()
        stopping = self._loop.create_task(self.webhooks.stop())
        if self._http is not None:
            await self._in_time(self._http.disconnect(), deadline)
        for listener in self._listeners:
            listener.close()
        if self._ticker is not None:
            self._ticker.cancel()
            self._recalling.cancel()
        # Stop reading before the goodbye: in some protocols nothing can be answered after it.
        for connection in self.connections.values():
            connection.driver.hold("drain")
        await self._settle(deadline)
        for connection in list(self.connections.values()):
            connection.driver.release("drain")
            connection.driver.close("close")
        if self.connections:
            self._empty.clear()
            if not await self._in_time(self._empty.wait(), deadline):
                for connection in list(self.connections.values()):
                    connection.driver.abort()
                await asyncio.sleep(0)
        late = max(deadline, self.now() + _GRACE)
        for listener in self._listeners:
            await self._in_time(listener.wait_closed(), late)
        await self._in_time(self.replays.close(), late)
        if self._http is not None:
            await self._in_time(self._http.stop(), late)
        saving = self._loop.create_task(self.last_values.close())
        late = max(deadline, self.now() + max(_GRACE, self.commit.seconds))
        try:
            await self._close_journal(late)
        finally:
            unsaved = [each for each in (stopping, saving) if not each.done()]
            if unsaved and not await self._in_time(asyncio.wait(unsaved), late):
                extra = about("drain.unsaved")
                log.error("stopped before cursors and last values were saved: the disk is slow", extra=extra)
            if self.archiver is not None:
                await self._in_time(self.archiver.finish(), max(deadline, self.now() + _GRACE))
                self.archiver.stop()
            if self.tracing is not None:
                flushing = self._loop.run_in_executor(DaemonExecutor("tracing"), self.tracing.close)
                await self._in_time(flushing, max(deadline, self.now() + _GRACE))

    async def _in_time(self, waiting: Awaitable[object], deadline: float) -> bool:
        """Await something up to a deadline. Returns False if it took longer and was cancelled."""
        try:
            async with asyncio.timeout_at(deadline):
                await waiting
        except TimeoutError:
            return False
        return True

    async def _settle(self, deadline: float) -> None:
        """Wait until what was received is durable and acknowledged, and deliveries are under way."""
        if not await self._in_time(self.commit.wait(self.journal.last_ticket), deadline):
            why = self.commit.last_error or "the disk is slow"
            log.error("could not acknowledge everything in time: %s", why, extra=about("drain.unacknowledged"))

        async def pack() -> None:
            while self.packing:
                await asyncio.wait(self.packing)

        await self._in_time(pack(), deadline)

    async def _close_journal(self, deadline: float) -> None:
        """Commit what is left and seal the last segment, on a thread."""
        if not await self._in_time(self.commit.close(), deadline):
            why = self.commit.last_error or "the disk does not answer"
            log.error("stopped while the journal could not be written: %s", why, extra=about("journal.unwritten"))
        if not await self._in_time(self.commit.seal(), deadline):
            extra = about("journal.unsealed")
            log.error(
                "stopped before the journal was closed: the disk does not answer; nothing acknowledged is lost, "
                "the next start recovers the last segment",
                extra=extra,
            )
