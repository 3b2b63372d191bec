"""What packets mean: packet to message and back.

| packet | message |
|---|---|
| Hello | `open`; the body is the capabilities |
| Heartbeat | `ping` |
| Event | `event`; the Event Name is the topic |
| any other event type, and what is encrypted and whose key we lack | `other`; attribute `event_type` |

The body: a single Binary, String or JSON field (after the name of an Event) is the body, with no content type,
`text/plain` or `application/json`. Other data fields are kept as they are, by type: the body is then the fields as
bytes, its content type `application/x-mesh-fields`, and `FIELDS_FORMAT` reads it as a list of values.

`id` is the Message ID in hex. Attributes: `timestamp`, `flags` (decimal, where not 0), `urgent` (`1`), and, where the
packet has them, `node_id`, `auth_key_id`, `public_key`, `hmac`, `signature`, `encryption`, `nonce`, `key_identifier`
(hex), `signed_at` (decimal), and `field-<type>` for fields of unknown types: whole values in hex, separated by commas.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping

from wireloom.model import (
    Authenticity,
    BodyError,
    Direction,
    Kind,
    Message,
    NotSupported,
    ProtocolViolation,
)
from wireloom.protocols.contract import URGENT
from wireloom.protocols.mesh.encryption import MAX_PLAIN, Opened, compress, open_packet
from wireloom.protocols.mesh.frames import (
    DATA_TYPES,
    SINGLETONS,
    EventType,
    Field,
    Flag,
    Packet,
    Type,
    arrange,
    decode_fields,
    encode_fields,
    join,
    split,
)

FIELDS = "application/x-mesh-fields"
TEXT, JSON = "text/plain", "application/json"
UNKNOWN_FIELD = "field-"

KIND_OF = {EventType.HELLO: Kind.OPEN, EventType.HEARTBEAT: Kind.PING, EventType.EVENT: Kind.EVENT}
_EVENT_TYPE = {kind: type_ for type_, kind in KIND_OF.items()}
_TYPE_OF_CONTENT: dict[str | None, Type] = {TEXT: Type.STRING, JSON: Type.JSON, None: Type.BINARY}
_CONTENT_OF_TYPE: dict[int, str | None] = {int(type_): name for name, type_ in _TYPE_OF_CONTENT.items()}

HEX_ATTRIBUTES: tuple[tuple[int, str], ...] = (
    (Type.NODE_ID, "node_id"),
    (Type.AUTH_KEY_ID, "auth_key_id"),
    (Type.PUBLIC_KEY, "public_key"),
    (Type.HMAC, "hmac"),
    (Type.SIGNATURE, "signature"),
    (Type.ENCRYPTION_METADATA, "encryption"),
    (Type.NONCE, "nonce"),
    (Type.KEY_IDENTIFIER, "key_identifier"),
)
_HEX_OF = {int(type_): name for type_, name in HEX_ATTRIBUTES}
_VERIFIED_BY = frozenset(("hmac", "signature"))


def to_message(
    packet: Packet,
    direction: Direction | None = Direction.DGRAM,
    authenticity: Authenticity | None = None,
    *,
    keys: Mapping[bytes, bytes] | None = None,
    max_plain: int = MAX_PLAIN,
    opened: Opened | None = None,
) -> Message:
    """What a packet means; `keys` are encryption keys by identifier.

    >>> to_message(Packet(7, EventType.EVENT, 0, (Field(Type.STRING, b"a/b"), Field(Type.JSON, b"1")))).topic
    'a/b'
    """
    opened = open_packet(packet, keys, max_plain) if opened is None else opened
    kind = KIND_OF.get(packet.event_type, Kind.OTHER)  # type: ignore[call-overload]
    data = sorted(opened.data, key=lambda field: field.type)
    topic = None
    if packet.event_type == EventType.EVENT:
        for index, field in enumerate(data):
            if field.type == Type.STRING:
                topic = field.value.decode()
                del data[index]
                break
    attributes = {"timestamp": str(packet.timestamp)}
    if packet.flags:
        attributes["flags"] = str(packet.flags)
        if packet.flags & Flag.URGENT:
            attributes[URGENT] = "1"
    if opened.locked:
        kind = Kind.OTHER
    if kind is Kind.OTHER:
        attributes["event_type"] = str(packet.event_type)
    _security_attributes(packet, attributes)
    if authenticity is None:
        signed = "hmac" in attributes or "signature" in attributes
        authenticity = Authenticity.UNCHECKED if signed else Authenticity.NONE
    if opened.forged:
        authenticity = Authenticity.FAILED
    body, content_type = body_of(data)
    return Message(
        kind,
        topic,
        body,
        f"{packet.message_id:08x}",
        None,
        None,
        content_type,
        attributes,
        "mesh",
        None,
        None,
        direction,
        authenticity,
    )


def _security_attributes(packet: Packet, attributes: dict[str, str]) -> None:
    unknown: list[Field] = []
    for field in packet.fields:
        name = _HEX_OF.get(field.type)
        if name is not None:
            attributes[name] = field.value.hex()
        elif field.type == Type.TIMESTAMP:
            attributes["signed_at"] = str(int.from_bytes(field.value))
        elif field.type not in DATA_TYPES:
            unknown.append(field)
    for field in join(unknown):
        name = f"{UNKNOWN_FIELD}{field.type:02x}"
        known = attributes.get(name)
        attributes[name] = field.value.hex() if known is None else f"{known},{field.value.hex()}"


def body_of(data: list[Field]) -> tuple[bytes, str | None]:
    """The body that data fields (whole values) are, and its content type.

    >>> body_of([Field(Type.JSON, b"1")]), body_of([Field(Type.INTEGER, bytes(4))])
    ((b'1', 'application/json'), (b'\\x02\\x04\\x00\\x00\\x00\\x00', 'application/x-mesh-fields'))
    """
    if not data:
        return b"", None
    if len(data) == 1 and data[0].type in _CONTENT_OF_TYPE:
        return data[0].value, _CONTENT_OF_TYPE[data[0].type]
    return encode_fields(piece for field in data for piece in split(field.type, field.value)), FIELDS


def fields_of(body: bytes, content_type: str | None) -> list[Field]:
    """The data fields that carry a body; the inverse of `body_of`.

    A content type that mesh has no field for is lost: the body goes as Binary.
    """
    if content_type == FIELDS:
        try:
            fields = list(decode_fields(body))
        except ProtocolViolation as violation:
            raise NotSupported(f"the body is not of content type {FIELDS}: {violation}") from None
        if any(field.type in SINGLETONS for field in fields):
            raise NotSupported("a body has no security fields")
        return fields
    type_ = _type_for(content_type)
    if type_ is not Type.BINARY:
        try:
            body.decode()
        except UnicodeDecodeError:
            raise NotSupported(f"a body of content type {content_type} is UTF-8") from None
    elif not body:
        return []
    return split(type_, body)


def _type_for(content_type: str | None) -> Type:
    name = None if content_type is None else content_type.partition(";")[0].strip().lower()
    if name is not None and name.endswith("+json"):
        return Type.JSON
    return _TYPE_OF_CONTENT.get(name, Type.STRING if name is not None and name.startswith("text/") else Type.BINARY)


def to_packet(message: Message, *, message_id: int, timestamp: int, keep_name: bool = True) -> Packet:
    """The packet that says this, its fields in the order to send; `message_id` and `timestamp` for what it lacks.

    What the attributes say about security is put in as it is; see `security.sign_packet` for signing. A message that
    came compressed is compressed again. Raises NotSupported where mesh has no word for it.
    """
    attributes = message.attributes
    if message.kind is Kind.OTHER:
        event_type = _number(attributes.get("event_type"), "attributes['event_type']", 8)
    else:
        named = _EVENT_TYPE.get(message.kind)
        if named is None:
            raise NotSupported(f"mesh has no packet for a message of kind {message.kind}")
        event_type = named
    data: list[Field] = []
    if event_type == EventType.EVENT:
        if message.topic is not None:
            data += split(Type.STRING, _utf8(message.topic))
        elif message.kind is Kind.EVENT:
            raise NotSupported("a mesh event needs a topic, which is its Event Name")
    data += fields_of(message.body, message.content_type)
    if event_type == EventType.HELLO and not any(field.type == Type.BINARY for field in data):
        data.append(Field(Type.BINARY, b""))
    flags = _number(attributes.get("flags", "0"), "attributes['flags']", 8)
    if attributes.get(URGENT) == "1":
        flags |= Flag.URGENT
    packet = Packet(
        parse_id(message.id, message_id),
        event_type,
        _number(attributes.get("timestamp", str(timestamp)), "attributes['timestamp']", 64),
        tuple(data),
        flags,
    )
    _check_sizes(packet)
    locked = "encryption" in attributes
    if locked and message.kind is not Kind.OTHER:
        raise NotSupported("a decrypted message cannot be written as it was: send it anew")
    if flags & Flag.COMPRESSED and not locked:
        packet = compress(packet, keep_name=keep_name)
    fields = (*packet.fields, *_security_fields(attributes))
    if event_type == EventType.HEARTBEAT and not any(field.type == Type.TIMESTAMP for field in fields):
        fields = (*fields, Field(Type.TIMESTAMP, packet.timestamp.to_bytes(8)))
    return Packet(packet.message_id, packet.event_type, packet.timestamp, arrange(fields), packet.flags)


def _check_sizes(packet: Packet) -> None:
    for field in packet.fields:
        if field.type in (Type.INTEGER, Type.FLOAT) and len(field.value) != 4:
            raise NotSupported(f"field 0x{field.type:02x} has 4 bytes, not {len(field.value)}")


def _security_fields(attributes: Mapping[str, str]) -> Iterable[Field]:
    for type_, name in HEX_ATTRIBUTES:
        text = attributes.get(name)
        if text is not None:
            yield Field(type_, _unhex(text, name))
    signed_at = attributes.get("signed_at")
    if signed_at is not None:
        yield Field(Type.TIMESTAMP, _number(signed_at, "attributes['signed_at']", 64).to_bytes(8))
    for name, text in attributes.items():
        if name.startswith(UNKNOWN_FIELD) and len(name) == len(UNKNOWN_FIELD) + 2:
            type_ = _unhex(name.removeprefix(UNKNOWN_FIELD), name)[0]
            if type_ in SINGLETONS or type_ in DATA_TYPES:
                raise NotSupported(f"attribute {name!r}: that type is not unknown")
            for value in text.split(","):
                yield from split(type_, _unhex(value, name))


def parse_id(text: str | None, otherwise: int) -> int:
    """A Message ID from its 8 hex digits; any other text is no id of this protocol, and a new one is taken.

    >>> parse_id("0000002a", 7), parse_id("42", 7)
    (42, 7)
    """
    if text is not None and len(text) == 8:
        try:
            return int.from_bytes(bytes.fromhex(text))
        except ValueError:
            return otherwise
    return otherwise


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise NotSupported(f"an Event Name is UTF-8: {error.reason}") from None


def _unhex(text: str, name: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise NotSupported(f"attribute {name!r} must be hex, not {text!r}") from None


def _number(text: str | None, what: str, bits: int) -> int:
    if text is None or not (text.isascii() and text.isdecimal()) or int(text) >= 1 << bits:
        raise NotSupported(f"{what} of a mesh message is a decimal number below 2^{bits}, not {text!r}")
    return int(text)


class FieldsFormat:
    """Bodies of several fields as a list of Python values, and back.

    >>> FIELDS_FORMAT.loads(FIELDS_FORMAT.dumps([7, 1.5, "text", b"raw", {"c": 21.5}]))
    [7, 1.5, 'text', b'raw', {'c': 21.5}]
    """

    content_type = FIELDS

    def dumps(self, value: object) -> bytes:
        """Values as fields: integers of 32 bits, floats, text, bytes, and JSON for what has members."""
        if not isinstance(value, list | tuple):
            raise BodyError(f"a body of mesh fields is a list of values, not {type(value).__name__}")
        return encode_fields(piece for each in value for piece in split(*_typed(each)))

    def loads(self, data: bytes) -> list[object]:
        """The values of fields; those of unknown types as bytes."""
        return [_value(field) for field in join(list(decode_fields(data)))]


def _typed(value: object) -> tuple[int, bytes]:
    try:
        match value:
            case bool() | dict() | list() | None:
                return Type.JSON, json.dumps(value, separators=(",", ":")).encode()
            case int():
                return Type.INTEGER, struct.pack(">i", value)
            case float():
                return Type.FLOAT, struct.pack(">f", value)
            case str():
                return Type.STRING, value.encode()
            case bytes():
                return Type.BINARY, value
    except (struct.error, OverflowError, ValueError, TypeError) as error:
        raise BodyError(f"{value!r} does not fit a mesh field: {error}") from None
    raise BodyError(f"mesh has no field for a {type(value).__name__}")


def _value(field: Field) -> object:
    try:
        match field.type:
            case Type.STRING:
                return field.value.decode()
            case Type.INTEGER:
                return struct.unpack(">i", field.value)[0]
            case Type.FLOAT:
                return struct.unpack(">f", field.value)[0]
            case Type.JSON:
                return json.loads(field.value)
    except (struct.error, ValueError, RecursionError) as error:
        raise ProtocolViolation("mesh.field.length", f"field 0x{field.type:02x} does not read: {error}") from None
    return field.value


FIELDS_FORMAT = FieldsFormat()
