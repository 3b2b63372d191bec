"""Envelope, header, extension blocks, the bodies of hello and error: "Encoding" and "Messages" of the specification."""

from __future__ import annotations

import dataclasses
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.emp.strategies import any_frame
from wireloom.model import Kind, LimitExceeded, Message, ProtocolViolation
from wireloom.protocols.emp import EMP, frames
from wireloom.protocols.emp.frames import Error, ErrorCode, ExtensionBlock, Frame, Hello, SizeMode, Type


def decode_all(data: bytes, **options: object) -> Frame:
    found = frames.decode(data, 0, **options)  # type: ignore[arg-type]
    assert found is not None
    assert found[1] == len(data)
    return found[0]


def refused(data: bytes, clause: str, **options: object) -> Error:
    """The error message that a peer gets for `data`."""
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode(data, 0, **options)  # type: ignore[arg-type]
    assert caught.value.clause == clause
    assert clause in EMP.clauses
    reply = decode_all(caught.value.reply)
    assert reply.type == Type.ERROR
    return frames.decode_error(reply.body)


def test_integers_are_big_endian() -> None:
    assert frames.encode(Frame(Type.DATA, b"x" * 250))[:4] == bytes.fromhex("00000102")


def test_a_character_string_is_utf8_after_its_16_bit_length() -> None:
    assert frames.encode_error(Error(0, "hello"))[4:] == bytes.fromhex("0005 68656c6c6f")
    assert frames.encode_error(Error(0, "ü"))[4:] == bytes.fromhex("0002 c3bc")


def test_the_size_of_the_envelope_includes_the_size_field() -> None:
    assert frames.encode(Frame(Type.PING)) == bytes.fromhex("00000008 02000000")
    assert decode_all(bytes.fromhex("00000008 02000000")) == Frame(Type.PING)


@pytest.mark.parametrize("size", range(8))
def test_a_size_that_leaves_no_room_for_the_header_is_a_protocol_error(size: int) -> None:
    told = refused(size.to_bytes(4), "emp.envelope.size")
    assert told.code == ErrorCode.PROTOCOL


def test_the_default_maximum_message_is_16_mib() -> None:
    assert frames.decode((16 * 1024 * 1024).to_bytes(4)) is None
    refused((16 * 1024 * 1024 + 1).to_bytes(4), "emp.envelope.too-large")


