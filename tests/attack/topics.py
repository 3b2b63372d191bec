"""Attacks with topics and patterns: wildcards where none belong, levels without end, subscriptions without end."""

from __future__ import annotations

import json
import socket
import time

from tests.attack.harness import Target, attack
from tests.attack.wire import Peer, json_request
from wireloom.model import Kind, Message
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.settings import MeshSettings

LEVELS = 40
"""With a step for each way to match, a trillion steps."""
WILDCARDS = "/".join("+" * LEVELS)


@attack("events whose topic is a pattern", limits={"topic_bytes": "wireloom_refused_total"}, small=True)
async def wildcards_in_topics(target: Target) -> None:
    """Each protocol has its own way to name a topic; the index holds the same pattern."""
    reader = await target.connect("yamp")
    async with reader.subscribe(WILDCARDS), reader.subscribe("$hub/undeliverable") as lost:
        for scheme in ("hsp", "emp", "yamp"):
            peer = await Peer.connect(target, scheme)
            event = Message(Kind.EVENT, WILDCARDS, b"{}", content_type=None if scheme == "hsp" else "application/json")
            peer.write(event)
            # In columns, among others.
            for number in range(200):
                peer.write(Message(Kind.EVENT, f"a/{number % 3}", b"{}", content_type=event.content_type))
            peer.write(event)
            answer = await peer.ask(f"$hub/publish/{WILDCARDS}" if scheme != "hsp" else WILDCARDS)
            assert answer.kind is Kind.ERROR and b"wildcard" in answer.body, answer
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            author = Author(MeshSettings(), Identity(b"n" * 16))
            packet = author.write(Message(Kind.EVENT, WILDCARDS, b"{}"), time.time())[0]
            sock.sendto(packet, target.address("mesh"))
        found = {json.loads((await anext(lost)).body)["why"] for _ in range(4)}
        assert all("wildcard" in why for why in found), found


@attack("a topic of control characters, and of too many bytes and levels", limits={"topic_levels": 'wireloom_limits_reached_total{setting="topic_levels"}', "topic_bytes": 'wireloom_limits_reached_total{setting="topic_bytes"}'}, small=True)  # fmt: skip
async def topics_that_are_none(target: Target) -> None:
    found = await target.watch("#")
    peer = await Peer.connect(target, "emp")
    for topic, why in (
        ("a\x1b[2J", b"control character U+001B"),
        ("a\x9b", b"control character U+009B"),
        ("/".join("a" * 65), b"65 levels; topic_levels in [limits] is 64"),
        ("x" * 1025, b"longer than topic_bytes in [limits], 1024"),
        ("ä" * 513, b"longer than topic_bytes in [limits], 1024"),
    ):
        peer.write(Message(Kind.EVENT, topic, b"{}", content_type="application/json"))
        for asked in ("$hub/publish/" + topic, topic):
            answer = await peer.ask(asked)
            assert answer.kind is Kind.ERROR and why in answer.body, answer
    await peer.ask("$hub/publish/the/end")
    assert await target.settle(lambda: ("the/end", b"") in found)
    assert {topic for topic, _ in found} <= {"the/end", "well-behaved"}, found
    http = f"POST /events/{'x' * 1025} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 1\r\n"
    reader, writer = await target.open("http")
    writer.write(f"{http}ce-specversion: 1.0\r\nce-id: 1\r\nce-source: s\r\nce-type: t\r\n\r\n1".encode())
    answered = await reader.read()
    assert answered.startswith(b"HTTP/1.1 400") and b"topic_bytes" in answered, answered


@attack("long topics, remembered wherever topics are", limits={"topic_bytes": 'wireloom_limits_reached_total{setting="topic_bytes"}'})  # fmt: skip
async def long_topics(target: Target) -> None:
    """8,000 topics of 60 KB; each may be remembered by the index, by rights, by last values."""
    peer = await Peer.connect(target, "emp")
    for number in range(800):
        for _ in range(2):
            peer.write(Message(Kind.EVENT, f"{number}/{'x' * 60_000}", b"{}", content_type="application/json"))
        await peer.drain()
    await peer.settle()


