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

Attribute `compression` names the scheme of a body that came with one; the body is decompressed. Blocks of unknown
extensions are attributes `extension.<id>`: content in hex, blocks of the same id separated by commas. The hub's
block gives data and application messages their topic, content type and status; on other messages it
means nothing and is kept like an unknown one. The trace in which a message is sent (attributes `traceparent` and
`tracestate`) travels in extension 129, see `context`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from wireloom.model import Direction, Kind, LimitExceeded, Message, NotSupported, ProtocolViolation
from wireloom.protocols.contract import Decoder
from wireloom.protocols.emp import context, extensions, frames
from wireloom.protocols.emp.extensions import Hub, Known, RequestResponse, Scheme
from wireloom.protocols.emp.frames import Block, Extension, Frame, Type
from wireloom.protocols.emp.settings import EmpSettings

BLOCK = "extension."
"""Attributes with this prefix are blocks: `extension.200`."""
DONE, FAILED = "done", "error"
TEXT = "text/plain"
FIRST_APPLICATION_CODE = 128
"""Codes of `error` from here on are free; those below are reserved."""

_CONTROL_KINDS = {Type.BYE: Kind.CLOSE, Type.PING: Kind.PING, Type.PONG: Kind.PONG}
_CONTROL_TYPES = {kind: type_ for type_, kind in _CONTROL_KINDS.items()}
_NOTHING_KNOWN = Known()


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
    if type_ == Type.DATA or type_ >= frames.FIRST_APPLICATION_TYPE:
        return _carrier_message(frame, known, settings, direction, unpacked)
    attributes: dict[str, str] = {}
    body, status, content_type = b"", None, None
    if type_ == Type.HELLO:
        kind = Kind.OPEN
        attributes["version"] = str(frames.decode_hello(_plain_body(frame, known, settings, unpacked)).version)
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
    kind = Kind.EVENT if frame.type == Type.DATA else Kind.OTHER
    attributes = {} if kind is Kind.EVENT else {"type": str(frame.type)}
    request_id = correlation_id = topic = content_type = status = None
    if known.request_response is not None:
        number = str(known.request_response.id)
        if known.request_response.request:
            request_id, kind = number, Kind.REQUEST if kind is Kind.EVENT else kind
        else:
            correlation_id, kind = number, Kind.RESPONSE if kind is Kind.EVENT else kind
    if known.hub is not None:
        topic, content_type, status = known.hub.topic, known.hub.content_type, known.hub.status
        if known.hub.error and kind is Kind.RESPONSE:
            kind = Kind.ERROR
    if status is None and kind is Kind.RESPONSE:
        status = DONE
    elif status is None and kind is Kind.ERROR:
        status = FAILED
    if known.scheme is not None:
        attributes["compression"] = known.scheme.name.lower()
    if known.unknown:
        _keep_blocks(attributes, known.unknown)
    body = frame.body if known.scheme is not Scheme.GZIP else _plain_body(frame, known, settings, unpacked)
    return Message(
        kind, topic, body, request_id, correlation_id, status, content_type, attributes, "emp", None, None, direction
    )  # fmt: skip


def _plain_body(frame: Frame, known: Known, settings: EmpSettings, unpacked: bytes | None) -> bytes:
    if unpacked is not None:
        return unpacked
    if known.scheme is Scheme.GZIP:
        return extensions.gunzip(frame.body, settings.max_decompressed)
    return frame.body


def _keep_blocks(attributes: dict[str, str], blocks: tuple[Block, ...] | list[Block]) -> None:
    for block in blocks:
        name, content = f"{BLOCK}{block.extension}", block.content.hex()
        attributes[name] = f"{attributes[name]},{content}" if name in attributes else content
        if block.extension == context.EXTENSION:
            attributes.update(context.trace_of(block.content))


def to_frame(message: Message, settings: EmpSettings) -> Frame:
    """The frame that says this; raises NotSupported where emp has no word for it.

    >>> to_frame(Message(Kind.RESPONSE, body=b"4", correlation_id="1"), EmpSettings()).blocks[0].content.hex()
    '000000000000000000000001'
    """
    type_, body, blocks = _content(message)
    scheme = _scheme(message, body, settings)
    if scheme is not None:
        blocks.append(Block(Extension.COMPRESSION, extensions.encode_compression(scheme)))
        if scheme is Scheme.GZIP:
            body = extensions.gzip(body)
    elif settings.compress_above is not None and len(body) > settings.compress_above:
        packed = extensions.gzip(body) if len(body) <= settings.max_decompressed else body
        if len(packed) + 12 < len(body):
            blocks.append(Block(Extension.COMPRESSION, extensions.encode_compression(Scheme.GZIP)))
            body = packed
    if type_ == Type.DATA or type_ >= frames.FIRST_APPLICATION_TYPE:
        hub = _hub(message)
        if hub is not None:
            blocks.append(Block(Extension.HUB, extensions.encode_hub(hub)))
    kept = list(_kept_blocks(message))
    if kept:
        blocks += kept
        try:
            extensions.read(tuple(blocks))
        except ProtocolViolation as problem:
            raise NotSupported(f"attributes {BLOCK}<id> make no valid message: {problem}") from None
    size = 8 + len(body) + sum(8 + len(block.content) for block in blocks)
    if size > settings.max_message:
        raise LimitExceeded(f"message of {size} bytes; max_message is {settings.max_message}")
    return Frame(type_, body, tuple(blocks))


