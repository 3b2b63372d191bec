"""Checks that run on the hub's timer: peers that are too slow, silent, or hold too much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireloom.protocols.contract import SessionState

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub


class Watchdog:
    """Enforces the limits of time and memory on all connections."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._newcomers: dict[Connection, float] = {}
        """Connections that have not completed their handshake or have no rights yet, in order of arrival."""
        self._next_round = 0.0
        self._received = 0
        """Bytes received since memory was last checked."""

    def arrived(self, connection: Connection) -> None:
        """Add a new connection."""
        self._newcomers[connection] = self._hub.now()

    def tick(self, now: float) -> None:
        """Run all checks. The hub's timer calls this."""
        self._greet(now)
        self._tidy()
        if now >= self._next_round:
            self._next_round = now + min(self._hub.config.limits.idle_seconds / 4, 30.0)
            self._listen(now)

    def _greet(self, now: float) -> None:
        """Close connections that took too long for their handshake, or still have no rights."""
        seconds = self._hub.config.limits.handshake_seconds
        while self._newcomers:
            connection, came = next(iter(self._newcomers.items()))
            if now - came < seconds:
                return
            del self._newcomers[connection]
            if connection.id not in self._hub.connections:
                continue
            if connection.session.state is SessionState.OPENING:
                connection.dismiss("handshake", f"no handshake within {seconds:g} s")
            elif connection.is_stranger:
                connection.dismiss("handshake", f"no right to anything, and no token within {seconds:g} s")

    def _listen(self, now: float) -> None:
        """Close connections that were silent for too long."""
        limit = self._hub.config.limits.idle_seconds
        for connection in list(self._hub.connections.values()):
            before, since = connection.quiet_since
            if before != connection.heard:
                connection.quiet_since = (connection.heard, now)
            elif now - since >= limit:
                connection.dismiss("idle", f"nothing heard for {limit:g} s")

    # Memory

    def memory(self) -> int:
        """Bytes in use: queues, unsynced data, reads not taken, replays, HTTP bodies, patterns, last values."""
        hub = self._hub
        held = sum(each.held_bytes + each.unsent + each.unsent_past for each in hub.connections.values())
        router = hub.router
        known = router.subscriptions.memory + router.providers.memory + hub.last_values.latest.memory
        read = hub.replays.backlogs.held_bytes
        return hub.queued_bytes + hub.journal.pending_bytes + hub.posted_bytes + held + known + read

    def shed(self) -> None:
        """Shorten the longest queues until the total is well below the limit."""
        hub = self._hub
        goal = hub.config.limits.memory_bytes * 9 // 10
        hub.reached("memory_bytes")
        while hub.queued_bytes and hub.queued_bytes + hub.journal.pending_bytes > goal:
            longest = max(hub.connections.values(), key=lambda each: each.queued_bytes, default=None)
            if longest is None or not longest.queued_bytes:
                return
            longest.shed()

    def took(self, size: int) -> None:
        """Count received bytes. After many, check memory without waiting for the timer."""
        self._received += size
        if self._received > self._hub.config.limits.memory_bytes >> 4:
            self._tidy()

    def _tidy(self) -> None:
        """Drop the connections that hold the most memory: incomplete messages, or replays that they do not read."""
        hub = self._hub
        self._received = 0
        excess = self.memory() - hub.config.limits.memory_bytes
        if excess <= 0:
            return
        sizes = ((each.held_bytes + each.unsent_past, each) for each in hub.connections.values())
        for size, connection in sorted(sizes, key=lambda each: each[0], reverse=True):
            if excess <= 0 or not size:
                return
            excess -= size
            connection.cut_off("memory")
