"""The kernels give what the decoder gives, for any bytes in any pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agreement import assert_columns_agree, assert_split_columns_agree, rows_of_columns
from tests.fuzzing import fuzz
from tests.protocols.yamp.strategies import cuts, spoiled, streams
from wireloom.formats import body_formats
from wireloom.model import Direction
from wireloom.protocols.columns import AFTER_VIOLATION, BROKEN, Spans, Stream
from wireloom.protocols.yamp import YAMP, frames
from wireloom.protocols.yamp.protocol import SERIALIZER

UID = bytes(range(16))
EVENT = frames.encode(frames.Event(UID, "a/b", b"{}"))


def handshake(serializer: str) -> bytes:
    return frames.encode(frames.Handshake(1, serializer))


def content_types(data: bytes, *, state: bytes = b"", **values: object) -> tuple[list[str | None], bytes]:
    stream = Stream(Direction.C2S, {}, state)
    columns = YAMP.columns().decode(Spans.whole(data, stream), YAMP.settings(values))
    return columns.content_type.to_pylist(), columns.state[0]


@given(streams)
def test_valid_streams_give_the_same_rows(data: bytes) -> None:
    assert_columns_agree(YAMP, data)


@given(st.one_of(spoiled(), st.binary(max_size=100)))
@settings(max_examples=300)
def test_spoiled_streams_give_the_same_rows_and_the_same_reject(data: bytes) -> None:
    assert_columns_agree(YAMP, data)


@given(st.one_of(streams, spoiled()), cuts)
def test_streams_in_pieces_give_the_same_rows(data: bytes, at: list[int]) -> None:
    assert_split_columns_agree(YAMP, data, at)


@given(st.binary(max_size=12).map(lambda raw: b"\x03" + len(raw).to_bytes(2) + raw))
@settings(max_examples=500)
def test_kernel_and_decoder_agree_on_what_is_utf8(data: bytes) -> None:
    assert_columns_agree(YAMP, data)


@pytest.mark.parametrize("lead", range(0x80, 0x100))
def test_kernel_and_decoder_agree_on_every_lead_byte_of_utf8(lead: int) -> None:
    for second in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
        for tail in (b"", b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xbf\x7f"):
            text = bytes((lead, second)) + tail
            assert_columns_agree(YAMP, b"\x03" + len(text).to_bytes(2) + text)


@pytest.mark.parametrize("value", range(256))
def test_kernel_and_decoder_agree_on_every_value_of_every_flag(value: int) -> None:
    tail = bytes((value,)) + bytes(4)
    assert_columns_agree(YAMP, bytes((value,)) + bytes(8))
    for head in (b"\x06" + UID + b"\x01a", b"\x07" + UID + b"\x01a" + UID, b"\x08" + UID + b"\x01a" + UID):
        assert_columns_agree(YAMP, EVENT + head + tail)


@pytest.mark.parametrize("size", [0, 9, 10, 11, 2**31, 2**32 - 1])
def test_kernel_and_decoder_agree_on_the_limit_of_bodies(size: int) -> None:
    for head in (b"\x05" + UID + b"\x00", b"\x06" + UID + b"\x00\x00", b"\x08" + UID + b"\x00" + UID + b"\x00"):
        assert_columns_agree(YAMP, head + size.to_bytes(4) + bytes(12), values={"max_body": 10})


@pytest.mark.parametrize("serializer", body_formats.SERIALIZERS)
def test_the_handshake_says_what_bodies_after_it_are(serializer: str) -> None:
    types, state = content_types(handshake(serializer) + EVENT)
    assert types == [None, body_formats.CONTENT_TYPES[serializer]]
    assert state == serializer.encode()


def test_an_empty_serializer_is_json_and_an_unknown_one_has_no_content_type() -> None:
    assert content_types(handshake("") + EVENT) == ([None, "application/json"], b"json")
    assert content_types(handshake("yaml") + EVENT) == ([None, None], b"yaml")


def test_the_state_carries_the_serializer_to_the_next_call() -> None:
    _, state = content_types(handshake("cbor"))
    assert content_types(EVENT, state=state) == (["application/cbor"], b"cbor")


def test_without_a_handshake_the_setting_says_what_bodies_are() -> None:
    assert content_types(EVENT, serializer="msgpack") == (["application/msgpack"], b"")


def test_decoder_and_columns_read_on_after_a_handshake_that_is_known_by_its_number() -> None:
    known = {SERIALIZER: "cbor"}
    assert_columns_agree(YAMP, EVENT, topics=known)
    assert_columns_agree(YAMP, EVENT + handshake("bson") + EVENT, topics=known)
    columns = YAMP.columns().decode(Spans.whole(EVENT, Stream(Direction.C2S, known)), YAMP.settings())
    assert columns.content_type.to_pylist() == ["application/cbor"]


def test_each_direction_has_its_own_handshake() -> None:
    parts = [handshake("cbor"), handshake("bson"), EVENT, EVENT, EVENT]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    spans = Spans(
        np.frombuffer(b"".join(parts), np.uint8),
        np.concatenate(([0], ends[:-1])),
        ends,
        np.array([0, 1, 0, 1, 2], np.int32),
        [Stream(Direction.C2S), Stream(Direction.S2C), Stream(Direction.C2S, {}, b"xml")],
    )
    columns = YAMP.columns().decode(spans, YAMP.settings())
    assert columns.content_type.to_pylist() == [None, None, "application/cbor", "application/bson", "application/xml"]
    assert columns.state == [b"cbor", b"bson", b"xml"]
    assert columns.span.tolist() == [0, 1, 2, 3, 4]


def test_after_a_violation_the_rest_of_that_stream_is_lost_and_other_streams_go_on() -> None:
    parts = [EVENT + b"\x09rest", EVENT, EVENT]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1]))
    streams_of = np.array([0, 1, 0], np.int32)
    both = [Stream(Direction.C2S), Stream(Direction.S2C)]
    spans = Spans(np.frombuffer(b"".join(parts), np.uint8), starts, ends, streams_of, both)
    columns = YAMP.columns().decode(spans, YAMP.settings())
    assert columns.span.tolist() == [0, 1]
    assert [(r.span, r.offset, r.size, r.clause) for r in columns.rejects] == [
        (0, len(EVENT), 5, "yamp.frame.type"),
        (2, int(starts[2]), len(EVENT), BROKEN),
    ]
    assert columns.rejects[1].detail == AFTER_VIOLATION
    assert columns.consumed.tolist() == ends.tolist()


def test_more_frames_than_guessed_are_all_found() -> None:
    data = frames.encode(frames.Ping()) * 5000 + EVENT
    rows, rejects = rows_of_columns(YAMP.columns().decode(Spans.whole(data, Stream(Direction.C2S)), YAMP.settings()))
    assert len(rows) == 5001
    assert rejects == []
    assert_columns_agree(YAMP, data)


def test_an_empty_span_has_no_rows() -> None:
    columns = YAMP.columns().decode(Spans.whole(b"", Stream(Direction.C2S)), YAMP.settings())
    assert (len(columns), columns.rejects, columns.consumed.tolist()) == (0, [], [0])


def test_a_buffer_that_can_be_written_to_works_as_well() -> None:
    data = np.frombuffer(EVENT, np.uint8).copy()
    whole = Spans.whole(EVENT, Stream(Direction.C2S))
    columns = YAMP.columns().decode(Spans(data, whole.start, whole.end, whole.stream, whole.streams), YAMP.settings())
    assert columns.topic.to_pylist() == ["a/b"]
    assert data.flags.writeable


def test_random_and_mutated_input_keeps_the_property() -> None:
    assert fuzz("yamp", 1500, seed=3).inputs == 1500


def test_uris_alike_and_different_in_a_row() -> None:
    """Uris of the same size that differ, and frames between them that have other texts, in all orders of two."""
    said = [
        frames.encode(frames.Event(bytes(16), "a/b", b"1")),
        frames.encode(frames.Event(bytes(16), "a/c", b"2")),
        frames.encode(frames.Event(bytes(16), "", b"3")),
        frames.encode(frames.Event(bytes(16), "é", b"4")),
        frames.encode(frames.Handshake(1, "a/b")),
        frames.encode(frames.Ping(b"a/b")),
    ]
    assert_columns_agree(YAMP, b"".join(one * 2 + two + one for one in said for two in said))
    spoiled_uri = frames.encode(frames.Event(bytes(16), "a/b", b"")).replace(b"a/b", b"a/\xff")
    assert_columns_agree(YAMP, said[0] + spoiled_uri)
