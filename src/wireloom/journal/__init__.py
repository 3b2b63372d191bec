"""The durable log of everything that was said: pcapng segments, group commit, readers, recovery."""

from wireloom.journal.blocks import Block
from wireloom.journal.commit import GroupCommit
from wireloom.journal.context import Context
from wireloom.journal.reader import (
    Entry,
    Offset,
    Record,
    Unreadable,
    read_all,
    read_blocks,
    read_messages,
)
from wireloom.journal.retention import Cursor, Expired, Keep, cursors, prune
from wireloom.journal.segment import committed_length, segments
from wireloom.journal.tail import Tail, parse_since
from wireloom.journal.writer import Journal

__all__ = [
    "Block",
    "Context",
    "Cursor",
    "Entry",
    "Expired",
    "GroupCommit",
    "Journal",
    "Keep",
    "Offset",
    "Record",
    "Tail",
    "Unreadable",
    "committed_length",
    "cursors",
    "parse_since",
    "prune",
    "read_all",
    "read_blocks",
    "read_messages",
    "segments",
]
