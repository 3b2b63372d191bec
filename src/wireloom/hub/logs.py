"""The hub's log: text for people, or one JSON object per line for log collectors.

Every line has an event: a stable name that does not change with the wording. A line about a peer also names its
connection, protocol and principal.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeAlias

from wireloom.escaping import visible
from wireloom.hub.limits import Bucket, Buckets

if TYPE_CHECKING:
    from wireloom.hub.outbox import Outbox

ExceptionInfo: TypeAlias = "tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]"

LINES, BURST = 100.0, 1000.0
"""Maximum log lines about one event: per second, and in a burst."""
_FIELDS = ("event", "connection", "protocol", "principal", "peer")


class LogFormat(StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


def about(event: str, connection: Outbox | None = None) -> dict[str, str]:
    """The fields of a log line beside its text, for `extra` of the logging calls."""
    if connection is None:
        return {"event": event}
    return {
        "event": event,
        "connection": f"{connection.id:016x}",
        "protocol": connection.name,
        "principal": connection.principal,
        "peer": connection.peer,
    }


class JSONLines(logging.Formatter):
    """A log record as one line of JSON.

    >>> record = logging.makeLogRecord({"msg": "listening on %s", "args": ("a",), "levelname": "INFO", "created": 0.25})
    >>> record.event = "listener.open"
    >>> print(JSONLines().format(record)[:76])
    {"time": "1970-01-01T00:00:00.250Z", "level": "info", "event": "listener.ope
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.created * 1000) % 1000:03d}Z",
            "level": record.levelname.lower(),
        }
        line.update({name: getattr(record, name, None) for name in _FIELDS})
        line["event"] = line["event"] or record.name
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    r"""A log record as one line of text, plus lines for a traceback. Text from a peer cannot end or forge a line.

    >>> record = logging.makeLogRecord({"msg": "closed: %s", "args": ("bye\n2026 INFO all is well\x1b[2J",)})
    >>> print(TextLines().format(record))
    closed: bye\n2026 INFO all is well\u001b[2J
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is that of logging
        """The text of the line."""
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802
        """The traceback, indented, so that no line of it looks like a log line."""
        return "\n".join("  " + visible(line) for line in super().formatException(ei).split("\n"))


class AtMost(logging.Filter):
    """Limits the lines about one event per second. The next line that passes says how many were left out.

    Peers can make the hub log the same event thousands of times a second, and so fill the disk of the log. Errors
    always pass.
    """

    def __init__(self, rate: float = LINES, burst: float = BURST, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._buckets = Buckets(lambda: Bucket(rate, burst))
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if record.levelno >= logging.ERROR:
            return True
        event = str(getattr(record, "event", record.name))
        bucket, now = self._buckets.of(event), self._now()
        if bucket.is_empty(now):
            self._left_out[event] += 1
            return False
        bucket.take(1, now)
        if left_out := self._left_out.pop(event, 0):
            record.msg = f"{record.getMessage()} ({left_out} lines like it were left out)"
            record.args = ()
        return True


def start_logging(form: LogFormat, *, verbose: bool = False, stream: TextIO = sys.stderr) -> None:
    """Write the log of this process to a stream."""
    handler = logging.StreamHandler(stream)
    text = TextLines("%(asctime)s %(levelname)-7s %(message)s")
    handler.addFilter(AtMost())
    handler.setFormatter(JSONLines() if form is LogFormat.JSON else text)
    # Other libraries log warnings only: numba alone writes 100,000 lines when it compiles the kernels.
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("wireloom").setLevel(logging.DEBUG if verbose else logging.INFO)
