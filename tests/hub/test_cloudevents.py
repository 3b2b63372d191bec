"""CloudEvents over HTTP: in through the endpoint, out through webhooks, in binary and structured mode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import wireloom
from tests.hub.running import config, hub_on, url_of
from wireloom.hub.cloudevents import BATCH, CloudEvent, Mode, NoCloudEvent, from_http, to_http
from wireloom.hub.reload import reload_from
from wireloom.journal import read_messages
from wireloom.model import Kind

HUB = """
[[listener]]
url = "yamp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
"""
CONTEXT = {"specversion": "1.0", "id": "A-1", "source": "/shop", "type": "org.example.sold"}
HEADERS = {f"ce-{name}": value for name, value in CONTEXT.items()}

texts = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() and text.strip() == text)
contexts = st.fixed_dictionaries(
    {"specversion": st.just("1.0"), "id": texts, "source": texts, "type": texts},
    optional={"subject": texts, "time": st.just("2026-01-31T12:00:00Z"), "myextension": texts},
)


# --- the bytes


@given(contexts, st.binary(max_size=50), st.sampled_from(Mode), st.sampled_from(["application/octet-stream", None]))
def test_what_is_sent_comes_back(context: dict[str, str], data: bytes, mode: Mode, kind: str | None) -> None:
    whole = context if kind is None else context | {"datacontenttype": kind}
    if kind is None and mode is Mode.STRUCTURED:
        whole |= {"datacontenttype": "image/png"}
    (back,) = from_http(*to_http(CloudEvent(whole, data), mode))
    assert back == CloudEvent(whole, data)


@given(st.dictionaries(texts, st.text(max_size=9)), st.binary(max_size=60))
def test_garbage_is_refused_in_words(headers: dict[str, str], body: bytes) -> None:
    for kind in ("application/cloudevents+json", BATCH, "application/cloudevents+avro", "text/plain"):
        try:
            list(from_http(headers | {"Content-Type": kind}, body))
        except NoCloudEvent as error:
            assert str(error)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ([], "an event is a JSON object"),
        ({"id": "1"}, "specversion is missing"),
        (CONTEXT | {"specversion": "0.3"}, "specversion is 0.3"),
        (CONTEXT | {"id": ""}, "id is missing"),
        (CONTEXT | {"NotSmall": "1"}, "is no attribute"),
        (CONTEXT | {"nested": {"a": 1}}, "is no attribute"),
        (CONTEXT | {"data_base64": "%"}, "no base64"),
    ],
)
def test_what_is_no_event_says_why(event: object, said: str) -> None:
    with pytest.raises(NoCloudEvent, match=said):
        list(from_http({"content-type": "application/cloudevents+json"}, json.dumps(event).encode()))


def test_structured_data_by_its_type() -> None:
    def body(data: bytes, kind: str) -> dict[str, object]:
        return json.loads(to_http(CloudEvent(CONTEXT | {"datacontenttype": kind}, data), Mode.STRUCTURED)[1])

    assert body(b'{"n": 1}', "application/json")["data"] == {"n": 1}
    assert body("größe".encode(), "text/plain")["data"] == "größe"
    assert body(b"\xff", "text/plain")["data_base64"] == "/w=="
    assert body(b"{broken", "application/json")["data_base64"]
    assert body(b"[NaN]", "application/json")["data_base64"] and body(b"[1e999]", "application/json")["data_base64"]


# --- in


async def post(hub: object, path: str, data: bytes, headers: dict[str, str]) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(hub.urls["http"] + path, data=data, headers=headers) as answer,  # type: ignore[attr-defined]
    ):
        return answer.status, await answer.text()


async def test_a_posted_event_reaches_subscribers_and_the_journal(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "yamp")) as peer:
        async with peer.subscribe("shop/#") as events:
            binary = HEADERS | {"Content-Type": "application/json"}
            assert await post(hub, "/events/shop/sold", b'{"n": 1}', binary) == (204, "")
            whole = CONTEXT | {"subject": "shop/sold", "data": {"n": 2}, "datacontenttype": "application/json"}
            structured = {"Content-Type": "application/cloudevents+json"}
            assert (await post(hub, "/events", json.dumps(whole).encode(), structured))[0] == 204
            both = [whole | {"id": str(n), "data": {"n": n}} for n in (3, 4)]
            assert (await post(hub, "/events", json.dumps(both).encode(), {"Content-Type": BATCH}))[0] == 204
            async with asyncio.timeout(20):
                got = [await anext(events) for _ in range(4)]
            assert [(each.topic, each.value()) for each in got] == [("shop/sold", {"n": n}) for n in (1, 2, 3, 4)]
        # It was answered, so it is on disk.
        kept = [e.message for e in read_messages(tmp_path / "journal") if e.message.kind is Kind.REQUEST]
        assert sum(message.topic == "$hub/publish/shop/sold" for message in kept) == 4


async def test_a_topic_in_a_path_is_decoded_once(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        host, port = hub.urls["http"].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        for path in ("rooms/50%25", "rooms/a%2541", "rooms/k%C3%BCche"):
            writer.write(f"POST /events/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{head}\r\n".encode())
            assert b" 204 " in (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        writer.close()
        kept = [e.message.topic for e in read_messages(tmp_path / "journal") if e.message.kind is Kind.REQUEST]
        assert kept == [f"$hub/publish/rooms/{name}" for name in ("50%", "a%41", "küche")]


@pytest.mark.parametrize(
    ("path", "headers", "status", "said"),
    [
        ("/events/a/b", {"Content-Type": "application/json"}, 400, "specversion is missing"),
        ("/events/a/+", HEADERS, 400, "a/+"),
        ("/events/a/b", {"Content-Type": BATCH}, 400, "batch"),
        ("/events/a/b", HEADERS | {"Authorization": "Bearer guess"}, 401, "token"),
        ("/events/a/b", HEADERS | {"Origin": "https://example.org"}, 403, "web pages"),
        ("/nowhere", HEADERS, 404, "/events"),
        ("/metrics", HEADERS, 405, "GET"),
    ],
)
async def test_what_is_not_taken_says_why(
    tmp_path: Path, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        body = b"[]" if headers.get("Content-Type") == BATCH else b"{}"
        got, text = await post(hub, path, body, headers)
        assert got == status and said in json.loads(text)["error"], text


async def test_rules_say_who_may_post_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("shop: s3cret-token-of-the-shop\n")
    tokens.chmod(0o600)
    rules = f"""
