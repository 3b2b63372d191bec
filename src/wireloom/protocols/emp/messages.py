"""What emp frames mean: frame to message and back.

| frame | message |
|---|---|
| `hello` | `open`; attribute `version` |
| `bye`, `ping`, `pong` | `close`, `ping`, `pong`; a body is ignored |
| `error` | `error`; the code is the status, the text the body; attributes `extension`, `extension_error` |
| `data` | `event` |
| `data` with request-response | `request` (its `id`) or `response` (its `correlation_id`) |
| the latter with the hub's error flag | `error` with a `correlation_id` |
| types 128 to 255 | `other`; attribute `type` |

Attribute `size_mode` of a `hello` is `exclusive` where sizes leave out their own four bytes.

Attribute `compression` names the scheme of a body that came with one; the body is decompressed. Blocks of unknown
extensions are attributes `extension.<id>`: content in hex, blocks of the same id separated by commas. The hub's
block gives data and application messages their topic, content type and status; on other messages it
means nothing and is kept like an unknown one. The trace in which a message is sent (attributes `traceparent` and
`tracestate`) travels in extension 129, see `context`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import cast

from wireloom.model import (
    NO_ATTRIBUTES,
    Authenticity,
    Direction,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    ProtocolViolation,
    message_of,
)
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH, Decoder
from wireloom.protocols.emp import context, extensions, frames
from wireloom.protocols.emp.extensions import CompressionScheme, HubExtension, Known, RequestResponse
from wireloom.protocols.emp.frames import Extension, ExtensionBlock, Frame, SizeMode, Type
from wireloom.protocols.emp.settings import EmpSettings, Profile, settled
from wireloom.protocols.emp.sizes import told_mode

BLOCK = "extension."
"""Attributes with this prefix are blocks: `extension.200`."""
DONE, FAILED = "done", "error"
TEXT = "text/plain"
_MOST_TOLD = 500
"""Characters of a peer's last words that are told to those who wait for it."""
FIRST_APPLICATION_CODE = 128
"""Codes of `error` from here on are free; those below are reserved."""

_CONTROL_KINDS = {Type.BYE: Kind.CLOSE, Type.PING: Kind.PING, Type.PONG: Kind.PONG}
_CONTROL_TYPES = {kind: type_ for type_, kind in _CONTROL_KINDS.items()}
_NOTHING_KNOWN = Known()
# A member of an enum is looked up by name each time; these are looked up once.
_EVENT, _REQUEST, _RESPONSE, _ERROR, _OTHER = Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.OTHER
_DATA, _FIRST_APPLICATION_TYPE = int(Type.DATA), frames.FIRST_APPLICATION_TYPE
_REQUEST_RESPONSE, _HUB, _GZIP = Extension.REQUEST_RESPONSE, Extension.HUB, CompressionScheme.GZIP
_UNPROVEN = Authenticity.NONE
_OFF = Profile.OFF
_EXCLUSIVE = SizeMode.EXCLUSIVE
_PLAIN = frozenset((_EVENT, _REQUEST, _RESPONSE))
ID_AT = 20
"""Where the id stands in a request and in a response: their first block is that of request-response."""
_SIZE, _ID = struct.Struct(">I"), struct.Struct(">Q")
HUB_EXTENSIONS = (int(Extension.HUB), context.EXTENSION)
"""Those that only peers with the hub profile know."""
_UNAWARE = "an emp peer that does not know the hub's extension (setting profile)"


