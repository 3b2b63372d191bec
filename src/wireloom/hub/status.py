"""The state of the hub as JSON, for the console and for scripts: the page `/status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wireloom.model import type_of_json

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

SHOWN = 200
"""Maximum connections listed. The slowest come first, because they need attention."""


def status(hub: Hub) -> dict[str, type_of_json]:
    """Totals by protocol, the connections, and the journal."""
    metrics = hub.metrics
    counters = {
        "connections": metrics.connections,
        "received": metrics.received,
        "received_bytes": metrics.received_bytes,
        "sent": metrics.sent,
        "delivered": metrics.delivered,
        "acknowledged": metrics.acknowledged,
    }
    protocols: dict[str, type_of_json] = {}
    for name in sorted({listener.protocol.name for listener in hub.config.listeners}):
        totals: dict[str, type_of_json] = {key: int(counter.value(name)) for key, counter in counters.items()}
        totals["open"] = sum(1 for each in hub.connections.values() if each.name == name)
        protocols[name] = totals
    slowest = sorted(hub.connections.values(), key=lambda each: (-each.queued_bytes, -each.lost, each.id))
    return {
        "healthy": hub.commit.healthy,
        "why": None if hub.commit.healthy else str(hub.commit.last_error),
        "listeners": dict(hub.urls),
        "journal": str(hub.config.journal_folder.resolve()),
        "archive": None if hub.archiver is None else hub.archiver.status(),
        "connections_open": len(hub.connections),
        "subscriptions": len(hub.router.subscriptions),
        "requests_in_flight": len(hub.router.exchanges),
        "protocols": protocols,
        "connections": [_line(each) for each in slowest[:SHOWN]],
    }


def _line(connection: Connection) -> type_of_json:
    return {
        "id": f"{connection.id:016x}",
        "protocol": connection.name,
        "peer": connection.peer or None,
        "principal": connection.principal,
        "listener": connection.listener.url,
        "received": connection.heard,
        "delivered": connection.delivered,
        "queued_bytes": connection.queued_bytes,
        "lost": connection.lost,
    }
