"""Cursors of webhooks and last values: on disk when told so, never on the loop, and what a damaged one does."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import eventually, get, hub_on, records, url_of
from tests.hub.test_cloudevents import HUB, Receiver, receiver, with_webhook
from wireloom.hub import Hub, last_value_index, webhooks
from wireloom.journal import segments
from wireloom.journal.disk import Disk
from wireloom.journal.state import encode_state, load_state, save_state

DAMAGE = {
    "empty": lambda text: b"",
    "cut": lambda text: text[: len(text) // 2],
    "zeros": lambda text: bytes(len(text)),
    "changed": lambda text: text.replace(b'"position":', b'"position":1'),
    "other": lambda text: b"[1, 2]",
    "no offset": lambda text: b'{"segment": "", "position": 0, "offset": "x", "since": 9000000000000000000}',
}


def cursor(folder: Path) -> Path:
    return folder / "journal" / "cursors" / "webhook-test.json"


async def publish(hub: Hub, numbers: range, padding: int = 0) -> None:
    async with wireloom.connect(url_of(hub, "yamp")) as peer:
        for number in numbers:
            await peer.publish("alerts/fire", {"n": number, "padding": "x" * padding}, ack=True)


def got(hook: Receiver) -> list[int]:
    return [json.loads(each.data)["n"] for each in hook.got]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_webhook_whose_cursor_is_damaged_begins_at_the_oldest(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiver() as hook:
        url, port = hook.url, int(hook.url.split(":")[2].split("/")[0])
        async with hub_on(tmp_path, with_webhook(url)) as hub:
            await publish(hub, range(5))
            await hook.until(5)
    async with hub_on(tmp_path, with_webhook(url)) as hub:
        await publish(hub, range(5, 11))
    cursor(tmp_path).write_bytes(DAMAGE[damage](cursor(tmp_path).read_bytes()))
    async with receiver(port) as hook, hub_on(tmp_path, with_webhook(url)) as hub:
        await hook.until(11)
        assert got(hook) == list(range(11))
    [said] = [each for each in caplog.records if "damaged" in each.getMessage()]
    assert said.levelno == logging.ERROR
    assert str(cursor(tmp_path)) in said.getMessage()
    assert "oldest" in said.getMessage()


async def test_a_cursor_is_synced_beside_the_loop_and_saved_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, loop = set(), threading.get_ident()

    def saving(path: Path, value: dict[str, object], disk: Disk) -> None:
        if started:
            threads.add(threading.get_ident())
        save_state(path, value, disk)  # type: ignore[arg-type]

    def encoding(value: dict[str, object]) -> bytes:
        threads.add(threading.get_ident())
        return encode_state(value)  # type: ignore[arg-type]

    started = False
    monkeypatch.setattr(webhooks, "save_state", saving)
    monkeypatch.setattr(last_value_index, "encode_state", encoding)
    monkeypatch.setattr(webhooks, "SAVE_EVERY", 3600)
    async with receiver() as hook:
        async with hub_on(tmp_path, with_webhook(hook.url)) as hub:
            started = True
            await publish(hub, range(3))
            await hook.until(3)
            epoch = getattr(hub.journal, "epoch", "")
        saved = load_state(cursor(tmp_path))
        assert saved is not None
        assert saved["offset"] is not None
        assert saved["epoch"] == epoch
        assert "crc32" in json.loads(cursor(tmp_path).read_text())
        lines = (tmp_path / "journal" / last_value_index.FILE).read_text().splitlines()
        assert all("crc32" in json.loads(line) for line in lines)
        assert threads
        assert loop not in threads
        async with hub_on(tmp_path, with_webhook(hook.url)) as hub:
            await publish(hub, range(3, 5))
            await hook.until(5)
        assert got(hook) == list(range(5)), "nothing is posted twice after an orderly stop"


async def test_a_quiet_webhook_saves_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "SAVE_EVERY", 0.2)
    async with receiver() as hook, hub_on(tmp_path, with_webhook(hook.url)) as hub:
        await publish(hub, range(4))
        await hook.until(4)
        last = json.loads(cursor(tmp_path).read_text())["offset"]
        await eventually(lambda: json.loads(cursor(tmp_path).read_text())["offset"] not in (None, last))


async def test_damaged_last_values_are_found_again_in_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "journal" / last_value_index.FILE
    async with hub_on(tmp_path, HUB) as hub:
        await publish(hub, range(3))
    file.write_bytes(file.read_bytes().replace(b'"upto":', b'"upto":9'))
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "yamp")) as peer:
        async with peer.subscribe("alerts/+", retained=True) as events, asyncio.timeout(30):
            assert json.loads((await anext(events)).body)["n"] == 2
    [said] = [each for each in caplog.records if "damaged" in each.getMessage()]
    assert str(file) in said.getMessage()


@contextmanager
def damaged(segment: Path, body: bytes) -> Iterator[None]:
    """One byte of a segment is another one for a while."""
    at = segment.read_bytes().index(body)
    with segment.open("r+b") as file:
        os.pwrite(file.fileno(), b"X", at)
        try:
            yield
        finally:
            os.pwrite(file.fileno(), body[:1], at)


@pytest.mark.parametrize("padding", [5000, 0], ids=["large", "small"])
async def test_a_webhook_waits_at_an_unreadable_place_and_goes_on_once_it_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, padding: int
) -> None:
    monkeypatch.setattr(webhooks, "READ_AGAIN", wireloom.Backoff(minimum=0.05, maximum=0.1))
    async with receiver() as hook:
        url, port = hook.url, int(hook.url.split(":")[2].split("/")[0])
        async with hub_on(tmp_path, with_webhook(url)) as hub:
            await publish(hub, range(2), padding)
            await hook.until(2)
    async with hub_on(tmp_path, with_webhook(url)) as hub:
        await publish(hub, range(2, 8), padding)
    [segment] = [each for each in segments(tmp_path / "journal") if b'{"n":5,' in each.read_bytes()]
    async with receiver(port) as hook:
        with damaged(segment, b'{"n":5,'):
            async with hub_on(tmp_path, with_webhook(url)) as hub:
                await eventually(lambda: hub.metrics.read_errors.value("webhook") >= 2)
                # What stands before the damage is posted, as far as it is not read with it; what follows is not.
                await hook.until(3 if padding else 0)
                assert set(got(hook)) <= {2, 3, 4}
                said = [each.getMessage() for each in caplog.records if segment.name in each.getMessage()]
                assert any("webhook test" in each for each in said)
                page = (await get(hub.urls["http"] + "/metrics"))[1]
                assert 'wireloom_journal_read_errors_total{reader="webhook"}' in page
        async with hub_on(tmp_path, with_webhook(url)) as hub:
            await eventually(lambda: got(hook)[-1:] == [7])
        assert sorted(set(got(hook))) == list(range(2, 8))


async def test_a_subscriber_that_comes_again_to_an_unreadable_place_gets_the_same_error_and_the_hub_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        await publish(hub, range(8), 5000)
    [segment] = [each for each in segments(tmp_path / "journal") if b'{"n":5,' in each.read_bytes()]
    with damaged(segment, b'{"n":5,'):
        async with hub_on(tmp_path, HUB) as hub:
            for attempt in range(1, 4):
                peer = await wireloom.connect(url_of(hub, "yamp"), reconnect=False)
                async with asyncio.timeout(30), peer.subscribe("alerts/#", since="start") as events:
                    found = [await anext(events) for _ in range(5)]
                    with pytest.raises(wireloom.WireloomError, match="the journal cannot be read"):
                        await anext(events)
                assert [json.loads(event.body)["n"] for event in found] == [0, 1, 2, 3, 4]
                assert hub.metrics.read_errors.value("replay") == attempt
                await peer.close()
            assert segment.name in caplog.text
            await publish(hub, range(8, 10))
            async with wireloom.connect(url_of(hub, "yamp")) as peer:
                await peer.publish("still", b"here", ack=True)


async def test_a_cursor_of_another_journal_begins_at_the_oldest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiver() as hook:
        async with hub_on(tmp_path, with_webhook(hook.url)) as hub:
            await publish(hub, range(3))
            await hook.until(3)
        saved = load_state(cursor(tmp_path))
        assert saved is not None
        save_state(cursor(tmp_path), saved | {"epoch": "0123456789abcdef"})
        async with hub_on(tmp_path, with_webhook(hook.url)) as hub:
            await hook.until(6)
        assert got(hook) == [0, 1, 2, 0, 1, 2]
        assert "0123456789abcdef" in caplog.text


async def test_last_values_are_found_after_writes_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packet ids run ahead of tickets then."""
    failures = 3
    really = os.pwritev

    def failing(file: int, buffers: list[bytes], at: int, flags: int = 0) -> int:
        nonlocal failures
        if failures and any(b"alerts/fire" in bytes(each) for each in buffers):
            failures -= 1
            raise OSError(errno.EIO, "no")
        return really(file, buffers, at, flags)

    monkeypatch.setattr(os, "pwritev", failing)
    for _ in range(2):
        async with hub_on(tmp_path, HUB) as hub:
            if failures:
                await publish(hub, range(3))
                assert not failures
                assert hub.journal.packet_id(hub.journal.last_ticket) > hub.journal.last_ticket
            async with wireloom.connect(url_of(hub, "yamp")) as peer:
                async with peer.subscribe("alerts/+", retained=True) as events, asyncio.timeout(30):
                    assert json.loads((await anext(events)).body)["n"] == 2


