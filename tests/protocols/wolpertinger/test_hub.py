"""wolpertinger peers at the hub: with each other and with peers of other protocols, and what the journal keeps."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import uuid
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import eventually, hub_on, journaled, records, url_of
from tests.protocols.wolpertinger.tables import tables_of
from tests.protocols.wolpertinger.talk import call, line
from wireloom.journal import Journal
from wireloom.model import ConfigError, Direction, Kind, Message, RequestFailed
from wireloom.peers.components import Components, component, method
from wireloom.protocols.wolpertinger import WolpertingerSettings, transmission
from wireloom.protocols.wolpertinger.values import Value

OTHERS = ("wolpertinger", "yamp", "emp", "hsp")
LISTENERS = "\n".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true' for scheme in OTHERS)
HUB = f'{LISTENERS}\n[http]\nurl = "http://127.0.0.1:0"\n'


@component("Calculator")
class Calculator:
    @method
    def Add(self, a: int, b: int) -> int:  # noqa: N802
        return a + b

    @method
    def Fail(self) -> int:  # noqa: N802
        raise RequestFailed("502")

    @method
    async def Slow(self, seconds: float) -> str:  # noqa: N802
        await asyncio.sleep(seconds)
        return "done"


@pytest.mark.parametrize("other", OTHERS)
async def test_events_cross_in_both_directions(tmp_path: Path, other: str) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        async with wireloom.connect(url_of(hub, "wolpertinger")) as one, wireloom.connect(url_of(hub, other)) as two:
            for sender, receiver in ((one, two), (two, one)):
                async with receiver.subscribe("rooms/#") as events:
                    await sender.publish("rooms/kitchen", {"c": 21.5})
                    await sender.publish("rooms/cellar", b"\xff\x00", ack=True)
                    first, second = await anext(events), await anext(events)
                assert (first.topic, first.value()) == ("rooms/kitchen", {"c": 21.5})
                # A yamp peer reads every body with its serializer: bytes of others reach it in base64.
                expected = b'"/wA="' if other == "yamp" and receiver is two else b"\xff\x00"
                assert (second.topic, second.body) == ("rooms/cellar", expected)
    assert len([each for each in journaled(tmp_path) if each.message.body == b"\xff\x00"]) == 2


@pytest.mark.parametrize("other", ["wolpertinger", "yamp", "emp"])
async def test_methods_of_a_component_are_called_from_other_protocols(tmp_path: Path, other: str) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        async with wireloom.connect(url_of(hub, "wolpertinger"), handler=Components(Calculator())) as provider:
            await provider.request("$hub/provide", {"topic": "Calculator.Add"})
            await provider.request("$hub/provide", {"topic": "Calculator.Fail"})
            async with wireloom.connect(url_of(hub, other)) as client:
                assert await client.request("Calculator.Add", [2, 3]) == 5
                for topic, body in (("Calculator.Fail", []), ("Calculator.Add", ["a"]), ("Calculator.Nope", [])):
                    with pytest.raises(RequestFailed):
                        await client.request(topic, body)
                if other == "wolpertinger":
                    assert await client.call("Calculator", "Add", 2, 3) == 5
                    with pytest.raises(RequestFailed, match="502"):
                        await client.call("Calculator", "Fail")


@pytest.mark.parametrize("other", ["yamp", "emp"])
async def test_wolpertinger_peers_call_providers_of_other_protocols(tmp_path: Path, other: str) -> None:
    async def handler(message: Message, peer: wireloom.Peer) -> object:
        value = message.value()
        if value == "no":
            raise RequestFailed("418", b"short and stout")
        return {"got": value}

    async with hub_on(tmp_path, HUB) as hub:
        async with wireloom.connect(url_of(hub, other), handler=handler) as provider:
            await provider.request("$hub/provide", {"topic": "tea/#"})
            await provider.request("$hub/provide", {"topic": "Tea.Make"})
            async with wireloom.connect(url_of(hub, "wolpertinger")) as client:
                assert await client.request("tea/green", [1, 2]) == {"got": [1, 2]}
                # A method's result has no objects: they come as their JSON text.
                assert await client.call("Tea", "Make", 1, 2) == '{"got": [1, 2]}'
                with pytest.raises(RequestFailed):
                    await client.request("tea/green", "no")
                with pytest.raises(RequestFailed) as failed:
                    await client.call("Coffee", "Make")
                assert failed.value.code == "304"


async def test_a_slow_provider_keeps_the_caller_waiting_by_heartbeats(tmp_path: Path) -> None:
    text = HUB.replace("profile = true", "profile = true\nsettings = { heartbeat = 0.1 }", 1)
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub, "wolpertinger"), handler=Components(Calculator())) as provider:
            await provider.request("$hub/provide", {"topic": "Calculator.Slow"})
            async with wireloom.connect(url_of(hub, "wolpertinger")) as client:
                assert await client.call("Calculator", "Slow", 1.0, timeout=0.5) == "done"


async def test_heartbeats_of_a_provider_give_it_more_time(tmp_path: Path) -> None:
    text = HUB + "[limits]\nrequest_timeout = 1.0\n"
    async with hub_on(tmp_path, text) as hub:
        url = url_of(hub, "wolpertinger")
        async with wireloom.connect(url, handler=Components(Calculator()), settings={"heartbeat": 0.2}) as provider:
            await provider.request("$hub/provide", {"topic": "Calculator.Slow"})
            async with wireloom.connect(url_of(hub, "yamp")) as client:
                assert await client.request("Calculator.Slow", [2.5]) == "done"


async def test_the_journal_keeps_every_line_and_tells_what_it_said(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        url = url_of(hub, "wolpertinger")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        texts = [Value("string", each) for each in ("rooms/kitchen", "text/plain", "x" * 400)]
        writer.write(b"nonsense\n" + line(call("Hub", "Publish", *texts), 7))
        assert await reader.readline() == b"result:0;message_id:7;\n"
        answer = await reader.readline()
        assert b"message_id:" in answer
        writer.write(b"result:0;" + answer.partition(b";")[0] + b";\n")
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: not hub.connections)
    found = [(each.message.direction, each.message.kind, each.message.topic) for each in journaled(tmp_path)]
    assert found == [
        (Direction.C2S, Kind.REQUEST, "$hub/publish/rooms/kitchen"),
        (Direction.S2C, Kind.ACK, None),
        (Direction.S2C, Kind.RESPONSE, None),
        (Direction.C2S, Kind.ACK, None),
    ]
    assert ["wolpertinger.metadata.form" in str(each) for each in records(tmp_path, "refused")] == [True]


async def test_split_messages_are_one_message_in_the_journal(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        settings = {"split": 100, "gzip_from": 0}
        async with wireloom.connect(url_of(hub, "wolpertinger"), settings=settings) as client:
            await client.publish("rooms/kitchen", "x" * 500, ack=True)
            await client.publish("rooms/cellar", "y" * 500, ack=True)
    found = [each.message for each in journaled(tmp_path) if each.message.kind is Kind.REQUEST]
    assert [(each.topic, len(each.body)) for each in found] == [
        ("$hub/publish/rooms/kitchen", 500), ("$hub/publish/rooms/cellar", 500),
    ]  # fmt: skip


# What the journal keeps of an encrypted conversation

CLUSTER = "ab" * 16
TRUSTED = f"""
[[listener]]
url = "wolpertinger://127.0.0.1:0"
profile = true
settings = {{ cluster_key = "{CLUSTER}", users = {{ ada = "lovelace" }}, split = 200, gzip_from = 0 }}
[http]
url = "http://127.0.0.1:0"
"""
ADA = {"authenticate": 4, "cluster_key": CLUSTER, "user": "ada", "password": "lovelace", "split": 200, "gzip_from": 0}


async def encrypted_conversation(folder: Path, text: str) -> None:
    async with hub_on(folder, text) as hub:
        async with wireloom.connect(url_of(hub, "wolpertinger"), settings=ADA) as peer:
            async with peer.subscribe("rooms/#") as events:
                await peer.publish("rooms/kitchen", {"text": "secret" * 50}, ack=True)
                assert (await anext(events)).topic == "rooms/kitchen"


def rows_of(folder: Path) -> list[dict[str, object]]:
    """The rows of `messages` that the pipeline makes of a journal."""
    from wireloom.pipeline.decode import decode_range
    from wireloom.pipeline.message_table import plain
    from wireloom.pipeline.planning import latest, plan
    from wireloom.pipeline.schemas import MESSAGES

    inputs = [str(folder / "journal")]
    ranges = [part for part in plan(inputs, {}, latest(inputs)) if not part.refused]
    return [row for part in ranges for row in plain(decode_range(part).messages, MESSAGES).to_pylist()]


async def test_the_journal_holds_the_keys_of_an_encrypted_conversation(tmp_path: Path) -> None:
    await encrypted_conversation(tmp_path, TRUSTED + "[journal]\nsegment_bytes = 3000\n")
    found = [each.message for each in journaled(tmp_path)]
    rows = rows_of(tmp_path)
    assert len(list((tmp_path / "journal").glob("*.pcapng"))) > 2
    for kinds, topics in (
        ([each.kind for each in found], [each.topic for each in found]),
        ([row["kind"] for row in rows], [row["topic"] for row in rows]),
    ):
        assert Kind.OTHER not in kinds
        assert {"$hub/publish/rooms/kitchen", "rooms/kitchen"} & set(topics)
    published = next(row for row in rows if row["topic"] == "rooms/kitchen")
    assert b"secret" in bytes(published["body"])  # type: ignore[arg-type]
    attributes = dict(published["attributes"])  # type: ignore[call-overload]
    assert (attributes["encryption"], int(attributes["fragment_count"]) > 2) == ("aes", True)


async def test_without_the_keys_messages_stay_other(tmp_path: Path) -> None:
    await encrypted_conversation(tmp_path, TRUSTED + "[journal]\nkeys = false\n")
    raw = b"".join(path.read_bytes() for path in (tmp_path / "journal").glob("*.pcapng"))
    assert b"aes_key" not in raw
    rows = rows_of(tmp_path)
    assert [row["kind"] for row in rows] == [each.message.kind for each in journaled(tmp_path)]
    assert Kind.OTHER in [row["kind"] for row in rows]
    assert "rooms/kitchen" not in [row["topic"] for row in rows]


async def test_a_key_file_beside_the_journal_opens_it_as_well(tmp_path: Path) -> None:
    async with hub_on(tmp_path, TRUSTED + "[journal]\nkeys = false\n") as hub:
        async with wireloom.connect(url_of(hub, "wolpertinger"), settings=ADA) as peer:
            await peer.publish("rooms/kitchen", b"1", ack=True)
            secrets = dict(peer.session.secrets)
    assert Kind.OTHER in [row["kind"] for row in rows_of(tmp_path)]
    other = {"protocol": "wolpertinger", "settings": {"aes_key": "00" * 32, "aes_iv": "00" * 16}}
    right = {"protocol": "wolpertinger", "settings": secrets}
    file = tmp_path / "journal" / "keys.jsonl"
    file.write_text(f"{json.dumps(other)}\n\n{json.dumps(right)}\n")
    rows = rows_of(tmp_path)
    assert Kind.OTHER not in [row["kind"] for row in rows]
    assert "rooms/kitchen" in [row["topic"] for row in rows]
    file.write_text('{"protocol": "wolpertinger"}\n')
    with pytest.raises(ConfigError, match=r"keys\.jsonl:1: a line must be"):
        rows_of(tmp_path)


async def test_proofs_are_blanked_in_the_journal(tmp_path: Path) -> None:
    await encrypted_conversation(tmp_path, TRUSTED)
    given = {row["topic"]: (row["direction"], bytes(row["body"])) for row in rows_of(tmp_path)}  # type: ignore[arg-type]
    assert given["Authentication.UserAuthVerify"] == ("c2s", b'["ada","%b"]' % (b"*" * 88))
    # Both ends have proven that they are of the cluster.
    proofs = [row for row in rows_of(tmp_path) if row["topic"] == "Authentication.ClusterAuthVerify"]
    stars = b'["%b"]' % (b"*" * 88)
    assert [(row["direction"], row["body"]) for row in proofs] == [("c2s", stars), ("s2c", stars)]


async def test_every_message_of_an_encrypted_split_conversation_is_counted_once(tmp_path: Path) -> None:
    await encrypted_conversation(tmp_path, TRUSTED)
    rows = rows_of(tmp_path)
    for direction in ("c2s", "s2c"):
        assert sequences(rows, direction) == list(range(len(sequences(rows, direction))))


def sequences(rows: list[dict[str, object]], direction: str) -> list[object]:
    return [row["sequence"] for row in rows if row["direction"] == direction]


# Split messages in the journal, however it is read


async def test_a_split_message_that_is_sent_again_piece_by_piece_is_whole_in_every_range(tmp_path: Path) -> None:
    own = WolpertingerSettings(split=120, gzip_from=0)
    texts = [Value("string", each) for each in ("rooms/kitchen", "text/plain", "x" * 400)]
    lines = transmission.encode(call("Hub", "Publish", *texts), 7, own, None)
    async with hub_on(tmp_path, HUB) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url_of(hub, "wolpertinger").rpartition(":")[2]))
        between = 100
        for each in (*lines, *lines):
            # A message of its own between the pieces, so that no two of them lie in one run.
            between += 1
            writer.write(each + line(call("Nobody", "There", call_id=str(uuid.UUID(int=between))), between))
            while await reader.readline() != b"result:0;message_id:%d;\n" % between:
                pass
        # Of the third copy one piece is missing.
        writer.write(b"".join(lines[1:]))
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: not hub.connections)
    whole, rejected = tables_of(tmp_path, 1 << 30)
    copies = [row for row in whole if row["topic"] == "rooms/kitchen"]
    assert [(row["body"], row["wire_size"]) for row in copies] == [(b"x" * 400, sum(map(len, lines)))] * 2
    for direction in ("c2s", "s2c"):
        assert sequences(whole, direction) == list(range(len(sequences(whole, direction))))
    assert [row["size"] for row in rejected] == [sum(map(len, lines[1:]))]
    for step in (64, 1000):
        assert tables_of(tmp_path, step) == (whole, rejected)


@pytest.mark.parametrize("cut", [1, 2])
def test_pieces_that_a_journal_has_apart_are_rejects_however_it_is_read(tmp_path: Path, cut: int) -> None:
    lines = transmission.encode(call("T", "E", Value("string", "x" * 200)), 7, WolpertingerSettings(split=120), None)
    assert len(lines) > 2
    journal = Journal.open(tmp_path / "journal")
    connection = journal.new_connection_id()
    journal.append("wolpertinger", connection, Direction.C2S, 0, b"".join(lines[:cut]))
    journal.append("wolpertinger", connection, Direction.C2S, 0, b"".join(lines[cut:]))
    journal.append("wolpertinger", connection, Direction.C2S, 0, b"".join(reversed(lines)))
    journal.close()
    messages, rejects = tables_of(tmp_path, 1 << 30)
    assert [(row["topic"], row["sequence"]) for row in messages] == [("T.E", 0)]
    assert [(row["clause"], row["bytes"]) for row in rejects] == [
        ("wolpertinger.fragment.dropped", b"".join(lines[:cut])),
        ("wolpertinger.fragment.dropped", b"".join(lines[cut:])),
    ]
    assert tables_of(tmp_path, 64) == (messages, rejects)


def test_what_a_listener_with_higher_limits_took_is_read_from_the_journal(tmp_path: Path) -> None:
    generous = WolpertingerSettings(max_message=9_000_000, max_fragments=6000, split=2000, gzip_from=0)
    lines = transmission.encode(call("T", "E", Value("string", "x" * 8_500_000)), 7, generous, None)
    assert len(lines) > WolpertingerSettings().max_fragments
    journal = Journal.open(tmp_path / "journal")
    journal.append("wolpertinger", journal.new_connection_id(), Direction.C2S, 0, b"".join(lines))
    journal.close()
    messages, rejects = tables_of(tmp_path, 1 << 30)
    assert ([row["body_size"] for row in messages], rejects) == ([8_500_004], [])


async def test_a_login_in_pieces_leaves_no_token_in_the_journal(tmp_path: Path) -> None:
    token = "S" * 700
    own = WolpertingerSettings(split=200, gzip_from=0)
    async with hub_on(tmp_path, HUB) as hub:
        port = int(url_of(hub, "wolpertinger").rpartition(":")[2])
        for pieces in (slice(None), slice(0, -1), slice(1, None)):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = transmission.encode(call("Hub", "Login", Value("string", token)), 7, own, None)[pieces]
            for each in lines:
                writer.write(each)
                await writer.drain()
            writer.close()
            await writer.wait_closed()
        await eventually(lambda: not hub.connections)
    messages, rejects = tables_of(tmp_path, 1 << 30)
    logins = [row for row in messages if row["kind"] == "request" and dict(row["attributes"])["operation"] == "login"]
    assert [row["body"] for row in logins] == [b'{"token":"%b"}' % (b"*" * len(token))]
    assert len(rejects) == 2
    for each in rejects:
        for payload in re.findall(rb";([A-Za-z0-9+/]+=*)\n", bytes(each["bytes"])):
            assert b"SSS" not in base64.b64decode(payload[: len(payload) // 4 * 4])


async def test_a_confirmation_that_waits_for_company_does_not_go_out_with_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events for subscribers are not recorded; a confirmation is, and counts."""
    monkeypatch.setattr(transmission, "_SOON", 5.0)
    async with hub_on(tmp_path, HUB) as hub:
        url = url_of(hub, "wolpertinger")
        async with (
            wireloom.connect(url, handler=Components(Calculator())) as provider,
            wireloom.connect(url_of(hub, "yamp")) as caller,
            provider.subscribe("rooms/#") as events,
        ):
            await provider.provide("Calculator.Add")
            for _ in range(3):
                # The hub has yet to confirm the provider's answer when the event follows.
                assert await caller.request("Calculator.Add", [2, 3]) == 5
                await caller.publish("rooms/kitchen", b"warm", ack=True)
                assert (await anext(events)).body == b"warm"
    said = [each for each in journaled(tmp_path) if each.message.protocol == "wolpertinger"]
    for way in (Direction.C2S, Direction.S2C):
        numbers = [each.sequence for each in said if each.message.direction is way]
        assert numbers == list(range(len(numbers)))
    answers = [
        each.message for each in said if each.message.kind is Kind.RESPONSE and each.message.direction is Direction.C2S
    ]
    confirmed = {
        each.message.correlation_id
        for each in said
        if each.message.kind is Kind.ACK and each.message.direction is Direction.S2C
    }
    assert len(answers) == 3
    assert {each.attributes["message_id"] for each in answers} <= confirmed
