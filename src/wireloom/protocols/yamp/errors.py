"""The code of a failed request, which a yamp response of type error has no field for.

Part of the hub profile: where bodies are plain values (json, msgpack, cbor, bson) an error with a code is the object
`{"code": "404", "reason": "nobody provides 'x'"}`. A peer that knows nothing of this still gets code and reason, in the
serializer it agreed on; an error without a code travels as it is.
"""

from __future__ import annotations

import base64
import binascii

from wireloom.formats import body_formats
from wireloom.model import Kind, Message, WireloomError

CODE, REASON, ENCODED = "code", "reason", "reason_base64"
ERROR = "error"
NO_CODE = frozenset((None, "", ERROR))
"""Statuses that say no more than the type of the response does."""
LONGEST = 64 * 1024
"""Bytes of a body that is looked into: an error is short, and this happens on the event loop."""


def with_code(message: Message, agreed: str | None) -> Message:
    """An error as it goes on the wire of a connection with this content type; other messages as they are.

    >>> with_code(Message(Kind.ERROR, "x", b"no", status="404"), "application/json").body
    b'{"code":"404","reason":"no"}'
    """
    if message.kind is not Kind.ERROR:
        return message
    writer = body_formats.format_for(agreed)
    if message.status in NO_CODE or writer is None or writer.name not in body_formats.CONVERTIBLE:
        return message
    error = {CODE: message.status, **_reason(message, writer.name)}
    return message.with_(body=writer.dumps(error), content_type=agreed)


def _reason(message: Message, serializer: str) -> dict[str, object]:
    body = message.body
    if not body:
        return {}
    reader = body_formats.format_for(message.content_type)
    if reader is not None and reader.name in body_formats.CONVERTIBLE:
        try:
            return {REASON: reader.loads(body)}
        except WireloomError:
            pass
    try:
        return {REASON: body.decode()}
    except UnicodeDecodeError:
        return {ENCODED: base64.b64encode(body).decode()} if serializer == body_formats.DEFAULT else {REASON: body}


def status_of(body: bytes, content_type: str | None) -> str:
    """The status of an error with this body: its code, or `error` where it has none.

    >>> status_of(b'{"code":404}', "application/json"), status_of(b"404", "application/json")
    ('404', 'error')
    """
    return read_code(Message(Kind.ERROR, body=body, status=ERROR, content_type=content_type)).status or ERROR


def read_code(message: Message) -> Message:
    """An error as it came, with its code as status and its reason as body where it has them.

    >>> error = read_code(Message(Kind.ERROR, body=b'{"code":"404","reason":"no"}', content_type="application/json"))
    >>> error.status, error.body
    ('404', b'no')
    """
    reader = body_formats.format_for(message.content_type)
    if not message.body or len(message.body) > LONGEST or reader is None or reader.name not in body_formats.CONVERTIBLE:
        return message
    try:
        error = reader.loads(message.body)
        if not isinstance(error, dict) or not _is_code(error.get(CODE)):
            return message
        message = message.with_(status=str(error[CODE]))
        if not error.keys() <= {CODE, REASON, ENCODED}:
            return message  # not quite the form: whoever sent it knows what the rest means
        reason = error.get(REASON)
        if ENCODED in error:
            return message.with_(body=base64.b64decode(error[ENCODED], validate=True), content_type=None)
        if reason is None or isinstance(reason, bytes):
            return message.with_(body=reason or b"", content_type=None)
        if isinstance(reason, str):
            return message.with_(body=reason.encode(), content_type="text/plain")
        return message.with_(body=reader.dumps(reason))
    except (WireloomError, binascii.Error, TypeError, ValueError):
        return message


def _is_code(code: object) -> bool:
    return bool(code) and isinstance(code, str | int) and not isinstance(code, bool)
