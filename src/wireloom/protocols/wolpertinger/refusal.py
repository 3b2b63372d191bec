"""What is wrong with a message of the peer, and everything needed to tell it: result code, error code, ids.

The result codes are those of delivery confirmations (layer 1), the error codes those of a RemoteError (layer 2).
"""

from __future__ import annotations

from enum import IntEnum

from wireloom.model import ProtocolViolation

CLAUSES = {
    "wolpertinger.line.too-long": "A line holds one message, and messages have a limit (max_message)",
    "wolpertinger.metadata.form": "Metadata is <KEY>:<VALUE>; in front of the payload (Message Metadata)",
    "wolpertinger.metadata.twice": "A key given twice makes the message invalid (Decisions)",
    "wolpertinger.message-id.missing": "The message_id field is mandatory (Message Id)",
    "wolpertinger.message-id.range": "The id is an unsigned 32-bit integer (Message Id)",
    "wolpertinger.message-id.again": "What was received before is confirmed again, and that is all (Decisions)",
    "wolpertinger.result.form": "A confirmation is result:<RESULTCODE>;message_id:<MESSAGE_ID>; (Message Id)",
    "wolpertinger.payload.base64": "The message's payload is always base64-encoded (Payload)",
    "wolpertinger.gzip.length": "gzip gives the length of the data in bytes after compression (Compression)",
    "wolpertinger.gzip.data": "Messages can be compressed using GZip (Compression)",
    "wolpertinger.message.too-large": "The size of a message is limited (max_message)",
    "wolpertinger.encryption.unknown": "Only AES is supported (Encryption)",
    "wolpertinger.encryption.unreadable": "Whatever fails in an encrypted message gives the same answer (Decisions)",
    "wolpertinger.encryption.required": "Plain text at trust 2 or above: error 202, and a reset (Decisions)",
    "wolpertinger.fragment.form": "A piece has fragment_index, from 0, and fragment_count (Message Splitting)",
    "wolpertinger.fragment.differs": "All metadata is added to all message pieces (Message Splitting)",
    "wolpertinger.fragment.dropped": "Incomplete messages are dropped after 60 s (Decisions)",
    "wolpertinger.fragment.too-many": "The number of pieces is limited (max_fragments)",
    "wolpertinger.xml.forbidden": "DTDs, entities and external references are refused (Decisions)",
    "wolpertinger.xml.malformed": "Messages are XML in UTF-8 (Message Layer)",
    "wolpertinger.xml.invalid": "All messages need to conform to the schema (Message Types)",
    "wolpertinger.xml.unknown-message": "There are only 3 types of messages (Message Layer)",
    "wolpertinger.value.invalid": "A value is written as its type says (Decisions)",
    "wolpertinger.value.type": "The types of values are listed (Decisions)",
}
"""Every clause a violation can name, and the sentence behind it."""


class ResultCode(IntEnum):
    """What a delivery confirmation says."""

    SUCCESS = 0
    TIMEOUT = 1
    UNKNOWN = 2
    SPLITTING = 3
    ENCRYPTION = 4
    INVALID_FORMAT = 5


class ErrorCode(IntEnum):
    """What a RemoteError says. Other codes are accepted on receipt."""

    UNSPECIFIED = 100
    SECURITY = 200
    NOT_AUTHORISED = 201
    ENCRYPTION = 202
    SIGNATURE = 203
    REQUEST = 300
    INVALID_XML = 301
    UNKNOWN_MESSAGE = 302
    METHOD_NOT_FOUND = 303
    COMPONENT_NOT_FOUND = 304
    INVALID_PARAMETERS = 305
    UNSUPPORTED_DATATYPE = 306
    RESPONSE = 400
    INVALID_RESPONSE = 401
    FILE_SERVER = 500
    MOUNT = 501
    ITEM_NOT_FOUND = 502


ERROR_TEXTS: dict[str, str] = {
    str(code.value): text
    for code, text in {
        ErrorCode.UNSPECIFIED: "unspecified error",
        ErrorCode.SECURITY: "security error",
        ErrorCode.NOT_AUTHORISED: "not authorised",
        ErrorCode.ENCRYPTION: "encryption error",
        ErrorCode.SIGNATURE: "signature error",
        ErrorCode.REQUEST: "request error",
        ErrorCode.INVALID_XML: "invalid XML",
        ErrorCode.UNKNOWN_MESSAGE: "unknown message",
        ErrorCode.METHOD_NOT_FOUND: "method not found",
        ErrorCode.COMPONENT_NOT_FOUND: "component not found",
        ErrorCode.INVALID_PARAMETERS: "invalid parameters",
        ErrorCode.UNSUPPORTED_DATATYPE: "unsupported datatype",
        ErrorCode.RESPONSE: "response error",
        ErrorCode.INVALID_RESPONSE: "invalid response",
        ErrorCode.FILE_SERVER: "file server error",
        ErrorCode.MOUNT: "mount error",
        ErrorCode.ITEM_NOT_FOUND: "item not found",
    }.items()
}
"""What the codes mean: a RemoteError has no field for a text."""


class Refused(ProtocolViolation):
    """A message that is not taken.

    `message_id` is None where the message has no usable id: then there is nobody to answer. A `result` other
    than success is the answer by itself; otherwise delivery is confirmed and `error` is the RemoteError's code.
    """

    def __init__(
        self,
        clause: str,
        detail: str,
        *,
        message_id: int | None = None,
        result: ResultCode = ResultCode.SUCCESS,
        error: ErrorCode | None = None,
        component: str = "",
        call_id: str | None = None,
        is_answer: bool = False,
    ) -> None:
        super().__init__(clause, detail)
        self.message_id = message_id
        self.result = result
        self.error = error
        self.component = component
        self.call_id = call_id
        self.is_answer = is_answer
        """Whether it is a response or an error: then nobody waits for our RemoteError."""
