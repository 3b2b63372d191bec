"""Webhooks: events of some topics, posted as CloudEvents to an HTTP server.

A webhook reads the journal, as a replay does, and stores its cursor beside it. So it posts later, in order, what was
published while the server or the hub was down, and keeps nothing in memory. Delivery is at least once: an event that
was posted but not answered may be posted again, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from wireloom.hub.cloudevents import Mode, from_message, to_http
from wireloom.hub.config_errors import WrongKey
from wireloom.hub.journal_events import PublicationReader, Published, Routing
from wireloom.hub.logs import about
from wireloom.journal.daemon_executor import DaemonExecutor
from wireloom.journal.disk import make_folders
from wireloom.journal.reader import Offset
from wireloom.journal.retention import CURSORS
from wireloom.journal.state import StateDamaged, load_state, save_state
from wireloom.journal.tail import Since, Tail
from wireloom.model import ConfigError, JournalError, Message, type_of_json
from wireloom.peers.backoff import Backoff
from wireloom.protocols.contract import TRACE
from wireloom.topics import validate_pattern
from wireloom.transports.address import parse_url

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

PIECE = 64 * 1024
LONGEST_WAIT = 300.0
SAVE_EVERY = 1.0
"""Seconds between two saves of the cursor."""
READ_AGAIN = Backoff(minimum=1.0, maximum=60.0)
"""How long to wait at a place of the journal that cannot be read."""
_KEYS = ("name", "url", "topic", "mode", "token_file", "timeout")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_GONE = 410
_LAST = 1 << 30
"""More messages than a run has. An offset with this number means the end of a run."""
_TRY_AGAIN = frozenset((408, 425, 429))


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """A table `[[webhook]]`."""

    name: str
    url: str
    topic: str
    mode: Mode = Mode.BINARY
    token: str | None = None
    timeout: float = 10.0


def parse_webhook(table: Mapping[str, object]) -> WebhookConfig:
    """Parse one table `[[webhook]]`. Raises WrongKey."""
    for key in table:
        if key not in _KEYS:
            raise WrongKey(key, f"unknown key {key!r}; known: {', '.join(_KEYS)}")
    name, url, topic = (table.get(key) for key in ("name", "url", "topic"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WrongKey("name", "a webhook needs a name of letters, digits, _ . and -; how far it is is kept under it")
    if not isinstance(topic, str):
        raise WrongKey("topic", 'a webhook needs a topic, such as "alerts/#"')
    try:
        validate_pattern(topic)
    except ConfigError as error:
        raise WrongKey("topic", str(error)) from None
    try:
        scheme = parse_url(str(url)).scheme
    except ConfigError as error:
        raise WrongKey("url", str(error)) from None
    if scheme not in ("http", "https"):
        raise WrongKey("url", f"url is {url!r}; a webhook posts to http:// or https://")
    try:
        mode = Mode(str(table.get("mode", "binary")))
    except ValueError:
        raise WrongKey("mode", f"mode is {table['mode']!r}; it must be one of {', '.join(Mode)}") from None
    timeout = table.get("timeout", 10.0)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise WrongKey("timeout", f"timeout is {timeout!r}; it must be seconds, more than 0")
    token = None
    if "token_file" in table:
        try:
            token = Path(str(table["token_file"])).read_text().strip()
        except OSError as error:
            raise WrongKey("token_file", f"the token cannot be read: {error}") from None
    return WebhookConfig(name, str(url), topic, mode, token, float(timeout))


class Webhook:
    """One running webhook."""

    def __init__(self, hub: Hub, config: WebhookConfig) -> None:
        self._hub = hub
        self.config = config
        self._journal = hub.config.journal_folder
        self._cursor = self._journal / CURSORS / _cursor_name(config.name)
        self._backoff = Backoff(minimum=0.2, maximum=LONGEST_WAIT)
        self._thread = DaemonExecutor("webhook")
        self._saved = 0.0
        self._unsaved: dict[str, type_of_json] | None = None
        """The cursor, if it is not on disk yet."""
        self._since = 0
        """When it was created, in nanoseconds since 1970. It starts there until it has a cursor."""
        # Taken before the listeners open: everything published through them comes after the start of a new webhook.
        self._begins_after = self._begin()

    async def run(self) -> None:
        """Post until cancelled, or until the server answers that it is gone permanently."""
        timeout = aiohttp.ClientTimeout(total=self.config.timeout)
        headers = {"User-Agent": "wireloom"}
        if self.config.token is not None:
            headers["Authorization"] = f"Bearer {self.config.token}"
        reader = PublicationReader(
            *(self._journal, self._begins_after, self.config.topic),
            *(Routing(self._hub), PIECE, self._hub.read_disk),
        )
        reading: Future[tuple[list[Published], Offset | None] | None] | None = None
        failures = READ_AGAIN.delays()
        try:
            await self._save()
            async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
                while True:
                    place, commits = reader.position, self._hub.commit.commits
                    reading = self._thread.submit(reader.read)
                    try:
                        read = await asyncio.wrap_future(reading)
                    except JournalError as error:
                        await self._wait_at(error, next(failures))
                        continue
                    if reader.missed():
                        log.warning("webhook %s: retention has removed what was not posted yet", self.config.name)
                    if read is None:
                        await self._idle(commits)
                        continue
                    wanted, last = read
                    if last is not None:
                        failures = READ_AGAIN.delays()
                    for offset, message in wanted:
                        if not await self._post(session, offset, message):
                            return
                        await self._reached(place, offset)
                    if last is not None:
                        await self._reached(reader.position, last)
        except asyncio.CancelledError:
            await self._save()
            raise
        finally:
            reader.close_after(reading)
            self._thread.shutdown(wait=False)

    async def _wait_at(self, error: JournalError, seconds: float) -> None:
        """Wait at a place of the journal that cannot be read.

        Later events wait, too, because events are posted in order.
        """
        self._hub.metrics.read_errors.add(1, "webhook")
        log.error(
            "webhook %s: cannot go on reading the journal: %s; trying again in %.3g s",
            *(self.config.name, error, seconds),
            extra=about("journal.unreadable"),
        )
        await self._save()
        await asyncio.sleep(seconds)

    async def _idle(self, commits: int) -> None:
        """Wait for the next commit. Save the cursor if none comes soon."""
        if self._unsaved is not None:
            try:
                async with asyncio.timeout(max(self._saved + SAVE_EVERY - time.monotonic(), 0)):
                    await self._hub.commit.after(commits)
            except TimeoutError:
                await self._save()
        else:
            await self._hub.commit.after(commits)

    def _begin(self) -> Since:
        """Where to start: at the saved cursor, or for a new webhook with what is published from now on.

        With a damaged cursor it starts at the oldest event: repeating events is better than losing some.
        """
        try:
            saved = load_state(self._cursor, self._hub.disk)
            if saved is not None:
                self._since = int(str(saved["since"]))
                return self._since if saved["offset"] is None else self._place(saved)
        except (StateDamaged, ValueError, KeyError, ConfigError) as error:
            log.error(
                "webhook %s: %s is damaged or of another journal (%s); it begins at the oldest event the journal has",
                *(self.config.name, self._cursor, error),
                extra=about("webhook.damaged"),
            )
            self._since = 0
            self._note(("", 0), None)
            return self._since
        tail = Tail.at_end(self._journal, disk=self._hub.disk)
        # An offset, not a time: a clock may be set back.
        here = Offset(self._hub.journal.next_packet_id - 1, _LAST)
        self._since = self._hub.now_ns()
        self._note(tail.position, here)
        tail.close()
        return here

    def _place(self, saved: Mapping[str, type_of_json]) -> Offset:
        """The offset in a cursor. Raises ConfigError if it belongs to another journal."""
        offset = Offset.parse(str(saved["offset"]))
        epoch = str(saved.get("epoch") or "")
        end = self._hub.journal.identity.end_of(epoch) if epoch else None
        # An earlier epoch may have continued elsewhere. Here its later packet ids were given to other messages.
        return offset if end is None else min(offset, Offset(end, _LAST))

    async def _reached(self, position: tuple[str, int], offset: Offset) -> None:
        """Everything up to this offset is posted: move the cursor."""
        self._note(position, offset)
        if time.monotonic() - self._saved > SAVE_EVERY:
            await self._save()

    def _note(self, position: tuple[str, int], offset: Offset | None) -> None:
        self._unsaved = {
            "segment": position[0],
            "position": position[1],
            "offset": None if offset is None else str(offset),
            "since": self._since,
            "epoch": self._hub.journal.epoch,
        }

    async def _save(self) -> None:
        """Save the cursor, on the thread. Retention keeps what is not posted yet."""
        if self._unsaved is not None:
            self._saved = time.monotonic()
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(self.save)))

    def save(self) -> None:
        """Save the cursor now, on the calling thread."""
        state = self._unsaved
        if state is None:
            return
        try:
            make_folders(self._hub.disk, self._cursor.parent)
            save_state(self._cursor, state, self._hub.disk)
        except OSError as error:
            log.error("webhook %s: cannot save %s: %s", self.config.name, self._cursor, error)
        else:
            if self._unsaved is state:
                self._unsaved = None

    async def _post(self, session: aiohttp.ClientSession, offset: Offset, message: Message) -> bool:
        """Post one event until it is accepted or refused for good. Returns False if the server wants no more events."""
        headers, body = to_http(from_message(message, str(offset)), self.config.mode)
        tracing = self._hub.tracing
        if tracing is None:
            headers |= {name: message.attributes[name] for name in TRACE if name in message.attributes}
            return await self._insist(session, offset, headers, body)
        span = tracing.posted(message, self.config.name, self.config.url)
        try:
            return await self._insist(session, offset, headers | tracing.carried(span), body)
        finally:
            span.end()

    async def _insist(
        self, session: aiohttp.ClientSession, offset: Offset, headers: Mapping[str, str], body: bytes
    ) -> bool:
        name, metrics = self.config.name, self._hub.metrics
        told = False
        for wait in self._backoff.delays():
            try:
                async with session.post(self.config.url, data=body, headers=headers, allow_redirects=False) as answer:
                    status, why = answer.status, f"answer {answer.status}"
                    after = answer.headers.get("Retry-After", "")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                status, why, after = 0, str(error) or type(error).__name__, ""
            if 200 <= status < 300:
                metrics.webhooks.add(1, name, "taken")
                return True
            if status == _GONE:
                log.error("webhook %s: %s is gone for good (answer 410): stopped", name, self.config.url)
                metrics.webhooks.add(1, name, "gone")
                return False
            if 300 <= status < 500 and status not in _TRY_AGAIN:
                log.warning("webhook %s: %s refuses event %s (%s): left out", name, self.config.url, offset, why)
                metrics.webhooks.add(1, name, "refused")
                return True
            metrics.webhooks.add(1, name, "again")
            if not told:
                told = True
                log.warning("webhook %s: %s does not take events (%s): trying again", name, self.config.url, why)
            await asyncio.sleep(min(float(after), LONGEST_WAIT) if after.isdecimal() else wait)
        return True


class Webhooks:
    """All webhooks of a hub. They may change while it runs."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._running: dict[str, tuple[WebhookConfig, asyncio.Task[None]]] = {}
        self._prepared: list[Webhook] = []

    def prepare(self, configs: tuple[WebhookConfig, ...]) -> None:
        """Save the starting point of each webhook on disk. `start` starts them."""
        self._prepared = [Webhook(self._hub, each) for each in configs]
        for webhook in self._prepared:
            webhook.save()

    def start(self) -> None:
        """Start posting."""
        for webhook in self._prepared:
            self._go(webhook.config, webhook.run())
        self._prepared = []

    def _go(self, config: WebhookConfig, run: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(run)
        self._running[config.name] = config, task
        task.add_done_callback(lambda done: _tell_failure(done, config.name))

    def change(self, configs: tuple[WebhookConfig, ...]) -> None:
        """Stop removed webhooks and start new ones. A changed webhook continues at its cursor."""
        wanted = {each.name: each for each in configs}
        for name in [each for each in self._running if each not in wanted]:
            self._running.pop(name)[1].cancel()
            cursor = f"{CURSORS}/{_cursor_name(name)}"
            log.info("webhook %s has ended; retention waits for it until %s is removed", name, cursor)
        for name, config in wanted.items():
            if name not in self._running:
                run = Webhook(self._hub, config).run()
            elif self._running[name][0] != config:
                run = self._go_on(self._running[name][1], config)
            else:
                continue
            self._go(config, run)

    async def _go_on(self, before: asyncio.Task[None], config: WebhookConfig) -> None:
        before.cancel()
        await asyncio.wait((before,))
        await Webhook(self._hub, config).run()

    async def stop(self) -> None:
        """Stop all webhooks and save their cursors."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_failure(task: asyncio.Task[None], name: str) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("webhook %s has ended: %s", name, task.exception(), exc_info=task.exception())


def _cursor_name(name: str) -> str:
    return f"webhook-{name}.json"
