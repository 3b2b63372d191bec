"""Frames as messages and back: the emp column of the model, and the hub profile's topics."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.emp.strategies import any_frame, any_message
from wireloom.model import ConfigError, Direction, Kind, LimitExceeded, Message, NotSupported, ProtocolViolation
from wireloom.protocols.contract import Decoded
from wireloom.protocols.emp import EMP, EmpSettings, extensions, frames
from wireloom.protocols.emp.frames import ExtensionBlock, Frame, SizeMode, Type
from wireloom.protocols.emp.messages import encode, to_frame, to_message
from wireloom.protocols.emp.settings import Profile
from wireloom.protocols.registry import protocol, scheme

OPTIONS = EmpSettings()


def read(frame: Frame) -> Message:
    return to_message(frame, OPTIONS)


def decode(data: bytes, **settings: object) -> Message:
    decoder = EMP.decoder(Direction.C2S, EMP.settings(settings))
    decoder.feed(data)
    found = list(decoder)
    assert len(found) == 1
    assert isinstance(found[0], Decoded)
    return found[0].message


def test_hello_is_open_and_names_the_version() -> None:
    message = read(Frame(Type.HELLO, bytes.fromhex("01000000")))
    assert (message.kind, message.attributes) == (Kind.OPEN, {"version": "1"})
    assert to_frame(message, OPTIONS) == Frame(Type.HELLO, bytes.fromhex("01000000"))


@pytest.mark.parametrize(
    ("type_", "kind"), [(Type.BYE, Kind.CLOSE), (Type.PING, Kind.PING), (Type.PONG, Kind.PONG)], ids=str
)
def test_bye_ping_and_pong_have_no_body_and_one_is_ignored(type_: Type, kind: Kind) -> None:
    assert read(Frame(type_)) == Message(kind, protocol="emp")
    assert read(Frame(type_, b"body")) == Message(kind, protocol="emp")
    assert to_frame(Message(kind, body=b"body"), OPTIONS) == Frame(type_)


def test_the_ignored_body_of_a_ping_is_not_decompressed() -> None:
    frame = Frame(Type.PING, b"no gzip data", (ExtensionBlock(1, bytes.fromhex("01000000")),))
    assert read(frame) == Message(Kind.PING, protocol="emp")


def test_error_is_error_with_its_code_as_status() -> None:
    message = read(Frame(Type.ERROR, frames.encode_error(frames.Error(1, "asked for", 7, 8))))
    assert (message.kind, message.status, message.value()) == (Kind.ERROR, "1", "asked for")
    assert message.attributes == {}
    assert message.correlation_id is None


def test_extension_id_and_error_are_told_when_the_code_is_4() -> None:
    error = frames.Error(4, "bad", 1, 3)
    message = read(Frame(Type.ERROR, frames.encode_error(error)))
    assert message.attributes == {"extension": "1", "extension_error": "3"}
    assert frames.decode_error(to_frame(message, OPTIONS).body) == error


def test_an_error_whose_status_is_no_code_is_an_unspecified_error() -> None:
    for status in (None, "error", "256", "999", "-1", "٣"):
        frame = to_frame(Message(Kind.ERROR, body=b"why", status=status), OPTIONS)
        assert frames.decode_error(frame.body) == frames.Error(0, "why")


def test_data_is_an_event_whose_body_belongs_to_the_application() -> None:
    body = bytes(range(256))
    assert read(Frame(Type.DATA, body)) == Message(Kind.EVENT, body=body, protocol="emp")


def test_data_with_request_response_is_a_request_or_a_response() -> None:
    request = ExtensionBlock(0, bytes.fromhex("80000000ffffffffffffffff"))
    response = ExtensionBlock(0, bytes.fromhex("00000000ffffffffffffffff"))
    asked = read(Frame(Type.DATA, b"?", (request,)))
    assert (asked.kind, asked.id, asked.correlation_id, asked.status) == (Kind.REQUEST, str(2**64 - 1), None, None)
    answer = read(Frame(Type.DATA, b"!", (response,)))
    assert (answer.kind, answer.id, answer.correlation_id, answer.status) == (
        Kind.RESPONSE,
        None,
        str(2**64 - 1),
        "done",
    )


@pytest.mark.parametrize("type_", [128, 255])
def test_application_types_are_handed_to_the_application(type_: int) -> None:
    message = read(Frame(type_, b"own"))
    assert (message.kind, message.body, message.attributes) == (Kind.OTHER, b"own", {"type": str(type_)})
    assert to_frame(message, OPTIONS) == Frame(type_, b"own")


@pytest.mark.parametrize("type_", [None, "5", "127", "256", "x", "²"])
def test_an_other_message_needs_an_application_type(type_: str | None) -> None:
    with pytest.raises(NotSupported, match="from 128 to 255"):
        to_frame(Message(Kind.OTHER, attributes={} if type_ is None else {"type": type_}), OPTIONS)


def test_blocks_of_unknown_extensions_are_kept_in_attributes_as_hex() -> None:
    frame = Frame(Type.DATA, b"x", (ExtensionBlock(9, b"\1\2"), ExtensionBlock(200, b""), ExtensionBlock(9, b"\3")))
    message = read(frame)
    assert message.attributes == {"extension.9": "0102,03", "extension.200": ""}
    assert to_frame(message, OPTIONS).blocks == (
        ExtensionBlock(9, b"\1\2"),
        ExtensionBlock(9, b"\3"),
        ExtensionBlock(200, b""),
    )


def test_blocks_on_control_messages_mean_nothing_and_are_kept() -> None:
    blocks = (ExtensionBlock(0, bytes.fromhex("800000000000000000000001")), ExtensionBlock(128, b"\1\0\1a"))
    message = read(Frame(Type.PING, b"", blocks))
    assert (message.kind, message.id, message.topic) == (Kind.PING, None, None)
    assert to_frame(message, OPTIONS) == Frame(Type.PING, b"", blocks)


@pytest.mark.parametrize(
    "attributes", [{"extension.9": "xy"}, {"extension.0": "00"}, {"extension.256": ""}, {"extension.x": ""}]
)
def test_attributes_that_make_no_valid_block_are_not_sent(attributes: dict[str, str]) -> None:
    with pytest.raises(NotSupported, match="extension"):
        to_frame(Message(Kind.EVENT, attributes=attributes), OPTIONS)


def test_attributes_of_other_protocols_are_not_taken_for_blocks_or_schemes() -> None:
    message = Message(Kind.EVENT, attributes={"compression": "zlib", "extension.9": "?"}, protocol="mesh")
    assert to_frame(message, OPTIONS) == Frame(Type.DATA)


def test_a_compressed_body_is_decompressed_and_its_scheme_told() -> None:
    packed = Frame(Type.DATA, extensions.gzip(b"zzz"), (ExtensionBlock(1, bytes.fromhex("01000000")),))
    message = read(packed)
    assert (message.body, message.attributes) == (b"zzz", {"compression": "gzip"})
    assert to_frame(message, OPTIONS) == packed


def test_identity_leaves_the_body_as_it_is() -> None:
    frame = Frame(Type.DATA, b"zzz", (ExtensionBlock(1, bytes(4)),))
    message = read(frame)
    assert (message.body, message.attributes) == (b"zzz", {"compression": "identity"})
    assert to_frame(message, OPTIONS) == frame


def test_the_body_of_any_message_can_be_compressed() -> None:
    block = ExtensionBlock(1, bytes.fromhex("01000000"))
    hello = read(Frame(Type.HELLO, extensions.gzip(bytes.fromhex("01000000")), (block,)))
    assert hello.attributes == {"version": "1", "compression": "gzip"}
    error = read(Frame(Type.ERROR, extensions.gzip(frames.encode_error(frames.Error(0, "no"))), (block,)))
    assert (error.status, error.body) == ("0", b"no")
    own = read(Frame(200, extensions.gzip(b"own"), (block,)))
    assert own.body == b"own"


def test_bodies_above_the_threshold_are_sent_compressed_if_that_is_shorter() -> None:
    options = EmpSettings(compress_above=100)
    assert to_frame(Message(Kind.EVENT, body=b"x" * 100), options).blocks == ()
    frame = to_frame(Message(Kind.EVENT, body=b"x" * 101), options)
    assert frame.blocks == (ExtensionBlock(1, bytes.fromhex("01000000")),)
    assert to_message(frame, options).body == b"x" * 101
    noise = extensions.gzip(bytes(range(256)) * 4)
    assert to_frame(Message(Kind.EVENT, body=noise + noise[:5]), EmpSettings(compress_above=0)).blocks == ()


def test_nothing_is_compressed_unless_asked_for() -> None:
    assert to_frame(Message(Kind.EVENT, body=b"x" * 100_000), OPTIONS).blocks == ()


def test_a_body_the_peer_would_not_decompress_is_not_compressed() -> None:
    options = EmpSettings(max_decompressed=1000, compress_above=10)
    assert to_frame(Message(Kind.EVENT, body=b"x" * 1001), options).blocks == ()
    with pytest.raises(LimitExceeded, match="max_decompressed is 1000"):
        to_frame(Message(Kind.EVENT, body=b"x" * 1001, attributes={"compression": "gzip"}), options)


def test_an_unknown_compression_is_not_sent() -> None:
    with pytest.raises(NotSupported, match="identity and gzip"):
        to_frame(Message(Kind.EVENT, attributes={"compression": "br"}), OPTIONS)


def test_a_message_larger_than_max_message_is_not_sent() -> None:
    options = EmpSettings(max_message=1024)
    assert len(EMP.encode(Message(Kind.EVENT, body=b"x" * 1016), options)) == 1024
    with pytest.raises(LimitExceeded, match="message of 1025 bytes; max_message is 1024"):
        EMP.encode(Message(Kind.EVENT, body=b"x" * 1017), options)
    with pytest.raises(LimitExceeded):
        EMP.encode(Message(Kind.EVENT, "t", body=b"x" * 1016), options)


def test_the_topic_travels_in_a_block_of_extension_128() -> None:
    event = Message(Kind.EVENT, "a/b", b"21", content_type="text/plain")
    assert EMP.encode(event, OPTIONS) == bytes.fromhex("00000024 05800000 0000001a 80000000 03 0003 612f62 000a") + (
        b"text/plain" + b"21"
    )
    assert decode(EMP.encode(event, OPTIONS)) == event.with_(protocol="emp", direction=Direction.C2S)


def test_without_the_block_there_is_no_topic() -> None:
    assert read(Frame(Type.DATA, b"x")).topic is None
    assert to_frame(Message(Kind.EVENT, body=b"x"), OPTIONS).blocks == ()


def test_an_error_for_one_request_travels_in_a_response_with_the_block() -> None:
    failed = Message(Kind.ERROR, body=b"no such topic", correlation_id="7", status="404")
    frame = to_frame(failed, OPTIONS)
    assert frame.type == Type.DATA
    assert frame.blocks == (ExtensionBlock(0, bytes(11) + b"\7"), ExtensionBlock(128, b"\x84\0\x03404"))
    assert read(frame) == failed.with_(protocol="emp")
    assert read(to_frame(failed.with_(status=None), OPTIONS)).status == "error"


def test_a_response_that_was_not_done_says_so_in_the_block() -> None:
    cancelled = Message(Kind.RESPONSE, correlation_id="7", status="cancelled", protocol="emp")
    assert read(to_frame(cancelled, OPTIONS)) == cancelled


def test_a_response_that_is_done_needs_no_block() -> None:
    for status in (None, "done"):
        frame = to_frame(Message(Kind.RESPONSE, correlation_id="7", status=status), OPTIONS)
        assert [block.extension for block in frame.blocks] == [0]


def test_requests_to_the_hub_are_ordinary_requests_with_that_topic() -> None:
    request = Message(Kind.REQUEST, "$hub/subscribe", b'{"topic":"#"}', id="1", content_type="application/json")
    assert decode(EMP.encode(request, OPTIONS)) == request.with_(protocol="emp", direction=Direction.C2S)


@given(any_message(), st.sampled_from(["inclusive", "exclusive"]))
def test_every_message_is_read_back_without_loss(message: Message, size_mode: str) -> None:
    options = EMP.settings({"size_mode": size_mode})
    assert decode(EMP.encode(message, options), size_mode=size_mode) == message.with_(direction=Direction.C2S)


@given(any_frame())
def test_what_was_decoded_encodes_to_an_equal_message(frame: Frame) -> None:
    message = read(frame)
    assert read(to_frame(message, OPTIONS)) == message


@pytest.mark.parametrize("kind", [Kind.PROGRESS, Kind.CANCEL, Kind.ACK, Kind.REDIRECT])
def test_what_emp_cannot_say_is_refused(kind: Kind) -> None:
    with pytest.raises(NotSupported, match=f"no message of kind {kind}"):
        EMP.encode(Message(kind, correlation_id="1"), OPTIONS)


@pytest.mark.parametrize("number", [None, "", "0", "-1", "x", str(2**64), "1" * 5000, "٣"])
def test_ids_are_decimal_numbers_of_64_bits_above_zero(number: str | None) -> None:
    with pytest.raises(NotSupported, match=r"^id of an emp message is a number from 1 to"):
        to_frame(Message(Kind.REQUEST, id=number), OPTIONS)
    with pytest.raises(NotSupported, match=r"^correlation_id of an emp message"):
        to_frame(Message(Kind.RESPONSE, correlation_id=number), OPTIONS)


def test_the_reply_to_a_violation_is_in_the_size_mode_of_the_peer() -> None:
    for size_mode in SizeMode:
        decoder = EMP.decoder(Direction.C2S, EmpSettings(size_mode=size_mode))
        decoder.feed(frames.encode(Frame(6), size_mode))
        with pytest.raises(ProtocolViolation) as caught:
            next(decoder)
        found = frames.decode(caught.value.reply, 0, size_mode=size_mode)
        assert found is not None
        assert found[1] == len(caught.value.reply)
        assert frames.decode_error(found[0].body).code == frames.ErrorCode.PROTOCOL


def test_the_protocol_is_found_by_name_and_by_its_schemes_tcp_and_tls() -> None:
    assert protocol("emp") is EMP
    assert [(scheme(name)[1].transport, scheme(name)[1].secure) for name in ("emp", "emps")] == [
        ("tcp", False),
        ("tls", True),
    ]


def test_the_default_port_is_5040() -> None:
    assert {known.port for known in EMP.schemes} == {5040}


@pytest.mark.parametrize(
    ("head", "ours"),
    [
        ("0000000c0000000001000000", True),
        ("000000080000000001000000", True),
        ("0000000c0000", True),
        ("00000018008000000000000cc800000000000000 01000000", True),
        ("0000000c00", False),
        ("0000000c0000000000000000", False),
        ("0000000d0500000068656c6c6f", False),
        ("0000070000000568656c6c6f", False),
        ("ffffffff008000000000", False),
        ("", False),
    ],
)
def test_a_stream_is_recognised_by_its_hello(head: str, ours: bool) -> None:
    assert EMP.recognise(bytes.fromhex(head), Direction.C2S) is ours
    assert EMP.recognise(bytes.fromhex(head), Direction.S2C) is ours


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_message", 1023),
        ("max_message", 2**32),
        ("max_decompressed", -1),
        ("max_requests", 0),
        ("handshake_timeout", 0),
        ("pong_timeout", -1),
        ("close_timeout", 0),
        ("ping_interval", -1),
        ("ping_interval", float("nan")),
        ("compress_above", -1),
        ("size_mode", "sometimes"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        EMP.settings({name: value})


def test_the_defaults_are_those_of_the_decisions() -> None:
    assert (
        EmpSettings(
            max_message=16 * 1024 * 1024,
            max_decompressed=16 * 1024 * 1024,
            handshake_timeout=5,
            ping_interval=10,
            pong_timeout=5,
            size_mode=SizeMode.AUTO,
            profile=Profile.AUTO,
            compress_above=None,
        )
        == OPTIONS
    )


def test_what_a_higher_limit_accepted_before_can_still_be_read() -> None:
    data = frames.encode(Frame(Type.DATA, bytes(17 * 1024 * 1024)))
    packed = frames.encode(
        Frame(Type.DATA, extensions.gzip(bytes(17 * 1024 * 1024)), (ExtensionBlock(1, b"\1\0\0\0"),))
    )
    decoder = EMP.decoder(Direction.C2S, EMP.lenient())
    decoder.feed(data + packed)
    assert [len(found.message.body) for found in decoder] == [17 * 1024 * 1024] * 2


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_travels_in_extension_129() -> None:
    message = Message(Kind.EVENT, "a", b"1", attributes={"traceparent": TRACEPARENT, "tracestate": "x=1"})
    frame = to_frame(message, EmpSettings())
    assert json.loads(frame.blocks[-1].content) == {"traceparent": TRACEPARENT, "tracestate": "x=1"}
    found = to_message(frame, EmpSettings())
    assert (found.attributes["traceparent"], found.attributes["tracestate"]) == (TRACEPARENT, "x=1")
    # What was read is written again byte for byte, also when the block says more.
    assert to_frame(found, EmpSettings()) == frame
    more = Frame(Type.DATA, b"", (ExtensionBlock(129, json.dumps({"id": "7", "traceparent": TRACEPARENT}).encode()),))
    assert to_frame(to_message(more, EmpSettings()), EmpSettings()) == more


def test_another_trace_takes_the_place_of_the_one_in_the_block() -> None:
    block = ExtensionBlock(129, json.dumps({"id": "7", "traceparent": TRACEPARENT}).encode())
    message = to_message(Frame(Type.DATA, b"", (block,)), EmpSettings())
    later = TRACEPARENT.replace("b7ad", "0000")
    frame = to_frame(message.with_(attributes={**message.attributes, "traceparent": later}), EmpSettings())
    assert json.loads(frame.blocks[0].content) == {"id": "7", "traceparent": later}


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"[" * 5000, b'{"traceparent": 7}', b'{"traceparent": "00-x"}', b'{"tracestate": "\\u0000"}'],
)
def test_a_block_129_that_is_no_context_means_nothing(content: bytes) -> None:
    frame = Frame(Type.DATA, b"x", (ExtensionBlock(129, content),))
    message = to_message(frame, EmpSettings())
    assert set(message.attributes) == {"extension.129"}
    assert to_frame(message, EmpSettings()) == frame


def test_a_hundred_thousand_blocks_are_read_in_proportion_to_their_number() -> None:
    """Blocks were once added to a tuple one by one: that copies all those before for each."""

    def cost(count: int) -> float:
        data = frames.encode(Frame(Type.DATA, b"", (ExtensionBlock(200),) * count))
        begin = time.process_time()
        found = frames.decode(data)
        assert found is not None
        assert to_message(found[0], EmpSettings()).attributes == {"extension.200": "," * (count - 1)}
        return time.process_time() - begin

    few, many = (min(cost(count) for _ in range(3)) for count in (5_000, 100_000))
    assert many < 100 * few


@given(message=any_message(), mode=st.sampled_from(["inclusive", "exclusive"]), profile=st.sampled_from(["on", "off"]))
def test_a_remembered_beginning_gives_the_bytes_of_the_frame(message: Message, mode: str, profile: str) -> None:
    settings = EmpSettings(size_mode=SizeMode(mode), profile=Profile(profile), max_message=1024)
    try:
        expected: bytes | str = frames.encode(to_frame(message, settings), settings.size_mode)
    except (NotSupported, LimitExceeded) as error:
        expected = str(error)
    for _ in range(2):
        try:
            found: bytes | str = encode(message, settings)
        except (NotSupported, LimitExceeded) as error:
            found = str(error)
        assert found == expected
