"""The serializers a yamp handshake can name: values to bodies and back, with a schema where there is one.

Implements "Format adapters" of the yamp specification. Sessions and columns carry bodies as bytes and need
none of this; an application does, and the hub's operations do. Every library is loaded when its format is
first used, so that the bare package installs without them.

| serializer | a value is | a schema is |
|---|---|---|
| json, msgpack, cbor | what JSON holds, what the other two have beyond that, typed values | a JSON Schema, as a dict |
| bson | a dict, or a typed value that becomes one | none |
| xml | an lxml element | an XSD, as text or bytes |
| protobuf | a message | its class; needed for reading |
| flatbuffers | a finished buffer, or an object with `Pack` | the root type's class; needed for reading |
| raw | bytes | none |
"""

from __future__ import annotations

import abc
import contextlib
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache
from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import Any, ClassVar, cast
from uuid import UUID
from xml.parsers import expat

from wireloom.chunked_json import LARGE, TooLong, is_large, parts, read_json, write_json
from wireloom.formats.value_count import count_cbor
from wireloom.model import BODY_READERS, BodyError, ConfigError, MalformedBody, ProtocolViolation, WireloomError
from wireloom.values import JSON_FORM, Form, plain

DEFAULT = "json"
"""What an empty serializer is taken for."""

CONTENT_TYPES: Mapping[str, str] = {
    "json": "application/json",
    "msgpack": "application/msgpack",
    "cbor": "application/cbor",
    "bson": "application/bson",
    "xml": "application/xml",
    "protobuf": "application/x-protobuf",
    "flatbuffers": "application/x-flatbuffers",
    "raw": "application/octet-stream",
}
SERIALIZERS = tuple(CONTENT_TYPES)
_NAMES = {content_type: name for name, content_type in CONTENT_TYPES.items()}

MALFORMED, SCHEMA = "yamp.body.malformed", "yamp.body.schema"
"""Clauses of the specification that defines these formats."""


def content_type(serializer: str) -> str | None:
    """The content type of bodies under a serializer; None for one that is not known.

    >>> content_type("json"), content_type(""), content_type("yaml")
    ('application/json', 'application/json', None)
    """
    return CONTENT_TYPES.get(serializer or DEFAULT)