def to_message(
    frame: Frame, settings: EmpSettings, direction: Direction | None = None, unpacked: bytes | None = None
) -> Message:
    """What a frame means; raises ProtocolViolation for what only a look inside shows.

    `unpacked` is the body of a frame with GZIP data, where that is known already.

    >>> to_message(Frame(Type.DATA, b"hello"), EmpSettings()).kind
    <Kind.EVENT: 'event'>
    """
    known = extensions.read(frame.blocks) if frame.blocks else _NOTHING_KNOWN
    type_ = frame.type
    if type_ >= _DATA:
        return _carrier_message(frame, known, settings, direction, unpacked)
    attributes: dict[str, str] = {}
    body, status, content_type = b"", None, None
    if type_ == Type.HELLO:
        kind = Kind.OPEN
        attributes["version"] = str(frames.decode_hello(_plain_body(frame, known, settings, unpacked)).version)
        if settings.size_mode is SizeMode.EXCLUSIVE:
            attributes["size_mode"] = str(SizeMode.EXCLUSIVE)
    elif type_ == Type.ERROR:
        kind = Kind.ERROR
        error = frames.decode_error(_plain_body(frame, known, settings, unpacked))
        status, body, content_type = str(error.code), error.message.encode(), TEXT
        if error.code == frames.ErrorCode.EXTENSION:
            attributes["extension"] = str(error.extension)
            attributes["extension_error"] = str(error.extension_error)
    else:
        kind = _CONTROL_KINDS[Type(type_)]
    if frame.blocks:
        if known.scheme is not None and kind in (Kind.OPEN, Kind.ERROR):
            attributes["compression"] = known.scheme.name.lower()
        _keep_blocks(attributes, [b for b in frame.blocks if b.extension != Extension.COMPRESSION])
    return Message(kind, None, body, None, None, status, content_type, attributes, "emp", None, None, direction)


def _carrier_message(
    frame: Frame, known: Known, settings: EmpSettings, direction: Direction | None, unpacked: bytes | None
) -> Message:
    """A message that carries the application's data."""
    type_, body, _ = frame
    related, scheme, hub, unknown = known
    request_id = correlation_id = topic = content_type = status = None
    kind = _EVENT
    if related is not None:
        if related.request:
            request_id, kind = str(related.id), _REQUEST
        else:
            correlation_id, kind, status = str(related.id), _RESPONSE, DONE
    if type_ != _DATA:
        kind, status = _OTHER, None
    if hub is not None:
        topic, content_type = hub.topic, hub.content_type
        if hub.error and kind is _RESPONSE:
            kind, status = _ERROR, FAILED
        if hub.status is not None:
            status = hub.status
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    if scheme is not None or unknown or kind is _OTHER:
        attributes = _carrier_attributes(type_, scheme, unknown)
    if scheme is _GZIP:
        body = _plain_body(frame, known, settings, unpacked)
    return message_of((
        kind, topic, body, request_id, correlation_id, status, content_type, attributes, "emp", None, None, direction,
        _UNPROVEN,
    ))  # fmt: skip


def _carrier_attributes(
    type_: int, scheme: CompressionScheme | None, unknown: tuple[ExtensionBlock, ...]
) -> dict[str, str]:
    attributes = {} if type_ == _DATA else {"type": str(type_)}
    if scheme is not None:
        attributes["compression"] = scheme.name.lower()
    _keep_blocks(attributes, unknown)
    return attributes


def _plain_body(frame: Frame, known: Known, settings: EmpSettings, unpacked: bytes | None) -> bytes:
    if unpacked is not None:
        return unpacked
    if known.scheme is CompressionScheme.GZIP:
        return extensions.gunzip(frame.body, settings.max_decompressed)
    return frame.body


def _keep_blocks(attributes: dict[str, str], blocks: tuple[ExtensionBlock, ...] | list[ExtensionBlock]) -> None:
    contents: dict[int, list[str]] = {}
    for extension, content in blocks:
        contents.setdefault(extension, []).append(content.hex())
        if extension == context.EXTENSION:
            attributes.update(context.trace_of(content))
    attributes.update({f"{BLOCK}{extension}": ",".join(each) for extension, each in contents.items()})


