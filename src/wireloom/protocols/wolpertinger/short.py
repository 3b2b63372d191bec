"""Small plain calls and responses, from a line to a document in a few steps.

Gives what `frames`, `layer1` and `layer2` give, or None where a line is not of that sort: then these are asked.
"""

from __future__ import annotations

from binascii import a2b_base64

from wireloom.protocols.wolpertinger import layer2
from wireloom.protocols.wolpertinger.frames import MAX_ID
from wireloom.protocols.wolpertinger.layer2 import Document

SHORT = 4096
"""Bytes of a line that is still short."""
_HEAD = b"message_id:"
_BEGIN = len(_HEAD)


def read_line(line: bytes) -> tuple[int, Document] | None:
    """The id and the document of a line without its newline; None where the long way must be gone.

    >>> from wireloom.protocols.wolpertinger.layer2 import Response
    >>> from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
    >>> from wireloom.protocols.wolpertinger.transmission import encode
    >>> from wireloom.protocols.wolpertinger.values import Value
    >>> answer = Response("Core", "00000000-0000-4000-8000-000000000000", Value("boolean", True))
    >>> (line,) = encode(answer, 7, WolpertingerSettings(), None)
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
