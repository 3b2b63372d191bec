"""wolpertinger over XMPP, through a real server: TLS, SASL, splitting, trust, leaving and coming back."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import eventually, hub_on, journaled, records, url_of
from tests.protocols.wolpertinger.tables import tables_of
from tests.protocols.wolpertinger.test_components import Everything
from tests.xmpp.prosody import ACCOUNTS, MISSING, Prosody, is_installed, prosody
from wireloom.conformance.run import CaseVerdict, check_server
from wireloom.model import ConfigError, Direction, HandshakeFailed, Kind, PeerClosed, RequestFailed
from wireloom.peers.components import Components
from wireloom.peers.server import Server
from wireloom.protocols.wolpertinger.session import WolpertingerSession
from wireloom.transports import TLS
from wireloom.transports.xmpp import PASSWORD, PASSWORD_FILE

if not is_installed():
    # A skip is easily overlooked; a warning is not.
    warnings.warn(f"nothing about XMPP is tested: {MISSING}", stacklevel=1)
pytestmark = pytest.mark.skipif(not is_installed(), reason=MISSING)
NOISE = "".join(str(uuid.UUID(int=number * 7919**5)) for number in range(3000))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prosody]:
    with prosody(tmp_path_factory.mktemp("prosody")) as running:
        yield running


@pytest.fixture
async def bob(server: Prosody) -> AsyncIterator[Server]:
    """Bob offers a component."""
    async with wireloom.serve(server.url("bob", "desk"), Components(Everything()), tls=server.tls) as serving:
        yield serving


async def test_a_call_with_gzip_aes_and_splitting_answered_with_a_heartbeat_in_between(server: Prosody) -> None:
    settings = {"heartbeat": 0.1, "split": 5000}
    async with (
        wireloom.serve(server.url("bob", "slow"), Components(Everything()), settings=settings, tls=server.tls),
        wireloom.connect(
            server.url("alice", "bob@localhost/slow"), settings={"authenticate": 2, "split": 5000}, tls=server.tls
        ) as peer,
    ):
        assert isinstance(peer.session, WolpertingerSession)
        assert peer.session.trust == 2
        async with peer.messages() as stream:
            assert await peer.call("Test", "Slow", 0.5, timeout=5.0) == "done"
            assert await peer.call("Test", "Echo", NOISE) == NOISE
            seen = [await anext(stream)]
            while seen[-1].kind is not Kind.RESPONSE or "gzip" not in seen[-1].attributes:
                seen.append(await anext(stream))
    assert Kind.PROGRESS in [each.kind for each in seen]
    answer = seen[-1]
    assert answer.attributes["encryption"] == "aes"
    assert int(answer.attributes["fragment_count"]) > 3


async def test_a_peer_passes_the_conformance_cases(server: Prosody, bob: Server) -> None:
    outcome = await check_server(server.url("alice", "bob@localhost/desk"), tls=server.tls, patience=20.0)
    others = {each.case.name: each.detail for each in outcome.results if each.verdict is not CaseVerdict.PASSED}
    assert others == {"lines may come byte by byte": "over this transport lines come whole"}


async def test_a_peer_is_found_by_its_bare_address_and_known_by_its_full_one(server: Prosody, bob: Server) -> None:
    async with wireloom.connect(server.url("alice", "bob"), tls=server.tls) as peer:
        assert await peer.call("Test", "Add", 1, 2) == 3
        assert peer.name == "bob@localhost/desk"
        who = str(await peer.call("Test", "Who"))
        assert who == peer.pipe.sockname
        assert who.startswith("alice@localhost/")
        assert peer.pipe.tls is not None
        assert peer.pipe.tls.peer_name == "bob@localhost"
        assert bob.url == f"wolpertinger+xmpp://bob@localhost:{server.port}/desk"


async def test_sessions_are_keyed_by_full_address(server: Prosody, bob: Server) -> None:
    url = server.url("alice", "bob@localhost/desk")
    async with (
        wireloom.connect(url, tls=server.tls, settings={"authenticate": 2}) as trusted,
        wireloom.connect(url, tls=server.tls) as stranger,
    ):
        assert await trusted.call("Test", "Secret") == "secret"
        with pytest.raises(RequestFailed, match="201"):
            await stranger.call("Test", "Secret")
        assert len({peer.name for peer in bob.connections}) == 2


async def test_trust_4_over_xmpp(server: Prosody) -> None:
    served = {"cluster_key": "aa" * 16, "users": {"ada": "pw"}, "required_trust": 4}
    asks = {"cluster_key": "aa" * 16, "user": "ada", "password": "pw", "authenticate": 4}
    async with wireloom.serve(server.url("bob", "safe"), Components(Everything()), settings=served, tls=server.tls):
        url = server.url("alice", "bob@localhost/safe")
        async with wireloom.connect(url, settings=asks, tls=server.tls) as peer:
            assert await peer.call("Test", "Secret") == "secret"
        with pytest.raises(HandshakeFailed, match="no trust"):
            await wireloom.connect(url, settings={**asks, "password": "no"}, tls=server.tls)


async def test_many_calls_at_once(server: Prosody, bob: Server) -> None:
    async with wireloom.connect(server.url("alice", "bob"), tls=server.tls) as peer:
        await peer.call("Test", "Add", 1, 2)
        answers = await asyncio.gather(*(peer.call("Test", "Add", number, 1) for number in range(100)))
        assert answers == list(range(1, 101))


async def test_each_end_learns_when_the_other_leaves(server: Prosody) -> None:
    async with wireloom.serve(server.url("bob", "door"), Components(Everything()), tls=server.tls) as serving:
        url = server.url("alice", "bob@localhost/door")
        async with wireloom.connect(url, tls=server.tls) as peer:
            await peer.call("Test", "Add", 1, 2)
            assert len(serving.connections) == 1
        async with asyncio.timeout(10):
            while serving.connections:
                await asyncio.sleep(0.01)
        peer = await wireloom.connect(url, tls=server.tls, reconnect=False)
        await peer.call("Test", "Add", 1, 2)
        waiting = asyncio.create_task(peer.call("Test", "Slow", 60.0))
        await asyncio.sleep(0.1)
        serving.connections[0].abort()
        with pytest.raises(PeerClosed):
            await waiting
        await peer.close()


async def test_an_address_that_nobody_has_is_told(server: Prosody) -> None:
    async with wireloom.connect(server.url("alice", "nobody"), tls=server.tls, reconnect=False) as peer:
        with pytest.raises(PeerClosed, match=r"nobody@localhost cannot be reached: service-unavailable"):
            await peer.call("Test", "Add", 1, 2)


async def test_only_those_allowed_are_heard(server: Prosody) -> None:
    listening = server.url("bob", "closed", allow="carol@localhost,dave@localhost")
    async with wireloom.serve(listening, Components(Everything()), tls=server.tls) as serving:
        async with wireloom.connect(server.url("alice", "bob@localhost/closed"), tls=server.tls) as peer:
            with pytest.raises(wireloom.RequestTimeout):
                await peer.call("Test", "Add", 1, 2, timeout=0.5)
        assert not serving.connections
    listening = server.url("bob", "closed", allow="alice@localhost")
    async with wireloom.serve(listening, Components(Everything()), tls=server.tls):
        async with wireloom.connect(server.url("alice", "bob@localhost/closed"), tls=server.tls) as peer:
            assert await peer.call("Test", "Add", 1, 2) == 3


async def test_rosters_are_not_touched(server: Prosody, bob: Server) -> None:
    async with wireloom.connect(server.url("alice", "bob"), tls=server.tls) as peer:
        await peer.call("Test", "Add", 1, 2)
    assert not list((server.folder / "data").rglob("roster/*"))


# The way in


async def test_a_wrong_password_is_told(server: Prosody, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("wrong")
    url = server.url("alice", "bob", password_file=str(tmp_path / "wrong"))
    with pytest.raises(PeerClosed, match="refused user name or password"):
        await wireloom.connect(url, tls=server.tls)


async def test_a_certificate_that_is_not_trusted_is_refused(server: Prosody) -> None:
    with pytest.raises(PeerClosed, match="certificate"):
        await wireloom.connect(server.url("alice", "bob"), tls=TLS(), timeout=5.0)


async def test_a_server_that_is_not_there_is_told(server: Prosody) -> None:
    url = server.url("alice", "bob").replace(str(server.port), "1")
    with pytest.raises(PeerClosed, match="cannot reach"):
        await wireloom.connect(url, tls=server.tls, timeout=5.0)


@pytest.mark.parametrize("way", ["environment", "file in the environment"])
async def test_the_password_may_come_from_the_environment(
    server: Prosody, bob: Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "environment":
        monkeypatch.setenv(PASSWORD, ACCOUNTS["alice"])
    else:
        monkeypatch.setenv(PASSWORD_FILE, str(server.folder / "alice.password"))
    url = server.url("alice", "bob").partition("?")[0]
    async with wireloom.connect(url, tls=server.tls) as peer:
        assert await peer.call("Test", "Add", 1, 2) == 3


async def test_the_password_is_asked_for_at_a_terminal(
    server: Prosody, bob: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return ACCOUNTS["alice"]

    monkeypatch.setattr("getpass.getpass", answer)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    async with wireloom.connect(server.url("alice", "bob").partition("?")[0], tls=server.tls) as peer:
        assert await peer.call("Test", "Add", 1, 2) == 3
    assert asked == ["Password of alice@localhost: "]


async def test_without_a_password_one_is_told_where_to_put_it(server: Prosody) -> None:
    with pytest.raises(ConfigError, match="password_file"):
        await wireloom.connect(server.url("alice", "bob").partition("?")[0], tls=server.tls)
    with pytest.raises(ConfigError, match="cannot be read"):
        await wireloom.connect(server.url("alice", "bob", password_file="/nowhere"), tls=server.tls)


async def test_a_password_in_the_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="a password does not belong into a URL"):
        wireloom.connect("wolpertinger+xmpp://alice:wonderland@localhost/bob")


@pytest.mark.parametrize(
    "url", ["localhost/bob", "alice@localhost", "alice@localhost/a@@b", "alice@localhost/bob?colour=red"]
)
async def test_urls_that_make_no_sense_are_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "x")
    with pytest.raises(ConfigError, match="XMPP URL"):
        await wireloom.connect(f"wolpertinger+xmpp://{url}")


# The server's limits and troubles


async def test_the_stanza_size_limit_of_the_server_is_kept_by_splitting(tmp_path: Path) -> None:
    """The server tells its limit, closes the stream of whoever breaks it, and nobody set anything."""
    settings = {"gzip_from": 0}
    with prosody(tmp_path, limit=12_000, tells_limit=True) as server:
        url = server.url("alice", "bob@localhost/x")
        async with (
            wireloom.serve(server.url("bob", "x"), Components(Everything()), settings=settings, tls=server.tls),
            wireloom.connect(url, settings=settings, tls=server.tls, reconnect=False) as peer,
        ):
            assert 11_000 < peer.pipe.max_write < 12_000
            async with peer.messages() as stream:
                assert await peer.call("Test", "Echo", NOISE[:60_000]) == NOISE[:60_000]
                answer = await anext(stream)
                while answer.kind is not Kind.RESPONSE:
                    answer = await anext(stream)
            assert int(answer.attributes["fragment_count"]) > 6


@pytest.mark.parametrize("last_words", ["arrive", "are lost in a reset"])
async def test_a_limit_that_the_server_does_not_tell_is_learned_from_its_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_words: str
) -> None:
    if last_words != "arrive":
        monkeypatch.setattr("wireloom.transports.xmpp._Account._stream_error", lambda account, error: None)
    monkeypatch.setattr("wireloom.transports.xmpp.RETRY", (0.1,))
    monkeypatch.setattr("wireloom.transports.xmpp._STRICT", set())
    settings = {"gzip_from": 0}
    with prosody(tmp_path, limit=10_000) as server:
        url = server.url("alice", "bob@localhost/x")
        async with wireloom.serve(server.url("bob", "x"), Components(Everything()), settings=settings, tls=server.tls):
            async with wireloom.connect(url, settings=settings, tls=server.tls, reconnect=False) as peer:
                assert peer.pipe.max_write == 0
                # The reason may be lost on the way: the kernel drops what was not read before a reset.
                with pytest.raises(PeerClosed, match="XMPP server localhost closed the connection"):
                    await peer.call("Test", "Echo", NOISE[:50_000])
            async with wireloom.connect(url, settings=settings, tls=server.tls, reconnect=False) as peer:
                assert 9_000 < peer.pipe.max_write < 10_000
                assert await peer.call("Test", "Echo", NOISE[:50_000]) == NOISE[:50_000]


async def test_both_ends_come_back_after_the_server_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wireloom.transports.xmpp.RETRY", (0.1,))
    with prosody(tmp_path) as server:
        async with (
            wireloom.serve(server.url("bob", "desk"), Components(Everything()), tls=server.tls),
            wireloom.connect(
                server.url("alice", "bob@localhost/desk"),
                tls=server.tls,
                reconnect=wireloom.Backoff(minimum=0.1, maximum=0.5),
            ) as peer,
        ):
            assert await peer.call("Test", "Add", 1, 2) == 3
            await asyncio.to_thread(server.stop)
            while peer.connected:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(30):
                while True:
                    try:
                        assert await peer.call("Test", "Add", 1, 2, timeout=2.0) == 3
                        break
                    except wireloom.WireloomError:
                        await asyncio.sleep(0.1)
            assert peer.reconnects >= 1


async def test_a_server_without_tls_needs_an_option_and_gives_no_protection(tmp_path: Path) -> None:
    with prosody(tmp_path, encryption=False) as server:
        listening = server.url("bob", "desk", tls="off")
        async with wireloom.serve(listening, Components(Everything()), tls=server.tls):
            url = server.url("alice", "bob@localhost/desk", tls="off")
            async with wireloom.connect(url, tls=server.tls) as peer:
                assert await peer.call("Test", "Add", 1, 2) == 3


ALICE_MAY = """
[[access.rule]]
who = ["xmpp:alice@localhost"]
publish = ["#"]
subscribe = ["#"]
request = ["#"]
provide = ["#"]
[[access.rule]]
who = ["anyone"]
publish = ["rooms/#"]
subscribe = ["rooms/#"]
request = ["#"]
"""
"""Others than this machine reach a hub over XMPP: without a rule for who the server says they are they may do nothing."""


async def test_the_hub_listens_over_xmpp(server: Prosody, tmp_path: Path) -> None:
    text = (
        f"""
