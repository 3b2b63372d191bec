"""Attacks by peers that may do nothing, or should do less: floods, guesses, and what they do to others of their address."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.attack.harness import Target, attack
from tests.attack.wire import Peer, json_request
from wireloom.model import Kind, Message

TOKENS = """
[access]
tokens = "{data}/tokens"
attempts_per_minute = 6
[[access.rule]]
who = ["token:good", "token:fast"]
publish = ["#"]
subscribe = ["#"]
provide = ["#"]
[[access.rule]]
who = ["token:less"]
subscribe = ["b/#"]
"""
"""The well-behaved client is `good`. Who shows no token is a stranger."""
GOOD = "secret-good"


def write_tokens(data: Path) -> None:
    """A file that only its owner reads."""
    path = data / "tokens"
    path.write_text("good: secret-good\nless: secret-less\nfast: secret-fast\n")
    path.chmod(0o600)


async def login(peer: Peer, token: str = GOOD) -> Message:
    return await peer.operate("login", token=token)


def reached(setting: str) -> dict[str, str]:
    """The setting, and the metric that shows it."""
    return {setting: f'wireloom_limits_reached_total{{setting="{setting}"}}'}


@attack(
    "pings of a stranger, and logins from its address",
    limits=reached("stranger_messages_per_second"),
    config=TOKENS,
    prepare=write_tokens,
    token=GOOD,
    small=True,
)
async def debts(target: Target) -> None:
    """64 KB of pings, at 100 a second, take 640 s to pay: by who sent them, and by nobody else."""
    _, flood = await target.open("hsp")
    flood.write(b"\x03" * 64_000)
    await flood.drain()
    await asyncio.sleep(0.2)
    peer = await Peer.connect(target, "hsp")
    began = time.monotonic()
    assert (await login(peer)).kind is Kind.RESPONSE
    assert (await peer.ask("a", b"1")).kind is Kind.RESPONSE
    assert time.monotonic() - began < 5


@attack(
    "a principal that sends too much",
    limits=reached("messages_per_second"),
    config=TOKENS + "[limits]\nmessages_per_second = 100",
    prepare=write_tokens,
    token=GOOD,
    small=True,
)
async def too_much(target: Target) -> None:
    """It is read from no faster than it may send; its other connections wait for a second at most."""
    peers = [await Peer.connect(target, "hsp") for _ in range(2)]
    for peer in peers:
        await login(peer, "secret-fast")
    peers[0].write(*(Message(Kind.EVENT, "a", b"1") for _ in range(4000)))
    await peers[0].drain()
    await asyncio.sleep(0.2)
    began = time.monotonic()
    assert (await peers[1].ask("a", b"1")).kind is Kind.RESPONSE
    assert time.monotonic() - began < 5


@attack(
    "wrong tokens",
    config=TOKENS,
    prepare=write_tokens,
    token=GOOD,
    small=True,
)
async def guesses(target: Target) -> None:
    """After a few the address has no more; and those who are in stay in."""
    inside = await Peer.connect(target, "emp")
    assert (await login(inside)).kind is Kind.RESPONSE
    outcomes = set()
    for number in range(12):
        peer = await Peer.connect(target, "emp")
        answer = await login(peer, f"guess-{number}")
        outcomes.add(answer.status)
    assert outcomes == {"401", "429"}, outcomes
    assert (await inside.ask("$hub/publish/a", b"1")).kind is Kind.RESPONSE


@attack("a second login, with less rights", config=TOKENS, prepare=write_tokens, token=GOOD, small=True)
async def second_login(target: Target) -> None:
    """It keeps no subscription, no offer and no replay that the new identity may not have."""
    publisher = await Peer.connect(target, "emp")
    await login(publisher)
    for scheme in ("emp", "yamp", "hsp"):
        peer = await Peer.connect(target, scheme)
        assert (await login(peer)).kind is Kind.RESPONSE
        for body in ({"topic": "a"}, {"topic": "b/1"}, {"topic": "a", "since": "start", "as": "past"}):
            assert (await peer.operate("subscribe", **body)).kind is Kind.RESPONSE
        assert (await peer.operate("provide", topic="service")).kind is Kind.RESPONSE
        assert (await login(peer, "secret-less")).kind is Kind.RESPONSE
        peer.events.clear()  # what came before the answer was allowed
        for topic in ("a", "b/1"):
            assert (await publisher.ask(f"$hub/publish/{topic}", b"1")).kind is Kind.RESPONSE
        answer = await publisher.ask("service")
        assert answer.status in ("403", "404"), answer
        await peer.settle()
        last = await _next_event(peer)
        assert (last.topic, last.body) == ("b/1", b"1"), last
        assert not peer.events, peer.events


async def _next_event(peer: Peer) -> Message:
    if peer.events:
        return peer.events.pop(0)
    async for message in peer:
        if message.kind is Kind.EVENT:
            return message
    raise AssertionError("closed")


@attack(
    "logins without end",
    limits=reached("messages_per_second"),
    config=TOKENS + "[limits]\nmessages_per_second = 500",
    prepare=write_tokens,
    token=GOOD,
)
async def many_logins(target: Target) -> None:
    """With a token that is good: who holds it pays for them, and the address of others does not."""
    peer = await Peer.connect(target, "emp")
    requests = [json_request("login", {"token": "secret-fast"}, number) for number in range(2000)]
    await peer.ask_all(requests, refused=0, why=b"")
