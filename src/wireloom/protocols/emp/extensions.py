"""What extension blocks hold: request-response, compression, and the hub's own.

Implements the section "Extensions" of the emp specification. The third extension, with id 128, is the hub
profile's: it gives a message a topic, a content type and a status. Its content is

    flags (1 byte)      0x01 a topic follows, 0x02 a content type, 0x04 a status; 0x80 the message is the error
                        that answers a request; other bits are unused
    topic               character string (16-bit length, UTF-8), if announced
    content type        likewise
    status              likewise

and nothing else. Peers that do not know it ignore it, as they do with any extension they do not know.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from wireloom.model import LimitExceeded, NotSupported
from wireloom.protocols.emp.frames import Extension, ExtensionBlock, size_hint, violation

MAX_DECOMPRESSED_DEFAULT = 16 * 1024 * 1024
MAX_ID = 2**64 - 1
MAX_MEMBERS = 1000
"""GZIP members in one body: each costs time however little it holds."""
REMEMBERED = 256
"""Hub blocks of no more bytes are remembered with what they say: the same few topics come again and again."""


class CompressionScheme(IntEnum):
    """How the body is compressed."""

    IDENTITY = 0
    GZIP = 1


class RequestResponse(NamedTuple):
    """Content of extension 0: this message is a request, or the response to one."""

    request: bool
    id: int


@dataclass(frozen=True, slots=True)
class HubExtension:
    """Content of extension 128: what the hub profile says about a message."""

    topic: str | None = None
    content_type: str | None = None
    status: str | None = None
    error: bool = False


class Known(NamedTuple):
    """What the blocks of one message say, and those of other extensions, in their order."""

    request_response: RequestResponse | None = None
    scheme: CompressionScheme | None = None
    hub: HubExtension | None = None
    unknown: tuple[ExtensionBlock, ...] = ()


_REQUEST_RESPONSE = struct.Struct(">BxxxQ")
_COMPRESSION = struct.Struct(">Bxxx")
_LENGTH = struct.Struct(">H")
_REQUEST = 0x80
_IS_REQUEST_RESPONSE, _IS_COMPRESSION, _IS_HUB = (
    int(each) for each in (Extension.REQUEST_RESPONSE, Extension.COMPRESSION, Extension.HUB)
)
_TOPIC, _CONTENT_TYPE, _STATUS, _ERROR = 0x01, 0x02, 0x04, 0x80


def read(blocks: tuple[ExtensionBlock, ...]) -> Known:
    """What the blocks say; the first one that is malformed is a violation.

    >>> read((ExtensionBlock(0, bytes.fromhex("800000000000000000000007")), ExtensionBlock(200, b"?")))
    ... # doctest: +NORMALIZE_WHITESPACE
    Known(request_response=RequestResponse(request=True, id=7), scheme=None, hub=None,
          unknown=(ExtensionBlock(extension=200, content=b'?'),))
    """
    request_response: RequestResponse | None = None
    scheme: CompressionScheme | None = None
    hub: HubExtension | None = None
    unknown: list[ExtensionBlock] = []
    for block in blocks:
        extension, content = block
        if extension == _IS_REQUEST_RESPONSE:
            if request_response is not None:
                raise violation("emp.request-response.repeated", "a second request-response block")
            request_response = decode_request_response(content)
        elif extension == _IS_HUB:
            if hub is not None:
                raise violation("emp.hub.repeated", "a second block of the hub extension")
            hub = decode_hub(content)
        elif extension == _IS_COMPRESSION:
            if scheme is not None:
                raise violation("emp.compression.repeated", "a second compression block")
            scheme = decode_compression(content)
        else:
            unknown.append(block)
    return Known(request_response, scheme, hub, tuple(unknown))


def encode_request_response(value: RequestResponse) -> bytes:
    """Content of a request-response block.

    >>> encode_request_response(RequestResponse(request=True, id=1)).hex()
    '800000000000000000000001'
    """
    return _REQUEST_RESPONSE.pack(_REQUEST if value.request else 0, value.id)


def decode_request_response(content: bytes) -> RequestResponse:
    """The inverse of `encode_request_response`."""
    if len(content) != _REQUEST_RESPONSE.size:
        hint = size_hint(len(content) - _REQUEST_RESPONSE.size)
        raise violation("emp.request-response.size", f"{len(content)} bytes instead of {_REQUEST_RESPONSE.size}{hint}")
    flags, identifier = _REQUEST_RESPONSE.unpack(content)
    if identifier == 0:
        raise violation("emp.request-response.zero-id", "request identifier 0")
    return RequestResponse(bool(flags & _REQUEST), identifier)


def encode_compression(scheme: CompressionScheme) -> bytes:
    """Content of a compression block."""
    return _COMPRESSION.pack(scheme)


def decode_compression(content: bytes) -> CompressionScheme:
    """The inverse of `encode_compression`."""
    if len(content) != _COMPRESSION.size:
        hint = size_hint(len(content) - _COMPRESSION.size)
        raise violation("emp.compression.size", f"{len(content)} bytes instead of {_COMPRESSION.size}{hint}")
    try:
        return CompressionScheme(content[0])
    except ValueError:
        raise violation("emp.compression.scheme", f"scheme {content[0]}") from None


def encode_hub(value: HubExtension) -> bytes:
    """Content of the hub's block.

    >>> encode_hub(HubExtension(topic="a/b", status="404", error=True))
    b'\\x85\\x00\\x03a/b\\x00\\x03404'
    """
    parts = [b""]
    flags = _ERROR if value.error else 0
    for flag, name, text in (
        (_TOPIC, "topic", value.topic),
        (_CONTENT_TYPE, "content type", value.content_type),
        (_STATUS, "status", value.status),
    ):
        if text is not None:
            try:
                encoded = text.encode()
            except UnicodeEncodeError:
                raise NotSupported(f"{name} {text!r} has no form in UTF-8") from None
            if len(encoded) > 0xFFFF:
                raise LimitExceeded(f"{name} of {len(encoded)} bytes; a character string of emp has at most 65535")
            flags |= flag
            parts += (_LENGTH.pack(len(encoded)), encoded)
    parts[0] = bytes((flags,))
    return b"".join(parts)


def decode_hub(content: bytes) -> HubExtension:
    """The inverse of `encode_hub`."""
    return _remembered_hub(content) if len(content) <= REMEMBERED else _decode_hub(content)


def _decode_hub(content: bytes) -> HubExtension:
    if not content:
        raise violation("emp.hub.content", "the flags are missing")
    flags = content[0]
    position = 1
    texts: list[str | None] = [None, None, None]
    for index, flag in enumerate((_TOPIC, _CONTENT_TYPE, _STATUS)):
        if flags & flag:
            begin = position + 2
            position = begin + int.from_bytes(content[position:begin])
            if begin > len(content) or position > len(content):
                raise violation("emp.hub.content", "a string goes past the end of the block")
            try:
                texts[index] = content[begin:position].decode()
            except UnicodeDecodeError:
                raise violation("emp.hub.content", "a string is not UTF-8") from None
    if position != len(content):
        raise violation("emp.hub.content", f"{len(content) - position} bytes follow the last string")
    topic, content_type, status = texts
    return HubExtension(topic, content_type, status, bool(flags & _ERROR))


_remembered_hub = lru_cache(maxsize=1024)(_decode_hub)


def gzip(data: bytes) -> bytes:
    """A body as one GZIP member without a time in it: the same bytes for the same body.

    >>> gzip(b"yyyyyy").hex()
    '1f8b0800000000000003abac040100fac81ef306000000'
    """
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return compressor.compress(data) + compressor.flush()


def gunzip(data: bytes, max_decompressed: int = MAX_DECOMPRESSED_DEFAULT) -> bytes:
    """The inverse of `gzip`, for any sequence of members; stops at the limit, before memory is taken for more.

    >>> gunzip(gzip(b"zz") + gzip(b"z"))
    b'zzz'
    """
    pieces: list[bytes] = []
    room = max_decompressed
    position = 0
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        # What a member leaves over is copied by zlib, so pieces begin small: the copies stay in proportion.
        step = 512
        while not member.eof:
            if position >= len(data):
                raise violation("emp.compression.data", "the GZIP data is cut off")
            try:
                piece = member.decompress(data[position : position + step], room + 1)
            except zlib.error as problem:
                raise violation("emp.compression.data", f"not GZIP data: {problem}") from None
            if len(piece) > room:
                raise violation(
                    "emp.compression.too-large",
                    f"the body decompresses to more than max_decompressed, {max_decompressed} bytes",
                )
            room -= len(piece)
            pieces.append(piece)
            position += min(step, len(data) - position) - len(member.unused_data)
            step *= 2
        if position == len(data):
            return b"".join(pieces)
    raise violation("emp.compression.data", f"more than {MAX_MEMBERS} GZIP members in one body")