def encode(message: Message, settings: EmpSettings) -> bytes:
    """A message as bytes; raises what `to_frame` raises.

    >>> encode(Message(Kind.EVENT, "a", b"hi"), EmpSettings()).hex()
    '00000016058000000000000c80000000010001616869'
    """
    kind, body = message.kind, message.body
    most = settings.max_message if settings.compress_above is None else settings.compress_above
    if kind in _PLAIN and not message.attributes and len(body) <= most:
        plain = plain_frame(kind, message.topic, message.content_type, message.status, settings)
        size = len(plain) + len(body)
        if size <= settings.max_message:
            head = _SIZE.pack(size - 4 if settings.size_mode is _EXCLUSIVE else size)
            if kind is _EVENT:
                return b"".join((head, plain[4:], body))
            text, name = (message.id, "id") if kind is _REQUEST else (message.correlation_id, "correlation_id")
            number = _ID.pack(_number(text, name, 1, extensions.MAX_ID))
            return b"".join((head, plain[4:ID_AT], number, plain[ID_AT + 8 :], body))
    return frames.encode(to_frame(message, settings), settings.size_mode)


def encode_calls(plain: bytes, ids: Iterable[str], bodies: Sequence[bytes]) -> bytes:
    """Requests or responses that differ from `plain`, which `plain_frame` gave, in id and body.

    >>> one = encode(Message(Kind.REQUEST, "a", b"hi", "7"), EmpSettings())
    >>> encode_calls(plain_frame(Kind.REQUEST, "a", None, None, EmpSettings()), ["7"], [b"hi"]) == one
    True
    """
    size, before, after = int.from_bytes(plain[:4]), plain[4:ID_AT], plain[ID_AT + 8 :]
    parts: list[bytes] = []
    last, head = -1, b""
    for number, body in zip(map(_ID.pack, map(int, ids)), bodies, strict=True):
        if len(body) != last:
            last = len(body)
            head = _SIZE.pack(size + last) + before
        parts += (head, number, after, body)
    return b"".join(parts)


def plain_frame(
    kind: Kind, topic: str | None, content_type: str | None, status: str | None, settings: EmpSettings
) -> bytes:
    """An event, a request or a response without a body. Another differs from it in size, id and body alone.

    The last thousand are remembered: to fill in the rest takes a third of the time that it takes to make one.
    """
    is_long = len(topic or "") + len(content_type or "") + len(status or "") > extensions.REMEMBERED
    make = _plain_frame.__wrapped__ if is_long else _plain_frame
    return make(kind, topic, content_type, status, settings.size_mode, settings.profile)


@lru_cache(maxsize=1024)
def _plain_frame(
    kind: Kind, topic: str | None, content_type: str | None, status: str | None, size_mode: SizeMode, profile: Profile
) -> bytes:
    request_id, correlation_id = "1" if kind is _REQUEST else None, "1" if kind is _RESPONSE else None
    message = Message(kind, topic, b"", request_id, correlation_id, status, content_type)
    return frames.encode(to_frame(message, EmpSettings(size_mode=size_mode, profile=profile)), size_mode)


def to_frame(message: Message, settings: EmpSettings) -> Frame:
    """The frame that says this; raises NotSupported where emp has no word for it.

    >>> to_frame(Message(Kind.RESPONSE, body=b"4", correlation_id="1"), EmpSettings()).blocks[0].content.hex()
    '000000000000000000000001'
    """
    type_, body, blocks = _content(message)
    is_profiled = settings.profile is not _OFF
    if not is_profiled:
        _check_unprofiled(message)
    attributes = message.attributes
    scheme = _scheme(message, body, settings) if attributes else None
    if scheme is not None:
        blocks.append(ExtensionBlock(Extension.COMPRESSION, extensions.encode_compression(scheme)))
        if scheme is CompressionScheme.GZIP:
            body = extensions.gzip(body)
    elif settings.compress_above is not None and len(body) > settings.compress_above:
        packed = extensions.gzip(body) if len(body) <= settings.max_decompressed else body
        if len(packed) + 12 < len(body):
            blocks.append(ExtensionBlock(Extension.COMPRESSION, extensions.encode_compression(CompressionScheme.GZIP)))
            body = packed
    if type_ >= _DATA and is_profiled:
        hub = _hub(message)
        if hub is not None:
            blocks.append(hub)
    if attributes and (kept := list(_kept_blocks(message, is_profiled))):
        blocks += kept
        try:
            extensions.read(tuple(blocks))
        except ProtocolViolation as problem:
            raise NotSupported(f"attributes {BLOCK}<id> make no valid message: {problem}") from None
    size = 8 + len(body)
    for block in blocks:
        size += 8 + len(block.content)
    if size > settings.max_message:
        raise LimitExceeded(f"message of {size} bytes; max_message is {settings.max_message}")
    return Frame(type_, body, tuple(blocks))


