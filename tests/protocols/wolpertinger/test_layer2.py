"""The three messages in XML: reading, writing, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.wolpertinger.strategies import any_value, documents, xml_text
from tests.protocols.wolpertinger.talk import CALL_ID, HELLO, call
from wireloom.model import BodyError, NotSupported
from wireloom.protocols.wolpertinger import layer2, values
from wireloom.protocols.wolpertinger.layer2 import Error, RemoteMethodCall, Response, parse, parse_fully, write
from wireloom.protocols.wolpertinger.refusal import Refused
from wireloom.protocols.wolpertinger.values import Value

NAMESPACE = b' xmlns="http://nerdcave.eu/wolpertinger"'


@given(documents)
def test_every_document_is_read_as_it_was_written(document: layer2.Document) -> None:
    xml = write(document)
    assert parse(xml) == document
    assert parse_fully(xml) == document


@given(documents, st.binary(max_size=4), st.integers(0, 10_000), st.booleans())
def test_reading_by_pattern_and_by_parser_and_schema_give_the_same(
    document: layer2.Document, change: bytes, where: int, indent: bool
) -> None:
    xml = write(document)
    if indent:
        xml = xml.replace(b"><", b">\n  <")
    at = where % (len(xml) + 1)
    xml = xml[:at] + change + xml[at + len(change) :]

    def outcome(read: object) -> object:
        try:
            found = read(xml)  # type: ignore[operator]
        except Refused as refused:
            return refused.clause, refused.detail, refused.error, refused.call_id
        return found, found.xml

    assert outcome(parse) == outcome(parse_fully)


def test_messages_are_written_with_the_namespace_and_in_the_order_of_the_examples() -> None:
    assert write(RemoteMethodCall("Core", CALL_ID, "testMethod1", (Value("string", "a"), Value("boolean", True)))) == (
        b"<RemoteMethodCall" + NAMESPACE + b"><ComponentName>Core</ComponentName><CallId>" + CALL_ID.encode()
        + b"</CallId><MethodName>testMethod1</MethodName><Parameters>"
        b'<object type="string">a</object><object type="boolean">true</object></Parameters></RemoteMethodCall>'
    )  # fmt: skip
    assert write(Response("Core", CALL_ID)) == (
        b"<RemoteMethodResponse" + NAMESPACE + b"><ComponentName>Core</ComponentName><CallId>" + CALL_ID.encode()
        + b"</CallId><ResponseValue></ResponseValue></RemoteMethodResponse>"
    )  # fmt: skip
    assert write(Error("Core", 1, CALL_ID)) == (
        b"<RemoteError" + NAMESPACE + b"><ComponentName>Core</ComponentName><ErrorCode>1</ErrorCode><CallId>"
        + CALL_ID.encode() + b"</CallId></RemoteError>"
    )  # fmt: skip


EXAMPLES = [
    b"""<RemoteMethodCall>
        <ComponentName>Core</ComponentName>
        <CallId>F5AFEC97-5839-4666-B8D3-8C108B241720</CallId>
        <MethodName>testMethod1</MethodName>
        <Parameters>
            <object type="string">This is a string-example</object>
            <object type="boolean">true</object>
        </Parameters>
    </RemoteMethodCall>""",
    b"""<RemoteMethodResponse>
        <ComponentName>Core</ComponentName>
        <CallId>F5AFEC97-5839-4666-B8D3-8C108B241720</CallId>
        <ResponseValue>
            <object type="boolean">true</object>
        </ResponseValue>
    </RemoteMethodResponse>""",
    b"""<RemoteError>
        <ComponentName>Core</ComponentName>
        <ErrorCode>1</ErrorCode>
        <CallId>F5AFEC97-5839-4666-B8D3-8C108B241720</CallId>
    </RemoteError>""",
]


def test_the_examples_of_the_specification_with_and_without_the_namespace() -> None:
    guid = "F5AFEC97-5839-4666-B8D3-8C108B241720"
    expected = [
        RemoteMethodCall(
            "Core", guid, "testMethod1", (Value("string", "This is a string-example"), Value("boolean", True))
        ),
        Response("Core", guid, Value("boolean", True)),
        Error("Core", 1, guid),
    ]
    for xml, document in zip(EXAMPLES, expected, strict=True):
        assert parse(xml) == document
        assert parse(xml.replace(b">", NAMESPACE + b">", 1)) == document
        # What came without the namespace is kept so.
        assert write(parse(xml)) == xml


def test_a_document_that_we_would_write_in_another_way_is_kept() -> None:
    plain = write(call("Test", "Echo", HELLO, Value("boolean", True)))
    assert parse(plain).xml is None
    assert parse(plain.replace(b"><", b">\n\t<")).xml is None
    assert parse(plain.replace(b"<Parameters>", b"<Parameters >")).xml is not None
    for other in (
        plain.replace(b"true", b"True"),
        plain.replace(b'"string"', b"'string'"),
        plain.replace(b'"string"', b'"String"'),
        plain.replace(b"hello", b"<![CDATA[hello]]>"),
        plain.replace(b"hello", b"h&#101;llo"),
        plain.replace(b"hello", b"he<!-- - -->llo"),
        b'<?xml version="1.0"?>' + plain,
        b"\xef\xbb\xbf" + plain,
    ):
        read = parse(other)
        assert read == call("Test", "Echo", HELLO, Value("boolean", True)), other
        assert read.xml == other
        assert write(read) == other


@pytest.mark.parametrize(
    "xml",
    [
        b"<!DOCTYPE RemoteError><RemoteError/>",
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><RemoteError>&x;</RemoteError>',
        b'<?xml version="1.0"?>\n<!-- c -->\n<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd"><RemoteError/>',
        b"\xef\xbb\xbf<!DOCTYPE a><RemoteError/>",
        b"<?a <b> ?><!DOCTYPE a><RemoteError/>",
        b"<!-- <b> --><!DOCTYPE a><RemoteError/>",
        b"<!ENTITY a 'b'><RemoteError/>",
    ],
)
def test_a_doctype_is_refused_before_anything_is_parsed(xml: bytes) -> None:
    with pytest.raises(Refused, match=r"wolpertinger\.xml\.forbidden") as caught:
        parse(xml)
    assert caught.value.error == 301


def test_the_word_doctype_in_a_text_is_nothing_bad() -> None:
    xml = write(call("Test", "Echo", HELLO)).replace(b"hello", b"<![CDATA[<!DOCTYPE a>]]>")
    assert parse(xml).parameters[0].data == "<!DOCTYPE a>"  # type: ignore[union-attr]
    assert parse(write(call("T", "E", Value("string", "x:schemaLocation")))).xml is None


@pytest.mark.parametrize("name", ["schemaLocation", "noNamespaceSchemaLocation"])
def test_a_reference_to_another_schema_is_refused_and_not_followed(name: str, tmp_path: object) -> None:
    attribute = (
        f' xmlns:x="http://www.w3.org/2001/XMLSchema&#45;instance" x:{name}="http://nerdcave.eu/wolpertinger file:///a"'
    )
    xml = write(call("Test", "Echo", HELLO)).replace(b"<RemoteMethodCall", b"<RemoteMethodCall" + attribute.encode())
    with pytest.raises(Refused, match=r"wolpertinger\.xml\.forbidden"):
        parse(xml)


def test_undefined_entities_are_malformed() -> None:
    with pytest.raises(Refused, match=r"wolpertinger\.xml\.malformed"):
        parse(write(call("Test", "Echo", HELLO)).replace(b"hello", b"&hello;"))


@pytest.mark.parametrize(
    "xml",
    [
        b"",
        b"no xml",
        b"<RemoteError>",
        write(Error("a", 1)).decode().encode("utf-16"),
        write(Error("a", 1)).replace(b">a<", b">\xff<"),
        write(Error("a", 1)).replace(b">a<", b">\x01<"),
        b'<?xml version="1.0" encoding="utf-7"?>+ADw-RemoteError/+AD4-',
        write(Error("a", 1)) + b"<a/>",
        write(call("T", "E", HELLO)).replace(b"hello", b"<a>" * 300 + b"</a>" * 300),
    ],
)
def test_what_is_no_xml_in_utf_8_is_malformed(xml: bytes) -> None:
    with pytest.raises(Refused, match=r"wolpertinger\.xml\.malformed") as caught:
        parse(xml)
    assert caught.value.error == 301


GOOD_CALL, GOOD_ERROR = write(call("Test", "Echo", HELLO)), write(Error("Test", 1, CALL_ID))


@pytest.mark.parametrize(
    "xml",
    [
        GOOD_CALL.replace(b"<MethodName>Echo</MethodName>", b""),
        GOOD_CALL.replace(b"<MethodName>Echo</MethodName>", b"<MethodName>a</MethodName><MethodName>a</MethodName>"),
        GOOD_CALL.replace(b"<ComponentName>Test</ComponentName>", b""),
        GOOD_CALL.replace(CALL_ID.encode(), b"1"),
        GOOD_CALL.replace(CALL_ID.encode(), CALL_ID.replace("-", "").encode()),
        GOOD_CALL.replace(CALL_ID.encode(), b"{" + CALL_ID.encode() + b"}"),
        GOOD_CALL.replace(b' type="string"', b""),
        GOOD_CALL.replace(b' type="string"', b' type="string" other="1"'),
        GOOD_CALL.replace(b"<Parameters>", b"<Parameters>text"),
        GOOD_CALL.replace(b"object", b"item"),
        GOOD_CALL.replace(b"<Parameters>", b'<Parameters xmlns="">'),
        GOOD_CALL.replace(b"<RemoteMethodCall", b'<RemoteMethodCall a="b"'),
        GOOD_ERROR.replace(b">1<", b">one<"),
        GOOD_ERROR.replace(b">1<", b">4294967296<"),
        GOOD_ERROR.replace(b"<ErrorCode>1</ErrorCode>", b""),
        GOOD_ERROR.replace(b"<ErrorCode>1<", b"<ErrorCode>2147483648<"),
        GOOD_ERROR.replace(b"<ErrorCode>1<", b"<ErrorCode>-2147483649<"),
        GOOD_ERROR.replace(b"<ErrorCode>1<", b"<ErrorCode>1.0<"),
        write(Response("a", CALL_ID, HELLO)).replace(b"</ResponseValue>", b'<object type="string"/></ResponseValue>'),
        write(Response("a", CALL_ID)).replace(b"<ResponseValue></ResponseValue>", b""),
        b"<RemoteError><ErrorCode>1</ErrorCode><ComponentName/></RemoteError>",
    ],
)
def test_what_the_schema_does_not_allow_is_invalid(xml: bytes) -> None:
    with pytest.raises(Refused, match=r"wolpertinger\.xml\.invalid") as caught:
        parse(xml)
    assert caught.value.error == 301
    assert caught.value.is_answer == (b"RemoteMethodCall" not in xml)


def test_the_call_that_is_invalid_is_named_if_it_can_be() -> None:
    with pytest.raises(Refused) as caught:
        parse(GOOD_CALL.replace(b"<MethodName>Echo</MethodName>", b""))
    assert (caught.value.call_id, caught.value.component) == (CALL_ID, "Test")
    with pytest.raises(Refused) as caught:
        parse(GOOD_CALL.replace(CALL_ID.encode(), b"nonsense"))
    assert caught.value.call_id is None


@pytest.mark.parametrize("xml", [b"<Remote/>", b"<object type='string'/>", b'<RemoteError xmlns="urn:other"/>'])
def test_other_documents_are_unknown_messages(xml: bytes) -> None:
    with pytest.raises(Refused, match=r"wolpertinger\.xml\.unknown-message") as caught:
        parse(xml)
    assert caught.value.error == 302


def test_unknown_types_and_wrong_values_have_errors_of_their_own() -> None:
    with pytest.raises(Refused, match=r"wolpertinger\.value\.type") as caught:
        parse(GOOD_CALL.replace(b'"string"', b'"decimal"'))
    assert (caught.value.error, caught.value.call_id) == (306, CALL_ID)
    for type_, text in (
        ("int32", "abc"), ("int32", "2147483648"), ("int32", "1.5"), ("int32", ""), ("int32", "٣"),
        ("int64", "9223372036854775808"), ("uint64", "-1"), ("uint64", "18446744073709551616"),
        ("boolean", "yes"), ("double", "1,5"), ("double", "abc"), ("guid", "7e4c8b32"), ("dateTime", "yesterday"),
        ("dateTime", "2013-02-30T00:00:00Z"), ("dateTime", "2013-02-03"), ("list", "text"),
        ("list", "<a/>"), ("string", "<a/>"), ("int32", "1<a/>"),
    ):  # fmt: skip
        xml = GOOD_CALL.replace(b'"string">hello', f'"{type_}">{text}'.encode())
        with pytest.raises(Refused, match=r"wolpertinger\.value\.invalid") as caught:
            parse(xml)
        assert caught.value.error == 305, (type_, text)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("BOOLEAN", "TRUE", Value("boolean", True)),
        ("Boolean", "False", Value("boolean", False)),
        ("boolean", "1", Value("boolean", True)),
        ("boolean", "0", Value("boolean", False)),
        ("Int32", " +7\n", Value("int32", 7)),
        ("INT64", "-9223372036854775808", Value("int64", -(2**63))),
        ("uint64", "18446744073709551615", Value("uint64", 2**64 - 1)),
        ("Double", "1E3", Value("double", 1000.0)),
        ("double", "-Infinity", Value("double", "-INF")),
        ("double", "NaN", Value("double", "NaN")),
        ("double", "1e999", Value("double", "INF")),
        ("String", "", Value("string", "")),
        ("string", " a ", Value("string", " a ")),
        ("GUID", "7E4C8B32-F269-4B48-A6BA-625DF091AD6A", Value("guid", "7e4c8b32-f269-4b48-a6ba-625df091ad6a")),
        ("datetime", "2013-03-09T22:01:47.668+01:00", Value("dateTime", "2013-03-09T21:01:47.6680000Z")),
        ("dateTime", "2013-03-09T21:01:47", Value("dateTime", "2013-03-09T21:01:47.0000000Z")),
        ("dateTime", "2013-03-09T21:01:47.123456789Z", Value("dateTime", "2013-03-09T21:01:47.1234567Z")),
        ("LIST", "", Value("list", ())),
        ("list", '<object type="INT32">1</object>', Value("list", (Value("int32", 1),))),
        ("clientInfo", "", Value("clientInfo", "")),
        ("FileObject", '<x xmlns="urn:x">a</x>tail', Value("fileObject", '<x xmlns="urn:x">a</x>tail')),
    ],
)
def test_types_are_read_without_case_and_values_as_their_type_says(type_: str, text: str, value: Value) -> None:
    xml = GOOD_CALL.replace(b'"string">hello', f'"{type_}">{text}'.encode())
    read = parse(xml)
    assert isinstance(read, RemoteMethodCall)
    assert read.parameters == (value,)


def test_lists_in_lists_have_a_limit() -> None:
    deep = HELLO
    for _ in range(values.MAX_DEPTH):
        deep = Value("list", (deep,))
    assert parse(write(call("T", "E", deep))) == call("T", "E", deep)
    with pytest.raises(Refused, match=r"wolpertinger\.value\.invalid"):
        parse(write(call("T", "E", Value("list", (deep,)))))


@given(any_value)
def test_every_value_survives_json_with_its_signature(value: Value) -> None:
    import json

    data = json.loads(values.dumps(values.to_json(value)))
    (signature,) = values.parse_signature(values.signature((value,)))
    assert values.of_json(data, signature) == value


@given(any_value)
def test_every_value_survives_python_up_to_a_microsecond(value: Value) -> None:
    def coarse(each: Value) -> object:
        if isinstance(each.data, tuple):
            return [coarse(inner) for inner in each.data]
        if each.type in values.RANGES:
            return each.data
        return each.type, each.data

    assert coarse(values.from_python(values.to_python(value))) == coarse(value)


@given(st.lists(any_value, max_size=30).map(tuple))
def test_signatures_name_every_type(many: tuple[Value, ...]) -> None:
    names = [each.name for each in values.parse_signature(values.signature(many))]
    assert names == [each.type for each in many]


@pytest.mark.parametrize(
    "text", [",", "a", "int32,", "list", "list(", "list(int32", "int32)", "list(,)", "int32*0", "int32*9999999", "*2",
             "list(int32,)", "int32 int32", "list(" * 100 + ")" * 100],
)  # fmt: skip
def test_what_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="types"):
        values.parse_signature(text)


@given(xml_text)
def test_every_text_that_xml_can_hold_survives(text: str) -> None:
    read = parse(write(call(text, text, Value("string", text))))
    assert isinstance(read, RemoteMethodCall)
    assert (read.component, read.method, read.parameters[0].data) == (text, text, text)


@pytest.mark.parametrize("value", ["\0", "￿", {"a": 1}, None, 2**64, object()])
def test_what_has_no_type_cannot_be_sent(value: object) -> None:
    with pytest.raises(BodyError, match="wolpertinger cannot send"):
        values.from_python(value)


@pytest.mark.parametrize("inside", ["<a>", "<a></b>", "&x;", "</object>", "<a xmlns:x='urn:x' x:schemaLocation='b'/>"])
def test_structured_values_must_be_well_formed(inside: str) -> None:
    with pytest.raises(NotSupported):
        layer2.check_structured(Value("list", (Value("clientInfo", inside),)))
