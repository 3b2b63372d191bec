"""Writes packets: draws Message IDs, compresses, encrypts and signs as the settings say.

Implements 6.1 of the Event Mesh Protocol. One author for everything that one NODE ID says, so that no Message ID is
used twice within the window.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import replace

from wireloom.model import Kind, Message
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.encryption import Cipher, compress, encrypt
from wireloom.protocols.mesh.frames import EventType, Field, Flag, Packet, Type
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.key_files import Watched, load_key_file
from wireloom.protocols.mesh.messages import to_packet
from wireloom.protocols.mesh.security import sign_packet
from wireloom.protocols.mesh.settings import MeshSettings, ShowKey

ROUNDS = 10


class MessageIds:
    """Message IDs in an order that nobody can guess, none of them twice until all 2^32 were used.

    Remembering which ids were used within the window would take more memory the faster a node sends. So they are a
    counter, put through a permutation that a random key chooses: a Feistel network with a keyed hash in each round.

    >>> ids = MessageIds()
    >>> len({next(ids) for _ in range(1000)})
    1000
    """

    def __init__(self, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        key = random(32)
        self._rounds = [hashlib.blake2s(key=key, digest_size=2, salt=bytes((number,))) for number in range(ROUNDS)]
        self._counter = int.from_bytes(random(4))

    def __next__(self) -> int:
        self._counter = (self._counter + 1) & 0xFFFFFFFF
        return self.permute(self._counter)

    def permute(self, number: int) -> int:
        """Where the permutation takes a number of 32 bits."""
        left, right = number >> 16, number & 0xFFFF
        for keyed in self._rounds:
            mixed = keyed.copy()
            mixed.update(right.to_bytes(2))
            left, right = right, left ^ int.from_bytes(mixed.digest())
        return left << 16 | right


class Author:
    """Packets of one node. `random` gives so many cryptographically random bytes."""

    def __init__(
        self,
        settings: MeshSettings,
        identity: Identity | None = None,
        cipher: Cipher | None = None,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.settings = settings
        self.cipher = cipher
        self._file: Watched[Identity] | None = None
        if identity is None and settings.key:
            self._file = load_key_file(settings.key)
            identity = self._file.value
        self.identity = identity or settings.identity()
        self.node_ids: set[bytes | str] = {self.identity.node_id}
        """Every NODE ID we have spoken as: what comes back may be older than the key file is."""
        self._random = random
        self._limits = settings.limits
        self.ids = MessageIds(random)
        """Where Message IDs come from; shared by all authors of one NODE ID."""

    def write(self, message: Message, now: float) -> tuple[bytes, int]:
        """A message as a packet, and its Message ID; `now` is seconds since 1970.

        The message's own id and security attributes are not used: this is a new packet of ours. A `timestamp`
        attribute stays the time of creation, and the time of signing is added.
        """
        kept = {k: v for k, v in message.attributes.items() if k in _KEPT or k.startswith("field-")}
        # How it is wrapped is for our own settings to say.
        kept["flags"] = str(int(kept.get("flags", "0")) & Flag.URGENT) if kept.get("flags", "0").isdecimal() else "0"
        packet = to_packet(message.with_(id=None, attributes=kept), message_id=next(self.ids), timestamp=int(now))
        fields = packet.fields
        if message.kind is not Kind.PING and packet.timestamp != int(now) and self.identity.signs:
            fields = (*fields, Field(Type.TIMESTAMP, int(now).to_bytes(8)))
        return self.finish(replace(packet, fields=fields), now), packet.message_id

    def hello(self, capabilities: bytes, now: float) -> tuple[bytes, int]:
        """A Hello, and its Message ID."""
        packet = Packet(next(self.ids), EventType.HELLO, int(now), tuple(frames.split(Type.BINARY, capabilities)))
        return self.finish(packet, now), packet.message_id

    def heartbeat(self, now: float) -> bytes:
        """A Heartbeat."""
        stamp = Field(Type.TIMESTAMP, int(now).to_bytes(8))
        return self.finish(Packet(next(self.ids), EventType.HEARTBEAT, int(now), (stamp,)), now)

    def finish(self, packet: Packet, now: float) -> bytes:
        """Wrap and sign as the settings say."""
        if self._file is not None and self._file.refresh(now):
            self.identity = self._file.value
            self.node_ids.add(self.identity.node_id)
        if packet.event_type == EventType.EVENT:
            packet = self._wrap(packet)
        show = self.settings.show_key
        shown = show is ShowKey.ALWAYS or (show is ShowKey.HELLO and packet.event_type == EventType.HELLO)
        return frames.encode(sign_packet(packet, self.identity, with_public_key=shown), self._limits)

    def _wrap(self, packet: Packet) -> Packet:
        keep = self.settings.keep_name
        if self.settings.compress:
            smaller = compress(packet, keep_name=keep)
            if len(frames.encode_fields(smaller.fields)) < len(frames.encode_fields(packet.fields)):
                packet = smaller
        if self.cipher is not None:
            packet = encrypt(packet, self.cipher, self._random(12), keep_name=keep)
        return packet


_KEPT = frozenset(("timestamp", "flags", "urgent", "event_type"))
