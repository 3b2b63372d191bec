"""Static subscriptions: what a listener sends its peers unasked, in every protocol that has connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import config, eventually, hub_on, url_of
from wireloom.hub.reload import reload

SCHEMES = ["hsp", "emp", "yamp", "yamp+ws", "wolpertinger", "hsp+unix"]


def hub_text(folder: Path, scheme: str, more: str = "") -> str:
    place = f"{folder}/sock" if scheme.endswith("unix") else "127.0.0.1:0"
    return f"""
[[listener]]
url = "{scheme}://{place}"
subscribe = ["alerts/#", "news"]
[[listener]]
url = "yamp://127.0.0.2:0"
[http]
url = "off"
{more}
"""


def sender(hub: object) -> str:
    return next(url for url in hub.urls.values() if "127.0.0.2" in url)  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_peer_that_never_asked_receives(tmp_path: Path, scheme: str) -> None:
    async with (
        hub_on(tmp_path, hub_text(tmp_path, scheme)) as hub,
        wireloom.connect(url_of(hub, scheme)) as silent,
        wireloom.connect(sender(hub)) as other,
        silent.subscribe("#", local=True) as events,
    ):
        await eventually(lambda: len(hub.router.subscriptions.lookup("alerts/fire")) == 1)
        await other.publish("quiet", "no", ack=True)
        await other.publish("alerts/fire", "one", ack=True)
        await other.publish("news", "two", ack=True)
        async with asyncio.timeout(10):
            bodies = [(await anext(events)).body for _ in range(2)]
        assert [body.strip(b'"') for body in bodies] == [b"one", b"two"]


async def test_an_event_comes_once_to_who_asked_as_well(tmp_path: Path) -> None:
    async with (
        hub_on(tmp_path, hub_text(tmp_path, "hsp")) as hub,
        wireloom.connect(url_of(hub, "hsp")) as peer,
        peer.subscribe("alerts/+") as events,
    ):
        await peer.publish("alerts/fire", "one", ack=True)
        await peer.publish("alerts/flood", "two", ack=True)
        assert [(await anext(events)).value() for _ in range(2)] == ["one", "two"]


async def test_a_peer_may_leave_a_subscription_that_it_did_not_ask_for(tmp_path: Path) -> None:
    async with hub_on(tmp_path, hub_text(tmp_path, "hsp")) as hub, wireloom.connect(url_of(hub, "hsp")) as peer:
        await eventually(lambda: len(hub.router.subscriptions.lookup("news")) == 1)
        async with peer.subscribe("news"):
            pass
        await eventually(lambda: not hub.router.subscriptions.lookup("news"))


async def test_a_peer_gets_nothing_that_it_may_not_subscribe_to(tmp_path: Path) -> None:
    rules = '[[access.rule]]\nwho = ["anyone"]\nsubscribe = ["news"]\n'
    async with hub_on(tmp_path, hub_text(tmp_path, "hsp", rules)) as hub, wireloom.connect(url_of(hub, "hsp")):
        await eventually(lambda: len(hub.router.subscriptions.lookup("news")) == 1)
        assert not hub.router.subscriptions.lookup("alerts/fire")
        rules = '[[access.rule]]\nwho = ["anyone"]\nsubscribe = ["#"]\n'
        reload(hub, config(tmp_path, hub_text(tmp_path, "hsp", rules)))
        assert len(hub.router.subscriptions.lookup("alerts/fire")) == 1, "rules that allow more take effect at once"


async def test_a_changed_subscription_waits_for_a_restart(tmp_path: Path) -> None:
    text = hub_text(tmp_path, "hsp")
    async with hub_on(tmp_path, text) as hub:
        later = reload(hub, config(tmp_path, text.replace('"news"', '"weather"')))
        assert any(each.startswith("hsp://") for each in later)
