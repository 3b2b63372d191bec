"""Static routes: topics for peers without topics, filters, other formats, and requests sent elsewhere."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgpack
import pytest

import wireloom
from tests.hub.running import data, hub_on, stream_to, url_of
from tests.hub.test_cloudevents import receiver
from wireloom.hub import Hub
from wireloom.hub.config import parse_config
from wireloom.hub.reload import reload
from wireloom.hub.transform import parse_schema, transformed
from wireloom.model import BodyError, ConfigError, Kind, Message

HUB = """
[[listener]]
url = "emp://127.0.0.1:0"
[[listener]]
url = "yamp://127.0.0.1:0"
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
topics = { 7 = "sensors/kitchen" }
[http]
url = "off"
"""


def config(text: str, folder: Path) -> object:
    import tomllib

    return parse_config(tomllib.loads(text), text, "hub.toml", folder)


async def received(hub: object, pattern: str, send: object, count: int) -> list[Message]:
    async with wireloom.connect(url_of(hub, "emp")) as peer, peer.subscribe(pattern) as events:  # type: ignore[arg-type]
        await send()  # type: ignore[operator]
        async with asyncio.timeout(20):
            return [await anext(events) for _ in range(count)]


async def test_messages_without_a_topic_get_one_by_listener_and_type(tmp_path: Path) -> None:
    routes = """
[[route]]
listener = "emp://127.0.0.1:0"
type = 200
to = "legacy/blobs"
"""
    async with hub_on(tmp_path, HUB + routes) as hub:
        sender = await wireloom.connect(url_of(hub, "emp"))

        async def send() -> None:
            for number in (199, 200):
                sender.send(Message(Kind.OTHER, None, b"%d" % number, attributes={"type": str(number)}))

        (got,) = await received(hub, "legacy/#", send, 1)
        assert (got.topic, got.body) == ("legacy/blobs", b"200")
        await sender.close()


async def test_copies_go_to_another_topic_and_the_original_stays(tmp_path: Path) -> None:
    route = '[[route]]\ntopic = "sensors/#"\nto = "archive/{topic}"\n'
    async with hub_on(tmp_path, HUB + route) as hub:

        async def send() -> None:
            _, writer = await stream_to(hub)
            # Few frames are read one by one, many in columns: both ways end the same.
            writer.write(data(b"1"))
            await asyncio.sleep(0.2)
            writer.write(b"".join(data(b"%d" % number) for number in range(2, 50)))
            await writer.drain()
            writer.close()

        got = await received(hub, "#", send, 98)
        for topic in ("sensors/kitchen", "archive/sensors/kitchen"):
            assert [each.body for each in got if each.topic == topic] == [b"%d" % n for n in range(1, 50)]


async def test_conditions_on_bodies_and_another_format(tmp_path: Path) -> None:
    route = """
