"""The hub's archive, on a real S3 server: what is sealed is archived once, and goes from the disk only then."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import wireloom
from tests.hub.process import HubProcess
from tests.hub.running import HSP, ack, data_ack, eventually, get, hub_on, stream_to, url_of
from tests.object_store import KEY, SECRET, S3Server, bucket, s3_server
from tests.store_faults import FaultProxy
from wireloom.hub import archiver, retention
from wireloom.journal.archive import Archive
from wireloom.journal.archive_disk import ArchiveDisk
from wireloom.journal.archive_format import SegmentId
from wireloom.journal.identity import load_identity
from wireloom.journal.reader import Entry, read_all
from wireloom.journal.segment import is_sealed, segments
from wireloom.model import ConfigError, Kind, Message
from wireloom.store import bucket as bucket_module
from wireloom.store import open_store

__all__ = ["bucket", "s3_server"]


def settings(url: str, *, journal: str = "", every: float = 300) -> str:
    return (
        f'{HSP}[[listener]]\nurl = "emp://127.0.0.1:0"\n'
        f'[journal]\nsegment_bytes = 4000\n{journal}\n[archive]\nurl = "{url}"\nevery = {every}\n'
    )


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention.Retention.__init__, "__defaults__", (0.1,))
    monkeypatch.setattr(archiver, "INTERVAL", 0.05)
    monkeypatch.setattr(archiver, "FIRST_WAIT", 0.1)
    monkeypatch.setattr(archiver, "LONGEST_WAIT", 0.5)


@pytest.fixture
def proxy(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(bucket_module, "TIMEOUT", 2.0)
    monkeypatch.setattr(bucket_module, "FIRST_WAIT", 0.01)
    with FaultProxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


async def publish(hub: object, numbers: range) -> None:
    reader, writer = await stream_to(hub)  # type: ignore[arg-type]
    for number in numbers:
        writer.write(data_ack(number, b"%d " % number + b"x" * 500))
        assert await reader.readexactly(5) == ack(number)
    writer.close()


def archive_of(folder: Path, url: str) -> Archive:
    identity = load_identity(folder / "journal")
    assert identity is not None
    archive = Archive(open_store(url), identity)
    archive.refresh()
    return archive


def published(folder: Path, url: str) -> list[int]:
    """The numbers of all publishes, from the disk and the archive."""
    disk = ArchiveDisk(folder / "journal", archive_of(folder, url))
    found = (each for each in read_all(folder / "journal", disk=disk) if isinstance(each, Entry))
    return [int(each.message.body.split()[0]) for each in found if each.message.kind is Kind.REQUEST]


def check_archive(folder: Path, url: str) -> int:
    """Every sealed segment is in the archive exactly once, and every archived one is what its index says."""
    archive = archive_of(folder, url)
    keys = [info.key for info in archive.store.list(archive.identity.hub)]
    objects = [key for key in keys if key.endswith(".pcapng.zst")]
    indexes = [key for key in keys if key.endswith(".index.json")]
    assert len(objects) == len(indexes) == len(set(objects))
    for path in [*segments(folder / "journal"), *segments(folder / "journal" / "refused")]:
        if is_sealed(path):
            archive.verify(path)
    last = -1
    for name in archive.names():
        segment = archive.find(name)
        assert segment is not None
        archived = archive.open(segment)
        archived.check()
        if last >= 0:
            assert archived.index.after == last
        last = archived.index.last
    return len(indexes)


async def test_sealed_segments_are_archived_and_then_go_from_the_disk(
    tmp_path: Path, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{bucket}/some/prefix"
    async with hub_on(tmp_path, settings(url, journal="keep_bytes = 12000")) as hub:
        await publish(hub, range(100))
        await eventually(lambda: hub.metrics.removed_segments.value() > 8, 30)
        assert hub.archiver is not None
        await eventually(lambda: len(segments(tmp_path / "journal")) < 8, 30)
        page = (await get(hub.urls["http"] + "/metrics"))[1]
        assert "wireloom_archive_healthy 1" in page
        status = json.loads((await get(hub.urls["http"] + "/status"))[1])["archive"]
        assert status["healthy"] and status["url"] == url and status["generation"] == 1
    assert check_archive(tmp_path, url) > 15
    assert published(tmp_path, url) == list(range(100))
    # The last segment was sealed at the stop, and archived.
    assert archive_of(tmp_path, url).names()[-1] == segments(tmp_path / "journal")[-1].name
    assert SECRET not in caplog.text and KEY not in caplog.text
    assert not mentioned(tmp_path, SECRET) and not mentioned(tmp_path, KEY)


def mentioned(folder: Path, secret: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


async def test_a_quiet_hub_is_archived_after_a_while_and_then_no_more(tmp_path: Path, bucket: str) -> None:
    async with hub_on(tmp_path, settings(bucket, every=1)) as hub:
        await publish(hub, range(3))
        await eventually(lambda: hub.metrics.archived_segments.value() == 1)
        assert published(tmp_path, bucket) == [0, 1, 2]
        await asyncio.sleep(2.5)
        # The connection's end was in the second segment; the third has nothing to say.
        assert hub.metrics.archived_segments.value() <= 2
        assert len(segments(tmp_path / "journal")) <= 3


async def test_since_goes_across_archived_and_local_segments_under_retention(tmp_path: Path, bucket: str) -> None:
    async with hub_on(tmp_path, settings(bucket, journal="keep_bytes = 12000")) as hub:
        await publish(hub, range(60))
        await eventually(lambda: hub.metrics.removed_segments.value() > 3, 30)
        async with wireloom.connect(url_of(hub, "emp")) as peer:
            async with peer.subscribe("sensors/#", since="start") as events:
                publishing = asyncio.create_task(publish(hub, range(60, 160)))
                found = await take(events, 160)
                await publishing
            assert [number(event) for event in found] == list(range(160))
            await eventually(lambda: hub.metrics.removed_segments.value() > 15, 30)
            for at in (3, 40, 77, 150):
                async with peer.subscribe("sensors/#", since=found[at].attributes["offset"]) as events:
                    later = await take(events, 159 - at)
                assert [number(event) for event in later] == list(range(at + 1, 160))
                assert [event.attributes["offset"] for event in later] == [
                    event.attributes["offset"] for event in found[at + 1 :]
                ]
        assert "retention: removed before it was read" not in str(list(read_all(tmp_path / "journal")))


async def take(events: AsyncIterator[Message], count: int) -> list[Message]:
    async with asyncio.timeout(60):
        return [await anext(events) for _ in range(count)]


def number(event: Message) -> int:
    return int(event.body.split()[0])


async def test_last_values_come_from_the_archive(tmp_path: Path, bucket: str) -> None:
    text = settings(bucket, journal="keep_bytes = 8000")
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub, "emp")) as peer:
            await peer.publish("sensors/attic", b"12", ack=True)
        await publish(hub, range(60))
        await eventually(lambda: hub.metrics.removed_segments.value() > 3, 30)
        async with (
            wireloom.connect(url_of(hub, "emp")) as peer,
            peer.subscribe("sensors/attic", retained=True) as events,
        ):
            assert (await take(events, 1))[0].body == b"12"
    for path in (tmp_path / "journal").iterdir():
        if path.is_file() and path.name.startswith("last-values"):
            path.unlink()
    async with hub_on(tmp_path, text) as hub:
        async with (
            wireloom.connect(url_of(hub, "emp")) as peer,
            peer.subscribe("sensors/attic", retained=True) as events,
        ):
            assert (await take(events, 1))[0].body == b"12"


async def test_a_store_that_is_away_stops_nothing_but_the_archive(
    tmp_path: Path, bucket: str, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.is_away = True
    async with hub_on(tmp_path, settings(bucket, journal="keep_bytes = 8000")) as hub:
        await publish(hub, range(50))
        await eventually(lambda: hub.archiver is not None and hub.archiver.error is not None, 30)
        await eventually(lambda: hub.retention.held > 3)
        assert (await get(hub.urls["http"] + "/readyz"))[0] == 200
        status = json.loads((await get(hub.urls["http"] + "/status"))[1])["archive"]
        assert not status["healthy"] and "tried" in status["why"]
        assert "wireloom_archive_healthy 0" in (await get(hub.urls["http"] + "/metrics"))[1]
        assert hub.metrics.removed_segments.value() == 0
        assert "they stay on this disk" in caplog.text
        proxy.is_away = False
        await eventually(lambda: hub.metrics.removed_segments.value() > 3, 30)
        await eventually(lambda: "segments are archived again" in caplog.text)
        await eventually(lambda: hub.archiver is not None and hub.archiver.healthy)
    assert published(tmp_path, bucket) == list(range(50))


async def test_who_reads_the_present_does_not_wait_for_those_who_read_the_archive(
    tmp_path: Path, bucket: str, proxy: FaultProxy
) -> None:
    async with hub_on(tmp_path, settings(bucket, journal="keep_bytes = 12000")) as hub:
        await publish(hub, range(60))
        await eventually(lambda: hub.metrics.removed_segments.value() > 3, 30)
        async with wireloom.connect(url_of(hub, "emp")) as slow, wireloom.connect(url_of(hub, "emp")) as peer:
            async with peer.subscribe("sensors/#", since="0s") as events:
                await publish(hub, range(60, 61))
                assert number((await take(events, 1))[0]) == 60
                # From now on the store takes requests and does not answer.
                proxy.hold, proxy.applies = 60, lambda method, path: "pcapng" in path
                proxy.seed(1, 1.0, ("timeout",))
                async with slow.subscribe("sensors/#", since="start"):
                    await eventually(lambda: proxy.made["timeout"] > 0)
                    began = time.monotonic()
                    await publish(hub, range(61, 71))
                    assert [number(event) for event in await take(events, 10)] == list(range(61, 71))
                    assert time.monotonic() - began < 1.5
                    proxy.rate = 0.0


async def test_faults_of_the_store_leave_every_segment_archived_once(
    tmp_path: Path, bucket: str, proxy: FaultProxy
) -> None:
    proxy.hold = 2.2
    proxy.seed(5, rate=0.2)
    async with hub_on(tmp_path, settings(bucket, journal="keep_bytes = 12000")) as hub:
        await publish(hub, range(80))
        await eventually(lambda: hub.metrics.removed_segments.value() > 5, 60)
        proxy.seed(5, rate=0)
    assert sum(proxy.made.values()) > 5
    check_archive(tmp_path, bucket)
    assert published(tmp_path, bucket) == list(range(80))


async def test_other_bytes_in_the_archive_are_an_alarm_and_nothing_goes(
    tmp_path: Path, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_on(tmp_path, settings("file:///nowhere/at/all", journal="keep_bytes = 0")) as hub:
        await publish(hub, range(40))
        identity = hub.journal.identity
    found = segments(tmp_path / "journal")
    segment = SegmentId.of_file(identity.hub, found[2])
    assert segment is not None
    open_store(bucket).put_new(segment.object_key, b"something else")
    async with hub_on(tmp_path, settings(bucket, journal="keep_bytes = 1")) as hub:
        await eventually(lambda: hub.archiver is not None and hub.archiver.alarm is not None, 30)
        await publish(hub, range(40, 60))
        await asyncio.sleep(0.5)
        assert "no segment is removed" in caplog.text
        status = json.loads((await get(hub.urls["http"] + "/status"))[1])["archive"]
        assert segment.object_key in status["why"]
    assert found[2] in segments(tmp_path / "journal")
    # All others are archived; the one in doubt has no index.
    names = archive_of(tmp_path, bucket).names()
    assert found[2].name not in names
    assert set(names) >= {path.name for path in found} - {found[2].name}


async def test_a_second_hub_with_the_same_id_fences_off_the_first(
    tmp_path: Path, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    named = 'id = "kitchen"\n' + settings(bucket, journal="keep_bytes = 1")
    async with hub_on(tmp_path / "one", named) as first:
        await publish(first, range(10))
        await eventually(lambda: first.metrics.archived_segments.value() >= 1)
        async with hub_on(tmp_path / "two", named) as second:
            await publish(second, range(10))
            await eventually(lambda: second.metrics.archived_segments.value() >= 1)
            removed = first.metrics.removed_segments.value()
            await publish(first, range(10, 30))
            await eventually(lambda: first.archiver is not None and first.archiver.alarm is not None, 30)
            assert "give one of the two another id" in (first.archiver.alarm or "")  # type: ignore[union-attr]
            await publish(first, range(30, 40))
            await asyncio.sleep(0.5)
            assert first.metrics.removed_segments.value() <= removed + 2
            assert second.archiver is not None and second.archiver.alarm is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "setting 'url' is missing"),
        ('url = "/plain/path"', "setting 'url' is '/plain/path'"),
        ('url = "ftp://x/y"', "setting 'url': 'ftp://x/y' is no store"),
        ('url = "s3://key:hidden@x/y"', "setting 'url': 's3://x/y' was given with credentials"),
        ('url = "file:///x"\nevery = 0', "setting 'every'"),
        ('url = "file:///x"\ncompression = 99', "setting 'compression'"),
        ('url = "file:///x"\nrecipient = "me"', "setting 'recipient'"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    from tests.hub.running import config

    with pytest.raises(ConfigError) as error:
        config(tmp_path, f"{HSP}[archive]\n{text}\n")
    assert wrong in str(error.value)
    assert "hidden" not in str(error.value)


# --- killed at any moment ---------------------------------------------------------------------------

ARCHIVE = '[journal]\nsegment_bytes = 4000\nkeep_bytes = 20000\n[archive]\nurl = "{url}"\nevery = 1\n'


def kill_while_uploading(folder: Path, url: str, proxy: FaultProxy, kills: int, seed: int) -> int:
    """Kill a hub at random moments while it archives, with faults and absences of the store in between."""
    choose = random.Random(seed)
    sent = 0
    environment = os.environ | {"AWS_ENDPOINT_URL": proxy.endpoint}
    seen: set[str] = set()
    for kill in range(kills):
        proxy.is_away = choose.random() < 0.2
        proxy.seed(seed + kill, rate=choose.choice((0.0, 0.1)))
        hub = HubProcess(folder, ARCHIVE.format(url=url), env=environment)
        ends = threading.Event()
        watching = threading.Thread(target=watch, args=(folder, url, ends, seen))
        watching.start()
        try:
            sent = asyncio.run(send(hub.port, sent, 20))
            time.sleep(choose.random() * 0.8)
        finally:
            said = hub.kill()
            ends.set()
            watching.join()
        assert SECRET not in said
        assert "Traceback" not in said, said
    proxy.is_away, proxy.rate = False, 0.0
    last = HubProcess(folder, ARCHIVE.format(url=url), env=environment)
    code, said = last.stop()
    assert code == 0, said
    assert f"generation {kills + 1}" in said or kills > 1
    # Everything is archived now. Retention looks when a hub starts: let one live until it has removed what it may.
    last = HubProcess(folder, ARCHIVE.format(url=url), env=environment)
    give_up = time.monotonic() + 30
    while sum(path.stat().st_size for path in segments(folder / "journal")) > 28_000 and time.monotonic() < give_up:
        time.sleep(0.05)
    code, said = last.stop()
    assert code == 0, said
    return sent


def watch(folder: Path, url: str, ends: threading.Event, seen: set[str]) -> None:
    """Whenever a segment is gone from the disk, its index is in the archive already."""
    store = open_store(url)
    while True:
        stopping = ends.is_set()
        now = {path.name for path in segments(folder / "journal")}
        for name in seen - now:
            hub = store.folders()[0]
            segment = SegmentId.of_file(hub, Path(name))
            assert segment is not None
            store.head(segment.index_key)
        seen.clear()
        seen.update(now)
        if stopping:
            return
        ends.wait(0.02)


async def send(port: int, first: int, count: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(first, first + count):
        writer.write(data_ack(number, b"%d " % number + b"x" * 500))
        assert await reader.readexactly(5) == ack(number)
    writer.close()
    return first + count


def check_after_kills(folder: Path, url: str, sent: int) -> None:
    assert published(folder, url) == list(range(sent))
    archived = check_archive(folder, url)
    local = len(segments(folder / "journal"))
    print(f"{archived} segments archived, {local} on the disk")
    assert archived > local


@pytest.fixture
def thread_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    found: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value))
    yield found
    assert found == []


def test_a_hub_killed_while_it_uploads_archives_every_segment_once(
    tmp_path: Path, bucket: str, s3_server: S3Server, thread_errors: list[BaseException]
) -> None:
    with FaultProxy(s3_server.port) as proxy:
        sent = kill_while_uploading(tmp_path, bucket, proxy, 4, seed=1)
    check_after_kills(tmp_path, bucket, sent)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hub_killed_200_times_while_it_uploads_archives_every_segment_once(
    tmp_path: Path, bucket: str, s3_server: S3Server, thread_errors: list[BaseException]
) -> None:
    with FaultProxy(s3_server.port) as proxy:
        sent = kill_while_uploading(tmp_path, bucket, proxy, int(os.environ.get("KILLS", "200")), seed=2)
    check_after_kills(tmp_path, bucket, sent)
