"""What documents mean as messages, and back.

A call is a request for the topic `Component.Method` whose body is a JSON list of its parameters; a response's body is
the value as JSON. Types stand in `attributes["types"]`, what else layer 1 said beside them. `attributes["xml"]` is
the document itself where writing the message anew would say it in another way.

With the hub profile on, the component `Hub` is special (see docs/hub-profile.md): `Subscribe`, `Unsubscribe`,
`Provide` and `Withdraw` take a topic, `Login` a token; `Publish`, `Event` and `Request` take topic, content type and
body, and carry what has no component and method of its own. A call of `Hub` that does not fit this is a call like any
other.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from wireloom.model import Authenticity, Direction, Kind, Message, NotSupported, message_of, type_of_json
from wireloom.protocols.contract import HUB_PREFIX, LOGIN, PUBLISH
from wireloom.protocols.wolpertinger import layer2, values
from wireloom.protocols.wolpertinger.frames import Confirmation, Data, decode_base64
from wireloom.protocols.wolpertinger.layer2 import Document, Error, RemoteMethodCall, Response
from wireloom.protocols.wolpertinger.refusal import ERROR_TEXTS, ErrorCode, Refused
from wireloom.protocols.wolpertinger.values import Value, json_bytes

NAME = "wolpertinger"
JSON = "application/json"
HEARTBEAT = "Core.Heartbeat"
HUB = "Hub"
BASE64 = "base64"
OPERATIONS = {name: HUB_PREFIX + name.lower() for name in ("Subscribe", "Unsubscribe", "Provide", "Withdraw")}
_METHODS = {topic: name for name, topic in OPERATIONS.items()}
SIGN_IN = "Login"
CARRIERS = ("Publish", "Event", "Request")
"""Methods of `Hub` that take topic, content type and body."""
# Looking up a member of an enum costs as much as a call, and these are needed for every message.
_REQUEST, _RESPONSE, _EVENT, _ERROR = Kind.REQUEST, Kind.RESPONSE, Kind.EVENT, Kind.ERROR
_ACK, _NOBODY = Kind.ACK, Authenticity.NONE
_PLAIN = Data(0, b"")[2:]
_SAFE = frozenset(values.SCALARS)
FOREIGN = "metadata."
"""Attributes of keys that the specification does not define begin with this."""
NO_RESPONSE = "none"
"""`attributes["response"]` of a call of a method without response value, and of its answer."""

_TOPIC = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")

_STATUSES = {
    "400": ErrorCode.INVALID_PARAMETERS,
    "401": ErrorCode.NOT_AUTHORISED,
    "403": ErrorCode.NOT_AUTHORISED,
    "404": ErrorCode.COMPONENT_NOT_FOUND,
    "501": ErrorCode.REQUEST,
}
"""Error codes for what the hub and other protocols call a failure; anything else is unspecified."""


class TypedBody(bytes):
    """The body of a call or a response together with its values, so that nobody need read its JSON again."""

    values: tuple[Value, ...]

    @classmethod
    def of(cls, text: str, values: tuple[Value, ...]) -> TypedBody:
        """A body from its JSON text."""
        body = cls(json_bytes(text))
        body.values = values
        return body


def parameters_text(given: tuple[Value, ...]) -> str:
    """Parameters as the JSON text of a list."""
    if len(given) == 1:
        return f"[{values.json_text(given[0])}]"
    return f"[{','.join(map(values.json_text, given))}]"


def typed_parameters(given: tuple[Value, ...]) -> TypedBody:
    """Parameters as the body of a request."""
    return TypedBody.of(parameters_text(given), given)


def typed_value(value: Value) -> TypedBody:
    """A value as the body of a response."""
    return TypedBody.of(values.json_text(value), (value,))


# Reading


def of_confirmation(frame: Confirmation, direction: Direction | None) -> Message:
    """A delivery confirmation: an ack of a message_id, with its result code as status."""
    attributes = {FOREIGN + key: value for key, value in frame.others}
    return message_of(
        (_ACK, None, b"", None, str(frame.message_id), str(frame.result), None, attributes,
         NAME, None, None, direction, _NOBODY)
    )  # fmt: skip


def of_sealed(whole: Data, wire: int, direction: Direction | None) -> Message:
    """An encrypted message whose key is not known: its body is what was encrypted."""
    try:
        body = decode_base64(whole.payload)
    except ValueError as error:
        raise Refused("wolpertinger.payload.base64", str(error), message_id=whole.message_id) from None
    attributes = _metadata(whole, wire)
    return Message(Kind.OTHER, None, body, None, None, None, None, attributes, NAME, None, None, direction)


def of_document(
    document: Document, whole: Data, wire: int, direction: Direction | None, *, profile: bool, typed: bool = False
) -> Message:
    """What a document means; `typed`: its body keeps the values beside their JSON."""
    attributes = _metadata(whole, wire)
    if document.xml is not None:
        attributes["xml"] = document.xml.decode()
    if isinstance(document, RemoteMethodCall):
        return _of_call(document, attributes, direction, profile, typed)
    attributes["component"] = document.component
    if isinstance(document, Response):
        body: bytes = b""
        content_type, value = None, document.value
        if value is not None:
            body, content_type = typed_value(value) if typed else json_bytes(values.json_text(value)), JSON
            attributes["types"] = values.signature((value,))
        return message_of(
            (_RESPONSE, None, body, None, document.call_id, "done", content_type, attributes,
             NAME, None, None, direction, _NOBODY)
        )  # fmt: skip
    return Message(
        Kind.ERROR, None, b"", None, document.call_id, str(document.code), None, attributes, NAME, None, None, direction
    )


class Called(NamedTuple):
    """What the names of a component and a method tell."""

    component: str
    """In lower case: components' names are compared without it."""
    topic: str
    ambiguous: bool
    """Whether the topic alone does not tell component from method."""


