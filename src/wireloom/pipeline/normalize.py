"""What decoded messages are in the tables, whatever operation carried them: `meaning`, for columns.

There are few different topics among many messages, so the rule is asked once for each pair of kind and topic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.model import KINDS
from wireloom.pipeline.steps.message_arrays import coded, codes, words
from wireloom.protocols.columns import KIND_CODES
from wireloom.protocols.publish_rules import OPERATION, Verb, meaning

VERBS = [str(verb) for verb in Verb]


@dataclass(frozen=True, slots=True)
class Normalized:
    """The columns of `messages` that say what a message is."""

    kind: NDArray[np.uint8]
    topic: pa.Array
    verb: pa.Array
    attributes: pa.Array


def meanings(
    kind: NDArray[np.uint8], topic: pa.Array, attributes: pa.Array, acknowledges: NDArray[np.bool_] | None = None
) -> Normalized:
    """What messages of these kinds (indexes into `KINDS`) and topics are.

    `acknowledges` marks those that are acknowledged publishes if they are requests.
    """
    topic_column = words(topic)
    number, topics = codes(topic_column)
    publishes = np.uint8(0) if acknowledges is None else acknowledges.view(np.uint8)
    pair = (number.astype(np.int64) * 2 + publishes) * len(KINDS) + kind
    pairs, places = _different(pair, len(topics) * 2 * len(KINDS))
    own = [topics[each // (2 * len(KINDS))] for each in pairs.tolist()]
    found = [
        meaning(KINDS[each % len(KINDS)], name, acknowledges=each // len(KINDS) % 2 == 1)
        for each, name in zip(pairs.tolist(), own, strict=True)
    ]
    is_changed = any(each.topic != name for each, name in zip(found, own, strict=True))
    verb = [len(VERBS) if each.verb is None else VERBS.index(each.verb) for each in found]
    return Normalized(
        np.array([KIND_CODES[each.kind] for each in found] or [0], np.uint8)[places],
        coded(places, [each.topic for each in found]) if is_changed else topic_column,
        coded(np.array(verb or [0], np.int8)[places], [*VERBS, None]),
        _with_operations(attributes, places, [each.operation for each in found]),
    )


def _different(numbers: NDArray[np.int64], room: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different numbers below `room`, in order, and which of them each is."""
    if room > 4 * len(numbers) + (1 << 16):
        return np.unique(numbers, return_inverse=True)
    # Without sorting, where a table of all that are possible is small.
    place = np.zeros(room, np.int64)
    place[numbers] = 1
    different = np.flatnonzero(place)
    place[different] = np.arange(len(different))
    return different, place[numbers]


def _with_operations(attributes: pa.Array, places: NDArray[np.int64], operations: list[str | None]) -> pa.Array:
    """Attributes, with the operation of the hub in those rows that have one."""
    named = np.array([each is not None for each in operations] or [False])[places]
    rows = np.flatnonzero(named)
    if not len(rows):
        return attributes
    old = attributes.take(pa.array(rows)).to_pylist()
    new = [
        [*(own or ()), (OPERATION, operations[place])] for own, place in zip(old, places[rows].tolist(), strict=True)
    ]
    order = np.arange(len(places))
    order[rows] = len(places) + np.arange(len(rows))
    return pa.concat_arrays([attributes, pa.array(new, attributes.type)]).take(pa.array(order))