def test_a_message_that_is_too_large_is_refused_before_memory_is_taken_for_it() -> None:
    tracemalloc.start()
    told = refused(bytes.fromhex("ffffffff05000000"), "emp.envelope.too-large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert told.code == ErrorCode.PROTOCOL
    assert peak < 1_000_000


def test_the_largest_message_allowed_is_accepted_and_one_byte_more_is_not() -> None:
    data = frames.encode(Frame(Type.DATA, b"x" * 1016))
    assert decode_all(data, max_message=1024).body == b"x" * 1016
    refused(frames.encode(Frame(Type.DATA, b"x" * 1017)), "emp.envelope.too-large", max_message=1024)


def test_a_message_larger_than_the_size_field_can_say_is_not_encoded() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(LimitExceeded, match="4294967295"):
        frames.encode(Frame(Type.DATA, Huge()))


@pytest.mark.parametrize(
    ("identifier", "type_"),
    [(0, Type.HELLO), (1, Type.BYE), (2, Type.PING), (3, Type.PONG), (4, Type.ERROR), (5, Type.DATA)],
    ids=lambda value: value.name.lower() if isinstance(value, Type) else None,
)
def test_every_message_type_of_the_specification_is_supported(identifier: int, type_: Type) -> None:
    assert type_ == identifier
    data = bytes.fromhex("0000000c") + bytes((identifier,)) + bytes.fromhex("00000061626364")
    assert decode_all(data) == Frame(type_, b"abcd")
    assert frames.encode(Frame(type_, b"abcd")) == data


@pytest.mark.parametrize("type_", [6, 7, 64, 127])
def test_reserved_types_are_a_protocol_error(type_: int) -> None:
    told = refused(bytes((0, 0, 0, 8, type_, 0, 0, 0)), "emp.type.reserved")
    assert told.code == ErrorCode.PROTOCOL


def test_a_reserved_type_is_refused_before_the_rest_is_waited_for() -> None:
    refused(bytes.fromhex("00100000 06000000"), "emp.type.reserved")


@pytest.mark.parametrize("type_", [128, 200, 255])
def test_application_types_are_accepted(type_: int) -> None:
    assert decode_all(bytes((0, 0, 0, 9, type_, 0, 0, 0, 33))) == Frame(type_, b"!")


def test_the_e_bit_says_that_a_block_follows_the_header() -> None:
    with_block = frames.encode(Frame(Type.DATA, b"!", (ExtensionBlock(200, b"?"),)))
    assert with_block == bytes.fromhex("00000012 05800000 00000009 c8000000 3f 21")
    assert frames.encode(Frame(Type.DATA, b"!"))[5] == 0
    cleared = bytearray(with_block)
    cleared[5] = 0
    assert decode_all(bytes(cleared)) == Frame(Type.DATA, with_block[8:])


def test_the_m_bit_chains_an_arbitrary_number_of_blocks() -> None:
    blocks = tuple(ExtensionBlock(200 + number % 50, bytes((number,))) for number in range(100))
    data = frames.encode(Frame(Type.DATA, b"body", blocks))
    assert decode_all(data) == Frame(Type.DATA, b"body", blocks)
    more = [data[8 + 9 * index + 5] for index in range(100)]
    assert more == [0x80] * 99 + [0]


def test_several_blocks_of_the_same_extension_keep_their_order() -> None:
    frame = Frame(Type.DATA, b"", (ExtensionBlock(9, b"a"), ExtensionBlock(9, b"b"), ExtensionBlock(9, b"")))
    assert decode_all(frames.encode(frame)) == frame


def test_the_size_of_a_block_includes_the_size_field() -> None:
    data = frames.encode(Frame(Type.PING, b"", (ExtensionBlock(9, b"abc"),)))
    assert data[8:12] == bytes.fromhex("0000000b")


@pytest.mark.parametrize("left", [b"", b"\0\0\0\x08", b"1234567"])
def test_an_e_bit_without_a_block_is_a_protocol_error(left: bytes) -> None:
    data = (8 + len(left)).to_bytes(4) + bytes.fromhex("05800000") + left
    assert refused(data, "emp.extension.missing").code == ErrorCode.PROTOCOL


@pytest.mark.parametrize("left", [b"", b"1234567"])
def test_an_m_bit_with_nothing_after_it_is_a_protocol_error(left: bytes) -> None:
    data = (16 + len(left)).to_bytes(4) + bytes.fromhex("05800000 00000008 c8800000") + left
    assert refused(data, "emp.extension.chain").code == ErrorCode.PROTOCOL


@pytest.mark.parametrize("size", [0, 4, 7, 10, 2**32 - 1])
def test_a_block_that_does_not_fit_its_message_is_an_extension_error(size: int) -> None:
    data = bytes.fromhex("00000011 05800000") + size.to_bytes(4) + bytes.fromhex("01000000 00")
    told = refused(data, "emp.extension.size")
    assert (told.code, told.extension) == (ErrorCode.EXTENSION, 1)


def test_unused_bits_are_sent_as_zero_and_ignored_on_receipt() -> None:
    clean = frames.encode(Frame(Type.DATA, b"!", (ExtensionBlock(200, b"?"), ExtensionBlock(201, b""))))
    noisy = bytearray(clean)
    for at in (5, 13, 22):
        noisy[at] |= 0x7F
        noisy[at + 1] = noisy[at + 2] = 0xFF
    assert decode_all(bytes(noisy)) == decode_all(clean)
    assert frames.encode(decode_all(bytes(noisy))) == clean
    assert frames.decode_hello(bytes.fromhex("01ffffff")) == Hello(1)
    assert frames.decode_error(bytes.fromhex("000000ff0000")) == Error(0)
    assert frames.encode_hello(Hello(1)) == bytes.fromhex("01000000")


def test_exclusive_sizes_leave_out_the_size_field_in_envelope_and_block() -> None:
    frame = Frame(Type.DATA, b"!", (ExtensionBlock(200, b"?"),))
    data = bytes.fromhex("0000000e 05800000 00000005 c8000000 3f 21")
    assert frames.encode(frame, SizeMode.EXCLUSIVE) == data
    assert decode_all(data, size_mode=SizeMode.EXCLUSIVE) == frame
    refused(bytes.fromhex("00000003"), "emp.envelope.size", size_mode=SizeMode.EXCLUSIVE)
    refused((1021).to_bytes(4), "emp.envelope.too-large", size_mode=SizeMode.EXCLUSIVE, max_message=1024)
    assert frames.decode((1020).to_bytes(4), 0, 1024, SizeMode.EXCLUSIVE) is None


def test_inclusive_sizes_are_the_default() -> None:
    hello = Message(Kind.OPEN)
    assert EMP.encode(hello, EMP.settings()) == EMP.encode(hello, EMP.settings({"size_mode": "inclusive"}))
    assert EMP.lenient() == dataclasses.replace(EMP.lenient(), size_mode=SizeMode.INCLUSIVE)  # type: ignore[call-arg]


def test_hello_carries_the_version_and_the_current_one_is_1() -> None:
    assert frames.encode_hello(Hello()) == bytes.fromhex("01000000")
    assert frames.decode_hello(bytes.fromhex("07000000")) == Hello(7)


@pytest.mark.parametrize("body", [b"", b"\1", b"\1\0\0", b"\1\0\0\0\0"])
def test_a_hello_whose_body_has_another_size_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode_hello(body)
    assert caught.value.clause == "emp.hello.body"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (0, ErrorCode.UNSPECIFIED),
        (1, ErrorCode.IO),
        (2, ErrorCode.TIMEOUT),
        (3, ErrorCode.PROTOCOL),
        (4, ErrorCode.EXTENSION),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, ErrorCode) else None,
)
def test_error_codes_are_those_of_the_table(number: int, code: ErrorCode) -> None:
    assert code == number
    assert frames.encode_error(Error(code, "no", 7, 9)) == bytes((number, 7, 9, 0)) + b"\0\2no"
    assert frames.decode_error(bytes((number, 7, 9, 0)) + b"\0\2no") == Error(number, "no", 7, 9)


