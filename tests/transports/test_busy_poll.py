"""Busy polling: after a read the event loop stays awake for a while, unless others need the core."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest

import wireloom
from wireloom.hub.config import parse_config
from wireloom.transports import Options, busy_poll

PATIENCE = 0.05


class Core:
    """Counts how often the core was offered to others, who may need it."""

    def __init__(self) -> None:
        self.offers = 0
        self.taken_for = 0.0

    def give_way(self) -> None:
        self.offers += 1
        if self.taken_for:
            time.sleep(self.taken_for)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core()
    monkeypatch.setattr(busy_poll, "_give_way", core.give_way)
    monkeypatch.setattr(busy_poll, "_cores", lambda: 2)
    # On a busy machine a turn may take long although nobody in this test takes the core.
    monkeypatch.setattr(busy_poll, "CROWDED", 60.0)
    busy_poll._vigil_of.cache_clear()
    return core


async def test_the_loop_stays_awake_after_a_read_and_sleeps_again(core: Core) -> None:
    read: list[bytes] = []
    busy_poll.awake(read.append, PATIENCE)(b"some bytes")
    await asyncio.sleep(PATIENCE * 3)
    kept = core.offers
    await asyncio.sleep(PATIENCE)
    assert read == [b"some bytes"]
    assert kept > 2, "nothing kept the loop awake"
    assert core.offers == kept, "it is still awake, long after the last read"


async def test_every_read_prolongs_it(core: Core) -> None:
    take = busy_poll.awake(lambda data: None, 0.5)
    take(b"")
    before = time.monotonic()
    while time.monotonic() < before + 0.6:
        take(b"")
        await asyncio.sleep(0)
    offers = core.offers
    await asyncio.sleep(0.01)
    assert core.offers > offers


async def test_who_is_content_with_less_does_not_shorten_it_for_others(core: Core) -> None:
    busy_poll.awake(lambda data: None, 60.0)(b"")
    busy_poll.awake(lambda data: None, 0.001)(b"")
    await asyncio.sleep(0.05)
    offers = core.offers
    await asyncio.sleep(0.01)
    assert core.offers > offers


async def vigil_ended(keeper: busy_poll.Vigil) -> None:
    while keeper._is_kept:
        await asyncio.sleep(0)


async def test_where_it_is_in_vain_it_is_kept_after_fewer_and_fewer_reads(core: Core) -> None:
    keeper = busy_poll.Vigil(asyncio.get_running_loop())
    kept: list[bool] = []
    for _ in range(2 + 2 + 6 + 14 + 30 + 62 + 62 + 62 + 10):
        keeper.stir(0.00001)
        kept.append(keeper._is_kept)
        await vigil_ended(keeper)
    places = [place for place, each in enumerate(kept) if each]
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(places)]
    assert gaps == [0, 2, 6, 14, 30, 62, 62, 62]


async def test_once_it_pays_it_is_kept_after_every_read_again(core: Core) -> None:
    keeper = busy_poll.Vigil(asyncio.get_running_loop())
    for _ in range(2 + 2 + 6):
        keeper.stir(0.00001)
        await vigil_ended(keeper)
    while not keeper._is_kept:
        keeper.stir(10.0)
    offers = core.offers
    while core.offers == offers:
        await asyncio.sleep(0)
    keeper.stir(0.00001)  # the read that it was kept for
    keeper._until = 0.0
    await vigil_ended(keeper)
    keeper.stir(0.00001)
    assert keeper._is_kept


async def test_the_time_begins_when_the_read_is_handled(core: Core) -> None:
    keeper = busy_poll.Vigil(asyncio.get_running_loop())
    asyncio.get_running_loop().call_soon(time.sleep, 0.05)
    keeper.stir(0.03)
    began = time.monotonic()
    await vigil_ended(keeper)
    assert time.monotonic() - began >= 0.08
    assert core.offers


async def test_a_process_with_one_core_sleeps(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_poll, "_cores", lambda: 1)

    def take(data: bytes) -> None:
        """Take a read."""

    assert busy_poll.awake(take, 1.0) is take


async def test_who_wants_no_vigil_pays_nothing(core: Core) -> None:
    def take(data: bytes) -> None:
        """Take a read."""

    assert busy_poll.awake(take, 0.0) is take


async def test_it_rests_while_others_need_the_core_and_longer_each_time(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    loop = asyncio.get_running_loop()
    core.taken_for = 0.002
    monkeypatch.setattr(busy_poll, "CROWDED", 0.001)
    keeper = busy_poll.Vigil(loop)
    monkeypatch.setattr(busy_poll, "FIRST_REST", 0.05)
    later = loop.call_later

    def call_later(delay: float, call: object, *args: object) -> asyncio.TimerHandle:
        if call == keeper._rested:
            rests.append(delay)
        return later(delay, call, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", call_later, raising=False)
    for _ in range(3):
        offers = core.offers
        keeper.stir(10.0)
        keeper.stir(10.0)
        while core.offers == offers:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert core.offers == offers + 1, "it goes on although others need the core"
        while keeper._is_kept:
            keeper.stir(10.0)
            await asyncio.sleep(0.001)
    assert rests == pytest.approx([0.05, 0.1, 0.2])


@pytest.mark.parametrize("url", ["emp://127.0.0.1:0", "yamp+ws://127.0.0.1:0/", "emp+unix://{folder}/hub.sock"])
@pytest.mark.parametrize("end", ["client", "server"])
async def test_both_ends_can_stay_awake_on_every_stream(core: Core, url: str, end: str, tmp_path: Path) -> None:
    client, server = (PATIENCE, 0.0) if end == "client" else (0.0, PATIENCE)
    async with (
        wireloom.serve(url.format(folder=tmp_path), lambda message, peer: message.value(), busy_poll=server) as there,
        wireloom.connect(there.url, busy_poll=client) as peer,
    ):
        assert await peer.request("echo", "once") == "once"
        assert core.offers


@pytest.mark.parametrize("wrong", [-1.0, -0.0002, float("nan"), float("inf")])
async def test_less_than_nothing_and_for_ever_are_errors(wrong: float) -> None:
    with pytest.raises(wireloom.ConfigError, match=r"busy_poll is .*0 \(sleep\) or more seconds"):
        await wireloom.serve("emp://127.0.0.1:0", busy_poll=wrong).start()
    with pytest.raises(wireloom.ConfigError, match="busy_poll"):
        await wireloom.connect("emp://127.0.0.1:1", busy_poll=wrong)


def test_it_is_on_unless_turned_off() -> None:
    assert parse_config({}, "", "hub.toml").limits.busy_poll_seconds == busy_poll.BUSY_POLL == Options().busy_poll > 0


def test_the_hub_takes_it_from_its_limits() -> None:
    text = "[limits]\nbusy_poll_seconds = 0.0002\n"
    assert parse_config({"limits": {"busy_poll_seconds": 0.0002}}, text, "hub.toml").limits.busy_poll_seconds == 0.0002
    with pytest.raises(wireloom.ConfigError, match=r"hub.toml:2: limits: .*busy_poll_seconds"):
        parse_config({"limits": {"busy_poll_seconds": -1}}, "[limits]\nbusy_poll_seconds = -1\n", "hub.toml")