def _check_unprofiled(message: Message) -> None:
    """Refuse what cannot be said without the hub's extension. Topics are left out: the peer has none."""
    if message.kind is _ERROR and message.correlation_id is not None:
        raise NotSupported(f"the failure of a request cannot be told to {_UNAWARE}")
    topic = message.topic
    if topic is not None and topic.startswith(HUB_PREFIX) and not topic.startswith(PUBLISH):
        raise NotSupported(f"{topic} cannot be said to {_UNAWARE}")


def _attributes(message: Message) -> Mapping[str, str]:
    """The attributes that speak of emp: another protocol may use the same names for something else."""
    return message.attributes if message.protocol in ("", "emp") else {}


def _content(message: Message) -> tuple[int, bytes, list[ExtensionBlock]]:
    """Type, body and the request-response block, if any."""
    kind = message.kind
    if kind is _EVENT:
        return _DATA, message.body, []
    if kind is _REQUEST:
        return _DATA, message.body, [_request(message.id)]
    if kind is _RESPONSE or (kind is _ERROR and message.correlation_id is not None):
        return _DATA, message.body, [_response(message.correlation_id)]
    if kind is _ERROR:
        return Type.ERROR, frames.encode_error(_error(message)), []
    if kind is _OTHER:
        type_ = _number(_attributes(message).get("type"), "attributes['type']", _FIRST_APPLICATION_TYPE, 255)
        blocks = [_request(message.id)] if message.id is not None else []
        if message.correlation_id is not None:
            blocks = [_response(message.correlation_id)]
        return type_, message.body, blocks
    if kind is Kind.OPEN:
        version = _number(_attributes(message).get("version", str(frames.VERSION)), "attributes['version']", 0, 255)
        return Type.HELLO, frames.encode_hello(frames.Hello(version)), []
    if kind in _CONTROL_TYPES:
        return _CONTROL_TYPES[kind], b"", []
    raise NotSupported(f"emp has no message of kind {kind}")


def _request(number: str | None) -> ExtensionBlock:
    identifier = _number(number, "id", 1, extensions.MAX_ID)
    return ExtensionBlock(_REQUEST_RESPONSE, extensions.encode_request_response(RequestResponse(True, identifier)))


def _response(number: str | None) -> ExtensionBlock:
    identifier = _number(number, "correlation_id", 1, extensions.MAX_ID)
    return ExtensionBlock(_REQUEST_RESPONSE, extensions.encode_request_response(RequestResponse(False, identifier)))


def _code(status: str | None) -> int:
    """The code of an `error`: a status that is no code is an unspecified error."""
    code = int(status) if status and status.isascii() and status.isdecimal() and len(status) <= 3 else 0
    return code if code <= 255 else 0


def is_reserved(status: str | None) -> bool:
    """Whether a status is a code that no application may use: below 128, and not in the table of codes.

    >>> is_reserved("4"), is_reserved("5"), is_reserved("127"), is_reserved("128"), is_reserved("404")
    (False, True, True, False, False)
    """
    return max(frames.ErrorCode) < _code(status) < FIRST_APPLICATION_CODE


def _error(message: Message) -> frames.Error:
    """The `error` that ends the connection."""
    code = _code(message.status)
    about = (0, 0)
    if code == frames.ErrorCode.EXTENSION:
        about = (
            _number(_attributes(message).get("extension", "0"), "attributes['extension']", 0, 255),
            _number(_attributes(message).get("extension_error", "0"), "attributes['extension_error']", 0, 255),
        )
    return frames.Error(code, message.body.decode(errors="replace"), *about)