[[route]]
topic = "sensors/+"
to = "alerts/heat"
where = { "body.celsius" = { above = 30 }, "body.room.name" = { matches = "^kit" } }
content_type = "application/msgpack"
"""
    async with hub_on(tmp_path, HUB + route) as hub, wireloom.connect(url_of(hub, "yamp")) as sender:

        async def send() -> None:
            for celsius, room in ((29, "kitchen"), (31, "cellar"), (32, "kitchen"), ("33", "kitten")):
                await sender.publish("sensors/x", {"celsius": celsius, "room": {"name": room}})
            await sender.publish("sensors/x", "no object at all")
            await sender.publish("sensors/x", {"celsius": 50, "room": {"name": "kit"}})

        got = await received(hub, "alerts/#", send, 3)
        assert {each.content_type for each in got} == {"application/msgpack"}
        assert [msgpack.unpackb(each.body)["celsius"] for each in got] == [32, "33", 50]


async def test_a_body_that_cannot_be_said_otherwise_is_told(tmp_path: Path) -> None:
    route = '[[route]]\ntopic = "sensors/#"\nto = "packed/{topic}"\ncontent_type = "application/msgpack"\n'
    async with hub_on(tmp_path, HUB + route) as hub, wireloom.connect(url_of(hub, "emp")) as sender:

        async def send() -> None:
            await sender.publish("sensors/a", b"\xff\x00 bytes")

        (got,) = await received(hub, "$hub/undeliverable", send, 1)
        notice = got.value()
        assert notice["topic"] == "sensors/a" and notice["route"] == "packed/{topic}"  # type: ignore[index,call-overload]


async def test_requests_go_to_the_provider_of_another_topic(tmp_path: Path) -> None:
    route = '[[route]]\ntopic = "old/add"\nkind = "request"\nto = "math/add"\n'

    async def add(message: Message, peer: wireloom.Peer) -> object:
        return {"topic": message.topic, "sum": sum(message.value())}  # type: ignore[arg-type]

    async with hub_on(tmp_path, HUB + route) as hub:
        url = url_of(hub, "yamp")
        async with wireloom.connect(url, handler=add) as provider, wireloom.connect(url) as peer:
            await provider.provide("math/add")
            assert await peer.request("old/add", [1, 2]) == {"topic": "math/add", "sum": 3}


async def test_routes_are_changed_without_dropping_anybody(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "yamp")) as sender:
        route = '[[route]]\ntopic = "a"\nto = "b"\n'
        reload(hub, config(HUB + route, tmp_path))  # type: ignore[arg-type]
        (got,) = await received(hub, "b", lambda: sender.publish("a", {"n": 1}), 1)
        assert got.value() == {"n": 1} and len(hub.connections) >= 1


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ('topic = "a"', "hub.toml:12: route: a route needs a topic to go to"),
        ('to = "b"', "takes everything"),
        ('to = "b/#"\ntopic = "a"', "hub.toml:13: route"),
        ('to = "b"\ntopic = "a#"', "hub.toml:14: route"),
        ('to = "b"\nlistener = "hsp://nowhere"', "there is no listener"),
        ('to = "b"\ntype = "7"', "must be a number"),
        ('to = "b"\ntopic = "a"\nkind = "answer"', "event or request"),
        ('to = "b"\ntopic = "a"\nwhere = { "celsius" = 3 }', "attributes.<name> or body.<name>"),
        ('to = "b"\ntopic = "a"\nwhere = { "body.c" = { over = 3 } }', "above, below"),
        ('to = "b"\ntopic = "a"\nwhere = { "body.c" = { matches = "(" } }', "is no pattern"),
        ('to = "b"\ntopic = "a"\ncontent_type = "image/png"', "nothing writes image/png"),
        ('to = "b"\ntopic = "a"\nschema = { protobuf = "no.desc", message = "a.B" }', "cannot be read"),
        ('to = "b"\ntopic = "a"\nschema = { flatbuffers = "json:Nothing" }', "object API"),
        ('to = "b"\ntopic = "a"\nwhither = 1', "unknown key 'whither'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, route: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(HUB + "[[route]]\n" + route + "\n", tmp_path)
    assert said in str(error.value)


def descriptor_set(folder: Path) -> Path:
    """As protoc writes it: `message Sold { string name = 1; int32 price = 2; }` in the package shop."""
    from google.protobuf import descriptor_pb2

    field = descriptor_pb2.FieldDescriptorProto
    message = descriptor_pb2.DescriptorProto(
        name="Sold",
        field=[
            field(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL),
            field(name="price", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL),
        ],
    )
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", message_type=[message]
    )
    path = folder / "shop.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return path


def test_protobuf_with_a_descriptor_set(tmp_path: Path) -> None:
    path = descriptor_set(tmp_path)
    schema = parse_schema({"protobuf": str(path), "message": "shop.Sold"})
    event = Message(Kind.EVENT, "a", b'{"name":"tea","price":5}', content_type="application/json")
    packed = transformed(event, "application/x-protobuf", schema)
    assert packed.body == b"\n\x03tea\x10\x05"
    assert transformed(packed, "application/json", schema).value() == {"name": "tea", "price": 5}
    with pytest.raises(BodyError, match=r"shop\.Sold"):
        transformed(event.with_(body=b'{"colour":1}'), "application/x-protobuf", schema)
    with pytest.raises(ConfigError, match=r"no message 'shop\.Bought'"):
        parse_schema({"protobuf": str(path), "message": "shop.Bought"})


async def test_bodies_are_said_in_protobuf_and_back_on_their_way(tmp_path: Path) -> None:
    schema = f'schema = {{ protobuf = "{descriptor_set(tmp_path)}", message = "shop.Sold" }}\n'
    routes = (
        f'[[route]]\ntopic = "json/#"\nto = "packed"\ncontent_type = "application/x-protobuf"\n{schema}'
        f'[[route]]\ntopic = "protobuf/#"\nto = "plain"\ncontent_type = "application/json"\n{schema}'
    )
    async with hub_on(tmp_path, HUB + routes) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
        async with peer.subscribe("packed") as packed, peer.subscribe("plain") as plain, asyncio.timeout(20):
            await peer.publish("json/sold", {"name": "tea", "price": 5})
            event = await anext(packed)
            assert (event.body, event.content_type) == (b"\n\x03tea\x10\x05", "application/x-protobuf")
            peer.send(Message(Kind.EVENT, "protobuf/sold", event.body, content_type=event.content_type))
            assert (await anext(plain)).value() == {"name": "tea", "price": 5}


def test_flatbuffers_with_the_object_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    schema = parse_schema({"flatbuffers": "flat_reading:ReadingT"})
    event = Message(Kind.EVENT, "a", b'{"celsius":21,"room":"attic"}', content_type="application/json")
    packed = transformed(event, "application/x-flatbuffers", schema)
    assert packed.content_type == "application/x-flatbuffers" and b"attic" in packed.body
    assert transformed(packed, "application/json", schema).value() == {"celsius": 21, "room": "attic"}
    with pytest.raises(BodyError, match="celsius, room"):
        transformed(event.with_(body=b'{"colour":1}'), "application/x-flatbuffers", schema)


# What reads the journal sees the same topics


LEGACY = """
[[route]]
listener = "emp://127.0.0.1:0"
type = 200
to = "legacy/blobs"
[[route]]
topic = "sensors/#"
to = "archive/{topic}"
"""


async def publish_some(hub: Hub) -> None:
    async with wireloom.connect(url_of(hub, "emp")) as old, wireloom.connect(url_of(hub)) as meter:
        old.send(Message(Kind.OTHER, None, b"blob", attributes={"type": "200"}))
        old.send(Message(Kind.OTHER, None, b"none", attributes={"type": "201"}))
        await old.publish("end", b"", ack=True)
        for number in range(3):
            await meter.publish("sensors/kitchen", b"%d" % number, ack=True)


async def test_since_and_retained_see_what_routes_publish(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB + LEGACY) as hub:
        await publish_some(hub)
        async with wireloom.connect(url_of(hub, "yamp")) as peer, asyncio.timeout(40):
            for pattern, values in (("legacy/#", ["blob"]), ("archive/#", [0, 1, 2])):
                async with peer.subscribe(pattern, since="start") as events:
                    got = [await anext(events) for _ in values]
                    assert [each.value() for each in got] == values
                async with peer.subscribe(pattern, retained=True) as events:
                    assert (await anext(events)).value() == values[-1]
            # Once, under its own topic, where several match.
            async with peer.subscribe("#", since="start") as events:
                topics = [(await anext(events)).topic for _ in range(5)]
            assert topics == ["legacy/blobs", "end", *["sensors/kitchen"] * 3]


async def test_after_a_restart_the_past_is_routed_by_the_routes_of_now(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fixed, moved = HUB.replace("emp://127.0.0.1:0", f"emp://127.0.0.1:{port}"), LEGACY.replace(":0", f":{port}")
    archive = LEGACY[LEGACY.rindex("[[route]]") :]
    async with hub_on(tmp_path, fixed + archive) as hub:
        await publish_some(hub)
    async with hub_on(tmp_path, fixed + moved) as hub, wireloom.connect(url_of(hub, "yamp")) as peer:
        async with asyncio.timeout(40):
            async with peer.subscribe("legacy/#", since="start") as events:
                assert (await anext(events)).value() == "blob", "by the address that it came to"
            async with peer.subscribe("archive/#", retained=True) as events:
                assert (await anext(events)).body == b"2", "the last value is known under the route's topic"


async def test_webhooks_see_what_routes_publish(tmp_path: Path) -> None:
    async with receiver() as hook:
        webhook = f'[[webhook]]\nname = "out"\nurl = "{hook.url}"\ntopic = "legacy/#"\n'
        async with hub_on(tmp_path, HUB + LEGACY + webhook) as hub:
            await publish_some(hub)
            await hook.until(1)
    assert [(each.topic, each.data) for each in hook.got] == [("legacy/blobs", b"blob")]


@pytest.mark.parametrize(
    ("scheme", "topic"),
    [("yamp", "shop/orders"), ("wolpertinger", "Shop.Ordered"), ("mesh", "shop-ordered"), ("emp", "shop/orders")],
)
async def test_uris_components_and_event_names_lead_to_topics(tmp_path: Path, scheme: str, topic: str) -> None:
    text = (
        f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\n'
        + ('settings = { require = "any" }\n' if scheme == "mesh" else "")
        + '[[listener]]\nurl = "hsp://127.0.0.1:0"\nprofile = true\n[http]\nurl = "off"\n'
        + f'[[route]]\nlistener = "{scheme}://127.0.0.1:0"\ntopic = "{topic}"\nto = "orders/new"\n'
    )
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub)) as reader, reader.subscribe("orders/#") as events:
            async with wireloom.connect(url_of(hub, scheme)) as peer, asyncio.timeout(20):
                await peer.publish("other", b"0")
                await peer.publish(topic, b"1")
                event = await anext(events)
                assert (event.topic, event.body) == ("orders/new", b"1")


async def test_conditions_on_attributes(tmp_path: Path) -> None:
    route = (
        '[[route]]\ntopic = "jobs"\nto = "kinds/packed"\nwhere = { "attributes.compression" = "gzip" }\n'
        '[[route]]\ntopic = "jobs"\nto = "kinds/plain"\nwhere = { "attributes.compression" = { exists = false } }\n'
    )
    async with hub_on(tmp_path, HUB + route) as hub, wireloom.connect(url_of(hub, "emp")) as peer:

        async def send() -> None:
            for number, attributes in enumerate(({"compression": "gzip"}, {"compression": "identity"}, {})):
                await peer.publish("jobs", b"%d" % number, attributes=attributes)

        got = await received(hub, "kinds/#", send, 2)
        assert [(each.topic, each.body) for each in got] == [("kinds/packed", b"0"), ("kinds/plain", b"2")]