@pytest.mark.parametrize(
    "body", [bytes.fromhex(text) for text in ("", "0000000000", "000000000001", "00000000000061", "000000000001ff")]
)
def test_an_error_whose_body_is_not_as_described_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode_error(body)
    assert caught.value.clause == "emp.error.body"


def test_an_error_message_too_long_for_its_length_is_cut_between_characters() -> None:
    body = frames.encode_error(Error(0, "ü" * 40_000))
    assert frames.decode_error(body).message == "ü" * 32_767


@given(any_frame(), st.sampled_from(SizeMode))
def test_every_frame_decodes_to_itself(frame: Frame, size_mode: SizeMode) -> None:
    assert decode_all(frames.encode(frame, size_mode), size_mode=size_mode) == frame


@given(any_frame(), st.data())
def test_a_frame_that_is_cut_anywhere_is_waited_for(frame: Frame, data: st.DataObject) -> None:
    encoded = frames.encode(frame)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert frames.decode(encoded[:cut]) is None


def test_every_rule_that_names_an_extension_answers_with_error_4_and_the_others_do_not() -> None:
    for clause, rule in frames.RULES.items():
        told = frames.decode_error(decode_all(frames.violation(clause, "x").reply).body)
        assert (told.code == ErrorCode.EXTENSION) == (rule.extension_error != 0), clause
        assert told.message == f"{clause}: x"
        if told.code != ErrorCode.EXTENSION:
            assert (told.extension, told.extension_error) == (0, 0)