[[listener]]
url = "{server.url("bob", "hub")}"
tls = {{ ca = "{server.ca}" }}
profile = true
[[listener]]
url = "yamp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
"""
        + ALICE_MAY
    )
    async with hub_on(tmp_path, text) as hub:
        async with (
            wireloom.connect(server.url("alice", "bob@localhost/hub"), tls=server.tls) as one,
            wireloom.connect(url_of(hub, "yamp")) as two,
        ):
            async with one.subscribe("rooms/#") as events:
                await two.publish("rooms/kitchen", {"c": 21.5}, ack=True)
                event = await anext(events)
    assert (event.topic, event.value()) == ("rooms/kitchen", {"c": 21.5})


async def test_a_split_message_over_xmpp_counts_once_in_the_journal(server: Prosody, tmp_path: Path) -> None:
    text = (
        f"""
[[listener]]
url = "{server.url("bob", "hub")}"
tls = {{ ca = "{server.ca}" }}
profile = true
settings = {{ split = 200, gzip_from = 0 }}
[http]
url = "http://127.0.0.1:0"
"""
        + ALICE_MAY
    )
    small = {"split": 200, "gzip_from": 0, "authenticate": 2}
    async with hub_on(tmp_path, text):
        url = server.url("alice", "bob@localhost/hub")
        handler = Components(Everything())
        async with wireloom.connect(url, tls=server.tls, settings=small, handler=handler) as provider:
            await provider.provide("Test.Echo")
            async with wireloom.connect(url, tls=server.tls, settings=small) as caller:
                assert await caller.call("Test", "Echo", NOISE[:500]) == NOISE[:500]
    counted: dict[tuple[str | None, Direction | None], int] = {}
    for entry in journaled(tmp_path):
        key = entry.message.connection, entry.message.direction
        assert entry.sequence == counted.get(key, 0), entry
        counted[key] = entry.sequence + 1
        assert entry.message.kind is not Kind.OTHER
    assert len(counted) == 4
    # Each message stands whole in one place: it does not matter where reading begins and ends.
    messages, rejects = tables_of(tmp_path, 1 << 30)
    assert (len(messages), rejects) == (sum(counted.values()), [])
    assert sum("fragment_count" in dict(row["attributes"]) for row in messages) > 4  # type: ignore[call-overload]
    assert tables_of(tmp_path, 64) == (messages, rejects)


def xmpp_hub(server: Prosody, settings: str, more: str = "") -> str:
    """A hub that is reached over XMPP, and by yamp from this machine."""
    return (
        f"""
