"""A message as a line of JSON, and back: what `decode`, `encode`, `sub` and `journal cat` share.

The keys `kind`, `topic`, `id`, `correlation_id`, `status`, `attributes` are always there, as are `offset` and
`size` where the message stood somewhere; `body` is text where it is text, else `body_base64`. Others are
there when they say something.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence

from wireloom.escaping import visible
from wireloom.model import (
    Authenticity,
    ConfigError,
    Direction,
    Kind,
    Message,
    iso_time,
    parse_iso_time,
    type_of_json,
)

_TEXTS = ("topic", "id", "correlation_id", "status")
_OPTIONAL_TEXTS = ("content_type", "protocol", "connection")


def json_line(value: object, default: Callable[[object], str] | None = None) -> str:
    r"""A value as one line of JSON that any terminal can show; what it stands for is not changed by that.

    >>> print(json_line({"topic": "k\u00fcche\x9b"}), end="")
    {"topic": "k\u00fcche\u009b"}
    """
    return visible(json.dumps(value, ensure_ascii=False, default=default)) + "\n"


def message_to_json(message: Message, offset: int | None = None, size: int | None = None) -> dict[str, type_of_json]:
    """A message as a JSON object.

    >>> message_to_json(Message(Kind.EVENT, "a/b", b"hi"), 0, 9)
    ... # doctest: +NORMALIZE_WHITESPACE
    {'kind': 'event', 'topic': 'a/b', 'id': None, 'correlation_id': None, 'status': None, 'body': 'hi',
     'attributes': {}, 'offset': 0, 'size': 9}
    """
    line: dict[str, type_of_json] = {"kind": str(message.kind)}
    line.update({name: getattr(message, name) for name in _TEXTS})
    try:
        line["body"] = message.body.decode()
    except UnicodeDecodeError:
        line["body_base64"] = base64.b64encode(message.body).decode()
    line["attributes"] = dict(message.attributes)
    line.update({name: getattr(message, name) for name in _OPTIONAL_TEXTS if getattr(message, name)})
    if message.direction is not None:
        line["direction"] = str(message.direction)
    if message.time is not None:
        line["time"] = iso_time(message.time)
    if message.authenticity is not Authenticity.NONE:
        line["authenticity"] = str(message.authenticity)
    if offset is not None:
        line["offset"] = offset
    if size is not None:
        line["size"] = size
    return line


def message_from_json(line: Mapping[str, type_of_json]) -> Message:
    """The message a JSON object stands for: the inverse of `message_to_json`.

    >>> message_from_json({"kind": "event", "topic": "a/b", "body": "hi"}).body
    b'hi'
    >>> message_from_json({"kind": "evnt"})
    Traceback (most recent call last):
    wireloom.errors.ConfigError: kind is 'evnt'; it must be one of open, close, ...
    """

    def text(name: str) -> str | None:
        value = line.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}; it must be text")
        return value

    body = text("body")
    encoded = text("body_base64")
    try:
        content = (body or "").encode() if encoded is None else base64.b64decode(encoded, validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ConfigError(f"body cannot be turned into bytes: {error}") from None
    attributes = line.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise ConfigError(f"attributes is {attributes!r}; it must be an object")
    moment = text("time")
    try:
        time = None if moment is None else parse_iso_time(moment)
    except ValueError:
        raise ConfigError(f"time is {moment!r}; it must be RFC 3339 such as {iso_time(0)}") from None
    direction = text("direction")
    return Message(
        kind=Kind(_one_of("kind", text("kind"), list(Kind))),
        topic=text("topic"),
        body=content,
        id=text("id"),
        correlation_id=text("correlation_id"),
        status=text("status"),
        content_type=text("content_type"),
        attributes={str(name): str(value) for name, value in attributes.items()},
        protocol=text("protocol") or "",
        time=time,
        connection=text("connection"),
        direction=None if direction is None else Direction(_one_of("direction", direction, list(Direction))),
        authenticity=Authenticity(
            _one_of("authenticity", text("authenticity") or Authenticity.NONE, list(Authenticity))
        ),
    )


def _one_of(name: str, value: str | None, known: Sequence[str]) -> str:
    if value is None or value not in known:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    return value
