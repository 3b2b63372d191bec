"""The bytes of every yamp frame, as the specification draws them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocols.yamp.strategies import any_frame, cuts, spoiled, streams
from wireloom.model import Direction, ProtocolViolation
from wireloom.protocols.contract import decode_stream
from wireloom.protocols.yamp import YAMP, frames
from wireloom.protocols.yamp.frames import FrameType, ResponseType

UID = bytes(range(16))
OTHER = bytes(range(16, 32))

DRAWN = {
    FrameType.HANDSHAKE: (frames.Handshake(1, "json"), "00 0001 04 6a736f6e"),
    FrameType.PING: (frames.Ping(b"abc"), "01 03 616263"),
    FrameType.PONG: (frames.Pong(b"abc"), "02 03 616263"),
    FrameType.CLOSE: (frames.Close("bye"), "03 0003 627965"),
    FrameType.CLOSE_REDIRECT: (frames.CloseRedirect("tcp://h:1"), "04 0009 7463703a2f2f683a31"),
    FrameType.EVENT: (frames.Event(UID, "a/b", b"!?"), f"05 {UID.hex()} 03 612f62 00000002 213f"),
    FrameType.REQUEST: (frames.Request(UID, "a", True, b"!"), f"06 {UID.hex()} 01 61 01 00000001 21"),
    FrameType.CANCEL: (frames.Cancel(UID, "a", OTHER, True), f"07 {UID.hex()} 01 61 {OTHER.hex()} 01"),
    FrameType.RESPONSE: (
        frames.Response(UID, "a", OTHER, ResponseType.CANCELLED, b"!"),
        f"08 {UID.hex()} 01 61 {OTHER.hex()} 03 00000001 21",
    ),
}


def clause_of(data: str | bytes, max_body: int = frames.MAX_BODY_DEFAULT) -> str:
    raw = bytes.fromhex(data) if isinstance(data, str) else data
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode(raw, 0, max_body)
    assert caught.value.clause in frames.CLAUSES
    return caught.value.clause


@pytest.mark.parametrize("type_", FrameType, ids=lambda t: t.name.lower())
def test_each_of_the_nine_frames_has_the_bytes_the_specification_draws(type_: FrameType) -> None:
    frame, drawn = DRAWN[type_]
    data = bytes.fromhex(drawn)
    assert data[0] == type_
    assert frames.encode(frame) == data
    assert frames.decode(data) == (frame, len(data))


@pytest.mark.parametrize("type_", FrameType, ids=lambda t: t.name.lower())
def test_a_frame_is_complete_with_its_last_byte_and_not_before(type_: FrameType) -> None:
    data = bytes.fromhex(DRAWN[type_][1])
    for size in range(len(data)):
        assert frames.decode(data[:size]) is None
    assert frames.decode(data + b"\xff") == (DRAWN[type_][0], len(data))


@pytest.mark.parametrize("type_", range(9, 256))
def test_types_above_8_are_unknown(type_: int) -> None:
    assert clause_of(bytes((type_,))) == "yamp.frame.type"


@pytest.mark.parametrize("type_", ResponseType, ids=lambda t: t.name.lower())
def test_the_four_types_of_response(type_: ResponseType) -> None:
    frame = frames.Response(UID, "u", OTHER, type_, b"")
    assert frames.encode(frame)[35] == type_
    assert frames.decode(frames.encode(frame)) == (frame, 40)


def test_response_types_are_numbered_as_in_the_specification() -> None:
    assert {t.name.lower(): t.value for t in ResponseType} == {"done": 0, "error": 1, "progress": 2, "cancelled": 3}


@pytest.mark.parametrize("type_", [4, 5, 128, 255])
def test_a_response_of_another_type_is_refused(type_: int) -> None:
    assert clause_of(f"08 {UID.hex()} 01 61 {OTHER.hex()} {type_:02x}") == "yamp.response.type"


@pytest.mark.parametrize("value", [2, 3, 255])
def test_progressive_other_than_0_or_1_is_refused(value: int) -> None:
    assert clause_of(f"06 {UID.hex()} 01 61 {value:02x}") == "yamp.request.progressive"


@pytest.mark.parametrize("value", [2, 3, 255])
def test_kill_other_than_0_or_1_is_refused(value: int) -> None:
    assert clause_of(f"07 {UID.hex()} 01 61 {OTHER.hex()} {value:02x}") == "yamp.cancel.kill"


@pytest.mark.parametrize(
    "data",
    [
        "00 0001 01 ff",
        "03 0002 c328",
        "04 0003 eda080",
        f"05 {UID.hex()} 02 c080",
        f"06 {UID.hex()} 01 80",
        f"07 {UID.hex()} 04 f4908080",
        f"08 {UID.hex()} 01 c3",
    ],
    ids=["serializer", "reason", "url", "event", "request", "cancel", "response"],
)
def test_strings_are_utf8(data: str) -> None:
    assert clause_of(data) == "yamp.string.utf8"


def test_sizes_count_bytes_not_characters() -> None:
    event = frames.Event(UID, "größe", "ü".encode())
    data = frames.encode(event)
    assert data[17] == len("größe".encode()) == 7
    assert int.from_bytes(data[25:29]) == 2
    assert frames.decode(data) == (event, len(data))


def test_numbers_are_in_network_byte_order() -> None:
    assert frames.encode(frames.Handshake(0x0102, ""))[1:3] == b"\x01\x02"
    assert frames.encode(frames.Close("x" * 0x0102))[1:3] == b"\x01\x02"
    assert frames.encode(frames.Event(UID, "", bytes(0x010203)))[18:22] == b"\x00\x01\x02\x03"


def test_the_payload_of_a_ping_is_any_bytes() -> None:
    assert frames.decode(b"\x01\x02\xff\xfe") == (frames.Ping(b"\xff\xfe"), 4)


@pytest.mark.parametrize("data", ["0100", "0200", "030000", "00000100"])
def test_optional_payloads_and_reasons_may_be_empty(data: str) -> None:
    raw = bytes.fromhex(data)
    found = frames.decode(raw)
    assert found is not None
    assert found[1] == len(raw)
    assert frames.encode(found[0]) == raw


def test_a_body_may_be_empty() -> None:
    event = frames.Event(UID, "u", b"")
    assert frames.decode(frames.encode(event)) == (event, 23)


@pytest.mark.parametrize("head", [f"05 {UID.hex()} 00", f"06 {UID.hex()} 00 00", f"08 {UID.hex()} 00 {OTHER.hex()} 00"])
def test_a_body_above_the_limit_is_refused_before_any_of_it_is_there(head: str) -> None:
    assert frames.decode(bytes.fromhex(head) + (100).to_bytes(4), 0, 100) is None
    assert clause_of(bytes.fromhex(head) + (101).to_bytes(4), 100) == "yamp.body.too-large"


def test_the_default_limit_of_a_body_is_16_mib() -> None:
    head = bytes.fromhex(f"05 {UID.hex()} 00")
    assert frames.decode(head + (16 * 2**20).to_bytes(4)) is None
    assert clause_of(head + (16 * 2**20 + 1).to_bytes(4)) == "yamp.body.too-large"


def test_a_uri_has_up_to_255_bytes_and_a_reason_up_to_65535() -> None:
    for frame in (frames.Event(UID, "u" * 255, b""), frames.Close("r" * 65535), frames.CloseRedirect("r" * 65535)):
        assert frames.decode(frames.encode(frame)) == (frame, len(frames.encode(frame)))


def test_a_violation_says_goodbye_with_its_clause() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode(b"\x09")
    assert frames.decode(caught.value.reply) == (frames.Close("yamp.frame.type: type 9"), len(caught.value.reply))


def test_long_last_words_are_cut_between_characters() -> None:
    assert frames.cut("ü" * 10, 5) == "üü"
    assert frames.cut("short") == "short"
    assert frames.cut("lone \ud800") == "lone ?"


@given(any_frame)
@example(frames.Event(UID, "", b""))
def test_every_frame_reads_back_as_it_was_written(frame: frames.Frame) -> None:
    data = frames.encode(frame)
    assert frames.decode(data) == (frame, len(data))
    assert frames.decode(b"\x00" + data, 1) == (frame, len(data) + 1)


@given(any_frame)
def test_no_beginning_of_a_frame_is_a_frame(frame: frames.Frame) -> None:
    data = frames.encode(frame)
    assert all(frames.decode(data[:size]) is None for size in range(len(data)))


@given(st.one_of(streams, spoiled(), st.binary(max_size=80)), cuts)
def test_any_split_of_a_stream_gives_the_same_frames_or_the_same_violation(data: bytes, at: list[int]) -> None:
    whole = list(decode_stream(YAMP.decoder(Direction.C2S, YAMP.settings()), data, final=False))
    expected = [getattr(found, "frame", getattr(found, "clause", None)) for found in whole]
    decoder = YAMP.decoder(Direction.C2S, YAMP.settings())
    got: list[object] = []
    edges = [0, *sorted(cut for cut in at if cut < len(data)), len(data)]
    try:
        for start, end in itertools.pairwise(edges):
            decoder.feed(data[start:end])
            for found in decoder:
                got.append(found.frame)  # noqa: PERF401 - what came before a violation counts
    except ProtocolViolation as violation:
        got.append(violation.clause)
        assert violation.clause in YAMP.clauses
        assert violation.offset == decoder.offset
    assert got == expected


@given(st.one_of(spoiled(), st.binary(max_size=80)))
def test_what_decodes_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        found = frames.decode(data)
    except ProtocolViolation:
        return
    if found is not None:
        assert frames.encode(found[0]) == data[: found[1]]