@lru_cache(maxsize=4096)
def called(component: str, method: str) -> Called:
    """The same for calls of one method, of which there are many."""
    topic = f"{component}.{method}"
    return Called(component.lower(), topic, "." in method or not _is_method(topic))


def _of_call(
    call: RemoteMethodCall, attributes: dict[str, str], direction: Direction | None, profile: bool, typed: bool
) -> Message:
    parameters = call.parameters
    component, topic, ambiguous = called(call.component, call.method)
    if profile and component == "hub":
        special = _of_hub_call(call, attributes, direction)
        if special is not None:
            return special
    attributes["types"] = values.signature(parameters)
    if ambiguous:
        attributes["component"] = call.component
    if component == "core" and is_heartbeat(call):
        return Message(
            Kind.PROGRESS, topic, b"", call.call_id, None, "progress", None, attributes, NAME, None, None, direction
        )
    body = typed_parameters(parameters) if typed else json_bytes(parameters_text(parameters))
    return message_of(
        (_REQUEST, topic, body, call.call_id, None, None, JSON, attributes, NAME, None, None, direction, _NOBODY)
    )


def _is_method(topic: str) -> bool:
    """Whether a topic reads as `Component.Method`, so that both can be told from it."""
    return _TOPIC.fullmatch(topic) is not None


def is_heartbeat(call: RemoteMethodCall) -> bool:
    """Whether this is `Core.Heartbeat`: no parameters, and the component's name in any case."""
    return call.method == "Heartbeat" and not call.parameters and call.component.lower() == "core"


def _of_hub_call(call: RemoteMethodCall, attributes: dict[str, str], direction: Direction | None) -> Message | None:
    texts = [each.data for each in call.parameters if each.type == "string" and isinstance(each.data, str)]
    content_type: str | None
    if len(texts) != len(call.parameters) or not texts or not texts[0]:
        return None
    if call.method in OPERATIONS:
        options = _options(texts)
        if options is None:
            return None
        kind, topic, content_type = Kind.REQUEST, OPERATIONS[call.method], JSON
        body = values.dumps(options)
    elif call.method == SIGN_IN and len(texts) == 1:
        kind, topic, content_type = Kind.REQUEST, LOGIN, JSON
        body = values.dumps({"token": texts[0]})
    elif call.method in CARRIERS:
        carried = open_carried(texts[1:])
        if carried is None:
            return None
        body, content_type = carried
        kind = Kind.EVENT if call.method == "Event" else Kind.REQUEST
        topic = PUBLISH + texts[0] if call.method == "Publish" else texts[0]
        attributes["component"] = call.component
        if topic in _METHODS or (topic.startswith(HUB_PREFIX) and call.method == "Request"):
            return None
    else:
        return None
    message = Message(
        kind, topic, body, call.call_id, None, None, content_type, attributes, NAME, None, None, direction
    )
    try:
        same = _to_call(message, profile=True) == call
    except NotSupported:
        return None  # such as a publish of what only the hub itself may say
    if not same and "xml" not in attributes:
        attributes["xml"] = layer2.write(call).decode()
    return message


