"""Request-response, compression, and the hub's block: the section "Extensions" of the specification."""

from __future__ import annotations

import gzip as reference
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.emp.strategies import hubs
from wireloom.model import LimitExceeded, NotSupported, ProtocolViolation
from wireloom.protocols.emp import EMP, extensions, frames
from wireloom.protocols.emp.extensions import CompressionScheme, HubExtension, Known, RequestResponse
from wireloom.protocols.emp.frames import ErrorCode, Extension, ExtensionBlock

REQUEST_7 = bytes.fromhex("80000000 0000000000000007")


def refused(clause: str, *blocks: ExtensionBlock) -> frames.Error:
    with pytest.raises(ProtocolViolation) as caught:
        extensions.read(blocks)
    return told(caught.value, clause)


def told(violation: ProtocolViolation, clause: str) -> frames.Error:
    assert violation.clause == clause
    assert clause in EMP.clauses
    reply = frames.decode(violation.reply)
    assert reply is not None
    return frames.decode_error(reply[0].body)


def test_extension_ids_are_0_and_1_and_128_for_the_hub() -> None:
    assert (Extension.REQUEST_RESPONSE, Extension.COMPRESSION, Extension.HUB) == (0, 1, 128)


def test_the_r_bit_tells_a_request_from_a_response() -> None:
    assert extensions.decode_request_response(REQUEST_7) == RequestResponse(request=True, id=7)
    assert extensions.decode_request_response(bytes(11) + b"\7") == RequestResponse(request=False, id=7)


def test_request_identifiers_have_64_bits() -> None:
    value = RequestResponse(request=True, id=2**64 - 1)
    assert extensions.encode_request_response(value) == bytes.fromhex("80000000 ffffffffffffffff")
    assert extensions.decode_request_response(extensions.encode_request_response(value)) == value


def test_unused_bits_of_the_known_extensions_are_ignored() -> None:
    assert extensions.decode_request_response(b"\xff" * 4 + REQUEST_7[4:]).id == 7
    assert extensions.decode_compression(b"\1\xff\xff\xff") is CompressionScheme.GZIP
    assert extensions.decode_hub(b"\x78") == HubExtension()


def test_request_id_zero_is_a_protocol_error() -> None:
    assert refused("emp.request-response.zero-id", ExtensionBlock(0, b"\x80" + bytes(11))).code == ErrorCode.PROTOCOL
    assert refused("emp.request-response.zero-id", ExtensionBlock(0, bytes(12))).code == ErrorCode.PROTOCOL


@pytest.mark.parametrize("size", [0, 4, 11, 13])
def test_a_malformed_request_response_block_is_an_extension_error(size: int) -> None:
    error = refused("emp.request-response.size", ExtensionBlock(0, bytes(size)))
    assert (error.code, error.extension, error.extension_error) == (4, 0, frames.ExtensionError.MALFORMED)


def test_a_message_is_no_request_or_response_twice() -> None:
    error = refused("emp.request-response.repeated", ExtensionBlock(0, REQUEST_7), ExtensionBlock(0, REQUEST_7))
    assert (error.code, error.extension) == (4, 0)


@pytest.mark.parametrize(("number", "scheme"), [(0, CompressionScheme.IDENTITY), (1, CompressionScheme.GZIP)])
def test_compression_schemes_are_those_of_the_table(number: int, scheme: CompressionScheme) -> None:
    assert extensions.encode_compression(scheme) == bytes((number, 0, 0, 0))
    assert extensions.decode_compression(bytes((number, 0, 0, 0))) is scheme


@pytest.mark.parametrize("scheme", [2, 128, 255])
def test_an_unknown_compression_scheme_is_an_extension_error(scheme: int) -> None:
    error = refused("emp.compression.scheme", ExtensionBlock(1, bytes((scheme, 0, 0, 0))))
    assert (error.code, error.extension, error.extension_error) == (4, 1, frames.ExtensionError.UNKNOWN_SCHEME)


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_a_malformed_compression_block_is_an_extension_error(size: int) -> None:
    error = refused("emp.compression.size", ExtensionBlock(1, bytes(size)))
    assert (error.code, error.extension, error.extension_error) == (4, 1, frames.ExtensionError.MALFORMED)


def test_several_compression_blocks_are_an_extension_error() -> None:
    error = refused("emp.compression.repeated", ExtensionBlock(1, bytes(4)), ExtensionBlock(1, bytes(4)))
    assert (error.code, error.extension, error.extension_error) == (4, 1, frames.ExtensionError.REPEATED)


def test_gzip_is_that_of_rfc_1952() -> None:
    assert reference.decompress(extensions.gzip(b"hello")) == b"hello"
    assert extensions.gunzip(reference.compress(b"hello")) == b"hello"


@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=4))
def test_gzip_data_of_several_members_is_their_sequence(parts: list[bytes]) -> None:
    assert extensions.gunzip(b"".join(map(extensions.gzip, parts))) == b"".join(parts)