def _library(module: str, serializer: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(
            f"the serializer {serializer!r} needs {package}, which is not installed: pip install 'wireloom[formats]'"
        ) from None


class _SchemaMismatch(Exception):
    """A value that its schema does not allow."""


class BodyFormat(abc.ABC):
    """One serializer, with a schema or without. Whatever a library makes of garbage, one error comes out."""

    name: ClassVar[str]
    empty: ClassVar[object] = None
    """What an empty body means: a body is optional in yamp."""

    def __init__(self, schema: object = None) -> None:
        self._has_schema = schema is not None
        if schema is not None:
            try:
                self._use_schema(schema)
            except WireloomError:
                raise
            except Exception as error:
                raise ConfigError(f"the schema for serializer {self.name!r} is not valid: {error}") from None

    @property
    def content_type(self) -> str:
        """The content type of what `dumps` returns."""
        return CONTENT_TYPES[self.name]

    def dumps(self, value: object) -> bytes:
        """A value as a body; BodyError when format or schema do not allow it."""
        try:
            return self._dump_typed(value)
        except WireloomError:
            raise
        except _SchemaMismatch as error:
            raise BodyError(f"the value does not fit the schema of this {self.name} body: {error}") from None
        except Exception as error:
            kind = type(value).__name__
            raise BodyError(f"{self.name} cannot hold this {kind}: {_words(error)}") from None

    def dumps_within(self, value: object, most: int) -> bytes | None:
        """The same if it has no more than so many bytes, else None."""
        data = self.dumps(value)
        return data if len(data) <= most else None

    def loads(self, data: bytes) -> object:
        """The value a body stands for. Only a schema asks for more than an empty body."""
        if not data and not self._has_schema:
            return self.empty
        try:
            return self._load(data)
        except WireloomError:
            raise
        except _SchemaMismatch as error:
            raise ProtocolViolation(SCHEMA, f"{self.name} body: {error}") from None
        except Exception as error:
            raise MalformedBody(MALFORMED, f"not a {self.name} body: {_words(error)}") from None

    def _use_schema(self, schema: object) -> None:
        raise ConfigError(f"the serializer {self.name!r} has no schemas")

    form: ClassVar[Form | None] = None
    """Which values the format has itself; None where a value is an object of the format's own library."""

    def _dump_typed(self, value: object) -> bytes:
        """Write plain values as they are. Others are made plain, where the format has a form for them."""
        if self.form is None:
            return self._dump(value)
        if value.__class__ in _PLAIN:
            try:
                return self._dump(value)
            except (_SchemaMismatch, WireloomError):
                raise
            except Exception:  # whatever the library says of a type that it does not know
                return self._dump(plain(value, self.form))
        return self._dump(plain(value, self.form))

    @abc.abstractmethod
    def _dump(self, value: object) -> bytes: ...

    @abc.abstractmethod
    def _load(self, data: bytes) -> object: ...


_PLAIN = frozenset((dict, list, str, int, float, bool, type(None), bytes))


def _words(error: Exception) -> str:
    """An error of a library in one line; some have no words of their own."""
    return " ".join(str(error).split()) or type(error).__name__


def _same(value: object) -> object:
    return value


def _with_zone(value: object) -> object:
    if cast(datetime, value).tzinfo is None:
        raise ValueError("a datetime needs its time zone, such as datetime.now(UTC)")
    return value


class _Values(BodyFormat):
    """Formats that hold what JSON holds, and so can be checked by a JSON Schema."""

    _check: Callable[[object], None] | None = None

    def _use_schema(self, schema: object) -> None:
        jsonschema = _library("jsonschema", self.name)
        # The registry of the specifications alone: a reference elsewhere is never fetched.
        registry = _library("jsonschema_specifications", self.name).REGISTRY
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        validator = kind(schema, registry=registry)

        def check(value: object) -> None:
            worst = jsonschema.exceptions.best_match(validator.iter_errors(value))
            if worst is not None:
                raise _SchemaMismatch(f"{worst.json_path}: {worst.message}")

        self._check = check

    def _dump(self, value: object) -> bytes:
        if self._check is not None:
            self._check(value)
        return self._pack(value)

    def _load(self, data: bytes) -> object:
        value = self._unpack(data)
        if self._check is not None:
            self._check(value)
        return value

    @abc.abstractmethod
    def _pack(self, value: object) -> bytes: ...

    @abc.abstractmethod
    def _unpack(self, data: bytes) -> object: ...


class Json(_Values):
    """JSON as RFC 8259 has it: UTF-8, no NaN."""

    name = "json"
    form = JSON_FORM

    def _pack(self, value: object) -> bytes:
        return write_json(value, _JSON.encode).encode()

    def dumps_within(self, value: object, most: int) -> bytes | None:
        """The same; a text can become six times as long, so writing ends as soon as it is too much."""
        try:
            try:
                return write_json(value, _JSON.encode, most).encode()
            except TypeError:
                return write_json(plain(value), _JSON.encode, most).encode()
        except BodyError:
            raise
        except TooLong:
            return None
        except Exception as error:
            raise BodyError(f"{self.name} cannot hold this {type(value).__name__}: {_words(error)}") from None

    def _unpack(self, data: bytes) -> object:
        return cast(object, read_json(data.decode(), parse_constant=_no_constant))


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


class Msgpack(_Values):
    """MessagePack; keys of maps may be of any type that a dict takes."""

    name = "msgpack"
    form = Form("msgpack", natives={bytes: _same})

    def _pack(self, value: object) -> bytes:
        msgpack = _library("msgpack", self.name)
        return b"".join(self._pieces(value, msgpack.Packer())) if is_large(value) else cast(bytes, msgpack.packb(value))

    def _pieces(self, value: object, packer: Any, around: tuple[int, ...] = ()) -> Iterator[bytes]:
        """A large value; `around` are the ids of those it is in."""
        if id(value) in around:
            raise ValueError("a value inside itself")
        if isinstance(value, dict):
            yield packer.pack_map_header(len(value))
            inside: Iterable[object] = chain.from_iterable(value.items())
        elif isinstance(value, list | tuple):
            yield packer.pack_array_header(len(value))
            inside = value
        else:
            yield packer.pack(value)
            return
        for part in parts(inside):
            for each in part:
                if len(part) == 1 and is_large(each):
                    yield from self._pieces(each, packer, (*around, id(value)))
                else:
                    yield packer.pack(each)

    def _unpack(self, data: bytes) -> object:
        msgpack = _library("msgpack", self.name)
        if len(data) <= LARGE:
            return cast(object, msgpack.unpackb(data, strict_map_key=False))
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(data))
        for start in range(0, len(data), LARGE):
            unpacker.feed(data[start : start + LARGE])
            with contextlib.suppress(msgpack.OutOfData):
                value: object = unpacker.unpack()
                break
        else:
            raise ValueError("the body ends inside a value")
        if unpacker.tell() != len(data):
            raise ValueError(f"{len(data) - unpacker.tell()} bytes follow the value")
        return value


