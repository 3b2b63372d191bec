"""hsp listeners with and without the hub profile: nothing is acknowledged that nobody did."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import ack, data, data_ack, hub_on, journaled, open_to, port_of, records, stream_to, url_of
from tests.pipeline.batches import ranges
from wireloom.hub.config import default_config, make_listener
from wireloom.pipeline.decode import decode_range

SUBSCRIBE, LOGIN, LATER = 0xFD01, 0xFD06, 0xFD0F
ASKED = json.dumps({"topic": "hsp/#"}).encode()
OFF = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = false
topics = { 64783 = "own/type" }
[[listener]]
url = "yamp://127.0.0.1:0"
[http]
url = "off"
"""


async def error_from(reader: asyncio.StreamReader) -> tuple[int, int, str]:
    """Id, code and text of the next frame, which is an `ERROR`."""
    command, message_id, code, size = struct.unpack(">BIHI", await reader.readexactly(11))
    assert command == 5
    return message_id, code, (await reader.readexactly(size)).decode()


def test_the_profile_is_on_unless_it_is_turned_off() -> None:
    assert make_listener({"url": "hsp://127.0.0.1"}).settings.profile  # type: ignore[attr-defined]
    assert not make_listener({"url": "hsp://127.0.0.1", "profile": False}).settings.profile  # type: ignore[attr-defined]
    defaults = {listener.protocol.name: listener for listener in default_config(Path("x")).listeners}
    assert defaults["hsp"].settings.profile  # type: ignore[attr-defined]


@pytest.mark.parametrize("large", [False, True], ids=["by frames", "by the kernel"])
async def test_with_the_profile_off_a_subscribe_is_refused_and_says_why(tmp_path: Path, large: bool) -> None:
    before = data(b"x" * 100) * (20 if large else 1)
    async with hub_on(tmp_path, OFF) as hub:
        reader, writer = await stream_to(hub)
        writer.write(before + data_ack(1, ASKED, SUBSCRIBE) + data_ack(2, b"y") + data_ack(3, b"{}", LOGIN) + before)
        for number in (1, 3):
            answered, code, text = await error_from(reader)
            assert (answered, code) == (number, 501)
            assert "profile" in text
            assert "topics" in text
        assert await reader.readexactly(5) == ack(2), "only what is on disk is acknowledged"
        writer.close()
    said = [block.details for block in records(tmp_path, "denied")]
    assert said, "readers of the journal must know that it was not published"


async def test_what_was_refused_is_no_event_for_anybody(tmp_path: Path) -> None:
    async with (
        hub_on(tmp_path, OFF) as hub,
        wireloom.connect(url_of(hub, "yamp")) as other,
        other.subscribe("#") as events,
    ):
        reader, writer = await stream_to(hub)
        writer.write(data_ack(1, ASKED, SUBSCRIBE) + data_ack(2, b"y"))
        await error_from(reader)
        assert await reader.readexactly(5) == ack(2)
        event = await anext(events)
        assert (event.topic, event.value()) == ("hsp/7", "y")
        writer.close()
        async with other.subscribe("#", since="start") as past:
            assert (await anext(past)).topic == "hsp/7"
    asked = [entry.message.id for entry in journaled(tmp_path) if entry.message.protocol == "hsp" and entry.message.id]
    assert asked == ["1", "2"]
    found = [decode_range(part) for part in ranges(tmp_path / "journal")]
    assert sum(each.rejects.num_rows for each in found) == 0


async def test_with_the_profile_off_reserved_types_are_types_like_any_other(tmp_path: Path) -> None:
    async with (
        hub_on(tmp_path, OFF) as hub,
        wireloom.connect(url_of(hub, "yamp")) as other,
        other.subscribe("#") as events,
    ):
        reader, writer = await stream_to(hub)
        writer.write(data(ASKED, SUBSCRIBE) + data_ack(5, b"mine", LATER))
        assert await reader.readexactly(5) == ack(5)
        first, second = await anext(events), await anext(events)
        assert (first.topic, first.body) == (f"hsp/{SUBSCRIBE}", ASKED)
        assert (second.topic, second.value()) == ("own/type", "mine")
        writer.close()


async def test_with_the_profile_on_a_subscribe_subscribes(tmp_path: Path) -> None:
    async with hub_on(tmp_path, '[[listener]]\nurl = "hsp://127.0.0.1:0"\n[http]\nurl = "off"\n') as hub:
        reader, writer = await open_to(f"hsp://127.0.0.1:{port_of(hub)}")
        writer.write(data_ack(1, ASKED, SUBSCRIBE))
        assert await reader.readexactly(5) == ack(1)
        writer.write(data(b"hello"))
        assert await reader.readexactly(12) == data(b"hello")
        writer.close()
