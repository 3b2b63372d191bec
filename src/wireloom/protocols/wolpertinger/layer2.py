"""Layer 2: the three messages of wolpertinger as XML documents.

Implements "Message Layer" of the specification. Reading is by lxml with our own schema; a DOCTYPE, entities and
references to other documents are refused before anything is parsed or validated. What was read keeps its XML
when writing the message anew would say it in another way, so that nothing of a document is lost.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.model import ConfigError, NotSupported
from wireloom.protocols.wolpertinger import values
from wireloom.protocols.wolpertinger.refusal import ErrorCode, Refused
from wireloom.protocols.wolpertinger.values import Value

if TYPE_CHECKING:
    from lxml import etree

NAMESPACE = "http://nerdcave.eu/wolpertinger"
_OWN = threading.local()
"""Parser and schemas of each thread."""
_ROOTS = ("RemoteMethodCall", "RemoteMethodResponse", "RemoteError")


@dataclass(frozen=True, slots=True)
class RemoteMethodCall:
    """RemoteMethodCall: invokes a method of a component."""

    component: str
    call_id: str
    method: str
    parameters: tuple[Value, ...] = ()
    xml: bytes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Response:
    """RemoteMethodResponse: what the method returned; no value is an empty ResponseValue."""

    component: str
    call_id: str
    value: Value | None = None
    xml: bytes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Error:
    """RemoteError: of a call, or by itself when there is no CallId."""

    component: str
    code: int
    call_id: str | None = None
    xml: bytes | None = field(default=None, compare=False)


Document = RemoteMethodCall | Response | Error


# Writing


def write(document: Document) -> bytes:
    """A message as XML in UTF-8; as it came, if it came in a form of its own.

    >>> write(Error("Core", 1)).decode()
    '<RemoteError xmlns="http://nerdcave.eu/wolpertinger"><ComponentName>Core</ComponentName><ErrorCode>1</ErrorCode></RemoteError>'
    """
    return document.xml if document.xml is not None else _write(document).encode()


def _write(document: Document) -> str:
    component = f"<ComponentName>{_escape(document.component)}</ComponentName>"
    if isinstance(document, RemoteMethodCall):
        inside = "".join(map(write_value, document.parameters))
        return (
            f'<RemoteMethodCall xmlns="{NAMESPACE}">{component}<CallId>{document.call_id}</CallId>'
            f"<MethodName>{_escape(document.method)}</MethodName>"
            f"<Parameters>{inside}</Parameters></RemoteMethodCall>"
        )
    if isinstance(document, Response):
        inside = "" if document.value is None else write_value(document.value)
        return (
            f'<RemoteMethodResponse xmlns="{NAMESPACE}">{component}<CallId>{document.call_id}</CallId>'
            f"<ResponseValue>{inside}</ResponseValue></RemoteMethodResponse>"
        )
    call_id = "" if document.call_id is None else f"<CallId>{document.call_id}</CallId>"
    return f'<RemoteError xmlns="{NAMESPACE}">{component}<ErrorCode>{document.code}</ErrorCode>{call_id}</RemoteError>'


def write_value(value: Value) -> str:
    """A value as the XML of an object.

    >>> write_value(Value("string", "a<b"))
    '<object type="string">a&lt;b</object>'
    """
    if value.type == "string":
        return f'<object type="string">{_escape(str(value.data))}</object>'
    if isinstance(value.data, tuple):
        inside = "".join(map(write_value, value.data))
    elif value.type in values.STRUCTURED:
        inside = str(value.data)
    else:
        inside = _escape(values.write(value))
    return f'<object type="{value.type}">{inside}</object>'


def _escape(text: str) -> str:
    """Text as XML content; a carriage return would become a newline if it were not escaped."""
    if "&" in text:
        text = text.replace("&", "&amp;")
    if "<" in text:
        text = text.replace("<", "&lt;")
    if ">" in text:
        text = text.replace(">", "&gt;")
    return text.replace("\r", "&#13;") if "\r" in text else text


def check_structured(value: Value) -> None:
    """Raise NotSupported for a structured value whose XML would not be read as it was written."""
    if isinstance(value.data, tuple):
        for each in value.data:
            check_structured(each)
    elif value.type in values.STRUCTURED:
        from lxml import etree

        inside = str(value.data)
        try:
            if _forbids(f"<a>{inside}</a>".encode()):
                raise NotSupported(f"the XML of a {value.type} must not refer to other documents")
            etree.fromstring(f'<a xmlns="{NAMESPACE}">{inside}</a>'.encode(), _parser())
        except (etree.XMLSyntaxError, UnicodeEncodeError) as error:
            raise NotSupported(f"the XML of a {value.type} is not well-formed: {error}") from None


# Reading

_TEXT = r"[ !-%'-;=?-~]*"
_GUID = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
_FLAT = rf'(?:[ \n]*<object type="(?:{"|".join(values.SCALARS)})">{_TEXT}</object>)'
_HEAD = rf' xmlns="{NAMESPACE}">[ \n]*<ComponentName>({_TEXT})</ComponentName>[ \n]*<CallId>({_GUID})</CallId>[ \n]*'
_SIMPLE_CALL = re.compile(
    rf"<RemoteMethodCall{_HEAD}<MethodName>({_TEXT})</MethodName>[ \n]*"
    rf"<Parameters(?: ?/>|>({_FLAT}*)[ \n]*</Parameters>)[ \n]*</RemoteMethodCall>"
)
_SIMPLE_RESPONSE = re.compile(
    rf"<RemoteMethodResponse{_HEAD}<ResponseValue(?: ?/>|>({_FLAT}?)[ \n]*</ResponseValue>)"
    r"[ \n]*</RemoteMethodResponse>"
)
_OBJECT = re.compile(r'<object type="([A-Za-z0-9]+)">([^<]*)</object>')
_SIMPLE_LIMIT = 16 * 1024


def parse(xml: bytes, message_id: int | None = None) -> Document:
    """The message in a document.

    Small documents in the very form in which messages are mostly written are read by pattern; they are those
    that the schema allows, written in the one way that `write` has. All others go through parser and schema.

    >>> parse(b"<RemoteError><ComponentName/><ErrorCode>304</ErrorCode></RemoteError>").code
    304
    """
    if len(xml) <= _SIMPLE_LIMIT and xml.isascii():
        found = parse_simple(xml.decode("ascii"))
        if found is not None:
            return found
    return parse_fully(xml, message_id)


def parse_simple(xml: str) -> Document | None:
    """The message in a document written in the usual form; None for all others."""
    simple = _SIMPLE_CALL.fullmatch(xml)
    if simple is not None:
        component, call_id, method, inside = simple.groups()
        parameters = _simple_values(inside) if inside else ()
        if parameters is None:
            return None
        return RemoteMethodCall(component, call_id, method, parameters)
    simple = _SIMPLE_RESPONSE.fullmatch(xml)
    if simple is not None:
        component, call_id, inside = simple.groups()
        found = _simple_values(inside) if inside else ()
        if found is None:
            return None
        return Response(component, call_id, found[0] if found else None)
    return None


def _simple_values(inside: str) -> tuple[Value, ...] | None:
    """Values of objects in a row; None when one is not written as we would."""
    found: list[Value] = []
    for type_, text in _OBJECT.findall(inside):
        if type_ == "string":
            found.append(Value(type_, text))
            continue
        try:
            value = values.read(type_, text)
        except ValueError:
            return None
        if values.write(value) != text:
            return None
        found.append(value)
    return tuple(found)


def parse_fully(xml: bytes, message_id: int | None = None) -> Document:
    """The same by parser and schema, for every document."""
    from lxml import etree

    def wrong(clause: str, detail: str, error: ErrorCode, root: etree._Element | None = None) -> Refused:
        return Refused(
            clause,
            detail,
            message_id=message_id,
            error=error,
            component="" if root is None else _text_of(root, "ComponentName"),
            call_id=None if root is None else _call_id(root),
            is_answer=root is not None and _local(root) in _ROOTS[1:],
        )

    forbidden = _forbids(xml)
    if forbidden:
        raise wrong("wolpertinger.xml.forbidden", forbidden, ErrorCode.INVALID_XML)
    try:
        xml.decode()
        root = etree.fromstring(xml, _parser())
    except UnicodeDecodeError:
        raise wrong("wolpertinger.xml.malformed", "the document is not UTF-8", ErrorCode.INVALID_XML) from None
    except etree.XMLSyntaxError as error:
        raise wrong("wolpertinger.xml.malformed", _first_line(error), ErrorCode.INVALID_XML) from None
    if _local(root) not in _ROOTS:
        detail = f"the root is {_local(root)[:60]!r}"
        raise wrong("wolpertinger.xml.unknown-message", detail, ErrorCode.UNKNOWN_MESSAGE, root)
    named = root.tag != _local(root)
    if not _schema(named=named).validate(root):
        detail = _first_line(_schema(named=named).error_log).rpartition(": ")[2]
        raise wrong("wolpertinger.xml.invalid", detail, ErrorCode.INVALID_XML, root)
    try:
        document = _read(root)
    except _UnknownTypeError as error:
        raise wrong("wolpertinger.value.type", str(error), ErrorCode.UNSUPPORTED_DATATYPE, root) from None
    except ValueError as error:
        raise wrong("wolpertinger.value.invalid", str(error), ErrorCode.INVALID_PARAMETERS, root) from None
    return _keeping(document, xml)


def _read(root: etree._Element) -> Document:
    kind = _local(root)
    children = list(root)
    texts = [child.text or "" for child in children]
    if kind == "RemoteMethodCall":
        return RemoteMethodCall(texts[0], texts[1], texts[2], tuple([_value(each, 0) for each in children[3]]))
    if kind == "RemoteMethodResponse":
        objects = list(children[2])
        return Response(texts[0], texts[1], _value(objects[0], 0) if objects else None)
    return Error(texts[0], int(texts[1].strip()), texts[2] if len(texts) > 2 else None)


class _UnknownTypeError(ValueError):
    pass


def _value(element: etree._Element, depth: int) -> Value:
    type_ = values.CANONICAL.get((element.get("type") or "").lower())
    if type_ is None:
        raise _UnknownTypeError(f"{(element.get('type') or '')[:60]!r} is no type of wolpertinger")
    if type_ in values.STRUCTURED:
        return Value(type_, _inside(element))
    children = list(element)
    if type_ == "list":
        strays = [element.text, *[child.tail for child in children]]
        if depth >= values.MAX_DEPTH or any(stray and stray.strip() for stray in strays):
            raise ValueError("a list holds objects, not text, and not too deep")
        if any(child.tag != element.tag for child in children):
            raise ValueError("a list holds objects alone")
        return Value(type_, tuple([_value(child, depth + 1) for child in children]))
    if children:
        raise ValueError(f"a {type_} holds text alone")
    return values.read(type_, element.text or "")


def _inside(element: etree._Element) -> str:
    """The XML between the tags of an element."""
    from lxml import etree

    parts = [_escape(element.text or "")]
    parts += [etree.tostring(child, encoding="unicode") for child in element]
    return "".join(parts)


_GAPS = re.compile(rb">[ \t\r\n]+<")
_EMPTY = re.compile(rb'<([A-Za-z]+)((?: [A-Za-z]+="[^"<>]*")*)[ \t\r\n]*/>')


def _keeping(document: Document, xml: bytes) -> Document:
    """The document; with its XML, if `write` would say it in another way (white space between tags aside)."""
    if _EMPTY.sub(rb"<\1\2></\1>", _GAPS.sub(b"><", xml)) == _GAPS.sub(b"><", _write(document).encode()):
        return document
    if isinstance(document, RemoteMethodCall):
        return RemoteMethodCall(document.component, document.call_id, document.method, document.parameters, xml)
    if isinstance(document, Response):
        return Response(document.component, document.call_id, document.value, xml)
    return Error(document.component, document.code, document.call_id, xml)


_PROLOG = re.compile(rb"(?>\xef\xbb\xbf)?(?>[ \t\r\n]+|<\?.*?\?>|<!--.*?-->)*+<!", re.DOTALL)


def _forbids(xml: bytes) -> str:
    """Why a document is refused before it is parsed; empty when it is not.

    A DOCTYPE can stand only in front of the root. Names cannot be hidden behind character references, and the
    parser takes every document as UTF-8, so bytes can be looked for.
    """
    if b"<!" in xml and _PROLOG.match(xml):
        return "a document must have no DOCTYPE"
    if b"chemaLocation" in xml and _points_elsewhere(xml):
        return "a document must not refer to other documents"
    return ""


def _points_elsewhere(xml: bytes) -> bool:
    """Whether an attribute asks the validator to load another schema."""
    from lxml import etree

    try:
        root = etree.fromstring(xml, _parser())
    except etree.XMLSyntaxError:
        return False
    return any(
        str(name).endswith("chemaLocation") and str(name).startswith("{")
        for each in root.iter()
        for name in each.attrib
    )


def _local(root: etree._Element) -> str:
    return str(root.tag).removeprefix(f"{{{NAMESPACE}}}")


def _text_of(root: etree._Element, name: str) -> str:
    return next((child.text or "" for child in root if _local(child) == name), "")


def _call_id(root: etree._Element) -> str | None:
    text = _text_of(root, "CallId")
    return text if re.fullmatch(_GUID, text) else None


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def check_available() -> None:
    """Raise ConfigError, with what to install, where XML cannot be read; the schemas are loaded by the way."""
    _parser()
    _schema(named=True)


def _parser() -> etree.XMLParser:
    """The parser of this thread."""
    kept: etree.XMLParser | None = getattr(_OWN, "parser", None)
    if kept is None:
        kept = _OWN.parser = _new_parser()
    return kept


def _new_parser() -> etree.XMLParser:
    try:
        from lxml import etree
    except ImportError:
        raise ConfigError(
            "wolpertinger needs the package 'lxml' to read XML: pip install 'wireloom[wolpertinger]'"
        ) from None
    return etree.XMLParser(
        encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )


def _schema(*, named: bool) -> etree.XMLSchema:
    """The schema of this thread: its log of errors is part of it."""
    name = "protocol-namespace.xsd" if named else "protocol.xsd"
    kept: etree.XMLSchema | None = getattr(_OWN, name, None)
    if kept is None:
        from lxml import etree

        kept = etree.XMLSchema(file=str(Path(__file__).with_name(name)))
        setattr(_OWN, name, kept)
    return kept
