"""Settings of a protocol wherever they may stand: in a URL, after `--set`, in a listener's table."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import wireloom
from tests.cli.running import wireloom as command
from tests.hub.running import hub_on, url_of
from wireloom.model import ConfigError
from wireloom.peers import endpoint
from wireloom.protocols.contract import Settings
from wireloom.protocols.registry import protocol
from wireloom.protocols.settings import Written


def parsed(name: str, setting: str, text: str) -> object:
    settings: Settings = protocol(name).settings({setting: Written(text)})
    return getattr(settings, setting)


@pytest.mark.parametrize(
    ("name", "setting", "text", "value"),
    [
        ("hsp", "max_payload", "65536", 65536),
        ("hsp", "max_payload", "65_536", 65536),
        ("hsp", "max_payload", "0x100", 256),
        ("hsp", "ping_interval", "2.5", 2.5),
        ("hsp", "profile", "false", False),
        ("hsp", "profile", "off", False),
        ("emp", "size_mode", "exclusive", "exclusive"),
        ("emp", "size_mode", '"exclusive"', "exclusive"),
        ("emp", "profile", "true", "on"),
        ("mesh", "seeds", '["10.0.0.1:5041", "10.0.0.2:5041"]', ("10.0.0.1:5041", "10.0.0.2:5041")),
        ("mesh", "seeds", "10.0.0.1:5041,10.0.0.2:5041", ("10.0.0.1:5041", "10.0.0.2:5041")),
        ("mesh", "node_id", "1234", "1234"),
        ("mesh", "node_id", "'1234'", "1234"),
        ("mesh", "key", "a b.json", "a b.json"),
    ],
)
def test_a_value_is_written_as_in_toml(name: str, setting: str, text: str, value: object) -> None:
    assert parsed(name, setting, text) == value


def test_a_wrong_value_is_an_error_that_says_what_is_right() -> None:
    with pytest.raises(ConfigError, match="setting 'max_payload' is 'many'; it must be of type int"):
        parsed("hsp", "max_payload", "many")
    with pytest.raises(ConfigError, match="one of inclusive, exclusive, auto"):
        parsed("emp", "size_mode", "[1]")


def test_a_url_is_split_into_a_place_and_settings() -> None:
    place = endpoint("emp://127.0.0.1:7?size_mode=exclusive&max_message=2048")
    assert place.url == "emp://127.0.0.1:7"
    assert place.protocol.settings(place.settings) == protocol("emp").settings(
        {"size_mode": "exclusive", "max_message": 2048}
    )


def test_a_unix_socket_takes_settings_too() -> None:
    place = endpoint("hsp+unix:///run/hub.sock?max_payload=10")
    assert (place.address.path, dict(place.settings)) == ("/run/hub.sock", {"max_payload": "10"})


def test_an_unknown_setting_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'sise_mode'; known: close_timeout, .*size_mode"):
        endpoint("emp://127.0.0.1?sise_mode=exclusive")
    with pytest.raises(ConfigError, match="given twice"):
        endpoint("emp://127.0.0.1?size_mode=exclusive&size_mode=inclusive")
    done = command("pub", "emp://127.0.0.1?sise_mode=exclusive", "a", "b")
    assert done.code == 2
    assert "unknown setting 'sise_mode'; known: " in done.errors


def test_the_query_of_a_websocket_is_its_own_but_for_settings() -> None:
    place = endpoint("yamp+ws://127.0.0.1/chat?room=7&max_body=10")
    assert (place.address.path, dict(place.settings)) == ("/chat?room=7", {"max_body": "10"})


def test_the_options_of_xmpp_stay_in_its_urls() -> None:
    url = "wolpertinger+xmpp://bob@localhost/hub?password_file=bob.password&split=1000&allow=alice@localhost"
    place = endpoint(url)
    assert place.address.path == "/hub?password_file=bob.password&allow=alice%40localhost"
    assert dict(place.settings) == {"split": "1000"}


async def test_settings_in_urls_hold_for_clients_servers_and_listeners(tmp_path: Path) -> None:
    text = '[[listener]]\nurl = "hsp://127.0.0.1:0?max_payload=100"\n[http]\nurl = "off"\n'
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub)) as peer:
            with pytest.raises((wireloom.PeerClosed, wireloom.RequestFailed)):
                await peer.publish("a", b"x" * 200, ack=True)
        async with wireloom.connect(url_of(hub) + "?max_payload=50") as peer:
            with pytest.raises(wireloom.LimitExceeded):
                await peer.publish("a", b"x" * 80)
    came = asyncio.Event()
    async with (
        wireloom.serve("hsp://127.0.0.1:0?max_payload=10", on_connect=lambda peer: came.set()) as server,
        wireloom.connect(server.url),
    ):
        await came.wait()
        with pytest.raises(wireloom.LimitExceeded):
            await server.connections[0].publish("a", b"x" * 80)
    given = {"max_payload": 10_000}
    async with wireloom.serve("hsp://127.0.0.1:0?max_payload=10", settings=given) as server:
        assert server.settings.max_payload == 10_000, "what the program says goes before"  # type: ignore[attr-defined]
