"""frames.py and columns.py must give the same answer for the same bytes: valid, mutated, split, garbage."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agreement import assert_columns_agree, assert_split_columns_agree
from tests.protocols.hsp.strategies import any_frame, mutated_stream, stream
from wireloom.model import Direction
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.hsp import HSP, frames
from wireloom.protocols.hsp.profile import ENVELOPE, OPERATIONS, make_envelope

TOPICS = {7: "sensors/kitchen", 300: "alerts"}


@given(stream())
def test_columns_agree_with_frames_on_valid_streams(data: bytes) -> None:
    assert_columns_agree(HSP, data, topics=TOPICS)


@given(mutated_stream())
@settings(max_examples=300)
def test_columns_agree_with_frames_on_mutated_streams(data: bytes) -> None:
    assert_columns_agree(HSP, data, topics=TOPICS)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_columns_agree_with_frames_on_garbage(data: bytes) -> None:
    assert_columns_agree(HSP, data, topics=TOPICS)


@given(stream(), st.lists(st.integers(0, 2000), max_size=8))
def test_any_split_of_the_stream_gives_the_same_columns(data: bytes, cuts: list[int]) -> None:
    assert_split_columns_agree(HSP, data, cuts, topics=TOPICS)


@given(st.lists(st.lists(any_frame(), max_size=5), min_size=1, max_size=5), st.booleans())
def test_many_spans_of_several_streams_decode_as_if_each_stood_alone(
    runs: list[list[frames.Frame]], profile: bool
) -> None:
    parts = [b"".join(map(frames.encode, run)) for run in runs]
    ends = np.cumsum([len(part) for part in parts])
    streams = [Stream(Direction.C2S, TOPICS), Stream(Direction.S2C, {})]
    spans = Spans(
        np.frombuffer(b"".join(parts), np.uint8),
        np.concatenate(([0], ends[:-1])).astype(np.int64),
        ends.astype(np.int64),
        (np.arange(len(parts)) % 2).astype(np.int32),
        streams,
    )
    options = HSP.settings({"profile": profile})
    columns = HSP.columns().decode(spans, options)
    topics = columns.topic.to_pylist()
    expected = []
    for index, part in enumerate(parts):
        source = streams[index % 2]
        decoder = HSP.decoder(source.direction, options, source.topics)
        decoder.feed(part)
        expected += [(index, found.message.topic, found.message.body) for found in decoder]
    assert list(zip(columns.span.tolist(), topics, columns.body.to_pylist(), strict=True)) == expected


def test_a_broken_stream_stays_broken_in_later_spans() -> None:
    data = b"\x03\x09" + b"\x03\x03"
    spans = Spans(
        np.frombuffer(data, np.uint8),
        np.array([0, 2]),
        np.array([2, 4]),
        np.zeros(2, np.int32),
        [Stream(Direction.C2S)],
    )
    columns = HSP.columns().decode(spans, HSP.settings())
    assert len(columns) == 1
    assert [(r.offset, r.size, r.clause) for r in columns.rejects] == [
        (1, 1, "hsp.command.unknown"),
        (2, 2, "stream.broken"),
    ]


def test_envelopes_and_operations_are_unwrapped_like_the_readable_decoder_does() -> None:
    odd = [
        b"",
        b"\0",
        b"\0\1a",
        b"\0\1\xff\0x",
        b"\0\1a\1\xffx",
        b"\0\0\0rest",
        make_envelope("a/b", b"x", None),
    ]
    data = b"".join(frames.encode(frames.Data(ENVELOPE, payload)) for payload in odd)
    data += b"".join(frames.encode(frames.DataAck(i, n, b"{}")) for i, n in enumerate(OPERATIONS))
    assert_columns_agree(HSP, data, topics=TOPICS)
    assert_columns_agree(HSP, data, topics=TOPICS, values={"profile": False})


@given(st.sampled_from([{}, TOPICS, {ENVELOPE: "wrapped"}]), st.booleans())
def test_an_envelope_for_the_topic_of_its_own_type_is_ordinary_data(topics: dict[int, str], profile: bool) -> None:
    data = b"".join(
        frames.encode(frames.Data(ENVELOPE, make_envelope(topic, b"x", kind)))
        for topic in ("hsp/64768", "wrapped", "sensors/kitchen", "")
        for kind in (None, "text/plain")
    )
    assert_columns_agree(HSP, data, topics=topics, values={"profile": profile})


@given(mutated_stream(), st.integers(0, 70), st.booleans())
def test_columns_keep_the_limit_and_the_profile_of_the_settings(data: bytes, limit: int, profile: bool) -> None:
    assert_columns_agree(HSP, data, topics=TOPICS, values={"max_payload": limit, "profile": profile})


def test_many_frames_that_are_smaller_than_the_kernel_guesses() -> None:
    assert_columns_agree(HSP, frames.encode(frames.PING) * 2000 + frames.encode(frames.Data(7, b"end")))
    assert_columns_agree(HSP, frames.encode(frames.PING) * 2000 + b"\x09")


def test_envelopes_with_heads_alike_and_different_in_a_row() -> None:
    """Heads of the same sizes that differ, and payloads between them that are no envelopes, in all orders of three."""
    payloads = [
        make_envelope("a/b", b"1", "text/x"),
        make_envelope("a/c", b"22", "text/x"),
        make_envelope("a/b", b"", "text/y"),
        make_envelope("a/btext", b"3", "/x"),
        b"\x00\x03a/",
        b"",
        b"\x00\x01\xff\x00x",
    ]
    data = b"".join(
        frames.encode(frames.Data(ENVELOPE, payloads[number]))
        for one in range(7)
        for two in range(7)
        for number in (one, one, two, one)
    )
    assert_columns_agree(HSP, data)