[[listener]]
url = "{server.url("bob", "hub")}"
tls = {{ ca = "{server.ca}" }}
profile = true
settings = {{ {settings} }}
[[listener]]
url = "yamp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
{more}
"""
        + ALICE_MAY
    )


async def test_events_of_the_hub_keep_to_the_stanza_size_limit_of_the_server_by_splitting(tmp_path: Path) -> None:
    """Nobody set anything, and a larger stanza would end the hub's stream."""
    with prosody(tmp_path, limit=12_000, tells_limit=True) as server:
        async with (
            hub_on(tmp_path / "hub", xmpp_hub(server, "gzip_from = 0")) as hub,
            wireloom.connect(server.url("alice", "bob@localhost/hub"), tls=server.tls, reconnect=False) as one,
            wireloom.connect(url_of(hub, "yamp")) as two,
            one.subscribe("rooms/#") as events,
        ):
            # The first is written in this thread, the second, being large, in another one.
            for size in (15_000, 50_000):
                await two.publish("rooms/kitchen", NOISE[:size], ack=True)
                event = await asyncio.wait_for(anext(events), 30)
                assert event.value() == NOISE[:size]
                assert int(event.attributes["fragment_count"]) > size * 4 / 3 / 12_000
            assert one.connected


@pytest.mark.parametrize("policy", ["drop-oldest", "drop-newest"])
async def test_a_slow_consumer_loses_split_events_whole_and_each_is_counted(
    server: Prosody, tmp_path: Path, policy: str
) -> None:
    limits = f'[limits]\nqueue_bytes = 33000\nslow_consumer = "{policy}"'
    # What is lost must not come later either, as something that was never confirmed.
    settings = "split = 2000, gzip_from = 0, delivery_timeout = 0.5, resends = 100"
    count = 20
    bodies = [f"{number:02d}" + NOISE[:5000] for number in range(count)]
    async with (
        hub_on(tmp_path, xmpp_hub(server, settings, limits)) as hub,
        wireloom.connect(server.url("alice", "bob@localhost/hub"), tls=server.tls) as one,
        wireloom.connect(url_of(hub, "yamp")) as two,
        one.subscribe("rooms/#") as events,
    ):
        got: list[object] = []

        async def read() -> None:
            async for event in events:
                assert int(event.attributes["fragment_count"]) > 2
                got.append(event.value())

        task = asyncio.create_task(read())
        slow = next(each for each in hub.connections.values() if each.name == "wolpertinger")
        assert isinstance(slow.session, WolpertingerSession)
        slow.hold_events()
        for body in bodies:
            await two.publish("rooms/kitchen", body, ack=True)
        assert slow.queued_bytes <= 33_000
        lost = int(hub.metrics.lost.value("wolpertinger", policy))
        assert count - 7 < lost < count
        slow.release_events()
        unconfirmed = slow.session._unconfirmed.waiting
        await eventually(lambda: not unconfirmed, 60)
        await eventually(lambda: len(got) >= count - lost, 60)
        kept = bodies[:-lost] if policy == "drop-newest" else bodies[lost:]
        assert got == kept
        assert slow.delivered == count - lost
        assert "wolpertinger.fragment.dropped" not in one.session.counters
        task.cancel()
    assert [block.details["count"] for block in records(tmp_path, "lost")] == [lost]
