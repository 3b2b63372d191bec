"""Attributes are carried, or refused; only the context of a trace may be left out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from wireloom import NotSupported, Peer
from wireloom.cli.talk import echo_handler
from wireloom.testing import peer_pair

STREAMS = ("emp", "hsp", "yamp", "wolpertinger")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
SAY: dict[str, Callable[[Peer, dict[str, str]], Awaitable[object]]] = {
    "publish": lambda peer, attributes: peer.publish("a.b", b"1", attributes=attributes),
    "acknowledged": lambda peer, attributes: peer.publish("a.b", b"1", ack=True, attributes=attributes),
    "request": lambda peer, attributes: peer.request("a.b", b"1", attributes=attributes),
    "many": lambda peer, attributes: anext(aiter(peer.request_many("a.b", [b"1"], attributes=attributes))),
    "progress": lambda peer, attributes: _progress(peer, attributes),
}


async def _progress(peer: Peer, attributes: dict[str, str]) -> object:
    return await peer.request_progress("a.b", b"1", attributes=attributes)


@pytest.mark.parametrize("verb", SAY)
@pytest.mark.parametrize("name", STREAMS)
async def test_an_attribute_that_would_be_lost_is_refused(name: str, verb: str) -> None:
    async with peer_pair(name, echo_handler) as (client, _):
        with pytest.raises(NotSupported, match=rf"{name} cannot carry the attributes unit"):
            await SAY[verb](client, {"unit": "C", **TRACE})


@pytest.mark.parametrize("name", STREAMS)
async def test_a_trace_is_optional(name: str) -> None:
    async with peer_pair(name, echo_handler) as (client, _):
        await client.request("a.b", b"1", attributes=TRACE)


async def test_attributes_that_a_protocol_has_arrive() -> None:
    async with peer_pair("emp", echo_handler) as (client, server), server.messages() as came:
        await client.publish("a", b"1", attributes={"extension.200": "beef"})
        assert (await anext(came)).attributes["extension.200"] == "beef"
    async with peer_pair("hsp", echo_handler) as (client, server), server.messages() as came:
        await client.publish("a", b"1", attributes={"type": "7"})
        assert (await anext(came)).attributes["type"] == "7"
