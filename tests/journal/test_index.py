"""The index against the readable reader, on random segments, whole, cut and damaged."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wireloom.journal import Journal, blocks, index, segments
from wireloom.journal.blocks import Block, BlockFault
from wireloom.journal.context import Context
from wireloom.model import Direction

from .conftest import TOPICS, data
from .test_blocks import ADDRESSES

DIRECTIONS = [Direction.C2S, Direction.S2C, Direction.DGRAM]
ENDS = st.tuples(ADDRESSES, ADDRESSES)
PROTOCOLS = st.sampled_from(["hsp", "emp", "yamp", "a", "wireloom.x"])


@st.composite
def frames_block(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    direction = draw(st.sampled_from(DIRECTIONS))
    comment = f"conn={draw(st.integers(1, 2**64 - 1)):016x} dir={direction} seq={draw(st.integers(0, 10**18 - 1))}"
    topic_map = draw(st.none() | st.integers(0, 2**32 - 1))
    comment += "" if topic_map is None else f" map={topic_map:08x}"
    comment += " more" * draw(st.booleans())
    tags = blocks.encode_tags(draw(PROTOCOLS), *draw(ENDS), datagram=direction is Direction.DGRAM)
    return tags, draw(st.binary(max_size=60)), comment.encode()


@st.composite
def record_block(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    connection = draw(st.none() | st.integers(1, 2**64 - 1))
    members = st.sampled_from(["peer", "local", "protocol", "reason", "direction", "size"]) | st.text(max_size=5)
    details = draw(st.dictionaries(members, st.text(max_size=5) | st.integers(0, 9) | st.none(), max_size=3))
    name = draw(st.sampled_from(["opened", "closed", "refused", "lost"]))
    comment = blocks.record_comment(name, details, connection)
    payload = draw(st.binary(max_size=20)) if name == "refused" else b""
    return blocks.encode_tags(draw(PROTOCOLS), *draw(ENDS)), payload, comment


@st.composite
def topics_block(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    topics = draw(st.dictionaries(st.integers(0, 65535), st.text(max_size=8), max_size=3))
    settings = draw(st.dictionaries(st.text(max_size=4), st.booleans(), max_size=2))
    comment = Context(topics, settings).records[0]
    if draw(st.booleans()):
        comment = blocks.record_comment(
            "topics", {"map": "0000002a", "topics": {str(key): topics[key] for key in topics}}
        )
    return blocks.encode_tags("journal"), b"", comment


@st.composite
def segment(draw: st.DrawFn) -> bytes:
    raw = blocks.segment_head("1", "", "", 0, 0)
    for tags, payload, comment in draw(st.lists(frames_block() | record_block() | topics_block(), max_size=8)):
        packet_id, time_ns = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**63 - 1))
        raw += blocks.encode_packet(packet_id, time_ns, tags, zlib.crc32(tags), payload, comment, 1)
        if draw(st.booleans()):
            raw += blocks.block(0x0BAD, b"abcd")
    return raw


def slowly(raw: bytes, check_hash: bool) -> tuple[list[Block], int, str | None]:
    found: list[Block] = []
    try:
        found.extend(blocks.blocks(raw, 0, len(raw), check_hash=check_hash))
    except BlockFault as fault:
        # `extend` keeps what came before the fault.
        return found, fault.offset, fault.reason
    return found, len(raw), None


def compare(raw: bytes, check_hash: bool = True) -> None:
    array = np.frombuffer(raw, np.uint8)
    fast = index.index_blocks(array, 0, len(raw), check_hash=check_hash)
    slow, end, fault = slowly(raw, check_hash)
    if fault == blocks.WRONG_DETAILS:
        # The index does not look into records; whoever parses them finds out.
        assert len(fast) > len(slow)
    else:
        assert (fast.end, fast.fault, len(fast)) == (end, fault, len(slow))
    for row, block in enumerate(slow):
        assert fast.offset[row] == block.offset
        assert fast.size[row] == block.size
        assert int(fast.packet_id[row]) % 2**64 == block.packet_id
        assert int(fast.time_ns[row]) % 2**64 == block.time_ns
        assert int(fast.connection[row]) == (block.connection or 0)
        assert fast.sequence[row] == block.sequence
        assert raw[fast.payload_start[row] : fast.payload_end[row]] == block.payload
        assert fast.payload_start[row] == block.payload_offset
        assert fast.protocols[fast.protocol[row]] == block.protocol
        assert fast.context[row] == (-1 if block.context is None else block.context)
        assert bool(fast.more[row]) == block.more
        assert bool(fast.is_record[row]) == (block.record is not None)
        assert fast.tags_start[row] == block.offset + 28
        assert index.endpoints(array, int(fast.tags_start[row])) == (block.source, block.destination)
        if block.direction is not None:
            assert DIRECTIONS[fast.direction[row]] == block.direction
    if fault is None:
        assert index.records(array, fast) == [block for block in slow if block.record is not None]


@settings(deadline=None, max_examples=80)
@given(segment())
def test_the_index_says_what_the_blocks_say(raw):
    compare(raw)


@settings(deadline=None, max_examples=80)
@given(segment(), st.integers(0, 10**6), st.booleans())
def test_a_segment_cut_anywhere_is_read_up_to_the_cut(raw, cut, zeros):
    length = cut % (len(raw) + 1)
    compare(raw[:length] + bytes(len(raw) - length) * zeros)


@settings(deadline=None, max_examples=150)
@given(segment(), st.integers(0, 10**6), st.integers(1, 255), st.booleans())
def test_damage_stops_both_readers_at_the_same_block(raw, position, flip, check_hash):
    damaged = bytearray(raw)
    damaged[position % len(raw)] ^= flip
    compare(bytes(damaged), check_hash)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_rubbish_is_told_from_blocks(raw):
    compare(raw)


@pytest.fixture
def long_segment(tmp_path):
    with Journal.open(tmp_path) as journal:
        for number in range(500):
            topics = TOPICS if number < 100 else {7: "later"}
            journal.append("hsp", number % 3, Direction.C2S, number, data("x"), topics=topics)
    return np.fromfile(segments(tmp_path)[0], np.uint8)


def test_a_range_from_the_middle_has_the_same_blocks(long_segment):
    whole = index.index_blocks(long_segment, 0, len(long_segment))
    assert whole.fault is None
    start = int(whole.offset[300])
    part = index.index_blocks(long_segment, start, len(long_segment))
    assert len(part) == len(whole) - 300
    assert part.offset[0] == start


def test_a_writable_and_a_mapped_array_give_the_same(long_segment):
    mapped = np.frombuffer(long_segment.tobytes(), np.uint8)
    one, other = (index.index_blocks(array, 0, len(array)) for array in (long_segment, mapped))
    assert np.array_equal(one.packet_id, other.packet_id)
