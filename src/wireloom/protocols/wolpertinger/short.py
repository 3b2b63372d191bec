"""The short way: small plain calls and responses, from a line to a document and back in a few steps.

Gives what `frames`, `layer1` and `layer2` give, or nothing where a message is not of that sort: then these are asked.
"""

from __future__ import annotations

from binascii import a2b_base64
from functools import lru_cache

from wireloom.protocols.contract import HUB_PREFIX
from wireloom.protocols.wolpertinger import layer2
from wireloom.protocols.wolpertinger.frames import MAX_ID
from wireloom.protocols.wolpertinger.layer2 import Call, Document, Response
from wireloom.protocols.wolpertinger.values import NOT_XML, Value

SHORT = 4096
"""Bytes of a line, or of a body, that are still short."""
_HEAD = b"message_id:"
_BEGIN = len(_HEAD)
_MARK = "00000000-0000-4000-8000-000000000000"
_CONFIDED = ("authentication", "hub")
"""Components whose calls may carry credentials, or something else than they say."""


def read_line(line: bytes) -> tuple[int, Document] | None:
    """The id and the document of a line without its newline; None where the long way must be gone.

    >>> from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
    >>> from wireloom.protocols.wolpertinger.transmission import encode
    >>> (line,) = encode(Response("Core", _MARK, Value("boolean", True)), 7, WolpertingerSettings(), None)
    >>> number, document = read_line(line[:-1])
    >>> number, document.value
    (7, Value(type='boolean', data=True))
    """
    if not line.startswith(_HEAD):
        return None
    end = line.find(b";", _BEGIN)
    digits, payload = line[_BEGIN:end], line[end + 1 :]
    if not digits.isdigit() or len(digits) > 10 or len(payload) % 4:
        return None
    try:
        document = layer2.parse_simple(a2b_base64(payload, strict_mode=True).decode("ascii"))
    except ValueError:
        return None
    number = int(digits)
    return None if document is None or number > MAX_ID else (number, document)


@lru_cache(maxsize=1024)
def _around_call(topic: str, component: str | None) -> tuple[str, str, str] | None:
    """What stands before the CallId, between that and the parameters, and after them."""
    if component is None or not topic.startswith(component + ".") or NOT_XML.search(topic):
        return None
    if component.lower() in _CONFIDED or topic.startswith(HUB_PREFIX) or _MARK in topic:
        return None
    method = topic[len(component) + 1 :]
    text = layer2.write(Call(component, _MARK, method, (Value("string", _MARK),))).decode()
    before, between, after = text.split(_MARK)
    opening, closing = layer2.write_value(Value("string", _MARK)).split(_MARK)
    return before, between.removesuffix(opening), after.removeprefix(closing)


def write_call(topic: str, component: str | None, call_id: str, parameters: tuple[Value, ...]) -> bytes | None:
    """A call as XML; None for what is more than a call of a method of a component."""
    around = _around_call(topic, component)
    if around is None:
        return None
    before, between, after = around
    inside = layer2.write_value(parameters[0]) if len(parameters) == 1 else "".join(map(layer2.write_value, parameters))
    return f"{before}{call_id}{between}{inside}{after}".encode()


@lru_cache(maxsize=1024)
def _around_response(component: str) -> tuple[str, str, str] | None:
    if _MARK in component:
        return None
    before, between, after = layer2.write(Response(component, _MARK, Value("string", _MARK))).decode().split(_MARK)
    opening, closing = layer2.write_value(Value("string", _MARK)).split(_MARK)
    return before, between.removesuffix(opening), after.removeprefix(closing)


def write_response(component: str, call_id: str, value: Value) -> bytes | None:
    """A response as XML; None where its component has too odd a name."""
    around = _around_response(component)
    if around is None:
        return None
    before, between, after = around
    return f"{before}{call_id}{between}{layer2.write_value(value)}{after}".encode()
