"""The serializers: values to bodies and back, schemas, and what is made of garbage."""

from __future__ import annotations

import datetime
import re
import socket
import struct
import sys
from typing import Any

import flatbuffers
import pytest
from flatbuffers import number_types
from flatbuffers.table import Table
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from wireloom.formats import body_formats
from wireloom.formats.conversion import convert
from wireloom.model import BodyError, ConfigError, Kind, Message, ProtocolViolation
from wireloom.protocols.yamp import body_format

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
integers = st.integers(-(2**63), 2**63 - 1)
plain = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
binary = st.recursive(
    plain | st.binary(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
documents = st.dictionaries(texts.filter(lambda key: "\0" not in key), plain, max_size=4)


class Reading:
    """A table as the FlatBuffers compiler would make it: `table Reading { celsius: float; name: string; }`."""

    __slots__ = ["_tab"]

    @classmethod
    def GetRootAs(cls, buf: bytes, offset: int = 0) -> Reading:  # noqa: N802
        root = struct.unpack_from("<I", buf, offset)[0]
        made = cls()
        made._tab = Table(bytearray(buf), root + offset)
        return made

    def Celsius(self) -> float:  # noqa: N802
        at = number_types.UOffsetTFlags.py_type(self._tab.Offset(4))
        return self._tab.Get(number_types.Float32Flags, at + self._tab.Pos) if at else 0.0

    def Name(self) -> bytes | None:  # noqa: N802
        at = number_types.UOffsetTFlags.py_type(self._tab.Offset(6))
        return self._tab.String(at + self._tab.Pos) if at else None


class ReadingT:
    """The same as an object with `Pack`."""

    def __init__(self, celsius: float, name: str) -> None:
        self.celsius, self.name = celsius, name

    def Pack(self, builder: flatbuffers.Builder) -> int:  # noqa: N802
        name = builder.CreateString(self.name)
        builder.StartObject(2)
        builder.PrependFloat32Slot(0, self.celsius, 0.0)
        builder.PrependUOffsetTRelativeSlot(1, name, 0)
        return builder.EndObject()


def required_message() -> type:
    """`message Reading { required float celsius = 1; }`, in proto2, which has required fields."""
    file = descriptor_pb2.FileDescriptorProto(name="tests/reading.proto", package="tests", syntax="proto2")
    made = file.message_type.add(name="Reading")
    made.field.add(name="celsius", number=1, type=2, label=2)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Reading"))


XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <xs:element name="reading"><xs:complexType><xs:sequence>
    <xs:element name="celsius" type="xs:decimal"/>
  </xs:sequence></xs:complexType></xs:element>
</xs:schema>"""
JSON_SCHEMA = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}


def clause_of(serializer: str, data: bytes, schema: object = None) -> str:
    with pytest.raises(ProtocolViolation) as caught:
        body_format(serializer, schema).loads(data)
    assert "\n" not in str(caught.value)
    return caught.value.clause


def test_the_eight_serializers_have_a_content_type_each() -> None:
    assert body_formats.SERIALIZERS == ("json", "msgpack", "cbor", "bson", "xml", "protobuf", "flatbuffers", "raw")
    assert len(set(body_formats.CONTENT_TYPES.values())) == 8
    for name in body_formats.SERIALIZERS:
        assert body_format(name).content_type == body_formats.CONTENT_TYPES[name]


def test_an_unknown_serializer_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="'yaml'; known: json, msgpack"):
        body_format("yaml")


# Round trips


@pytest.mark.parametrize("name", ["json", "msgpack", "cbor"])
@given(value=plain)
def test_plain_values_come_back(name: str, value: object) -> None:
    form = body_format(name)
    assert form.loads(form.dumps(value)) == value


@pytest.mark.parametrize("name", ["msgpack", "cbor"])
@given(value=binary)
def test_binary_values_come_back(name: str, value: object) -> None:
    form = body_format(name)
    assert form.loads(form.dumps(value)) == value


@given(documents)
def test_bson_documents_come_back(value: dict[str, object]) -> None:
    form = body_format("bson")
    try:
        data = form.dumps(value)
    except BodyError:
        # A key with a zero byte, somewhere inside.
        assert "\\x00" in repr(value)
        return
    assert form.loads(data) == value


def test_times_in_bson_keep_their_zone() -> None:
    form = body_format("bson")
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert form.loads(form.dumps({"at": moment})) == {"at": moment}


xml_text = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs",), exclude_characters="\ufffe\uffff"))


@given(xml_text, st.from_regex(r"[a-z]{1,8}", fullmatch=True), xml_text)
def test_xml_elements_come_back(text: str, name: str, attribute: str) -> None:
    element = etree.Element(name, note=attribute)
    etree.SubElement(element, "inner").text = text
    form = body_format("xml")
    back = form.loads(form.dumps(element))
    assert etree.tostring(back, method="c14n") == etree.tostring(element, method="c14n")


@given(plain)
def test_protobuf_messages_come_back(value: object) -> None:
    message = struct_pb2.Struct()
    message.update({"value": repr(value)})
    form = body_format("protobuf", struct_pb2.Struct)
    assert form.loads(form.dumps(message)) == message


@given(st.floats(width=32, allow_nan=False), texts)
def test_flatbuffers_come_back(celsius: float, name: str) -> None:
    form = body_format("flatbuffers", Reading)
    data = form.dumps(ReadingT(celsius, name))
    back = form.loads(data)
    assert isinstance(back, Reading)
    assert (back.Celsius(), back.Name()) == (celsius, name.encode())
    assert form.dumps(data) == data


@given(st.binary())
def test_raw_bytes_come_back(data: bytes) -> None:
    form = body_format("raw")
    assert form.loads(form.dumps(data)) == data


@pytest.mark.parametrize("name", body_formats.SERIALIZERS)
def test_an_empty_body_is_no_value(name: str) -> None:
    assert body_format(name).loads(b"") == (b"" if name == "raw" else None)


# Schemas


@pytest.mark.parametrize("name", ["json", "msgpack", "cbor"])
def test_a_json_schema_is_checked_in_both_directions(name: str) -> None:
    form, free = body_format(name, JSON_SCHEMA), body_format(name)
    assert form.loads(form.dumps({"celsius": 21.5})) == {"celsius": 21.5}
    with pytest.raises(BodyError, match=r"\$\.celsius: 'warm' is not of type 'number'"):
        form.dumps({"celsius": "warm"})
    assert clause_of(name, free.dumps({"celsius": "warm"}), JSON_SCHEMA) == "yamp.body.schema"
    assert clause_of(name, free.dumps({}), JSON_SCHEMA) == "yamp.body.schema"
    assert clause_of(name, b"", JSON_SCHEMA) == "yamp.body.malformed"


def test_an_xsd_is_checked_in_both_directions() -> None:
    form = body_format("xml", XSD)
    good = etree.fromstring("<reading><celsius>21.5</celsius></reading>")
    bad = etree.fromstring("<reading><celsius>warm</celsius></reading>")
    assert form.loads(form.dumps(good)) is not None
    with pytest.raises(BodyError, match="celsius"):
        form.dumps(bad)
    assert clause_of("xml", etree.tostring(bad), XSD) == "yamp.body.schema"


def test_a_protobuf_class_is_checked_in_both_directions() -> None:
    reading = required_message()
    form = body_format("protobuf", reading)
    assert form.loads(form.dumps(reading(celsius=21.5))) == reading(celsius=21.5)
    with pytest.raises(BodyError, match="Reading, not a StringValue"):
        form.dumps(wrappers_pb2.StringValue(value="warm"))
    with pytest.raises(BodyError, match="celsius"):
        form.dumps(reading())
    assert clause_of("protobuf", b"", reading) == "yamp.body.schema"
    assert clause_of("protobuf", b"\x0d\x00", reading) == "yamp.body.malformed"


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("json", {"type": "nonsense"}),
        ("xml", "<xs:schema"),
        ("xml", "<!DOCTYPE x><x/>"),
        ("xml", 7),
        ("protobuf", dict),
        ("protobuf", "Reading"),
        ("flatbuffers", dict),
        ("bson", {}),
        ("raw", {}),
    ],
)
def test_a_schema_that_is_none_is_a_mistake_of_the_configuration(name: str, schema: object) -> None:
    with pytest.raises(ConfigError, match=name):
        body_format(name, schema)


def test_a_json_schema_never_fetches_what_it_refers_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        server.settimeout(0.2)
        form = body_format("json", {"$ref": url})
        with pytest.raises(BodyError, match=re.escape(url)):
            form.dumps({})
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("name", ["protobuf", "flatbuffers"])
def test_reading_a_body_that_needs_its_class_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        body_format(name).loads(b"\x01\x02\x03\x04")


def test_protobuf_messages_of_any_class_are_written_without_a_schema() -> None:
    message = wrappers_pb2.StringValue(value="warm")
    assert body_format("protobuf").dumps(message) == message.SerializeToString()


# Garbage

SCHEMAS: dict[str, object] = {"protobuf": struct_pb2.Struct, "flatbuffers": Reading}


def seeds(name: str) -> bytes:
    value: object = {"celsius": 21.5, "name": "kitchen", "list": [1, None, {"a": "b"}]}
    if name == "xml":
        value = etree.fromstring("<reading unit='c'>21.5<a/></reading>")
    elif name == "protobuf":
        message = struct_pb2.Struct()
        message.update({"celsius": 21.5, "list": [1, None]})
        value = message
    elif name == "flatbuffers":
        value = ReadingT(21.5, "kitchen")
    elif name == "raw":
        value = b"raw"
    return body_format(name).dumps(value)


@pytest.mark.parametrize("name", body_formats.SERIALIZERS)
@given(data=st.data())
@settings(max_examples=150)
def test_garbage_is_a_violation_and_never_another_error(name: str, data: st.DataObject) -> None:
    body = bytearray(seeds(name))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    raw = data.draw(st.one_of(st.just(bytes(body)), st.binary(max_size=40)))
    try:
        body_format(name, SCHEMAS.get(name)).loads(raw)
    except ProtocolViolation as violation:
        assert violation.clause in ("yamp.body.malformed", "yamp.body.schema")
        assert "\n" not in violation.detail


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b"{"),
        ("json", b"\xff"),
        ("json", b"NaN"),
        ("json", b"[" * 100_000),
        ("json", b"1" * 10_000),
        ("msgpack", b"\xc1"),
        ("msgpack", b"\x01\x02"),
        ("msgpack", b"\xdd\xff\xff\xff\xff"),
        ("msgpack", b"\x91" * 100_000),
        ("cbor", b"\x01\x02"),
        ("cbor", b"\x5b" + b"\xff" * 8),
        ("cbor", b"\x9b\x7f" + b"\xff" * 7),
        ("cbor", b"\x81" * 100_000),
        ("bson", b"\x05\x00\x00\x00\x01"),
        ("bson", b"\xff\xff\xff\x7f\x00"),
        ("xml", b"<a>"),
        ("xml", b"<a/><b/>"),
        ("xml", b"\x00"),
        ("xml", b"<a>&undefined;</a>"),
        ("xml", b"<a>" * 10_000),
        ("protobuf", b"\xff\xff"),
        ("flatbuffers", b"\x00"),
        ("flatbuffers", b"\x00\x00\x00\x00"),
        ("flatbuffers", b"\xff\xff\xff\xff" + bytes(20)),
        ("flatbuffers", b"\x04\x00\x00\x00\xff\xff\xff\x7f" + bytes(20)),
    ],
)
def test_known_traps_are_malformed(name: str, data: bytes) -> None:
    assert clause_of(name, data, SCHEMAS.get(name)) == "yamp.body.malformed"


def flatbuffer(
    root: int = 12, back: int = 8, vtable_size: int = 8, table_size: int = 8, fields: tuple[int, int] = (4, 0)
) -> bytes:
    """Root offset, vtable at 4, table at 12: the smallest that is right, or wrong in one place."""
    return struct.pack("<IHHHHiI", root, vtable_size, table_size, *fields, back, 0)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"root": 3}, "root offset"),
        ({"root": 17}, "root offset"),
        ({"back": 13}, "vtable lies outside"),
        ({"back": -5}, "vtable lies outside"),
        ({"vtable_size": 2}, "vtable of 2 bytes"),
        ({"vtable_size": 7}, "vtable of 7 bytes"),
        ({"vtable_size": 18}, "vtable of 18 bytes"),
        ({"table_size": 3}, "table of 3 bytes"),
        ({"table_size": 9}, "table of 9 bytes"),
        ({"fields": (3, 0)}, "outside its table"),
        ({"fields": (4, 8)}, "outside its table"),
    ],
)
def test_a_flatbuffer_whose_root_lies_outside_is_malformed(wrong: dict[str, Any], word: str) -> None:
    body_formats.check_flatbuffer(flatbuffer())
    with pytest.raises(ProtocolViolation, match=word):
        body_format("flatbuffers", Reading).loads(flatbuffer(**wrong))


LAUGHS = '<!DOCTYPE a [<!ENTITY b "bbbbbbbb"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "iso-8859-1"])
@pytest.mark.parametrize(
    "document", [LAUGHS, "<!DOCTYPE a><a/>", "<!-- x --><!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>"]
)
def test_doctype_and_entities_are_refused_in_any_encoding(document: str, encoding: str) -> None:
    head = "" if encoding == "utf-16" else f"<?xml version='1.0' encoding='{encoding}'?>"
    data = (head + document).encode(encoding)
    if encoding == "utf-16-le":
        data = b"\xff\xfe" + data
    with pytest.raises(ProtocolViolation) as caught:
        body_format("xml").loads(data)
    assert caught.value.clause == "yamp.body.malformed"
    if encoding in ("utf-8", "iso-8859-1", "utf-16"):
        assert "DOCTYPE and entities are refused" in caught.value.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("json", {1, 2j}),
        ("json", float("nan")),
        ("json", "\ud800"),
        ("msgpack", object()),
        ("msgpack", 2**64),
        ("cbor", object()),
        ("bson", [1]),
        ("bson", {1: 2}),
        ("bson", {"a": 2**63}),
        ("bson", "text"),
        ("xml", "<a/>"),
        ("protobuf", b"\x01"),
        ("flatbuffers", b"\x01"),
        ("flatbuffers", 7),
        ("raw", "text"),
    ],
)
def test_a_value_the_format_cannot_hold_is_our_own_mistake(name: str, value: object) -> None:
    with pytest.raises(BodyError, match=name):
        body_format(name).dumps(value)


@pytest.mark.parametrize(
    ("name", "module", "value"),
    [
        ("msgpack", "msgpack", 1),
        ("cbor", "cbor2", 1),
        ("bson", "bson", {}),
        ("xml", "lxml.etree", None),
        ("protobuf", "google.protobuf.message", None),
        ("flatbuffers", "flatbuffers", ReadingT(1.0, "a")),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    name: str, module: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"wireloom\[formats\]"):
        body_format(name).dumps(value)


def test_a_missing_json_schema_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ConfigError, match=r"jsonschema.*wireloom\[formats\]"):
        body_format("json", {})


# From one format to another


@given(st.dictionaries(texts.filter(lambda key: "\0" not in key), plain, max_size=3))
def test_plain_documents_go_from_any_plain_format_to_any_other(value: dict[str, object]) -> None:
    names = ("json", "msgpack", "cbor")
    for source in names:
        for target in names:
            body = body_format(source).dumps(value)
            converted, kind = convert(body, body_formats.CONTENT_TYPES[source], body_formats.CONTENT_TYPES[target])
            assert kind == body_formats.CONTENT_TYPES[target]
            assert body_format(target).loads(converted) == value


@pytest.mark.parametrize("name", ["json", "msgpack", "cbor"])
def test_text_becomes_a_string_of_the_format(name: str) -> None:
    body, kind = convert("grün".encode(), "text/plain", body_formats.CONTENT_TYPES[name])
    assert (body_format(name).loads(body), kind) == ("grün", body_formats.CONTENT_TYPES[name])


@pytest.mark.parametrize("target", ["application/xml", "application/x-protobuf", "application/octet-stream", None])
def test_what_cannot_be_converted_stays_as_it_is(target: str | None) -> None:
    assert convert(b'{"a":1}', "application/json", target) == (b'{"a":1}', "application/json")
    assert convert(b"hi", "text/plain", target) == (b"hi", "text/plain")
    assert convert(b"\x01", None, target) == (b"\x01", None)


PLAIN = ["json", "msgpack", "cbor"]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(
    ("body", "source", "value"),
    [
        (b'{"a":[1,null]}', None, {"a": [1, None]}),
        (b"21.5", None, 21.5),
        (b"not JSON", None, "not JSON"),
        (b'{"a":', None, '{"a":'),
        (b"NaN", None, "NaN"),
        (b"\xff\xfe", None, "//4="),
        (b"a\x00b", None, "YQBi"),
        (b"21.5", "text/plain", "21.5"),
        (b"\xff", "text/plain", "/w=="),
        (b"plain", "image/png", "cGxhaW4="),
        (b"<a/>", "application/xml", "PGEvPg=="),
    ],
)
def test_what_a_peer_of_plain_values_cannot_read_is_wrapped(
    name: str, body: bytes, source: str | None, value: object
) -> None:
    converted, kind = convert(body, source, body_formats.CONTENT_TYPES[name])
    assert (body_format(name).loads(converted), kind) == (value, body_formats.CONTENT_TYPES[name])


def test_json_without_a_content_type_reaches_a_json_peer_as_it_is() -> None:
    assert convert(b'{ "a": 1.0 }', None, "application/json") == (b'{ "a": 1.0 }', "application/json")


@given(body=st.binary(max_size=40), source=st.sampled_from([None, "text/plain", "image/png", "application/xml"]))
@pytest.mark.parametrize("name", PLAIN)
def test_whatever_is_converted_can_be_read(name: str, body: bytes, source: str | None) -> None:
    converted, kind = convert(body, source, body_formats.CONTENT_TYPES[name])
    assert kind == body_formats.CONTENT_TYPES[name]
    body_format(name).loads(converted or body_formats.nothing(kind))


@pytest.mark.parametrize("name", body_formats.SERIALIZERS)
def test_no_value_is_null_where_the_serializer_has_one(name: str) -> None:
    body = body_formats.nothing(body_formats.CONTENT_TYPES[name])
    expected = {"json": b"null", "msgpack": b"\xc0", "cbor": b"\xf6", "bson": bytes.fromhex("0500000000")}
    assert body == expected.get(name, b"")
    if name in PLAIN:
        assert body_format(name).loads(body) is body_format(name).loads(b"") is None


@pytest.mark.parametrize("name", ["json", "msgpack", "cbor", "bson"])
def test_the_value_of_a_message_is_that_of_its_serializer(name: str) -> None:
    body = body_format(name).dumps({"c": [21, 5]})
    for kind in (Kind.EVENT, Kind.REQUEST, Kind.RESPONSE):
        message = Message(kind, "a", body, content_type=body_formats.CONTENT_TYPES[name])
        assert message.value() == {"c": [21, 5]}
        assert message.with_(body=b"").value() is None
