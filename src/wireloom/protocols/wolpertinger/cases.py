"""What any wolpertinger peer must do: confirm what arrives, and answer calls. Both ends have the same duties.

The component that is called here exists nowhere, so that every call is answered with a RemoteError.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from wireloom.model import Kind, Message
from wireloom.protocols.cases import UNASKED, CaseSkipped, Level, Probe, require, single_bytes
from wireloom.protocols.wolpertinger.case_login import LoggedIn, metadata, next_id, pieces_of
from wireloom.protocols.wolpertinger.frames import Confirmation, Data, decode_base64, encode
from wireloom.protocols.wolpertinger.layer2 import RemoteMethodCall, write
from wireloom.protocols.wolpertinger.refusal import ErrorCode, ResultCode
from wireloom.protocols.wolpertinger.values import Value

CASES = LoggedIn()
COMPONENT = "WireloomConformance"
CONFIRMED = "delivery is confirmed"
ANSWERED = "a call of an unknown component gets a RemoteError"
REFUSED = "unknown encryption is refused"
_ANSWERS = (Kind.RESPONSE, Kind.ERROR, Kind.PROGRESS)
_BESIDE = (*UNASKED, *_ANSWERS)


def _call(
    probe: Probe, text: str = "hello", *, split: int = 30_500, compress: bool = False
) -> tuple[int, str, list[Data]]:
    """A call of a component that does not exist: message_id, CallId, and its pieces."""
    message_id, call_id = next_id(), str(uuid.uuid4())
    xml = write(RemoteMethodCall(COMPONENT, call_id, "Nothing", (Value("string", text),)))
    return message_id, call_id, pieces_of(probe, xml, message_id, split=split, compress=compress)


async def _send(probe: Probe, pieces: Sequence[Data]) -> None:
    await probe.send(b"".join(map(encode, pieces)))


async def _confirmation(probe: Probe, message_id: int) -> str:
    """The result code of the confirmation, which must be for that message."""
    found = await probe.expect(Kind.ACK, unasked=_BESIDE)
    require(found.correlation_id == str(message_id), f"the peer confirmed {found.correlation_id}, not {message_id}")
    return found.status or ""


async def _confirmed(probe: Probe, message_id: int) -> None:
    result = await _confirmation(probe, message_id)
    require(result == str(int(ResultCode.SUCCESS)), f"result {result} instead of 0 for a valid message")


async def _refused(probe: Probe, message_id: int, line: bytes) -> str:
    """A line that is not valid is confirmed with a result code other than 0; the next stands alone."""
    await probe.send(line)
    result = await _confirmation(probe, message_id)
    require(result != str(int(ResultCode.SUCCESS)), "result 0, success, for a message that is not valid")
    return result


@CASES.lives
async def alive(probe: Probe) -> None:
    """The peer still confirms what arrives."""
    message_id, _, pieces = _call(probe)
    await _send(probe, pieces)
    await _confirmed(probe, message_id)


async def _failed(probe: Probe, call_id: str) -> Message:
    """The RemoteError that answers a call."""
    while True:
        found = await probe.expect(Kind.ERROR, unasked=(*UNASKED, Kind.ACK, Kind.PROGRESS))
        if (found.correlation_id or "").lower() == call_id:
            return found


@CASES.both(CONFIRMED, "Each message received is confirmed with its message_id and result 0 (Layer 1)")
async def _delivery(probe: Probe) -> None:
    await alive(probe)


@CASES.both(ANSWERED, "It names the CallId of the call (RemoteError)", needs=CONFIRMED)
async def _unknown_component(probe: Probe) -> None:
    _, call_id, pieces = _call(probe)
    await _send(probe, pieces)
    await _failed(probe, call_id)


@CASES.both("its error code is 304", "304: component not found (decision)", Level.DECISION, needs=ANSWERED)
async def _code(probe: Probe) -> None:
    _, call_id, pieces = _call(probe)
    await _send(probe, pieces)
    code = (await _failed(probe, call_id)).status
    require(code == str(int(ErrorCode.COMPONENT_NOT_FOUND)), f"error code {code}")


@CASES.both(
    "a message that comes twice is confirmed twice",
    "It is confirmed again and not executed again (decision)",
    Level.DECISION,
    needs=ANSWERED,
)
async def _twice(probe: Probe) -> None:
    message_id, call_id, pieces = _call(probe)
    await _send(probe, pieces)
    await _failed(probe, call_id)
    await _send(probe, pieces)
    await _confirmed(probe, message_id)
    await probe.silent(Kind.ERROR, Kind.RESPONSE)


@CASES.both(
    "lines may come byte by byte",
    "A line is a message, however it arrives (plain stream, decision)",
    Level.DECISION,
    needs=CONFIRMED,
)
async def _bytes(probe: Probe) -> None:
    if probe.carries_messages:
        raise CaseSkipped("over this transport lines come whole")
    message_id, _, pieces = _call(probe)
    await probe.send(*single_bytes(encode(pieces[0])))
    await _confirmed(probe, message_id)


@CASES.both("several lines in one write are all confirmed", "Each message is confirmed (Layer 1)", needs=CONFIRMED)
async def _several(probe: Probe) -> None:
    calls = [_call(probe) for _ in range(4)]
    await _send(probe, [pieces[0] for _, _, pieces in calls])
    found = {(await probe.expect(Kind.ACK, unasked=_BESIDE)).correlation_id for _ in calls}
    require(found == {str(message_id) for message_id, _, _ in calls}, "the confirmations are not for the four messages")


@CASES.both(
    "pieces may come in any order",
    "Fragments have an index and make up one message (Message Splitting)",
    needs=ANSWERED,
)
async def _pieces(probe: Probe) -> None:
    message_id, call_id, pieces = _call(probe, "x" * 200, split=128)
    await _send(probe, [*pieces[1:], pieces[0]])
    await _confirmed(probe, message_id)
    await _failed(probe, call_id)


@CASES.both(
    "a split message is confirmed once",
    "One confirmation, when all pieces are there (Message Splitting)",
    needs=CONFIRMED,
)
async def _confirmed_once(probe: Probe) -> None:
    message_id, _, pieces = _call(probe, "x" * 200, split=128)
    await _send(probe, pieces[:-1])
    await probe.silent(Kind.ACK)
    await _send(probe, pieces[-1:])
    await _confirmed(probe, message_id)
    await probe.silent(Kind.ACK)


@CASES.both("compressed messages are read", "gzip gives the length after compression (Compression)", needs=ANSWERED)
async def _gzip(probe: Probe) -> None:
    _, call_id, pieces = _call(probe, "x" * 500, compress=True)
    await _send(probe, pieces)
    await _failed(probe, call_id)


@CASES.both(
    "metadata keys have any case and order",
    "Keys are compared without case, order is free (decision)",
    Level.DECISION,
    needs=CONFIRMED,
)
async def _keys(probe: Probe) -> None:
    message_id, _, pieces = _call(probe)
    await probe.send(metadata(probe) + b"MESSAGE_ID:%d;" % message_id + pieces[0].payload + b"\n")
    await _confirmed(probe, message_id)


@CASES.both("an unknown metadata key is ignored", "Other keys are ignored (decision)", Level.DECISION, needs=CONFIRMED)
async def _unknown_key(probe: Probe) -> None:
    message_id, _, pieces = _call(probe)
    await probe.send(b"message_id:%d;note:1;" % message_id + metadata(probe) + pieces[0].payload + b"\n")
    await _confirmed(probe, message_id)


@CASES.both("a key given twice is refused", "Such a message is invalid (decision)", Level.DECISION, needs=CONFIRMED)
async def _key_twice(probe: Probe) -> None:
    message_id, _, pieces = _call(probe)
    rest = metadata(probe) + pieces[0].payload
    await _refused(probe, message_id, b"message_id:%d;note:1;note:2;" % message_id + rest + b"\n")


@CASES.both("a payload that is not base64 is refused", "The payload is base64 (Layer 1)", needs=CONFIRMED)
async def _base64(probe: Probe) -> None:
    message_id = next_id()
    await _refused(probe, message_id, b"message_id:%d;" % message_id + metadata(probe) + b"this is not base64\n")


@CASES.both("data that is not GZIP is refused", "gzip says that the data is compressed (Compression)", needs=CONFIRMED)
async def _bad_gzip(probe: Probe) -> None:
    message_id, _, pieces = _call(probe)
    size = len(decode_base64(pieces[0].payload))
    await _refused(probe, message_id, encode(pieces[0]._replace(gzip=size)))


@CASES.both(
    "a piece beyond the count is refused", "fragment_index is below fragment_count (Message Splitting)", needs=CONFIRMED
)
async def _fragment(probe: Probe) -> None:
    message_id, _, pieces = _call(probe)
    await _refused(probe, message_id, encode(pieces[0]._replace(fragment_index=2, fragment_count=2)))


@CASES.both(REFUSED, "Only AES is supported (Encryption)", needs=CONFIRMED)
async def _encryption(probe: Probe) -> None:
    message_id, _, pieces = _call(probe)
    await _refused(probe, message_id, encode(pieces[0]._replace(encryption="rot13")))


@CASES.both("its result code is 4", "4: encryption (decision)", Level.DECISION, needs=REFUSED)
async def _encryption_code(probe: Probe) -> None:
    message_id, _, pieces = _call(probe)
    result = await _refused(probe, message_id, encode(pieces[0]._replace(encryption="rot13")))
    require(result == str(int(ResultCode.ENCRYPTION)), f"result code {result}")


@CASES.both(
    "a line without message_id gets no answer",
    "Without a usable id there is no reply (decision)",
    Level.DECISION,
    needs=CONFIRMED,
)
async def _no_id(probe: Probe) -> None:
    await probe.send(b"gzip:1;AAAA\n", b"nothing of the kind\n")
    await probe.silent(Kind.ACK, Kind.ERROR)
    await alive(probe)


@CASES.both("a confirmation is not confirmed", "Only messages are confirmed (Delivery Confirmation)", needs=CONFIRMED)
async def _confirmations(probe: Probe) -> None:
    await probe.send(encode(Confirmation(next_id(), 0)))
    await probe.silent(Kind.ACK)
    await alive(probe)


async def _document_refused(probe: Probe, xml: bytes) -> None:
    """A document that is not valid gets a result code other than 0, or RemoteError 301."""
    message_id = next_id()
    await _send(probe, pieces_of(probe, xml, message_id))
    found = await probe.expect(Kind.ACK, Kind.ERROR)
    if found.kind is Kind.ACK and found.status == str(int(ResultCode.SUCCESS)):
        found = await probe.expect(Kind.ERROR)
    if found.kind is Kind.ERROR:
        wanted = str(int(ErrorCode.INVALID_XML))
        require(found.status == wanted, f"error code {found.status} instead of {wanted}")


@CASES.both(
    "a document that is not XML is refused",
    "What cannot be validated gets RemoteError 301 (Message Types)",
    Level.SHOULD,
    needs=CONFIRMED,
)
async def _not_xml(probe: Probe) -> None:
    await _document_refused(probe, b"<RemoteMethodCall><ComponentName>")


@CASES.both(
    "a document of another schema is refused",
    "What cannot be validated gets RemoteError 301 (Message Types)",
    Level.SHOULD,
    needs=CONFIRMED,
)
async def _schema(probe: Probe) -> None:
    await _document_refused(probe, b"<RemoteMethodCall><MethodName>Nothing</MethodName></RemoteMethodCall>")


@CASES.both(
    "a document type definition is refused", "DTDs and entities are refused (decision)", Level.DECISION, needs=CONFIRMED
)
async def _entities(probe: Probe) -> None:
    xml = write(RemoteMethodCall(COMPONENT, str(uuid.uuid4()), "Nothing"))
    await _document_refused(probe, b'<!DOCTYPE a [<!ENTITY b "c">]>' + xml)