def _attributes(message: Message) -> Mapping[str, str]:
    """The attributes that speak of emp: another protocol may use the same names for something else."""
    return message.attributes if message.protocol in ("", "emp") else {}


def _content(message: Message) -> tuple[int, bytes, list[Block]]:
    """Type, body and the request-response block, if any."""
    match message.kind:
        case Kind.EVENT:
            return Type.DATA, message.body, []
        case Kind.REQUEST:
            return Type.DATA, message.body, [_request(message.id)]
        case Kind.RESPONSE:
            return Type.DATA, message.body, [_response(message.correlation_id)]
        case Kind.ERROR if message.correlation_id is not None:
            return Type.DATA, message.body, [_response(message.correlation_id)]
        case Kind.ERROR:
            return Type.ERROR, frames.encode_error(_error(message)), []
        case Kind.OTHER:
            type_ = _number(_attributes(message).get("type"), "attributes['type']", frames.FIRST_APPLICATION_TYPE, 255)
            blocks = [_request(message.id)] if message.id is not None else []
            if message.correlation_id is not None:
                blocks = [_response(message.correlation_id)]
            return type_, message.body, blocks
        case Kind.OPEN:
            version = _number(_attributes(message).get("version", str(frames.VERSION)), "attributes['version']", 0, 255)
            return Type.HELLO, frames.encode_hello(frames.Hello(version)), []
        case Kind.CLOSE | Kind.PING | Kind.PONG:
            return _CONTROL_TYPES[message.kind], b"", []
        case _:
            raise NotSupported(f"emp has no message of kind {message.kind}")


def _request(number: str | None) -> Block:
    identifier = _number(number, "id", 1, extensions.MAX_ID)
    return Block(Extension.REQUEST_RESPONSE, extensions.encode_request_response(RequestResponse(True, identifier)))


def _response(number: str | None) -> Block:
    identifier = _number(number, "correlation_id", 1, extensions.MAX_ID)
    return Block(Extension.REQUEST_RESPONSE, extensions.encode_request_response(RequestResponse(False, identifier)))


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


def _scheme(message: Message, body: bytes, settings: EmpSettings) -> Scheme | None:
    """The scheme a message asks for itself, by its attribute `compression`."""
    asked = _attributes(message).get("compression")
    if asked is None or message.kind in _CONTROL_TYPES:
        return None
    try:
        scheme = Scheme[asked.upper()]
    except KeyError:
        raise NotSupported(f"attributes['compression'] is {asked!r}; emp knows identity and gzip") from None
    if scheme is Scheme.GZIP and len(body) > settings.max_decompressed:
        raise LimitExceeded(f"body of {len(body)} bytes; max_decompressed is {settings.max_decompressed}")
    return scheme


def _hub(message: Message) -> Hub | None:
    """The hub's block, if the message says anything that needs it."""
    status = message.status
    if message.kind is Kind.RESPONSE and status == DONE:
        status = None
    failed = message.kind is Kind.ERROR
    if failed and status == FAILED:
        status = None
    if message.topic is None and message.content_type is None and status is None and not failed:
        return None
    return Hub(message.topic, message.content_type, status, failed)


def _kept_blocks(message: Message) -> Iterator[Block]:
    for name, contents in _attributes(message).items():
        tail = name.removeprefix(BLOCK)
        if tail == name:
            continue
        extension = _number(tail, f"attribute {name!r}", 0, 255)
        try:
            blocks = [Block(extension, bytes.fromhex(content)) for content in contents.split(",")]
        except ValueError:
            raise NotSupported(f"attribute {name!r} is {contents!r}; a block's content is written in hex") from None
        if extension == context.EXTENSION and len(blocks) == 1:
            blocks = [Block(extension, context.with_trace(blocks[0].content, message.attributes))]
        yield from blocks
    if message.attributes and f"{BLOCK}{context.EXTENSION}" not in _attributes(message):
        content = context.with_trace(b"", message.attributes)
        if content:
            yield Block(context.EXTENSION, content)


def _number(text: str | None, what: str, low: int, high: int) -> int:
    if text is not None and text.isascii() and text.isdecimal() and len(text) <= 20 and low <= int(text) <= high:
        return int(text)
    raise NotSupported(f"{what} of an emp message is a number from {low} to {high}, not {text!r}")


class EmpDecoder(Decoder):
    """Frames of one direction, as messages."""

    def __init__(self, direction: Direction, settings: EmpSettings) -> None:
        super().__init__()
        self._direction = direction
        self._settings = settings

    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The next frame, by `frames.decode`."""
        return frames.decode(buffer, start, self._settings.max_message, self._settings.size_mode)

    def to_message(self, frame: object) -> Message:
        """The frame's meaning."""
        return to_message(cast(Frame, frame), self._settings, self._direction)

    def _after_violation(self, violation: ProtocolViolation) -> None:
        super()._after_violation(frames.readdress(violation, self._settings.size_mode))
