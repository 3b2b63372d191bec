"""What extension 129 holds: the context in which a message was sent, as a JSON object.

Its names are those of context attributes of CloudEvents, `traceparent` and `tracestate` of W3C Trace Context among
them. These two are attributes of the message as well (`TRACE`), so that other rooms need not know where they travel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from wireloom.protocols.contract import TRACE

EXTENSION = 129
_FORMS = {
    "traceparent": re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
    "tracestate": re.compile(r"[ -~]{1,512}"),
}


def trace_of(content: bytes) -> dict[str, str]:
    """The trace context in a block; whatever is not of its form is left out.

    >>> trace_of(b'{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": 7}')
    {'traceparent': '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'}
    >>> trace_of(b"no JSON")
    {}
    """
    found = _read(content)
    return {
        name: value for name in TRACE if isinstance(value := found.get(name), str) and _FORMS[name].fullmatch(value)
    }


def with_trace(content: bytes, attributes: Mapping[str, str]) -> bytes:
    """A block with the trace context that a message's attributes name; as it is if it says that already.

    >>> with_trace(b"", {"tracestate": "a=1"})
    b'{"tracestate":"a=1"}'
    """
    wanted = {name: attributes[name] for name in TRACE if name in attributes}
    if not wanted or wanted == trace_of(content):
        return content
    return json.dumps(_read(content) | wanted, separators=(",", ":")).encode()


def _read(content: bytes) -> dict[str, object]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
