"""Blocks by themselves: what is encoded is parsed again, and damage is named."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.journal import blocks
from wireloom.journal.blocks import BlockFault
from wireloom.journal.context import Context
from wireloom.model import Direction, JournalError

ADDRESSES = st.one_of(
    st.none(),
    st.builds(blocks.join_address, st.ip_addresses(v=4).map(str), st.integers(0, 65535)),
    st.builds(blocks.join_address, st.ip_addresses(v=6).map(lambda a: str(a).partition("%")[0]), st.integers(0, 65535)),
)


@given(
    packet_id=st.integers(0, 2**64 - 1),
    time_ns=st.integers(0, 2**64 - 1),
    protocol=st.from_regex(r"[a-z]{1,20}", fullmatch=True),
    ends=st.tuples(ADDRESSES, ADDRESSES),
    payload=st.binary(max_size=300),
    connection=st.integers(0, 2**64 - 1),
    direction=st.sampled_from(Direction),
    sequence=st.integers(0, 10**18 - 1),
    context=st.none() | st.integers(0, 2**32 - 1),
    word=st.sampled_from(["ctx", "map"]),
    more=st.booleans(),
    inbound=st.booleans(),
)
def test_what_is_encoded_is_parsed_again(
    packet_id, time_ns, protocol, ends, payload, connection, direction, sequence, context, word, more, inbound
):
    tags = blocks.encode_tags(protocol, *ends, datagram=direction is Direction.DGRAM)
    comment = f"conn={connection:016x} dir={direction} seq={sequence}"
    comment += "" if context is None else f" {word}={context:08x}"
    comment += " more" if more else ""
    raw = blocks.encode_packet(
        packet_id, time_ns, tags, zlib.crc32(tags), payload, comment.encode(), 1 if inbound else 2
    )
    (block,) = blocks.blocks(raw, 0, len(raw))
    assert block == blocks.Block(
        offset=0,
        size=len(raw),
        packet_id=packet_id,
        time_ns=time_ns,
        protocol=protocol,
        source=ends[0],
        destination=ends[1],
        inbound=inbound,
        payload=payload,
        payload_offset=28 + len(tags),
        connection=connection,
        direction=direction,
        sequence=sequence,
        context=context,
        more=more,
    )
    assert blocks.packet_id_at(raw, 0) == packet_id
    assert blocks.comment_at(raw, 0) == comment.encode()


def test_layout_of_a_block_is_the_documented_one():
    tags = blocks.encode_tags("hsp", "1.2.3.4:80", "5.6.7.8:90")
    assert tags == bytes.fromhex(
        "000c000c" + b"wireloom.hsp".hex() + "0014000401020304" + "0015000405060708"
        "0018000400000002" + "0019000400000050" + "001a00040000005a" + "00000000"
    )
    raw = blocks.encode_packet(9, 5 << 32 | 6, tags, zlib.crc32(tags), b"abc", b"conn=x", 1)
    captured = len(tags) + 3
    assert struct.unpack_from("<7I", raw) == (6, len(raw), 0, 5, 6, captured, captured)
    assert raw[28 : 28 + captured] == tags + b"abc"
    options = raw[28 + captured + 1 :]
    assert options[:8] == bytes.fromhex("0200040001000000")
    assert options[8:20] == bytes.fromhex("0300050002") + struct.pack("<I", zlib.crc32(tags + b"abc")) + b"\0\0\0"
    assert options[20:32] == bytes.fromhex("05000800") + struct.pack("<Q", 9)
    assert options[32:48] == bytes.fromhex("01000600") + b"conn=x\0\0" + b"\0\0\0\0"
    assert struct.unpack("<I", options[48:]) == (len(raw),)


def test_ipv6_and_datagrams_have_their_own_tags():
    tags = blocks.encode_tags("mesh", "[2001:db8::1]:1", "[2001:db8::2]:2", datagram=True)
    assert bytes.fromhex("00160010 20010db8000000000000000000000001") in tags
    assert bytes.fromhex("00170010 20010db8000000000000000000000002") in tags
    assert bytes.fromhex("0018000400000003") in tags


@pytest.mark.parametrize("text", [None, "", "unix", "/run/x.sock", "a@example.org/r", "host:99999", "host:1"])
def test_what_is_no_address_leaves_no_tag(text):
    assert blocks.encode_tags("hsp", text, text) == blocks.encode_tags("hsp")


def test_a_flipped_bit_in_the_packet_data_is_found():
    tags = blocks.encode_tags("hsp")
    raw = blocks.encode_packet(1, 2, tags, zlib.crc32(tags), b"payload!", b"record=x {}", 1)
    for bit in range(28 * 8, (28 + len(tags) + 8) * 8):
        broken = bytearray(raw)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BlockFault, match="wrong hash"):
            list(blocks.blocks(broken, 0, len(broken)))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_block_gives_a_fault_or_a_block_and_nothing_else(position, flip):
    tags = blocks.encode_tags("hsp", "1.2.3.4:80", "5.6.7.8:90")
    comment = b"conn=0000000000000001 dir=c2s seq=1 map=00000001 more"
    raw = bytearray(blocks.segment_head("1", "north", "0123456789abcdef", 0, 41))
    raw += blocks.encode_packet(1, 2, tags, zlib.crc32(tags), b"payload!", comment, 1)
    raw += blocks.encode_packet(2, 2, tags, zlib.crc32(tags), b"", b'record=closed {"a":1}', 1)
    raw[position % len(raw)] ^= flip
    try:
        list(blocks.blocks(raw, blocks.check_head(raw), len(raw)))
    except BlockFault as fault:
        assert 0 <= fault.offset < len(raw)


def test_contexts_have_different_ids_whatever_a_peer_chooses():
    # Two maps of topics with the same CRC-32 are found in a second.
    same = [Context({1: "a"}), Context({1: "a"}), Context({1: "a"}, {"profile": False})]
    assert len({each.id for each in same}) == 3


def test_the_head_says_whose_segment_it_is():
    raw = blocks.segment_head("1", "näh", "0123456789abcdef", 7, 41)
    assert blocks.head_of(raw) == blocks.Head(2, "näh", "0123456789abcdef", 7, 41, len(raw))
    assert len(blocks.segment_head("1", "näh", "0123456789abcdef", 7, 2**63)) == len(raw)
    with pytest.raises(BlockFault, match="does not say whose segment"):
        blocks.head_of(raw.replace(b'"after"', b'"aftxr"'))


def test_a_context_too_large_for_one_comment_is_stated_in_several():
    topics = {number: f"a/rather/long/topic/name/{number:06d}" for number in range(20_000)}
    large = Context(topics, {"profile": False})
    assert len(large.records) > 1
    tags = blocks.encode_tags("journal")
    raw = b"".join(
        blocks.encode_packet(number, 0, tags, zlib.crc32(tags), b"", record, 1)
        for number, record in enumerate(large.records)
    )
    assert blocks.contexts(blocks.blocks(raw, 0, len(raw))) == {large.id: (topics, {"profile": False})}


def test_a_record_with_a_very_long_text_is_cut_not_lost():
    comment = blocks.record_comment("refused", {"detail": "x" * 100_000, "size": 1})
    assert len(comment) < 2000
    with pytest.raises(JournalError, match="at most"):
        blocks.record_comment("opened", {"tls": ["x" * 100_000]})