[access]
tokens = "{tokens}"
[[access.rule]]
who = ["token:shop"]
publish = ["shop/#"]
"""
    async with hub_on(tmp_path / "data", HUB + rules) as hub:
        with_token = HEADERS | {"Authorization": "Bearer s3cret-token-of-the-shop"}
        assert (await post(hub, "/events/shop/sold", b"1", with_token))[0] == 204
        assert (await post(hub, "/events/bank/account", b"1", with_token))[0] == 403
        assert (await post(hub, "/events/shop/sold", b"1", HEADERS))[0] == 403
        guesses = [
            (await post(hub, "/events/shop/sold", b"1", HEADERS | {"Authorization": "Bearer x"}))[0] for _ in range(12)
        ]
        assert guesses[0] == 401 and guesses[-1] == 429
        assert hub.metrics.denied.value("http", "publish") == 2
    told = [getattr(each, "event", "") for each in caplog.records]
    assert [told.count(f"login.{outcome}") for outcome in ("refused", "limited")] == [10, 2]
    assert "token:shop may not publish 'bank/account'" in caplog.text
    assert "anonymous may not publish 'shop/sold'" in caplog.text and "s3cret" not in caplog.text


@pytest.mark.parametrize("policy", ["pause", "refuse"])
async def test_the_rate_of_a_principal_holds_for_what_it_posts(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("shop: s3cret-token-of-the-shop\nbank: s3cret-token-of-the-bank\n")
    tokens.chmod(0o600)
    text = f'[limits]\nmessages_per_second = 10\nover_rate = "{policy}"\n[access]\ntokens = "{tokens}"\n'
    text += '[[access.rule]]\nwho = ["token:*"]\npublish = ["#"]\n'
    batch = json.dumps([CONTEXT | {"subject": "a", "id": str(number)} for number in range(10)]).encode()
    async with hub_on(tmp_path / "data", HUB + text) as hub:

        async def posted(who: str) -> int:
            headers = {"Content-Type": BATCH, "Authorization": f"Bearer s3cret-token-of-the-{who}"}
            return (await post(hub, "/events", batch, headers))[0]

        # However slow the machine is, all is posted at one moment.
        moment = hub.now()
        monkeypatch.setattr(hub, "now", lambda: moment)
        assert [await posted("shop"), await posted("bank")] == [204, 204]
        assert not hub.metrics.over_rate.value("http", policy), "each has its own"
        assert await posted("shop") == (204 if policy == "pause" else 429)
        assert hub.metrics.over_rate.value("http", policy) == 1


async def test_events_can_be_turned_off(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB + "events = false\n") as hub:
        assert (await post(hub, "/events/a/b", b"1", HEADERS))[0] == 404


# --- out


class Receiver:
    """Somebody who takes webhooks, with answers as the test wants them."""

    def __init__(self) -> None:
        self.got: list[CloudEvent] = []
        self.modes: list[str] = []
        self.answers: list[web.Response] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.answers:
            return self.answers.pop(0)
        self.modes.append(request.headers["Content-Type"])
        self.got += from_http(request.headers, body)
        return web.Response(status=204)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(40):
            while len(self.got) < count:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def receiver(port: int = 0) -> AsyncIterator[Receiver]:
    found = Receiver()
    application = web.Application()
    application.router.add_post("/hook", found.take)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield found
    finally:
        await runner.cleanup()


def with_webhook(url: str, mode: str = "binary") -> str:
    return HUB + f'[[webhook]]\nname = "test"\nurl = "{url}"\ntopic = "alerts/#"\nmode = "{mode}"\n'


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_events_of_any_protocol_are_posted(tmp_path: Path, mode: str) -> None:
    async with receiver() as hook, hub_on(tmp_path, with_webhook(hook.url, mode)) as hub:
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            await peer.publish("alerts/fire", {"floor": 3})
            await peer.publish("other", {"n": 0})
            await peer.publish("alerts/fire", {"floor": 4}, ack=True)
        await post(hub, "/events/alerts/shop", b'{"n": 1}', HEADERS | {"Content-Type": "application/json"})
        await hook.until(3)
        fire, more, shop = hook.got
        assert [json.loads(each.data) for each in hook.got] == [{"floor": 3}, {"floor": 4}, {"n": 1}]
        assert fire.context["subject"] == "alerts/fire" and str(fire.context["source"]).startswith("wireloom:yamp/")
        assert fire.context["id"] != more.context["id"]
        # What came as a CloudEvent goes out as the same one.
        assert {name: shop.context[name] for name in CONTEXT} == CONTEXT
        assert ("cloudevents" in hook.modes[0]) is (mode == "structured")


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_no_event_ends_a_webhook(tmp_path: Path, mode: str) -> None:
    """A content type that no header can hold, a text that is no Unicode, and a context that is none."""
    context = json.dumps(CONTEXT | {"no name\r\nx": "1"}).encode().hex()
    strange = CONTEXT | {"source": "\ud800"}
    emp = '[[listener]]\nurl = "emp://127.0.0.1:0"\n'
    async with receiver() as hook, hub_on(tmp_path, with_webhook(hook.url, mode) + emp) as hub:
        async with wireloom.connect(url_of(hub, "emp")) as peer:
            for message in (
                wireloom.Message(Kind.EVENT, "alerts/1", b"1", content_type="text/plain\r\nX-Other: 1"),
                wireloom.Message(Kind.EVENT, "alerts/2", b'"\\ud800"', content_type="application/json"),
                wireloom.Message(Kind.EVENT, "alerts/3", b"3", attributes={"extension.129": context}),
                wireloom.Message(
                    Kind.EVENT, "alerts/4", b"4", attributes={"extension.129": json.dumps(strange).encode().hex()}
                ),
                wireloom.Message(Kind.EVENT, "alerts/5", b"5"),
            ):
                peer.send(message)
            await settled(lambda: hub.metrics.webhooks.value("test", "taken") == 5)


async def test_it_tries_again_until_it_is_taken_and_leaves_out_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver() as hook, hub_on(tmp_path, with_webhook(hook.url)) as hub:
        hook.answers = [
            web.Response(status=503),
            web.Response(status=429, headers={"Retry-After": "0"}),
            web.Response(status=204),
            web.Response(status=400),
        ]
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            for number in range(4):
                await peer.publish("alerts/fire", {"n": number}, ack=True)
        await hook.until(2)
        # The first was taken at the third try, the second refused for good.
        assert [json.loads(each.data)["n"] for each in hook.got] == [2, 3]
        outcomes = {name: hub.metrics.webhooks.value("test", name) for name in ("taken", "again", "refused")}
        assert outcomes == {"taken": 3, "again": 2, "refused": 1}


async def test_what_came_while_the_other_end_and_the_hub_were_away_is_posted_later(tmp_path: Path) -> None:
    async with receiver() as hook:
        url, port = hook.url, int(hook.url.split(":")[2].split("/")[0])
        async with hub_on(tmp_path, with_webhook(url)) as hub, wireloom.connect(url_of(hub, "yamp")) as peer:
            await peer.publish("alerts/fire", {"n": 0}, ack=True)
            await hook.until(1)
            await settled(lambda: "offset" in cursor(tmp_path) and cursor(tmp_path)["offset"] is not None)
    async with hub_on(tmp_path, with_webhook(url)) as hub, wireloom.connect(url_of(hub, "yamp")) as peer:
        for number in (1, 2, 3):
            await peer.publish("alerts/fire", {"n": number}, ack=True)
    async with receiver(port) as hook, hub_on(tmp_path, with_webhook(url)):
        await hook.until(3)
        numbers = [json.loads(each.data)["n"] for each in hook.got]
        assert sorted(set(numbers) - {0}) == [1, 2, 3] and numbers == sorted(numbers)


async def test_who_says_gone_is_left_alone(tmp_path: Path) -> None:
    async with receiver() as hook, hub_on(tmp_path, with_webhook(hook.url)) as hub:
        hook.answers = [web.Response(status=410)]
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            await peer.publish("alerts/fire", {"n": 0}, ack=True)
            await settled(lambda: hub.metrics.webhooks.value("test", "gone") == 1)
            await peer.publish("alerts/fire", {"n": 1}, ack=True)
        assert hook.got == [] and all(task.done() for _, task in hub.webhooks._running.values())


def cursor(folder: Path) -> dict[str, object]:
    return json.loads((folder / "journal" / "cursors" / "webhook-test.json").read_text())


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


async def test_webhooks_change_while_the_hub_runs_and_go_on_where_they_were(tmp_path: Path) -> None:
    async with receiver() as old, receiver() as new, hub_on(tmp_path, with_webhook(old.url)) as hub:
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            await peer.publish("alerts/fire", {"n": 0}, ack=True)
            await old.until(1)
            # What the old receiver has not taken goes to the new one.
            old.answers = [web.Response(status=503) for _ in range(1000)]
            await peer.publish("alerts/fire", {"n": 1}, ack=True)
            await settled(lambda: hub.metrics.webhooks.value("test", "again") >= 1)
            assert reload_from(hub, lambda: config(tmp_path, with_webhook(new.url)))
            await new.until(1)
            assert [json.loads(each.data)["n"] for each in new.got] == [1]
            second = f'[[webhook]]\nname = "second"\nurl = "{old.url}"\ntopic = "alerts/#"\n'
            old.answers, old.got = [], []
            assert reload_from(hub, lambda: config(tmp_path, HUB + second))
            await peer.publish("alerts/fire", {"n": 2}, ack=True)
            await old.until(1)
            assert [json.loads(each.data)["n"] for each in old.got] == [2], "it begins when it comes"
            assert len(new.got) == 1, "the other one has ended"
            assert peer.reconnects == 0


async def test_an_event_larger_than_the_limit_is_refused_with_its_name(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB + "[limits]\nmessage_bytes = 1024\n") as hub:
        assert (await post(hub, "/events/a", bytes(900), HEADERS))[0] == 204
        status, said = await post(hub, "/events/a", bytes(1025), HEADERS)
        assert (status, "1024 bytes (message_bytes in [limits])" in said) == (413, True)
