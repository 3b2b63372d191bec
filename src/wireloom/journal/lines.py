"""Lines: a line is one direction of a connection, with what all its blocks have in common."""

from __future__ import annotations

import zlib

from wireloom.journal import blocks
from wireloom.journal.context import Context, Principal
from wireloom.model import Direction

Ends = tuple[str, Direction, str | None, str | None]
"""Protocol, direction, source and destination."""
START, END, SLOT, SEQUENCE, TICKET = range(5)
"""The rows of an array of runs: where a run begins and ends in the data, the slot of its line, how many messages of
that line come before it, and the ticket of its block."""


class Line:
    """What all blocks of one connection and direction have in common."""

    __slots__ = ("comment", "connection", "context", "ends", "flags", "principal", "slot", "tags", "tags_crc")

    def __init__(self, connection: int, ends: Ends, *, inbound: bool) -> None:
        protocol, direction, source, destination = ends
        self.connection = connection
        self.ends = ends
        self.tags = blocks.encode_tags(protocol, source, destination, datagram=direction is Direction.DGRAM)
        self.tags_crc = zlib.crc32(self.tags)
        self.comment = b"conn=%016x dir=%b seq=" % (connection, direction.value.encode())
        """Its beginning: the sequence and the context follow."""
        self.flags = blocks.INBOUND if inbound else blocks.OUTBOUND
        self.context: Context | None = None
        """What `Journal.append_runs` names as the context of its runs: see `Journal.describe`."""
        self.principal: Principal | None = None
        """Who the peer was proved to be, as `Journal.append_runs` states it."""
        self.slot = -1
        """Its place in the journal's `LineTable`; -1 where it has none."""

    @property
    def side(self) -> int:
        """Names the line: the connection, or its complement for what goes out."""
        return self.connection if self.flags == blocks.INBOUND else ~self.connection

    def comment_for(self, sequence: int, word: bytes = b"") -> bytes:
        """The comment of a block; `word` names its context."""
        return b"%b%d%b" % (self.comment, sequence, word)
