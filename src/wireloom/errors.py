"""The errors that this package raises on purpose. `wireloom.model` and `wireloom` export them, too."""

from __future__ import annotations

import contextlib
import json
from typing import TypeVar

ErrorType = TypeVar("ErrorType", bound=BaseException)


class WireloomError(Exception):
    """The base class of every error that this package raises on purpose."""


class ProtocolViolation(WireloomError):
    """The peer broke a rule of its protocol.

    `clause` is a stable name such as `hsp.command.unknown`: the pipeline's `rejects` table and the
    conformance reports use the same. `reply` is what goes on the wire before the connection closes.

    >>> str(ProtocolViolation("hsp.command.unknown", "command 9", offset=12))
    'hsp.command.unknown: command 9 (at byte 12)'
    """

    def __init__(self, clause: str, detail: str, *, reply: bytes = b"", offset: int | None = None) -> None:
        super().__init__(clause, detail)
        self.clause = clause
        self.detail = detail
        self.reply = reply
        self.offset = offset

    def __str__(self) -> str:
        where = "" if self.offset is None else f" (at byte {self.offset})"
        return f"{self.clause}: {self.detail}{where}"


class MalformedBody(ProtocolViolation, ValueError):
    """A body does not match its content type."""


class HandshakeFailed(WireloomError):
    """The handshake failed: the peers could not agree on a connection."""


class PeerClosed(WireloomError, ConnectionError):
    """The connection is gone. Everything that waits for it fails with this error."""


class RequestTimeout(WireloomError, TimeoutError):
    """No answer came in time."""


class RequestFailed(WireloomError):
    """The peer answered a request with an error.

    >>> str(RequestFailed("404", b"no such topic"))
    'request failed with 404: no such topic'
    """

    def __init__(self, code: str, body: bytes = b"") -> None:
        for given, kind in ((code, str), (body, bytes)):
            if not isinstance(given, kind):
                raise TypeError(f"RequestFailed takes a code as str and a body as bytes, not {given!r}")
        super().__init__(code, body)
        self.code = code
        self.body = body

    def __str__(self) -> str:
        detail = self.body.decode(errors="replace")
        if detail[:1] == '"':
            # If every body is JSON, the text of an error is JSON, too.
            with contextlib.suppress(ValueError):
                detail = str(json.loads(detail))
        return f"request failed with {self.code}" + (f": {detail}" if detail else "")


class LimitExceeded(WireloomError):
    """A size or a number exceeds a limit. The text names the limit."""


class NotSupported(WireloomError):
    """The protocol can never express this."""


class InvalidState(WireloomError):
    """The current state of the connection does not allow this, such as an answer to a request that does not wait."""


def without_traces(error: ErrorType) -> ErrorType:
    """The error without tracebacks, so that it can be stored without keeping local variables in memory.

    >>> try:
    ...     raise PeerClosed("gone")
    ... except PeerClosed as error:
    ...     kept = without_traces(error)
    >>> kept.__traceback__ is None
    True
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


class BodyError(NotSupported):
    """A value does not fit the format or the schema of its body."""


class ValidationError(WireloomError, ValueError):
    """A value does not fit its type. `path` names the place, `problem` says what is wrong there.

    >>> str(ValidationError("expected int, got str 'six'").within(".sum"))
    "$.sum: expected int, got str 'six'"
    """

    def __init__(self, problem: str, path: str = "$") -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def within(self, step: str) -> ValidationError:
        """The same error with one more step at the front of its path, for the enclosing value."""
        self.path = f"${step}{self.path[1:]}"
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class ConfigError(WireloomError):
    """A setting is unknown or wrong. The text names it and says what is right."""


class JournalError(WireloomError):
    """The journal cannot be read or written. The text says where, and what to do."""