def is_login(call: RemoteMethodCall) -> bool:
    """Whether a call of the hub profile shows a token."""
    return call.method == SIGN_IN and call.component.lower() == "hub"


def starred(call: RemoteMethodCall) -> RemoteMethodCall:
    """The same call with stars for the texts it was given.

    >>> starred(RemoteMethodCall("Hub", "1", "Login", (Value("string", "secret"),))).parameters[0].data
    '******'
    """
    hidden = tuple([Value("string", "*" * len(str(each.data))) for each in call.parameters])
    return RemoteMethodCall(call.component, call.call_id, call.method, hidden)


def _options(texts: list[str]) -> dict[str, type_of_json] | None:
    """The JSON body of an operation: the topic, and what else is asked for."""
    if len(texts) == 1:
        return {"topic": texts[0]}
    try:
        more = json.loads(texts[1])
    except (ValueError, RecursionError):
        return None
    if len(texts) != 2 or not isinstance(more, dict) or "topic" in more:
        return None
    return {"topic": texts[0], **more}


def open_carried(texts: list[str]) -> tuple[bytes, str | None] | None:
    """Body and content type from content type, body and, if it is not text, the word base64."""
    if len(texts) == 2:
        return texts[1].encode(), texts[0] or None
    if len(texts) == 3 and texts[2] == BASE64:
        try:
            return decode_base64(texts[1].encode()), texts[0] or None
        except ValueError:
            return None
    return None


def carry(body: bytes, content_type: str | None) -> list[str]:
    """Content type and body as texts; the inverse of `open_carried`.

    >>> carry(b"hi", "text/plain"), carry(b"\\xff", None)
    (['text/plain', 'hi'], ['', '/w==', 'base64'])
    """
    text = _text(body)
    return [content_type or "", base64.b64encode(body).decode(), BASE64] if text is None else [content_type or "", text]


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if values.NOT_XML.search(text) else text


def _metadata(whole: Data, wire: int) -> dict[str, str]:
    attributes = {"message_id": str(whole.message_id)}
    if whole[2:] == _PLAIN:
        return attributes
    if whole.gzip is not None:
        attributes["gzip"] = str(whole.gzip)
    if whole.encryption is not None:
        attributes["encryption"] = whole.encryption
    if whole.fragment_count is not None:
        attributes["fragment_count"] = str(whole.fragment_count)
        attributes["wire_size"] = str(wire)
    for key, value in whole.others:
        attributes[FOREIGN + key] = value
    return attributes


# Writing


def to_document(message: Message, *, profile: bool) -> Document:
    """The document that says this; raises NotSupported where wolpertinger has no word for it."""
    kept = message.attributes.get("xml")
    if kept is not None:
        document = _kept(message, kept, profile)
        if document is not None:
            return document
    kind = message.kind
    if kind is _REQUEST or kind is _EVENT:
        return _to_call(message, profile)
    if kind is _RESPONSE:
        call_id = _guid(message.correlation_id, "correlation_id")
        return Response(component_of(message), call_id, response_value(message))
    if kind is _ERROR:
        caused = None if message.correlation_id is None else _guid(message.correlation_id, "correlation_id")
        return Error(component_of(message), error_code(message), caused)
    if kind is Kind.PROGRESS:
        return RemoteMethodCall("Core", _guid(message.id, "id"), "Heartbeat")
    raise NotSupported(f"wolpertinger has no document for a message of kind {kind}")


def _kept(message: Message, xml: str, profile: bool) -> Document | None:
    """The document a message came in, if the message still says the same."""
    try:
        document = layer2.parse(xml.encode())
        again = of_document(document, Data(0, b""), 0, message.direction, profile=profile)
    except (Refused, UnicodeEncodeError):
        return None
    same = ("kind", "topic", "body", "id", "correlation_id", "status")
    if any(getattr(again, name) != getattr(message, name) for name in same):
        return None
    return document


