"""The durable log of everything that was said: pcapng segments, group commit, readers, recovery."""

from wireloom.journal.blocks import Block, TopicMap
from wireloom.journal.commit import GroupCommit
from wireloom.journal.follow import Follower
from wireloom.journal.reader import (
    Entry,
    Record,
    Unreadable,
    read_all,
    read_blocks,
    read_messages,
)
from wireloom.journal.segment import committed_length, segments
from wireloom.journal.writer import Journal

__all__ = [
    "Block",
    "Entry",
    "Follower",
    "GroupCommit",
    "Journal",
    "Record",
    "TopicMap",
    "Unreadable",
    "committed_length",
    "read_all",
    "read_blocks",
    "read_messages",
    "segments",
]