class Cbor(_Values):
    """CBOR, one item a body; references to values elsewhere in it are refused, see `value_count.py`."""

    name = "cbor"
    form = Form("cbor", natives={bytes: _same, datetime: _with_zone, Decimal: _same, UUID: _same})

    def _pack(self, value: object) -> bytes:
        return cast(bytes, _library("cbor2", self.name).dumps(value))

    def _unpack(self, data: bytes) -> object:
        count_cbor(data, len(data))
        stream = _Stream(data) if len(data) > LARGE else io.BytesIO(data)
        value: object = _library("cbor2", self.name).load(stream)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow the item")
        return value


class _Stream(io.BytesIO):
    """Python code that is called for every few kilobytes, so that other threads get their turn."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size)


def _bson_date(value: object) -> object:
    """A date of BSON has milliseconds: what is finer stays text, so that nothing is lost."""
    moment = cast(datetime, _with_zone(value))
    return moment if moment.microsecond % 1000 == 0 else moment.isoformat()


def _bson_decimal(value: object) -> object:
    """A decimal of BSON has 34 digits: what has more stays text."""
    if not cast(Decimal, value).is_finite():
        raise ValueError("a Decimal must be finite")
    try:
        return _library("bson.decimal128", "bson").Decimal128(value)
    except ArithmeticError:
        return str(value)


@cache
def _bson_options() -> Any:
    """Times carry their zone, UUIDs and decimals are those of Python."""
    options = _library("bson.codec_options", "bson")
    decimal128 = _library("bson.decimal128", "bson").Decimal128
    read = {"bson_type": decimal128, "transform_bson": lambda self, value: value.to_decimal()}
    decimals = type("Decimals", (options.TypeDecoder,), read)
    standard = _library("bson.binary", "bson").UuidRepresentation.STANDARD
    registry = options.TypeRegistry([decimals()])
    return options.CodecOptions(tz_aware=True, uuid_representation=standard, type_registry=registry)


class Bson(BodyFormat):
    """BSON, one document a body; times carry their zone."""

    name = "bson"
    form: ClassVar[Form] = Form(
        "msgpack",
        natives={bytes: _same, datetime: _bson_date, Decimal: _bson_decimal, UUID: _same},
        library="bson",
    )

    def _dump_typed(self, value: object) -> bytes:
        """Make every value plain: the library would cut a time to milliseconds without a word."""
        return self._dump(plain(value, self.form))

    def _dump(self, value: object) -> bytes:
        return cast(bytes, _library("bson", self.name).encode(value, codec_options=_bson_options()))

    def _load(self, data: bytes) -> object:
        return cast(object, _library("bson", self.name).decode(data, _bson_options()))


class Xml(BodyFormat):
    """XML without DOCTYPE and so without entities of its own; nothing outside the body is ever read."""

    name = "xml"
    _xsd: Callable[[object], None] | None = None

    def _use_schema(self, schema: object) -> None:
        etree = _library("lxml.etree", self.name)
        data = schema.encode() if isinstance(schema, str) else cast(bytes, schema)
        xsd = etree.XMLSchema(self._parse(data))

        def check(element: object) -> None:
            if not xsd.validate(element):
                last = xsd.error_log.last_error
                raise _SchemaMismatch(f"line {last.line}: {last.message}")

        self._xsd = check

    def _dump(self, value: object) -> bytes:
        etree = _library("lxml.etree", self.name)
        if not etree.iselement(value):
            raise BodyError(f"an xml body is made from an lxml element, not from {type(value).__name__}")
        if self._xsd is not None:
            self._xsd(value)
        return cast(bytes, etree.tostring(value, encoding="UTF-8", xml_declaration=True, with_tail=False))

    def _load(self, data: bytes) -> object:
        element = self._parse(data)
        if self._xsd is not None:
            self._xsd(element)
        return element

    def _parse(self, data: bytes) -> object:
        etree = _library("lxml.etree", self.name)
        _refuse_doctype(data)
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
        return cast(object, etree.fromstring(data, parser))


class _PrologRead(Exception):
    """The root element begins: no DOCTYPE can follow."""


def _refuse_doctype(data: bytes) -> None:
    """Read the prolog alone, in whatever encoding, and refuse a DOCTYPE before anything acts on it."""

    def doctype(*_: object) -> None:
        raise ValueError("DOCTYPE and entities are refused")

    def root(*_: object) -> None:
        raise _PrologRead

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = root
    try:
        parser.Parse(data, True)
    except _PrologRead:
        return


class Protobuf(BodyFormat):
    """Protocol Buffers; the schema is the message's class."""

    name = "protobuf"
    _class: type | None = None

    def _use_schema(self, schema: object) -> None:
        message = _library("google.protobuf.message", self.name).Message
        if not (isinstance(schema, type) and issubclass(schema, message)):
            raise ConfigError(f"the schema of a protobuf body is a message class, not {schema!r}")
        self._class = schema

    def _dump(self, value: object) -> bytes:
        wanted = self._class or _library("google.protobuf.message", self.name).Message
        if not isinstance(value, wanted):
            raise BodyError(f"this protobuf body is a {wanted.__name__}, not a {type(value).__name__}")
        return cast(bytes, cast(Any, value).SerializeToString(deterministic=True))

    def _load(self, data: bytes) -> object:
        if self._class is None:
            raise ConfigError("reading a protobuf body needs its message class: give it as the schema")
        message = self._class()
        message.MergeFromString(data)
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise _SchemaMismatch(f"required fields are missing: {missing}")
        return cast(object, message)


