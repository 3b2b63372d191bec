"""Applies a new configuration to a running hub: routes, rules, limits, webhooks, certificates.

Connections stay open.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from wireloom.hub.access import Access
from wireloom.hub.config import HubConfig, ListenerConfig
from wireloom.hub.logs import about
from wireloom.hub.routes import Routes
from wireloom.model import ConfigError, NotSupported

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

_AT_START = ("data", "journal", "http", "tracing", "archive")
"""Sections that are read only at the start. The certificates of the pages are an exception."""
_DOORS = {
    "busy_poll_seconds": "on streams",
    "handshake_seconds": "for TLS and WebSocket",
    "handshakes": "of listeners",
    "handshakes_per_address": "of listeners",
    "max_connections": "for sources of one datagram listener",
    "message_bytes": "for messages of WebSockets",
}
"""Limits that listeners copy when they open."""


def reload_from(hub: Hub, load: Callable[[], HubConfig]) -> bool:
    """Apply what `load` returns. If it has an error, nothing changes, and the log says why."""
    try:
        later = reload(hub, load())
    except ConfigError as error:
        hub.metrics.reloads.add(1, "failed")
        log.error("the configuration is not taken, the old one stays in force: %s", error, extra=about("reload.failed"))
        return False
    hub.metrics.reloads.add(1, "done")
    log.info("the new configuration is in force", extra=about("reload.done"))
    if later:
        log.warning("changes of %s wait for a restart", ", ".join(later), extra=about("reload.restart-needed"))
    return True


def reload(hub: Hub, config: HubConfig) -> list[str]:
    """Apply routes, rules, limits, webhooks and certificates. Returns the settings that need a restart."""
    old = hub.config
    later = [f"[{name}]" for name in _AT_START if getattr(old, name) != getattr(config, name)]
    if old.http is not None and old.http.tls is not None and config.http is not None and config.http.certificates:
        config.http.certificates.renew(old.http.tls)
    known = {listener.url: listener for listener in old.listeners}
    for listener in config.listeners:
        before = known.pop(listener.url, None)
        if before is None or _differ(before, listener):
            later.append(listener.url)
        if before is not None and listener.certificates is not None:
            try:
                hub.listener(listener.url).renew(listener.certificates)
            except NotSupported:
                later.append(f"the certificates of {listener.url}")
    later += known
    later += [
        f"{name} {where}" for name, where in _DOORS.items() if getattr(old.limits, name) != getattr(config.limits, name)
    ]
    # Listeners, journal and pages keep the settings of the start.
    hub.config = dataclasses.replace(
        old, limits=config.limits, access=config.access, routes=config.routes, webhooks=config.webhooks
    )
    hub.router.routes = Routes(config.routes)
    hub.access = Access(config.access)
    hub.doorkeeper.configure(config.limits, config.access.attempts_per_minute)
    hub.apply_limits()
    hub.webhooks.change(config.webhooks)
    for connection in list(hub.connections.values()):
        connection.authorise()
    return later


def _differ(old: ListenerConfig, new: ListenerConfig) -> bool:
    names = ("settings", "topics", "subscribe", "origins")
    return any(getattr(old, name) != getattr(new, name) for name in names)
