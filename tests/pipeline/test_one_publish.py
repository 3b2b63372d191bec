"""One logical publish: whatever operation carried it, it is an event under its own topic, wherever people look."""

from __future__ import annotations

from pathlib import Path

import pytest

import wireloom
from tests.hub.running import ALL, hub_on, url_of
from tests.hub.test_access import RULES, TOKEN, tokens
from tests.hub.test_cloudevents import receiver
from tests.pipeline.batches import cut, ranges, run_batches
from wireloom.console.recent_traffic import RecentTraffic
from wireloom.hub import Hub
from wireloom.model import Message, RequestFailed
from wireloom.pipeline.query import ask
from wireloom.pipeline.report import write_report

SCHEMES = ("hsp", "emp", "yamp", "wolpertinger")
HUB = 'id = "north"\n' + ALL
Rows = list[tuple[object, ...]]


async def answer(message: Message, _: wireloom.Peer) -> bytes:
    if message.topic == "Tea.Cold":
        raise RequestFailed("404", b"no tea")
    return b""


async def talk(hub: Hub) -> None:
    """Per protocol: three events, two acknowledged publishes, two calls of which one fails, and a subscription."""
    async with wireloom.connect(url_of(hub, "yamp"), handler=answer) as provider:
        await provider.provide("Tea.Hot")
        await provider.provide("Tea.Cold")
        for scheme in SCHEMES:
            async with wireloom.connect(url_of(hub, scheme)) as peer, peer.subscribe("alerts/none"):
                for number in range(3):
                    await peer.publish(f"plain/{scheme}", str(number).encode())
                for number in range(2):
                    await peer.publish(f"safe/{scheme}", str(number).encode(), ack=True)
                await peer.request("Tea.Hot", b"1")
                with pytest.raises(RequestFailed):
                    await peer.request("Tea.Cold", b"1")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a hub wrote of that talk, in many segments."""
    import asyncio

    folder = tmp_path_factory.mktemp("hub")

    async def run() -> None:
        async with hub_on(folder, HUB.replace("[http]", "[journal]\nsegment_bytes = 6000\n[http]")) as hub:
            await talk(hub)

    asyncio.run(run())
    return folder / "journal"


@pytest.fixture(scope="module", params=[[], [0.1, 0.3, 0.31, 0.6, 0.8]], ids=["one batch", "six batches"])
def warehouse(request: pytest.FixtureRequest, journal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "warehouse"
    run_batches(folder, [[piece] for piece in cut(ranges(journal), request.param)])
    return folder


def rows(warehouse: Path, query: str) -> Rows:
    return ask(warehouse, query).rows


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_acknowledged_publish_is_an_event_under_its_own_topic(warehouse: Path, scheme: str) -> None:
    said = f"from messages where protocol = '{scheme}' and direction = 'c2s'"
    assert rows(warehouse, f"select kind, verb, count(*) {said} and topic = 'safe/{scheme}' group by all") == [
        ("event", "publish", 2)
    ]
    assert rows(warehouse, f"select kind, verb, count(*) {said} and topic = 'plain/{scheme}' group by all") == [
        ("event", None, 3)
    ]
    done = f"select verb, outcome, count(*) from exchanges where topic = 'safe/{scheme}' group by all"
    assert rows(warehouse, done) == [("publish", "done", 2)]
    counted = f"select sum(messages) from traffic where topic = 'safe/{scheme}' and kind = 'event'"
    assert rows(warehouse, counted) == [(2,)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_call_that_a_provider_took_stays_a_request(warehouse: Path, scheme: str) -> None:
    said = f"from messages where protocol = '{scheme}' and direction = 'c2s' and topic like 'Tea%' and verb is not null"
    assert rows(warehouse, f"select topic, kind, verb {said} order by 1") == [
        ("Tea.Cold", "request", "request"),
        ("Tea.Hot", "request", "request"),
    ]
    asked = rows(
        warehouse,
        "select e.topic, e.verb, e.outcome from exchanges e join messages m on e.connection = m.connection "
        f"and e.request_id = m.message_id where e.protocol = '{scheme}' and m.direction = 'c2s' and e.topic like 'Tea%' "
        "order by 1",
    )
    assert asked == [("Tea.Cold", "request", "error"), ("Tea.Hot", "request", "done")]


def test_operations_of_the_hub_are_control_traffic_and_no_topics(warehouse: Path) -> None:
    for table in ("messages", "exchanges", "traffic"):
        assert rows(warehouse, f"select count(*) from {table} where topic like '$hub/%'") == [(0,)]
    asked = (
        "select attributes['operation'], count(*) from messages where kind = 'request' and topic is null group by all"
    )
    assert {("subscribe", len(SCHEMES)), ("provide", 2)} <= set(rows(warehouse, asked))
    assert rows(warehouse, "select distinct verb from exchanges where topic is null") == [("request",)]
    assert rows(warehouse, "select distinct verb from exchanges order by 1") == [("publish",), ("request",)]


def test_every_answer_still_finds_its_question(warehouse: Path) -> None:
    assert rows(warehouse, "select rule from findings where rule like '%unknown%'") == []
    assert rows(warehouse, "select topic from exchanges where outcome not in ('done', 'error')") == []


def test_rows_name_their_hub(warehouse: Path) -> None:
    assert rows(warehouse, "select distinct hub from messages") == [("north",)]


async def test_rows_name_who_the_peer_was_proved_to_be(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + tokens(tmp_path) + RULES) as hub:
        for scheme in SCHEMES:
            async with wireloom.connect(url_of(hub, scheme), token=TOKEN) as peer:
                await peer.publish("sensors/kitchen", b"1", ack=True)
    run_batches(tmp_path / "warehouse", [[ranges(tmp_path / "journal")]])
    named = "select distinct protocol, principal from messages where topic = 'sensors/kitchen' and kind = 'event'"
    assert sorted(rows(tmp_path / "warehouse", named)) == sorted((scheme, "token:dashboard") for scheme in SCHEMES)
    # Before the login nobody was proved to be anybody.
    before = "select distinct principal from messages where attributes['operation'] = 'login' and kind = 'request'"
    assert rows(tmp_path / "warehouse", before) == [(None,)]


def test_the_report_shows_the_topics_that_people_published_to(warehouse: Path, tmp_path: Path) -> None:
    page = write_report(warehouse, tmp_path / "report.html").read_text()
    assert all(f"safe/{scheme}" in page for scheme in SCHEMES) and "$hub/" not in page


async def test_the_console_shows_the_same(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        lately = RecentTraffic(tmp_path / "journal")
        lately.look()
        await talk(hub)
    lately.look()
    said = [(line["protocol"], line["kind"], line["topic"]) for line in lately.messages.since(0)]
    for scheme in SCHEMES:
        assert said.count((scheme, "event", f"safe/{scheme}")) == 2
        # The provider, who speaks yamp, gets the calls of all of them.
        assert said.count((scheme, "request", "Tea.Hot")) == (1 if scheme != "yamp" else 1 + len(SCHEMES))
    assert not [topic for _, _, topic in said if str(topic).startswith("$hub/")]
    topics = {line["topic"]: line["messages"] for line in lately.topics()}
    assert topics["safe/hsp"] == 2 and not [topic for topic in topics if str(topic).startswith("$hub/")]
    verbs = {(line["verb"], line["topic"], line["operation"]) for line in lately.exchanges.since(0)}
    assert {("publish", "safe/yamp", None), ("request", "Tea.Cold", None), ("request", None, "subscribe")} <= verbs


async def test_a_webhook_is_told_of_events(tmp_path: Path) -> None:
    async with receiver() as hook:
        text = HUB + f'[[webhook]]\nname = "test"\nurl = "{hook.url}"\ntopic = "safe/#"\n'
        async with hub_on(tmp_path, text) as hub:
            await talk(hub)
            await hook.until(2 * len(SCHEMES))
    assert {event.context["type"] for event in hook.got} == {"wireloom.event"}
    assert {event.topic for event in hook.got} == {f"safe/{scheme}" for scheme in SCHEMES}