async def test_an_open_segment_that_is_deleted_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        await publish(hub, range(3))
        # Nobody says anything any more: the hub looks by itself.
        await eventually(lambda: not hub.connections)
        await hub.commit.wait(hub.journal.last_ticket)
        for each in segments(tmp_path / "journal"):
            each.unlink()
        await eventually(lambda: bool(records(tmp_path, "removed")))
        assert "was deleted by somebody" in caplog.text
        await publish(hub, range(3, 6))
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            async with peer.subscribe("alerts/#", since="start") as events, asyncio.timeout(30):
                # Also those that were acknowledged before: the segment was written again.
                assert [json.loads((await anext(events)).body)["n"] for _ in range(6)] == list(range(6))


@contextmanager
def unreadable(segment: Path, body: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The disk cannot read the sector in which some bytes stand."""
    sector, inode, really = segment.read_bytes().index(body) // 512 * 512, segment.stat().st_ino, os.pread

    def pread(file: int, size: int, at: int) -> bytes:
        if at < sector + 512 and sector < at + size and os.fstat(file).st_ino == inode:
            raise OSError(errno.EIO, "Input/output error")
        return really(file, size, at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", pread)
        yield


async def test_a_sector_that_cannot_be_read_ends_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhooks, "READ_AGAIN", wireloom.Backoff(minimum=0.05, maximum=0.1))
    async with receiver() as hook, hub_on(tmp_path, with_webhook(hook.url)) as hub:
        await publish(hub, range(2), 5000)
        await hook.until(2)
    async with receiver() as hook:
        async with hub_on(tmp_path, HUB) as hub:
            await publish(hub, range(2, 8), 5000)
        [segment] = [each for each in segments(tmp_path / "journal") if b'{"n":5,' in each.read_bytes()]
        with unreadable(segment, b'{"n":5,', monkeypatch):
            async with hub_on(tmp_path, with_webhook(hook.url)) as hub:
                await eventually(lambda: hub.metrics.read_errors.value("webhook") >= 2)
                for attempt in (1, 2):
                    peer = await wireloom.connect(url_of(hub, "yamp"), reconnect=False)
                    async with asyncio.timeout(30), peer.subscribe("alerts/#", since="start") as events:
                        with pytest.raises(wireloom.WireloomError, match="the journal cannot be read"):
                            while True:
                                assert json.loads((await anext(events)).body)["n"] < 5
                    assert hub.metrics.read_errors.value("replay") == attempt
                    await peer.close()
                said = [
                    each.getMessage()
                    for each in caplog.records
                    if "cannot read the segment at byte" in each.getMessage()
                ]
                assert said
                assert all(segment.name in each for each in said)
                await publish(hub, range(8, 9))
        assert max(got(hook)) < 5
        async with hub_on(tmp_path, with_webhook(hook.url)) as hub:
            await eventually(lambda: got(hook)[-1:] == [8])
        assert sorted(set(got(hook)) | {0, 1}) == list(range(9))