def _to_call(message: Message, profile: bool) -> RemoteMethodCall:
    topic, call_id = message.topic or "", _guid(message.id, "id")
    if not topic:
        raise NotSupported("a wolpertinger call needs a topic, such as Component.Method")
    if values.NOT_XML.search(topic):
        raise NotSupported(f"XML cannot hold the topic {topic!r}")
    if profile and (message.kind is _EVENT or topic.startswith(HUB_PREFIX)):
        if topic in _METHODS:
            return RemoteMethodCall(HUB, call_id, _METHODS[topic], _operands(message))
        if topic == LOGIN and message.kind is Kind.REQUEST:
            return RemoteMethodCall(HUB, call_id, SIGN_IN, (_token(message),))
        method = "Event" if message.kind is Kind.EVENT else "Publish"
        name = topic if message.kind is Kind.EVENT else topic.removeprefix(PUBLISH)
        if not name or (name.startswith(HUB_PREFIX) and (method == "Publish" or name in _METHODS)):
            raise NotSupported(f"wolpertinger has no call for {topic!r}")
        return RemoteMethodCall(HUB, call_id, method, _carrying(name, message))
    if message.kind is _EVENT:
        raise NotSupported("wolpertinger has no events; the hub profile (`profile`) carries them as calls of Hub.Event")
    component = message.attributes.get("component")
    if component is not None and topic.startswith(component + "."):
        return RemoteMethodCall(component, call_id, topic.removeprefix(component + "."), parameters(message))
    if component is None and _is_method(topic):
        component, _, method = topic.rpartition(".")
        return RemoteMethodCall(component, call_id, method, parameters(message))
    if profile:
        return RemoteMethodCall(HUB, call_id, "Request", _carrying(topic, message))
    component, dot, method = topic.rpartition(".")
    if not dot:
        raise NotSupported(f"a wolpertinger call needs a topic such as Component.Method, not {topic!r}")
    return RemoteMethodCall(component, call_id, method, parameters(message))


def _operands(message: Message) -> tuple[Value, ...]:
    try:
        body = json.loads(message.body)
        topic = body.pop("topic")
    except (ValueError, AttributeError, KeyError, RecursionError):
        raise NotSupported(f'{message.topic} needs a JSON body such as {{"topic": "sensors/#"}}') from None
    texts = [topic] if not body else [topic, values.dumps(body).decode()]
    if not topic or any(not isinstance(each, str) or values.NOT_XML.search(each) for each in texts):
        raise NotSupported(f"XML cannot hold the body of {message.topic}")
    return tuple([Value("string", each) for each in texts])


def _token(message: Message) -> Value:
    try:
        token = json.loads(message.body)["token"]
    except (ValueError, TypeError, KeyError, RecursionError):
        token = None
    if not isinstance(token, str) or not token or values.NOT_XML.search(token):
        raise NotSupported(f'{LOGIN} needs a JSON body such as {{"token": "..."}}')
    return Value("string", token)


def _carrying(topic: str, message: Message) -> tuple[Value, ...]:
    texts = [topic, *carry(message.body, message.content_type)]
    if any(values.NOT_XML.search(each) for each in texts):
        raise NotSupported(f"XML cannot hold the topic or the content type of {topic!r}")
    return tuple([Value("string", each) for each in texts])


def component_of(message: Message) -> str:
    """The component an answer is of: as it was named, or the first part of the topic."""
    named = message.attributes.get("component")
    name = (message.topic or "").rpartition(".")[0] if named is None else named
    return "" if values.NOT_XML.search(name) else name


def error_code(message: Message) -> int:
    """The code of a RemoteError. A status that comes with a text of its own is the hub's or another protocol's.

    >>> error_code(Message(Kind.ERROR, status="502")), error_code(Message(Kind.ERROR, body=b"no", status="404"))
    (502, 304)
    """
    status = message.status or ""
    if message.body and message.body != text_of(status):
        known = _STATUSES.get(status)
        if known is not None:
            return int(known)
        if not status.isdecimal() or status.startswith("5"):
            return int(ErrorCode.UNSPECIFIED)
    number = status.removeprefix("-")
    if not (number.isascii() and number.isdecimal() and len(number) < 11 and -(2**31) <= int(status) < 2**31):
        return int(ErrorCode.UNSPECIFIED)
    return int(status)


