"""frames.py and columns.py give the same answer for the same bytes: valid, mutated, split, garbage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agreement import assert_columns_agree, assert_split_columns_agree, rows_of_columns
from tests.protocols.emp.strategies import mutated_stream, said, stream
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.columns import Columns, SlowColumns, Spans, Stream
from wireloom.protocols.emp import EMP, columns, extensions, frames
from wireloom.protocols.emp.frames import ExtensionBlock, Frame, SizeMode, Type
from wireloom.protocols.emp.messages import to_message

INCLUSIVE = {"size_mode": "inclusive"}


@given(stream())
def test_columns_agree_with_frames_on_valid_streams(data: bytes) -> None:
    assert_columns_agree(EMP, data)


@given(mutated_stream())
@settings(max_examples=200)
def test_columns_agree_with_frames_on_mutated_streams(data: bytes) -> None:
    assert_columns_agree(EMP, data)


@given(mutated_stream(SizeMode.EXCLUSIVE))
def test_columns_agree_with_frames_on_exclusive_sizes(data: bytes) -> None:
    assert_columns_agree(EMP, data, values={"size_mode": "exclusive"})


@given(mutated_stream())
def test_columns_agree_with_frames_when_limits_are_tight(data: bytes) -> None:
    assert_columns_agree(EMP, data, values={"max_message": 1024, "max_decompressed": 20})


@given(st.binary(max_size=300))
def test_columns_agree_with_frames_on_garbage(data: bytes) -> None:
    assert_columns_agree(EMP, data)


@given(mutated_stream(), st.lists(st.integers(0, 1000), max_size=8))
def test_any_split_of_the_stream_gives_the_same_columns(data: bytes, cuts: list[int]) -> None:
    # Without a `hello` at first, what `auto` makes of a stream may depend on where it is cut.
    assert_split_columns_agree(EMP, data, cuts, values=INCLUSIVE)


@given(stream(), st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_any_split_of_the_stream_gives_the_same_messages(data: bytes, steps: list[int]) -> None:
    whole = EMP.decoder(Direction.S2C, EMP.settings(INCLUSIVE))
    whole.feed(data)
    pieces = EMP.decoder(Direction.S2C, EMP.settings(INCLUSIVE))
    found, position = [], 0
    while position < len(data):
        step = steps[position % len(steps)]
        pieces.feed(data[position : position + step])
        position += step
        found += list(pieces)
    assert found == list(whole)


def test_a_trace_is_an_attribute_in_columns_too() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "x=1"}
    messages = [Message(Kind.EVENT, "a", b"1"), Message(Kind.EVENT, "a", b"2", attributes=trace)]
    assert_columns_agree(EMP, b"".join(EMP.encode(message, EMP.settings()) for message in messages * 20))


def plain(found: Columns) -> object:
    rejects = [(reject.span, reject.offset, reject.size, reject.clause, reject.detail) for reject in found.rejects]
    return found.span.tolist(), rows_of_columns(found), rejects, found.consumed.tolist()


@given(st.lists(mutated_stream(), min_size=1, max_size=8), st.integers(1, 3))
def test_many_spans_of_several_streams_decode_as_the_slow_columns_do(parts: list[bytes], count: int) -> None:
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    spans = Spans(
        np.frombuffer(b"".join(parts), np.uint8),
        np.concatenate(([0], ends[:-1])).astype(np.int64),
        ends,
        (np.arange(len(parts)) % count).astype(np.int32),
        [Stream(Direction.C2S)] * count,
    )
    own = EMP.settings(INCLUSIVE)
    assert plain(EMP.columns().decode(spans, own)) == plain(SlowColumns(EMP).decode(spans, own))


def test_the_columns_have_the_types_of_the_messages_table() -> None:
    data = said(Message(Kind.EVENT, "größe", b"1")) + said(Message(Kind.EVENT, "a", b"2"))
    spans = Spans.whole(data, Stream(Direction.C2S))
    fast, slow = EMP.columns().decode(spans, EMP.settings()), SlowColumns(EMP).decode(spans, EMP.settings())
    for name in (
        "topic",
        "message_id",
        "correlation_id",
        "status",
        "content_type",
        "body",
        "attributes",
        "authenticity",
    ):
        # Words that repeat may stand in a dictionary.
        of = getattr(fast, name).type
        assert getattr(of, "value_type", of) == getattr(slow, name).type, name
        getattr(fast, name).validate(full=True)
    for name in ("span", "offset", "size", "kind", "consumed"):
        assert getattr(fast, name).dtype == getattr(slow, name).dtype, name


def test_only_rows_that_need_it_are_looked_into() -> None:
    looked: list[int] = []

    def counted(frame: Frame, *rest: object) -> Message:
        looked.append(frame.type)
        return to_message(frame, *rest)  # type: ignore[arg-type]

    request = ExtensionBlock(0, extensions.encode_request_response(extensions.RequestResponse(True, 2**64 - 1)))
    hub = ExtensionBlock(128, extensions.encode_hub(extensions.HubExtension("sensors/kitchen", "application/json")))
    packed = Frame(Type.DATA, extensions.gzip(b"zzz"), (ExtensionBlock(1, bytes.fromhex("01000000")),))
    shallow = [
        Frame(Type.DATA, b"x"),
        Frame(Type.DATA, b"x", (request, hub)),
        Frame(Type.DATA, b"x", (hub,)),
        Frame(Type.PING),
        Frame(Type.PONG, b"ignored"),
        Frame(Type.BYE),
    ]
    data = b"".join(frames.encode(frame) for frame in [*shallow * 50, packed, *shallow * 50])
    original = columns.to_message
    try:
        columns.to_message = counted  # type: ignore[assignment]
        found = EMP.columns().decode(Spans.whole(data, Stream(Direction.C2S)), EMP.settings())
    finally:
        columns.to_message = original
    assert len(found) == 601
    assert looked == [Type.DATA]
    assert_columns_agree(EMP, data)


def test_an_empty_buffer_and_empty_spans_give_no_rows() -> None:
    assert_columns_agree(EMP, b"")
    spans = Spans(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32), [])
    assert len(EMP.columns().decode(spans, EMP.settings())) == 0


def test_warming_compiles_the_kernels() -> None:
    EMP.columns().warm()
    assert columns._find.signatures


REQUEST = ExtensionBlock(0, bytes.fromhex("800000000000000000000007"))
HUB = ExtensionBlock(128, extensions.encode_hub(extensions.HubExtension("a/b", "text/plain")))
GZIP = ExtensionBlock(1, bytes.fromhex("01000000"))


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Type.DATA, b"x", (ExtensionBlock(0, b"\x80" + bytes(11)),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(0, bytes(12)), HUB)),
        Frame(Type.DATA, b"x", (REQUEST, REQUEST)),
        Frame(Type.DATA, b"x", (REQUEST, ExtensionBlock(0, bytes(11) + b"\1"))),
        Frame(Type.DATA, b"x", (ExtensionBlock(0, bytes(11)),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(0, bytes(13)),)),
        Frame(Type.DATA, b"x", (HUB, HUB)),
        Frame(Type.DATA, b"x", (HUB, REQUEST)),
        Frame(Type.DATA, b"x", (ExtensionBlock(128, b""),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(128, b"\1\0\1"),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(128, b"\1\0\1ab"),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(128, b"\1\0\1\xff"),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(128, b"\1\0\2\xc3\xbc"),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(128, b"\2\0\1\xff"),)),
        Frame(Type.DATA, b"x", (ExtensionBlock(128, b"\x7b\0\1a\0\0"),)),
        Frame(Type.DATA, b"x", (REQUEST, ExtensionBlock(128, b"\x84\0\x03404"))),
        Frame(Type.DATA, b"x", (ExtensionBlock(0, bytes(11) + b"\7"), ExtensionBlock(128, b"\x84\0\x03404"))),
        Frame(Type.DATA, b"x", (ExtensionBlock(0, bytes(11) + b"\7"), ExtensionBlock(128, b"\x80"))),
        Frame(Type.DATA, b"x", (ExtensionBlock(1, bytes(4)), REQUEST)),
        Frame(Type.DATA, b"x", (GZIP,)),
        Frame(Type.DATA, extensions.gzip(b"zzz"), (REQUEST, GZIP, HUB)),
        Frame(Type.DATA, b"x", (ExtensionBlock(77, b""), REQUEST)),
        Frame(Type.PING, b"x", (ExtensionBlock(0, b""),)),
        Frame(Type.PING, b"x", (HUB,)),
        Frame(Type.HELLO, b""),
        Frame(Type.ERROR, b""),
        Frame(200, b"x", (REQUEST, HUB)),
        Frame(6),
    ],
)
def test_columns_agree_with_frames_on_every_odd_message(frame: Frame) -> None:
    usual = frames.encode(Frame(Type.DATA, b"usual", (REQUEST, HUB)))
    for size_mode in SizeMode:
        before = frames.encode(Frame(Type.DATA, b"usual", (REQUEST, HUB)), size_mode)
        data = before + frames.encode(frame, size_mode) + before
        assert_columns_agree(EMP, data, values={"size_mode": str(size_mode)})
    for cut in range(len(usual) + 1):
        assert_columns_agree(EMP, frames.encode(frame) + usual[:cut])


@pytest.mark.parametrize("at", range(len(frames.encode(Frame(Type.DATA, b"x", (REQUEST, HUB))))))
def test_columns_agree_with_frames_when_any_byte_is_another(at: int) -> None:
    usual = frames.encode(Frame(Type.DATA, b"x", (REQUEST, HUB)))
    for value in (0, 1, 7, 8, 0x7F, 0x80, 0x81, 0xFF):
        changed = usual[:at] + bytes((value,)) + usual[at + 1 :]
        assert_columns_agree(EMP, usual + changed + usual)


def test_many_messages_that_are_smaller_than_the_kernel_guesses() -> None:
    assert_columns_agree(EMP, frames.encode(Frame(Type.PING)) * 2000 + frames.encode(Frame(Type.DATA, b"end")))
    assert_columns_agree(EMP, frames.encode(Frame(Type.PING)) * 2000 + b"\x00\x00\x00\x01")
