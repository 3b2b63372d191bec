"""What sessions read, as tests look at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wireloom.model import Message
from wireloom.protocols.contract import Batch, Calls, Publishes


def messages_of(batches: Sequence[Batch]) -> list[Message]:
    """All messages of a read, in order. Requests in columns are owed one by one from then on."""
    return [message for batch in batches for message in in_messages(batch).messages]


def data_of(batches: Sequence[Batch]) -> bytes:
    """All that was accepted of a read, as records keep it."""
    return b"".join(batch.data for batch in batches)


def joined(taken: Iterable[Batch]) -> Batch:
    """All of a read in one batch of messages."""
    batches = list(taken)
    found = messages_of(batches)
    refused = [each for batch in batches for each in batch.refused]
    ignored = sum(batch.count for batch in batches) - len(found)
    return Batch(data_of(batches), found, ignored=ignored, refused=refused)


def in_messages(batch: Batch) -> Batch:
    """A batch as messages, whether or not it is in columns."""
    if isinstance(batch, Calls):
        return batch.as_messages()
    return batch.as_messages()[0] if isinstance(batch, Publishes) else batch