class Flatbuffers(BodyFormat):
    """FlatBuffers; the schema is the class that the compiler made for the root type.

    The runtime has no verifier. What can be checked without the schema's fields is: root offset, table and
    vtable lie inside the body. Nested values are checked where an accessor reads them.
    """

    name = "flatbuffers"
    _root: Callable[[bytes], object] | None = None

    def _use_schema(self, schema: object) -> None:
        kind = getattr(schema, "__name__", "")
        accessor = getattr(schema, "GetRootAs", None) or getattr(schema, f"GetRootAs{kind}", None)
        unpack = getattr(schema, "InitFromPackedBuf", None)
        read = unpack or accessor
        if read is None:
            raise ConfigError(f"the schema of a flatbuffers body is the class of its root type, not {schema!r}")
        self._root = lambda data: cast(object, read(data, 0))

    def _dump(self, value: object) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
        elif hasattr(value, "Pack"):
            builder = _library("flatbuffers", self.name).Builder()
            builder.Finish(value.Pack(builder))
            data = bytes(builder.Output())
        else:
            raise BodyError(
                f"a flatbuffers body is a finished buffer or an object with Pack, not {type(value).__name__}"
            )
        check_flatbuffer(data)
        return data

    def _load(self, data: bytes) -> object:
        if self._root is None:
            raise ConfigError("reading a flatbuffers body needs its root type: give the class as the schema")
        check_flatbuffer(data)
        return self._root(data)


