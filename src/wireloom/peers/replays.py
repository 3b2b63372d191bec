"""Subscriptions that ask a hub for past events. These arrive under their own topics, with offsets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING

from wireloom.model import ConfigError, Kind, Message, WireloomError, iso_time
from wireloom.peers.inbox import Inbox
from wireloom.peers.streams import Subscription
from wireloom.protocols.contract import HUB_PREFIX

if TYPE_CHECKING:
    from wireloom.peers.peer import Peer

_SUBSCRIBE, _UNSUBSCRIBE = HUB_PREFIX + "subscribe", HUB_PREFIX + "unsubscribe"
_SINCE = HUB_PREFIX + "since/"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NUMBERS = count(1)
TIMEOUT = 30.0
"""Seconds that a replay request waits for a connection."""


class Replay(Subscription):
    """Events of one pattern since some point. `offset` is that of the newest event received."""

    def __init__(
        self,
        peer: Peer,
        replays: ReplaySubscriptions,
        pattern: str,
        inbox: Inbox[Message],
        since: str | datetime,
        *,
        retained: bool,
        local: bool,
    ) -> None:
        super().__init__(peer, pattern, inbox, local=False)
        if retained or local:
            raise ConfigError("since goes with neither retained nor local: it asks a hub for everything since then")
        self.name = str(next(_NUMBERS))
        self.inbox = inbox
        self._replays = replays
        self._since = fixed(since)
        self.offset: str | None = None

    def request(self) -> Message:
        """The request that asks the hub for the events after the current offset."""
        return _operation(_SUBSCRIBE, {"topic": self.pattern, "since": self.offset or self._since, "as": self.name})

    async def _open(self) -> bool:
        # Not registered while there is no connection: a reconnect would ask for it a second time.
        await self._peer._room(TIMEOUT)
        self._replays.add(self)
        try:
            await self._peer.ask(self.request())
        except BaseException:
            self._replays.remove(self)
            raise
        return True

    def _drop(self) -> None:
        self._replays.remove(self)
        self.inbox.discard()
        if self._peer.connected:
            try:
                self._peer._send_and_forget(_operation(_UNSUBSCRIBE, {"topic": self.pattern, "as": self.name}))
            except WireloomError:
                return  # a lost connection has no subscriptions

    def take(self, offset: str, message: Message) -> None:
        """Take an event."""
        self.offset = offset
        self.inbox.put(message)


class ReplaySubscriptions:
    """The replays of one peer."""

    def __init__(self) -> None:
        self._by_name: dict[str, Replay] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, replay: Replay) -> None:
        """Register a replay. From now on its events may arrive."""
        self._by_name[replay.name] = replay

    def remove(self, replay: Replay) -> None:
        """Remove a replay."""
        self._by_name.pop(replay.name, None)

    def running(self) -> list[Replay]:
        """All registered replays."""
        return list(self._by_name.values())

    def inboxes(self) -> Iterator[Inbox[Message]]:
        """The inboxes of all replays."""
        return (replay.inbox for replay in self._by_name.values())

    def take(self, message: Message) -> bool:
        """Pass an event to its replay, under its original topic. Returns False if it belongs to none."""
        if message.topic is None or not message.topic.startswith(_SINCE):
            return False
        name, _, rest = message.topic.removeprefix(_SINCE).partition("/")
        offset, _, topic = rest.partition("/")
        replay = self._by_name.get(name)
        if replay is not None:
            replay.take(offset, message.with_(topic=topic, attributes={**message.attributes, "offset": offset}))
        return True


def fixed(since: str | datetime) -> str:
    """A fixed point in time: an age such as `15m` becomes a time.

    >>> fixed(datetime.fromisoformat("2026-01-31T12:00:00Z"))
    '2026-01-31T12:00:00+00:00'
    """
    if isinstance(since, datetime):
        return since.astimezone().isoformat() if since.tzinfo is None else since.isoformat()
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", since):
        return iso_time(time.time_ns() - int(float(found[1]) * _UNITS[found[2]] * 1e9))
    return since


def _operation(topic: str, body: dict[str, str]) -> Message:
    return Message(Kind.REQUEST, topic, json.dumps(body).encode(), content_type="application/json")
