"""wolpertinger with the C# implementation: direct both ways, by command, through the hub."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

import wireloom
from tests.cli.running import wireloom as command
from tests.hub.running import hub_on, port_of, url_of
from tests.interop.csharp_wolpertinger import Client, csharp_server, element
from wireloom.protocols.wolpertinger.delivery import LAST_ID

HUB = """
[[listener]]
url = "wolpertinger://127.0.0.1:0"
settings = {{ answer_delay = {delay} }}
[[listener]]
url = "yamp://127.0.0.1:0"
[http]
url = "off"
"""


async def test_every_connection_gets_answers_and_none_is_ignored() -> None:
    with csharp_server() as server:
        for _ in range(20):
            async with wireloom.connect(server.url) as peer:
                assert await peer.request("Test.Echo", ["hello"]) == "hello"
                assert await peer.request("Test.Add", [2, 3]) == 5
        assert [line.ignored for line in server.lines] == [[]] * 20


async def test_ids_wrap_before_it_cannot_read_them() -> None:
    with csharp_server() as server:
        async with wireloom.connect(server.url) as peer:
            assert peer._driver is not None
            peer._driver.session._unconfirmed.next_id = LAST_ID - 1  # type: ignore[attr-defined]
            for number in range(5):
                assert await peer.request("Test.Add", [number, 1]) == number + 1
        assert server.lines[0].ignored == []


async def test_our_client_authenticates_at_its_server() -> None:
    with csharp_server() as server:
        async with wireloom.connect(server.url, settings={"authenticate": 1}, reconnect=False) as peer:
            assert await peer.request("Test.Echo", ["hello"]) == "hello"


@pytest.mark.parametrize(
    ("topic", "body", "text"),
    [
        ("Test.Fail", "[502]", "request failed with 502: item not found"),
        ("Test.Fail", "[305]", "request failed with 305: invalid parameters"),
        ("Test.Nothing", "[]", "request failed with 303: method not found"),
        ("Nobody.Here", "[]", "request failed with 304: component not found"),
    ],
)
def test_a_command_says_what_an_error_means(topic: str, body: str, text: str) -> None:
    with csharp_server() as server:
        done = command("req", server.url, topic, body)
    assert done.code != 0
    assert text in done.errors


async def test_its_client_connects_to_our_server_and_to_the_hub(tmp_path: Path) -> None:
    async with (
        wireloom.serve("wolpertinger://127.0.0.1:0", lambda message, peer: message.value()[0]) as server,
        hub_on(tmp_path, HUB.format(delay=0.0)) as hub,
    ):
        for port in (server.port, port_of(hub, "wolpertinger")):
            with closing(await asyncio.to_thread(Client, port)) as client:
                assert await asyncio.to_thread(client.connect)
        with closing(await asyncio.to_thread(Client, server.port)) as client:
            answer = await asyncio.to_thread(client.call, "Test", "Echo", "hello")
            assert answer is not None
            assert '<object type="string">hello</object>' in answer


async def test_an_answer_that_comes_at_once_is_lost_and_one_that_is_held_back_is_not(tmp_path: Path) -> None:
    for delay, is_lost in ((0.0, True), (2.0, False)):
        async with hub_on(tmp_path / str(delay), HUB.format(delay=delay)) as hub:
            with closing(await asyncio.to_thread(Client, port_of(hub, "wolpertinger"), 0.3)) as client:
                patience = 0.5 if is_lost else 30.0
                answer = await asyncio.to_thread(client.call, "Nobody", "Here", patience=patience)
                assert (answer is None) is is_lost
                if answer is not None:
                    assert element("ErrorCode", answer) == "304"


async def test_an_error_of_its_provider_has_a_text_for_callers_of_other_protocols(tmp_path: Path) -> None:
    """The hub is asked in yamp, and asks a wolpertinger peer."""

    def fail(message: wireloom.Message, peer: wireloom.Peer) -> object:
        raise wireloom.RequestFailed("502")

    async with (
        hub_on(tmp_path, HUB.format(delay=0.0)) as hub,
        wireloom.connect(url_of(hub, "wolpertinger"), handler=fail) as provider,
        wireloom.connect(url_of(hub, "yamp")) as caller,
        wireloom.connect(url_of(hub, "wolpertinger")) as same,
    ):
        await provider.provide("Test.Fail")
        for peer in (caller, same):
            with pytest.raises(wireloom.RequestFailed, match="502: item not found"):
                await peer.request("Test.Fail", [1])