@attack("patterns with thousands of levels", limits={"topic_levels": 'wireloom_limits_reached_total{setting="topic_levels"}'})  # fmt: skip
async def deep_patterns(target: Target) -> None:
    peer = await Peer.connect(target, "emp")
    for operation in ("subscribe", "provide"):
        for number in range(60):
            answer = await peer.operate(operation, topic=f"{number}" + "/+" * 32_000)
            assert answer.status == "400" and b"topic_bytes in [limits]" in answer.body, answer
            answer = await peer.operate(operation, topic=f"{number}" + "/+" * 64)
            assert answer.status == "400" and b"topic_levels in [limits]" in answer.body, answer


PER_CONNECTION = {
    "subscriptions_per_connection": 'wireloom_limits_reached_total{setting="subscriptions_per_connection"}'
}


@attack("60,000 subscriptions of one connection", limits=PER_CONNECTION)
async def many_patterns(target: Target) -> None:
    peer = await Peer.connect(target, "hsp")
    requests = (json_request("subscribe", {"topic": f"a/{number}"}, number) for number in range(60_000))
    await peer.ask_all(requests, refused=50_000, why=b"subscriptions_per_connection in [limits]")
    answer = await peer.operate("provide", topic="a")
    assert answer.kind is Kind.ERROR, answer
    assert (await peer.operate("unsubscribe", topic="a/7")).kind is Kind.RESPONSE
    assert (await peer.operate("provide", topic="a")).kind is Kind.RESPONSE
    metrics = await target.metrics()
    # The well-behaved client has one.
    assert metrics['wireloom_limit_used{setting="subscriptions"}'] == 10_001
    assert metrics['wireloom_limit{setting="subscriptions"}'] == 100_000


@attack(
    "the longest patterns, of many connections",
    limits={"subscriptions": 'wireloom_limits_reached_total{setting="subscriptions"}'},
    config="[limits]\nsubscriptions = 20000\nsubscriptions_per_connection = 5000",
    budget=32_000_000,
)
async def longest_patterns(target: Target) -> None:
    """Nothing in common, as long and deep as allowed."""
    for connection in range(5):
        peer = await Peer.connect(target, "emp")
        patterns = (
            "/".join(f"{connection * 5000 + n:05}{level:08}x" for level in range(64))[:1000] for n in range(5000)
        )
        refused = 1 if connection == 3 else 5000 if connection == 4 else 0
        requests = (json_request("subscribe", {"topic": pattern}, n) for n, pattern in enumerate(patterns))
        await peer.ask_all(requests, refused=refused, why=b"(subscriptions in [limits])")


@attack("wildcards in every place", limits={"wildcard_shapes": 'wireloom_limits_reached_total{setting="wildcard_shapes"}'})  # fmt: skip
async def shapes(target: Target) -> None:
    """Every choice of wildcards in ten levels (the first is none), then topics that match all but for the end."""
    peer = await Peer.connect(target, "emp")
    patterns = ["/".join("+" if number >> level & 1 else "a" for level in range(10)) for number in range(1024)]
    long = [pattern + "/b" * 53 + "/z" for pattern in patterns]
    requests = (json_request("subscribe", {"topic": pattern}, n) for n, pattern in enumerate(long))
    await peer.ask_all(requests, refused=1024 - 1 - 128, why=b"wildcard_shapes in [limits]")
    topic = "a/" * 10 + "b/" * 53
    for number in range(2000):
        peer.write(Message(Kind.EVENT, topic + str(number), b"{}", content_type="application/json"))
    await peer.settle()
    # Who uses what others use is not kept from it.
    other = await Peer.connect(target, "yamp")
    assert (await other.operate("subscribe", topic="x/b")).kind is Kind.RESPONSE


@attack("numbers for topics without end, in hsp", small=True)
async def topic_maps(target: Target) -> None:
    """Each map says one number more (the listener has one already); the journal has to state all that hold."""
    peer = await Peer.connect(target, "hsp")
    requests = [json_request("map", {"topics": {str(n): f"x{n}"}}, n) for n in range(1500)]
    await peer.ask_all(requests, refused=1500 - 1 - 256, why=b"reserved, or too many")
    # New topics for old numbers, and a message in between.
    for number in range(300):
        peer.write(json_request("map", {"topics": {str(number % 256): f"y{number}"}}, 2000 + number))
        peer.write(Message(Kind.EVENT, f"hsp/{number % 256 + 60000}", b"1"))
    await peer.settle()