@given(st.binary(max_size=5000))
def test_gunzip_is_the_inverse_of_gzip(body: bytes) -> None:
    assert extensions.gunzip(extensions.gzip(body)) == body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        extensions.gzip(b"hello")[:-1],
        extensions.gzip(b"hello")[:5],
        extensions.gzip(b"hello") + b"\0",
        extensions.gzip(b"hello")[:-8] + bytes(8),
        extensions.gzip(b"hello") + extensions.gzip(b"more")[:-3],
        extensions.gzip(b"") * (extensions.MAX_MEMBERS + 1),
    ],
    ids=["empty", "plain", "cut", "header", "rest", "checksum", "second-cut", "too-many-members"],
)
def test_bad_gzip_data_is_an_extension_error(data: bytes) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        extensions.gunzip(data)
    error = told(caught.value, "emp.compression.data")
    assert (error.code, error.extension, error.extension_error) == (4, 1, frames.ExtensionError.BAD_DATA)


def test_the_decompressed_size_is_limited_to_the_byte() -> None:
    packed = extensions.gzip(b"x" * 1000)
    assert extensions.gunzip(packed, 1000) == b"x" * 1000
    for limit in (0, 1, 999):
        with pytest.raises(ProtocolViolation) as caught:
            extensions.gunzip(packed, limit)
        error = told(caught.value, "emp.compression.too-large")
        assert (error.code, error.extension, error.extension_error) == (4, 1, frames.ExtensionError.TOO_LARGE)


def test_the_limit_holds_for_the_sum_of_all_members() -> None:
    packed = extensions.gzip(b"x" * 600) * 2
    assert len(extensions.gunzip(packed, 1200)) == 1200
    with pytest.raises(ProtocolViolation) as caught:
        extensions.gunzip(packed, 1199)
    assert caught.value.clause == "emp.compression.too-large"


def test_a_bomb_is_refused_before_memory_is_taken_for_it() -> None:
    bomb = extensions.gzip(bytes(50_000_000))
    tracemalloc.start()
    with pytest.raises(ProtocolViolation) as caught:
        extensions.gunzip(bomb, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.clause == "emp.compression.too-large"
    assert peak < 2_000_000


def test_the_default_limit_of_the_decompressed_size_is_16_mib() -> None:
    packed = extensions.gzip(bytes(16 * 1024 * 1024))
    assert len(extensions.gunzip(packed)) == 16 * 1024 * 1024
    with pytest.raises(ProtocolViolation):
        extensions.gunzip(extensions.gzip(bytes(16 * 1024 * 1024 + 1)))


def test_unknown_extensions_are_kept_in_their_order() -> None:
    blocks = (ExtensionBlock(9, b"a"), ExtensionBlock(0, REQUEST_7), ExtensionBlock(255, b""), ExtensionBlock(9, b"b"))
    assert extensions.read(blocks) == Known(RequestResponse(True, 7), None, None, (blocks[0], blocks[2], blocks[3]))


def test_the_block_of_the_hub_is_flags_and_the_strings_they_announce() -> None:
    content = bytes.fromhex("87") + b"\0\3a/b" + b"\0\x0atext/plain" + b"\0\x03404"
    assert extensions.encode_hub(HubExtension("a/b", "text/plain", "404", error=True)) == content
    assert extensions.decode_hub(content) == HubExtension("a/b", "text/plain", "404", error=True)


@given(hubs)
def test_the_block_of_the_hub_is_read_back_without_loss(value: HubExtension) -> None:
    assert extensions.decode_hub(extensions.encode_hub(value)) == value


@pytest.mark.parametrize(
    "content",
    [b"", b"\1", b"\1\0", b"\1\0\2a", b"\1\0\1\xff", b"\0x", b"\2\0\1ab", b"\3\0\1a", b"\4\xff\xffabc"],
)
def test_a_malformed_block_of_the_hub_is_an_extension_error(content: bytes) -> None:
    error = refused("emp.hub.content", ExtensionBlock(128, content))
    assert (error.code, error.extension, error.extension_error) == (4, 128, frames.ExtensionError.MALFORMED)


def test_a_second_block_of_the_hub_is_an_extension_error() -> None:
    error = refused("emp.hub.repeated", ExtensionBlock(128, b"\0"), ExtensionBlock(128, b"\0"))
    assert (error.code, error.extension) == (4, 128)


def test_a_topic_too_long_for_a_character_string_is_not_sent() -> None:
    assert len(extensions.encode_hub(HubExtension("x" * 65_535))) == 65_538
    with pytest.raises(LimitExceeded, match="topic of 65536 bytes"):
        extensions.encode_hub(HubExtension("x" * 65_536))


def test_a_topic_that_is_no_text_is_not_sent() -> None:
    with pytest.raises(NotSupported, match="UTF-8"):
        extensions.encode_hub(HubExtension("\ud800"))


@given(hubs)
def test_a_block_of_the_hub_says_the_same_each_time(hub: HubExtension) -> None:
    content = extensions.encode_hub(hub)
    assert extensions.decode_hub(content) == extensions.decode_hub(bytes(content)) == hub


def test_a_bad_block_of_the_hub_is_refused_each_time() -> None:
    for _ in range(2):
        refused("emp.hub.content", ExtensionBlock(Extension.HUB, b"\1\0\2a"))


def test_blocks_of_the_hub_that_are_long_are_not_remembered() -> None:
    before = extensions._remembered_hub.cache_info().currsize
    hub = HubExtension("t" * extensions.REMEMBERED)
    assert extensions.decode_hub(extensions.encode_hub(hub)) == hub
    assert extensions._remembered_hub.cache_info().currsize == before
