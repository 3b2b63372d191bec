"""What a reader must know of a connection stands in every segment in which it appears, in fields of its own."""

from __future__ import annotations

from pathlib import Path

import wireloom
from tests.hub.running import data, hub_on, journaled, open_to, records
from tests.pipeline.batches import ranges
from wireloom.journal import read_blocks, segments
from wireloom.journal.blocks import contexts
from wireloom.model import Kind, Message, type_of_json
from wireloom.pipeline.decode import decode_range
from wireloom.protocols.contract import PUBLISH

HUB = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = false
settings = { profile = false }
topics = { 7 = "sensors/kitchen" }
[[listener]]
url = "emp://127.0.0.1:0"
settings = { size_mode = "exclusive" }
[[listener]]
url = "yamp://127.0.0.1:0"
[http]
url = "off"
[journal]
segment_bytes = 4000
"""
ENVELOPE = 0xFD00


def in_tables(message: Message) -> Message:
    """An acknowledged publish is an event under its own topic there."""
    kind = Kind.EVENT if message.kind is Kind.REQUEST else message.kind
    topic = message.topic or ""
    return message.with_(kind=kind, topic=topic.removeprefix(PUBLISH)) if topic.startswith(PUBLISH) else message


async def test_every_segment_says_how_its_connections_are_read(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        urls = {url.partition(":")[0]: url for url in hub.urls.values()}
        reader, writer = await open_to(urls["hsp"])
        async with (
            wireloom.connect(urls["emp"], settings={"size_mode": "exclusive", "profile": "on"}) as emp,
            wireloom.connect(urls["yamp"], settings={"serializer": "msgpack"}) as yamp,
            wireloom.connect(urls["yamp"]) as plain,
        ):
            for number in range(40):
                for peer in (emp, yamp, plain):
                    await peer.publish("x", {"n": number}, ack=True)
                # Without the profile this is a payload like any other.
                writer.write(data(b"\0\1a\0b", ENVELOPE) + data(b"%d" % number) + b"\x03")
                await reader.readexactly(1)
        writer.close()
    assert len(segments(tmp_path / "journal")) > 4
    settings = [block.details.get("settings") for block in records(tmp_path, "context")]
    told: list[dict[str, type_of_json]] = [{"size_mode": "exclusive"}, {"serializer": "msgpack"}, {"profile": False}]
    for stated in told:
        assert settings.count(stated) > 2, "stated again in each segment"
    for path in segments(tmp_path / "journal"):
        found = list(read_blocks(path))
        known = contexts(found)
        assert {block.context for block in found if block.context is not None} == set(known)
        assert all(0 not in each.topics for each in known.values())
        for block in found:
            if block.record is None and block.protocol == "emp":
                assert known[block.context or 0].settings == {"size_mode": "exclusive"}
    messages = [entry.message for entry in journaled(tmp_path)]
    sensors = [m.body for m in messages if m.topic == "sensors/kitchen"]
    assert sensors == [b"%d" % number for number in range(40)]
    assert len([m for m in messages if m.topic == f"hsp/{ENVELOPE}" and m.body == b"\0\1a\0b"]) == 40
    published = [m for m in messages if m.topic == "$hub/publish/x" and m.kind is Kind.REQUEST]
    kinds = [(m.protocol, m.content_type) for m in published]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        ("emp", "application/json"): 40,
        ("yamp", "application/msgpack"): 40,
        ("yamp", "application/json"): 40,
    }
    tables = [decode_range(part) for part in ranges(tmp_path / "journal")]
    assert sum(each.rejects.num_rows for each in tables) == 0
    rows = [row for each in tables for row in each.messages.to_pylist()]
    columns = ("protocol", "kind", "topic", "content_type", "body")
    assert sorted(repr([bytes(row[c]) if c == "body" else row[c] for c in columns]) for row in rows) == sorted(
        repr([m.protocol, str(m.kind), m.topic, m.content_type, m.body]) for m in map(in_tables, messages)
    )


async def test_connections_that_agreed_on_the_same_share_one_context(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB.replace("4000", "4000000")) as hub:
        url = next(url for url in hub.urls.values() if url.startswith("yamp"))
        for _ in range(5):
            async with wireloom.connect(url, settings={"serializer": "cbor"}) as peer:
                await peer.publish("x", 1, ack=True)
    assert [block.details.get("settings") for block in records(tmp_path, "context")] == [{"serializer": "cbor"}]
