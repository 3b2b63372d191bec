"""Converts bodies between formats: JSON, MessagePack, CBOR, BSON, and with a schema Protocol Buffers and FlatBuffers.

A body is decoded to a plain value, and encoded from it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wireloom.formats import body_formats
from wireloom.hub.config_errors import WrongKey
from wireloom.model import BodyError, ConfigError, Message, WireloomError

PROTOBUF, FLATBUFFERS = body_formats.CONTENT_TYPES["protobuf"], body_formats.CONTENT_TYPES["flatbuffers"]
_KEYS = ("protobuf", "flatbuffers", "message")


class Schema:
    """A schema: converts bytes to a plain value and back."""

    def __init__(self, content_type: str, load: Callable[[bytes], object], dump: Callable[[Any], bytes]) -> None:
        self.content_type = content_type
        self.load = load
        self.dump = dump


def parse_schema(table: object) -> Schema:
    """Parse `schema` of a route: `{ protobuf = "shop.desc", message = "shop.Sold" }` or `{ flatbuffers = ... }`."""
    if not isinstance(table, Mapping) or not set(table) <= set(_KEYS):
        raise WrongKey("schema", f"schema is a table of {', '.join(_KEYS)}")
    if "protobuf" in table:
        return _protobuf(Path(str(table["protobuf"])), str(table.get("message", "")))
    if "flatbuffers" in table:
        return _flatbuffers(str(table["flatbuffers"]))
    raise WrongKey("schema", 'schema needs protobuf = "FILE.desc" or flatbuffers = "module:ClassT"')


def _protobuf(file: Path, name: str) -> Schema:
    """A message type from a descriptor set, made by `protoc --include_imports --descriptor_set_out=FILE`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for each in files.file:
            pool.Add(each)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except OSError as error:
        raise WrongKey("schema", f"the descriptor set {file} cannot be read: {error.strerror}") from None
    except KeyError:
        raise WrongKey("schema", f"{file} has no message {name!r}") from None
    except Exception as error:
        raise WrongKey("schema", f"{file} is no descriptor set: {error}") from None
    reader = body_formats.body_format("protobuf", kind)

    def load(data: bytes) -> object:
        found: Any = reader.loads(data) if data else kind()
        return json_format.MessageToDict(found, preserving_proto_field_name=True)

    def dump(value: Any) -> bytes:
        try:
            return reader.dumps(json_format.ParseDict(value, kind(), descriptor_pool=pool))
        except (json_format.ParseError, AttributeError, TypeError) as error:
            raise BodyError(f"the body does not fit {name}: {error}") from None

    return Schema(PROTOBUF, load, dump)


def _flatbuffers(place: str) -> Schema:
    """The object class of the root type, made by `flatc --python --gen-object-api`."""
    module, _, name = place.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
        reader = body_formats.body_format("flatbuffers", kind)
        kind()
    except (ImportError, AttributeError, TypeError, ConfigError) as error:
        raise WrongKey("schema", f'flatbuffers = "module:ClassT" names a class of the object API: {error}') from None

    def load(data: bytes) -> object:
        return _plain(reader.loads(data))

    def dump(value: Any) -> bytes:
        made = kind()
        if not isinstance(value, Mapping) or not set(value) <= set(vars(made)):
            raise BodyError(f"the body does not fit {name}, which has {', '.join(vars(made))}")
        for key, each in value.items():
            setattr(made, key, each)
        return reader.dumps(made)

    return Schema(FLATBUFFERS, load, dump)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        return tolist()
    return {key: _plain(each) for key, each in vars(value).items()} if hasattr(value, "__dict__") else value


def value_of(message: Message, schema: Schema | None = None) -> object:
    """The plain value of a body. Raises BodyError if it cannot be decoded."""
    try:
        if schema is not None and message.content_type in (schema.content_type, None):
            return schema.load(message.body)
        reader = body_formats.format_for(message.content_type)
        if reader is not None and reader.name in body_formats.CONVERTIBLE:
            return reader.loads(message.body)
        if (message.content_type or "").startswith("text/"):
            return message.body.decode()
    except (WireloomError, UnicodeDecodeError) as error:
        raise BodyError(str(error)) from None
    raise BodyError(f"nothing reads a body of {message.content_type or 'no content type'} here")


def transformed(message: Message, content_type: str, schema: Schema | None = None) -> Message:
    """The message with its body in another content type; raises BodyError.

    >>> from wireloom.model import Kind
    >>> event = Message(Kind.EVENT, "a", b'{"n":1}', content_type="application/json")
    >>> transformed(event, "application/msgpack").body
    b'\\x81\\xa1n\\x01'
    """
    if message.content_type == content_type:
        return message
    value = value_of(message, schema)
    if schema is not None and content_type == schema.content_type:
        return message.with_(body=schema.dump(value), content_type=content_type)
    writer = body_formats.format_for(content_type)
    if writer is None or writer.name not in body_formats.CONVERTIBLE:
        raise BodyError(f"nothing writes a body of {content_type} here")
    return message.with_(body=writer.dumps(value), content_type=content_type)


def check_target(content_type: str, schema: Schema | None) -> None:
    """Raise WrongKey if bodies cannot be converted to this content type."""
    writer = body_formats.format_for(content_type)
    fits = writer is not None and writer.name in body_formats.CONVERTIBLE
    if not fits and (schema is None or schema.content_type != content_type):
        known = ", ".join(body_formats.CONTENT_TYPES[name] for name in sorted(body_formats.CONVERTIBLE))
        raise WrongKey(
            "content_type",
            f"nothing writes {content_type}; there are {known}, and with a schema {PROTOBUF}, {FLATBUFFERS}",
        )