def check_flatbuffer(data: bytes) -> None:
    """Raise ValueError unless the root table and its vtable lie inside the buffer."""
    size = len(data)
    if size < 4:
        raise ValueError("shorter than a root offset")
    (root,) = struct.unpack_from("<I", data)
    if root < 4 or root + 4 > size:
        raise ValueError(f"root offset {root} points outside")
    vtable = root - struct.unpack_from("<i", data, root)[0]
    if vtable < 0 or vtable + 4 > size:
        raise ValueError("the vtable lies outside")
    vtable_size, table_size = struct.unpack_from("<HH", data, vtable)
    if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > size:
        raise ValueError(f"a vtable of {vtable_size} bytes does not fit")
    if table_size < 4 or root + table_size > size:
        raise ValueError(f"a root table of {table_size} bytes does not fit")
    fields = struct.unpack_from(f"<{vtable_size // 2 - 2}H", data, vtable + 4)
    if any(field and not 4 <= field < table_size for field in fields):
        raise ValueError("a field lies outside its table")


class Raw(BodyFormat):
    """Bytes as they are."""

    name = "raw"
    empty = b""

    def loads(self, data: bytes) -> object:
        """The body itself: there is nothing to read, and nothing that could be wrong."""
        return bytes(data)

    def _dump(self, value: object) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise BodyError(f"a raw body is bytes, not {type(value).__name__}")
        return bytes(value)

    def _load(self, data: bytes) -> object:
        return bytes(data)


_FORMATS: Mapping[str, type[BodyFormat]] = {
    kind.name: kind for kind in (Json, Msgpack, Cbor, Bson, Xml, Protobuf, Flatbuffers, Raw)
}
CONVERTIBLE = frozenset(("json", "msgpack", "cbor", "bson"))
"""Formats of plain values: what one holds can mostly be said in another."""


def body_format(serializer: str, schema: object = None) -> BodyFormat:
    """The format a handshake names; a schema makes it check what it writes and reads.

    >>> body_format("json").dumps({"c": 21.5})
    b'{"c":21.5}'
    >>> body_format("json", {"type": "object"}).loads(b"[]")
    Traceback (most recent call last):
    wireloom.errors.ProtocolViolation: yamp.body.schema: json body: $: [] is not of type 'object'
    """
    return _plain(serializer or DEFAULT) if schema is None else _find(serializer or DEFAULT)(schema)


def _find(serializer: str) -> type[BodyFormat]:
    try:
        return _FORMATS[serializer]
    except KeyError:
        raise ConfigError(f"unknown serializer {serializer!r}; known: {', '.join(SERIALIZERS)}") from None


@cache
def _plain(serializer: str) -> BodyFormat:
    return _find(serializer)()


def format_for(content_type: str | None) -> BodyFormat | None:
    """The format of a content type, if it is one of ours."""
    name = _NAMES.get(content_type or "")
    return None if name is None else _plain(name)


_NULLS = {"json": b"null", "msgpack": b"\xc0", "cbor": b"\xf6", "bson": b"\x05\0\0\0\0"}


def nothing(content_type: str | None) -> bytes:
    """The body that stands for no value: peers are out there that cannot read an empty one.

    It is empty in formats that have no null. BSON has none either: there it is a document without fields.

    >>> nothing("application/json"), nothing("application/x-protobuf")
    (b'null', b'')
    """
    return _NULLS.get(_NAMES.get(content_type or "", ""), b"")


# `Message.value` reads what needs no schema.
BODY_READERS.update({CONTENT_TYPES[name]: _plain(name).loads for name in ("msgpack", "cbor", "bson", "xml")})