def text_of(status: str) -> bytes:
    """What an error code means; nothing for a code that is not known."""
    return ERROR_TEXTS.get(status, "").encode()


def with_text(error: Message) -> Message:
    """An error as its caller gets it: with the meaning of its code.

    >>> with_text(Message(Kind.ERROR, status="305")).body
    b'invalid parameters'
    """
    text = text_of(error.status or "")
    return error.with_(body=text, content_type="text/plain") if text else error


def parameters(message: Message) -> tuple[Value, ...]:
    """The parameters a request's body stands for: those of a JSON list, else the body itself."""
    if isinstance(message.body, TypedBody):
        return message.body.values
    found = _json(message)
    if found is None:
        return () if not message.body or _is_null(message) else (_opaque(message.body),)
    data = found if isinstance(found, list) else [found]
    types = message.attributes.get("types")
    if types is not None:
        try:
            kinds = values.parse_signature(types)
            typed = tuple([values.of_json(each, kind) for each, kind in zip(data, kinds, strict=True)])
            _check(typed)
            return typed
        except ValueError:
            pass
    return tuple([_natural(each) for each in data])


def response_value(message: Message) -> Value | None:
    """The value a response's body stands for; None when there is no body."""
    if isinstance(message.body, TypedBody) and len(message.body.values) == 1:
        return message.body.values[0]
    found = _json(message)
    if found is None:
        return None if not message.body or _is_null(message) else _opaque(message.body)
    types = message.attributes.get("types")
    if types is not None:
        try:
            (kind,) = values.parse_signature(types)
            typed = values.of_json(found, kind)
            _check((typed,))
            return typed
        except ValueError:
            pass
    return _natural(found)


def _check(typed: tuple[Value, ...]) -> None:
    try:
        for each in typed:
            if each.type not in _SAFE:
                layer2.check_structured(each)
    except NotSupported as error:
        raise ValueError(str(error)) from None


def _json(message: Message) -> object:
    """The JSON value of a body; None where it is none, or null."""
    if not message.body or message.content_type is None or "json" not in message.content_type:
        return None
    try:
        return json.loads(message.body)
    except (ValueError, RecursionError):
        return None


def _is_null(message: Message) -> bool:
    return message.body.strip() == b"null" and "json" in (message.content_type or "")


def _natural(data: object) -> Value:
    """A value for JSON that came without types; what no type fits is sent as its JSON text."""
    try:
        return values.from_json(data)
    except ValueError:
        return Value("string", json.dumps(data))


def _opaque(body: bytes) -> Value:
    text = _text(body)
    return Value("string", base64.b64encode(body).decode() if text is None else text)


def _guid(text: str | None, what: str) -> str:
    if text is None or not values.is_guid(text):
        raise NotSupported(f"{what} of a wolpertinger message is a GUID with hyphens, not {text!r}")
    return text


def foreign(attributes: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Metadata that other keys than ours carried."""
    return tuple([(key[len(FOREIGN) :], value) for key, value in attributes.items() if key.startswith(FOREIGN)])


# Answers, for those who know the call


def answer(component: str, call_id: str, message: Message, *, carried: bool) -> Document:
    """The document that answers a call of the peer; `carried` if it is one of `is_carried`."""
    if message.kind is _ERROR:
        code = error_code(message)
        return Error("" if code == ErrorCode.COMPONENT_NOT_FOUND else component, code, call_id)
    if carried:
        texts = carry(message.body, message.content_type)
        return Response(component, call_id, Value("list", tuple([Value("string", each) for each in texts])))
    return Response(component, call_id, response_value(message))


def is_carried(call: RemoteMethodCall, *, profile: bool) -> bool:
    """Whether a call carries a request for a topic that has no component and method of its own."""
    return profile and call.method == "Request" and call.component.lower() == "hub"


def open_answer(message: Message, document: Document) -> Message:
    """The answer to a carried request: body and content type as they were carried back."""
    if isinstance(document, Response) and document.value is not None and isinstance(document.value.data, tuple):
        texts = [str(each.data) for each in document.value.data if each.type == "string"]
        carried = open_carried(texts) if len(texts) == len(document.value.data) else None
        if carried is not None:
            return message.with_(body=carried[0], content_type=carried[1])
    return message