def _scheme(message: Message, body: bytes, settings: EmpSettings) -> CompressionScheme | None:
    """The scheme a message asks for itself, by its attribute `compression`."""
    asked = _attributes(message).get("compression")
    if asked is None or message.kind in _CONTROL_TYPES:
        return None
    try:
        scheme = CompressionScheme[asked.upper()]
    except KeyError:
        raise NotSupported(f"attributes['compression'] is {asked!r}; emp knows identity and gzip") from None
    if scheme is CompressionScheme.GZIP and len(body) > settings.max_decompressed:
        raise LimitExceeded(f"body of {len(body)} bytes; max_decompressed is {settings.max_decompressed}")
    return scheme


def _hub(message: Message) -> ExtensionBlock | None:
    """The hub's block, if the message says anything that needs it."""
    kind, topic, status, content_type = message.kind, message.topic, message.status, message.content_type
    failed = kind is _ERROR
    if (status == DONE and kind is _RESPONSE) or (status == FAILED and failed):
        status = None
    if topic is None and content_type is None and status is None and not failed:
        return None
    if len(topic or "") + len(content_type or "") + len(status or "") <= extensions.REMEMBERED:
        return _remembered_hub_block(topic, content_type, status, failed)
    return _hub_block(topic, content_type, status, failed)


def _hub_block(topic: str | None, content_type: str | None, status: str | None, failed: bool) -> ExtensionBlock:
    return ExtensionBlock(_HUB, extensions.encode_hub(HubExtension(topic, content_type, status, failed)))


_remembered_hub_block = lru_cache(maxsize=1024)(_hub_block)


def _kept_blocks(message: Message, is_profiled: bool) -> Iterator[ExtensionBlock]:
    for name, contents in _attributes(message).items():
        tail = name.removeprefix(BLOCK)
        if tail == name:
            continue
        extension = _number(tail, f"attribute {name!r}", 0, 255)
        if not is_profiled and extension in HUB_EXTENSIONS:
            continue
        try:
            blocks = [ExtensionBlock(extension, bytes.fromhex(content)) for content in contents.split(",")]
        except ValueError:
            raise NotSupported(f"attribute {name!r} is {contents!r}; a block's content is written in hex") from None
        if extension == context.EXTENSION and len(blocks) == 1:
            blocks = [ExtensionBlock(extension, context.with_trace(blocks[0].content, message.attributes))]
        yield from blocks
    if is_profiled and message.attributes and f"{BLOCK}{context.EXTENSION}" not in _attributes(message):
        content = context.with_trace(b"", message.attributes)
        if content:
            yield ExtensionBlock(context.EXTENSION, content)


def _number(text: str | None, what: str, low: int, high: int) -> int:
    if text is not None and text.isascii() and text.isdecimal() and len(text) <= 20:
        number = int(text)
        if low <= number <= high:
            return number
    raise NotSupported(f"{what} of an emp message is a number from {low} to {high}, not {text!r}")


class EmpDecoder(Decoder):
    """Frames of one direction, as messages."""

    def __init__(self, direction: Direction, settings: EmpSettings) -> None:
        super().__init__()
        self._direction = direction
        self._settings = settings

    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The next frame, by `frames.decode`."""
        if self._settings.size_mode is SizeMode.AUTO:
            mode = told_mode(buffer, start, self._settings.max_message)
            if mode is None:
                return None
            self._settings = settled(self._settings, mode, self._settings.profile)
        return frames.decode(buffer, start, self._settings.max_message, self._settings.size_mode)

    def to_message(self, frame: object) -> Message:
        """The frame's meaning."""
        return to_message(cast(Frame, frame), self._settings, self._direction)

    def _after_violation(self, violation: ProtocolViolation) -> None:
        super()._after_violation(frames.readdress(violation, self._settings.size_mode))


def told(error: Message) -> str:
    """What the peer said when it gave up."""
    about = error.attributes.get("extension")
    text = f"the peer's error {error.status}" + (f" about extension {about}" if about is not None else "")
    if error.body:
        text += f": {error.body.decode()[:_MOST_TOLD]}"
    if about is not None and int(about) in HUB_EXTENSIONS:
        text += '; it does not know the extension that carries topics: set profile = "off"'
    return text
