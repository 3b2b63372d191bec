"""All data of the page: the hub's `/status`, the tail of the journal, the warehouse. The parts are independent."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import cast

import aiohttp

from wireloom.console.recent_traffic import Line, RecentTraffic, showable
from wireloom.escaping import visible
from wireloom.journal.retention import cursors
from wireloom.journal.segment import bytes_after
from wireloom.model import JournalError, WireloomError, iso_time, type_of_json
from wireloom.store import is_url

log = logging.getLogger("wireloom.console")

HUB_EVERY = 1.0
LATE = HUB_EVERY + 2.0
"""Seconds without an answer after which a hub counts as silent."""
START = "start the hub with `wireloom hub`, or name its pages with --hub URL"
HISTORY = 300
"""Number of rates that are kept, one for each poll of the hub: a new page shows the last minutes."""
JOURNAL_EVERY = 0.5
WAREHOUSE_EVERY = 4.0
RECENT = 60.0
"""Seconds after a commit during which a pipeline in another process counts as running."""
_FINDINGS = """\
select time, severity, rule, protocol, connection, detail, message_id from findings order by time desc limit 200"""


@dataclass(slots=True)
class TailCursor:
    """How much of each ring one browser has seen."""

    messages: int = 0
    exchanges: int = 0
    rejects: int = 0
    has_history: bool = False


class PageData:
    """Polls all sources; `snapshot` returns the latest state."""

    def __init__(self, hub_url: str, journal: Path | None = None, warehouse: Path | str | None = None) -> None:
        self.hub_url = hub_url.rstrip("/")
        self.warehouse = warehouse
        self._lately = None if journal is None else RecentTraffic(journal)
        self._hub: Line = {}
        """What the hub said last."""
        self._fault: str | None = "the hub was not asked yet"
        """Why it did not answer, when it was asked last."""
        self._answered = time.monotonic()
        """When it answered last; silence counts from here."""
        self._totals: tuple[float, dict[str, dict[str, int]]] = (0.0, {})
        self._rates: dict[str, dict[str, float]] = {}
        self._history: dict[str, deque[float]] = {}
        self._pipeline: Line | None = None
        self._findings: Line | None = None
        self._rows = (0.0, 0)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> PageData:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
        await self._ask_hub()
        parts = [(self._ask_hub, HUB_EVERY), (self._look, JOURNAL_EVERY)]
        if self.warehouse is not None:
            parts.append((self._ask_warehouse, WAREHOUSE_EVERY))
        self._tasks = [asyncio.create_task(_often(part, pause)) for part, pause in parts]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    @property
    def listeners(self) -> list[str]:
        """Where the hub listens for peers, as it said last."""
        urls = self._hub.get("listeners")
        return [str(url) for name, url in urls.items() if name != "http"] if isinstance(urls, dict) else []

    def snapshot(self, cursor: TailCursor) -> Line:
        """What is known now; of messages, exchanges and rejects what this browser has not seen."""
        why = self.fault
        found: Line = {
            "hub": {**self._hub, "up": True} if why is None else {"up": False, "why": why},
            "rates": cast("type_of_json", self._rates if why is None else dict.fromkeys(self._rates)),
            "pipeline": self._pipeline,
            "findings": self._findings,
            "topics": [],
        }
        if not cursor.has_history:
            cursor.has_history = True
            found["history"] = {name: list(past) for name, past in self._history.items()}
        lately = self._lately
        if lately is not None:
            found["topics"] = cast("type_of_json", lately.topics())
            found["skipped"] = lately.skipped
            for name in ("messages", "exchanges", "rejects"):
                ring = getattr(lately, name)
                found[name] = ring.since(getattr(cursor, name))
                setattr(cursor, name, ring.newest)
        return found

    @property
    def fault(self) -> str | None:
        """Why the state of the hub is unknown; None while it answers."""
        silent = time.monotonic() - self._answered
        if self._fault is None and silent > LATE:
            return f"{self.hub_url} has not answered for {silent:.0f} s: the hub hangs, or its machine does"
        return self._fault

    async def _ask_hub(self) -> None:
        try:
            async with self._session.get(f"{self.hub_url}/status") as answer:
                text = await answer.text()
            if answer.status == HTTPStatus.OK:
                self._take_status(json.loads(text))
                return
            self._fault = f"{self.hub_url} answers with status {answer.status}: {visible(text.strip()[:200])}"
        except TimeoutError:
            # What is known is how long it has been silent; `fault` says so.
            self._fault = None
        except (aiohttp.ClientError, OSError) as error:
            self._fault = f"nobody answers at {self.hub_url} ({_reason(error)}): {START}"
        except (ValueError, KeyError, TypeError, AttributeError):
            self._fault = f"what answers at {self.hub_url} is no hub: {START}"
        self._remember({name: dict.fromkeys(rates, 0.0) for name, rates in self._rates.items()})

    def _take_status(self, status: Line) -> None:
        self._measure(cast("dict[str, dict[str, int]]", status["protocols"]))
        self._hub, self._fault, self._answered = showable(status), None, time.monotonic()
        if self._lately is None and isinstance(folder := status.get("journal"), str):
            self._lately = RecentTraffic(folder)

    def _measure(self, totals: dict[str, dict[str, int]]) -> None:
        now = time.monotonic()
        then, before = self._totals
        self._totals = (now, totals)

        def rate(name: str, key: str) -> float:
            # A hub that was started again counts from 0: no rate is negative.
            grown = totals[name][key] - before.get(name, totals[name])[key]
            return max(0.0, grown / (now - then)) if then else 0.0

        kinds = {"in": "received", "out": "sent", "bytes": "received_bytes"}
        self._remember({name: {kind: rate(name, key) for kind, key in kinds.items()} for name in totals})

    def _remember(self, rates: dict[str, dict[str, float]]) -> None:
        self._rates = rates
        for name, each in rates.items():
            self._history.setdefault(name, deque(maxlen=HISTORY)).append(each["in"])

    async def _look(self) -> None:
        if self._lately is None:
            return
        try:
            await asyncio.to_thread(self._lately.look)
        except JournalError as error:
            log.warning("%s", error)

    async def _ask_warehouse(self) -> None:
        assert self.warehouse is not None
        try:
            self._pipeline, self._findings = await asyncio.to_thread(self._read_warehouse, self.warehouse)
        except (WireloomError, OSError) as error:
            self._pipeline = {"why": str(error), "running": False, "lag_bytes": None, "last_commit": None, "tables": []}

    def _read_warehouse(self, folder: Path | str) -> tuple[Line, Line]:
        from wireloom.pipeline.query import ask, describe
        from wireloom.pipeline.warehouse import Warehouse

        found = Warehouse.existing(folder)
        tables = describe(folder)
        lines: list[type_of_json] = [
            {
                "name": name,
                "rows": table.rows,
                "files": table.files,
                "version": table.version,
                "committed": iso_time(table.committed_ns),
            }
            for name, table in tables.items()
        ]
        messages = tables["messages"]
        committed = messages.committed_ns
        now = time.time()
        then, rows = self._rows
        rate = max(0.0, (messages.rows - rows) / (now - then)) if then else 0.0
        self._rows = (now, messages.rows)
        pipeline: Line = {
            "running": found.writer is not None or (is_url(found.url) and now - committed / 1e9 < RECENT),
            "rate": rate,
            "lag_bytes": self._lag(),
            "last_commit": iso_time(committed) if committed else None,
            "age_s": max(0.0, now - committed / 1e9),
            "tables": lines,
        }
        findings: Line = {"total": 0, "critical": 0, "rows": []}
        if "findings" in tables and tables["findings"].rows:
            last = ask(folder, _FINDINGS)
            findings["rows"] = [showable(dict(zip(last.columns, map(_plain, row), strict=True))) for row in last.rows]
            counted = ask(folder, "select count(*), count(*) filter (severity = 'critical') from findings")
            findings |= dict(zip(("total", "critical"), map(_plain, counted.rows[0]), strict=True))
        return pipeline, findings

    def _lag(self) -> int | None:
        """Bytes of the journal that the pipeline, going by the cursor it leaves there, has not read."""
        if self._lately is None:
            return None
        folder = self._lately.folder
        # A pipeline that has committed nothing has no cursor: it has the whole journal to read.
        places = [(each.segment, each.position) for each in cursors(folder)] or [("", 0)]
        return max(bytes_after(folder, *place) for place in places)


def _reason(error: Exception) -> str:
    """Why nobody answers, in a few words.

    >>> _reason(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"))
    'Connection refused'
    """
    cause = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number)
    return visible(getattr(cause, "strerror", None) or str(error) or "the connection was lost")


async def _often(part: Callable[[], Awaitable[None]], pause: float) -> None:
    while True:
        try:
            await part()
        except Exception:
            # A source that fails must not affect the others; its last state is kept.
            log.exception("the console could not look at one of its parts")
        await asyncio.sleep(pause)


def _plain(value: object) -> type_of_json:
    isoformat = getattr(value, "isoformat", None)
    if isoformat is not None:
        return str(isoformat())
    return value if isinstance(value, str | int | float | bool | None) else str(value)
