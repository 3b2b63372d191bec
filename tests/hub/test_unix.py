"""Listeners of the hub at Unix sockets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import hub_on, records, url_of
from wireloom.model import ConfigError

SCHEMES = ("hsp+unix", "emp+unix", "yamp+unix", "wolpertinger+unix")


def listeners(folder: Path) -> str:
    tables = [f'[[listener]]\nurl = "{scheme}://{folder}/{scheme}"\nprofile = true\n' for scheme in SCHEMES]
    return "".join(tables) + '[http]\nurl = "off"\n'


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    (tmp_path / "s").mkdir()
    return tmp_path / "s"


async def test_events_cross_between_protocols_over_unix_sockets(tmp_path: Path, sockets: Path) -> None:
    async with hub_on(tmp_path, listeners(sockets)) as hub:
        async with wireloom.connect(url_of(hub, "yamp+unix")) as receiver, receiver.subscribe("a/#") as events:
            for scheme in SCHEMES:
                async with wireloom.connect(url_of(hub, scheme)) as sender:
                    await sender.publish("a/b", {"from": scheme}, ack=True)
                    assert receiver.decode(await anext(events)) == {"from": scheme}


async def test_the_journal_names_who_connected(tmp_path: Path, sockets: Path) -> None:
    async with hub_on(tmp_path, listeners(sockets)) as hub:
        async with wireloom.connect(url_of(hub, "hsp+unix")) as peer:
            await peer.publish("a/b", "x", ack=True)
    opened = records(tmp_path, "opened")[0].details
    assert opened["principal"] == f"uid:{os.getuid()}"
    assert opened["peer"] == f"unix:{sockets}/hsp+unix@{os.getpid()}"


async def test_sockets_are_gone_when_the_hub_has_stopped(tmp_path: Path, sockets: Path) -> None:
    async with hub_on(tmp_path, listeners(sockets)):
        assert names(sockets) == sorted(SCHEMES)
    assert names(sockets) == []


async def test_a_second_hub_leaves_the_first_alone(tmp_path: Path, sockets: Path) -> None:
    async with hub_on(tmp_path / "one", listeners(sockets)) as hub:
        with pytest.raises(ConfigError, match=r"cannot listen on hsp[+]unix.*in use; stop whoever listens there"):
            async with hub_on(tmp_path / "two", listeners(sockets)):
                pass
        async with wireloom.connect(url_of(hub, "hsp+unix")) as peer:
            await peer.publish("a/b", "x", ack=True)
