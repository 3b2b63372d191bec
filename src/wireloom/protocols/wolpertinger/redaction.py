"""Credentials as records may keep them: stars.

A proof is salted with a token and still lets its reader guess passwords at leisure, and a record of an encrypted
connection can be read by whoever has the keys beside it. So wherever the conversation is recorded, a call that carries
a proof, or the hub profile's token, stands there with stars in its place; and so do lines that are refused, or cut off
before they became such a call.
"""

from __future__ import annotations

import binascii
import re
import zlib

from wireloom.protocols.wolpertinger import messages
from wireloom.protocols.wolpertinger.keys import BLOCK, Cipher
from wireloom.protocols.wolpertinger.layer2 import Document, RemoteMethodCall

_PROOFS = ("clusterauthverify", "userauthverify")
_CONFIDED = ("authentication", "hub")
"""Components that are told credentials."""
_TELLING = frozenset(name.encode() for name in (*_PROOFS, messages.SIGN_IN.lower()))
"""Methods that are told them."""


def blanked(document: Document, *, profile: bool) -> RemoteMethodCall | None:
    """The same call without its credentials; None for what carries none.

    >>> from wireloom.protocols.wolpertinger.values import Value
    >>> call = RemoteMethodCall("Authentication", "", "UserAuthVerify", (Value("string", "ada"), Value("string", "x")))
    >>> blanked(call, profile=False).parameters
    (Value(type='string', data='ada'), Value(type='string', data='*'))
    """
    if not isinstance(document, RemoteMethodCall):
        return None
    component = messages.called(document.component, document.method).component
    if component not in _CONFIDED:
        return None
    if profile and messages.is_login(document):
        return messages.starred(document)
    if component != "authentication" or document.method.lower() not in _PROOFS:
        return None
    hidden, given = messages.starred(document), document.parameters
    if len(given) < 2:
        return hidden
    # The name of the user is no secret; whatever else stands there may be one.
    return RemoteMethodCall(hidden.component, hidden.call_id, hidden.method, given[:1] + hidden.parameters[1:])


# Lines that did not become a message

_LINE = re.compile(rb"((?:[^:;\n]*:[^;\n]*;)+)([^;\n]*)(\n?)")
_NUMBERS = {name: re.compile(rb"(?i)(?:^|;)%b:([0-9]{1,10});" % name) for name in (b"message_id", b"fragment_index")}
_GZIP = re.compile(rb"(?i)(?:^|;)gzip:")
_AES = re.compile(rb"(?i)(?:^|;)(?:encryption|secure):")
_METHOD = re.compile(rb"<(?:[\w.-]+:)?MethodName\b[^<>]*>\s*([^<]*?)\s*<")
_ANSWER = re.compile(rb"<(?:[\w.-]+:)?Remote(?:MethodResponse|Error)\b")
_ENOUGH = 64 * 1024
"""Bytes of a document in which its method has been named."""


def starred_lines(data: bytes, cipher: Cipher | None) -> bytes:
    """Lines, whole or cut off, with stars for the payloads that hold credentials, or may hold them.

    A call names its method before its parameters. So pieces that follow from the first on are read as far as they go;
    if they name no method, those that do not follow may hold anything.

    >>> starred_lines(b"message_id:1;" + binascii.b2a_base64(b"<MethodName>Login</MethodName><Param"), None)[:20]
    b'message_id:1;*******'
    """
    pieces: dict[int, list[re.Match[bytes]]] = {}
    for line in _LINE.finditer(data):
        number = _NUMBERS[b"message_id"].search(line[1])
        if number is not None:
            pieces.setdefault(int(number[1]), []).append(line)
    hidden = sorted(line.span(2) for lines in pieces.values() for line in _confidential(lines, cipher))
    if not hidden:
        return data
    out, last = [], 0
    for start, end in hidden:
        out += [data[last:start], b"*" * (end - start)]
        last = end
    return b"".join([*out, data[last:]])


def _confidential(lines: list[re.Match[bytes]], cipher: Cipher | None) -> list[re.Match[bytes]]:
    """Those lines of one message that must not be shown."""
    found: dict[int, re.Match[bytes]] = {}
    for line in lines:
        index = _NUMBERS[b"fragment_index"].search(line[1])
        found.setdefault(0 if index is None else int(index[1]), line)
    following = 0
    while following in found:
        following += 1
    head = _opened([found[index] for index in range(following)], cipher) if following else b""
    if _ANSWER.search(head):
        return []
    method = _METHOD.search(head)
    if method is not None:
        return lines if method[1].lower() in _TELLING else []
    shown = {found[index].span() for index in range(following)}
    return [] if len(found) == following else [line for line in lines if line.span() not in shown]


def _opened(lines: list[re.Match[bytes]], cipher: Cipher | None) -> bytes:
    """The beginning of the document in these pieces; empty where it cannot be read."""
    head = lines[0][1]
    payload = b"".join([line[2] for line in lines])[: 2 * _ENOUGH]
    try:
        data = binascii.a2b_base64(payload[: len(payload) // 4 * 4])
        if _AES.search(head):
            data = b"" if cipher is None else cipher.open(data[: len(data) // BLOCK * BLOCK])[0]
        return zlib.decompressobj(31).decompress(data, _ENOUGH) if _GZIP.search(head) else data[:_ENOUGH]
    except (ValueError, zlib.error):
        return b""
