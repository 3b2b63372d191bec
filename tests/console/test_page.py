"""The console in a real browser: what the hub receives appears on the page."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import wireloom
from tests.certificates import Authority
from tests.cli.running import started
from tests.console.test_server import HUB, console_on
from tests.hub.process import HubProcess
from tests.hub.running import ack, data_ack, eventually, hub_on, journaled, port_of, stream_to, url_of
from tests.peers.test_browser import CHROMIUM, FLAGS
from tests.pipeline.batches import ranges, run_batches
from tests.pipeline.commands import WIRELOOM
from wireloom.console import Console
from wireloom.hub import Hub

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium): console not seen")

WAIT = 30_000
NASTY = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@asynccontextmanager
async def page_of(console: Console, **options: object) -> AsyncIterator[object]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await browser.new_page(**options)
            page.set_default_timeout(WAIT)
            page.faults, page.asked = [], []
            page.on("pageerror", lambda error: page.faults.append(str(error)))
            page.on("console", lambda line: page.faults.append(line.text) if line.type == "error" else None)
            page.on("request", lambda request: page.asked.append(request.url))
            await page.goto(console.url)
            yield page
            assert page.faults == []
            assert all(url.startswith(console.url) for url in page.asked), page.asked
        finally:
            await browser.close()


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[tuple[Hub, Console]]:
    async with hub_on(folder, HUB) as hub, console_on(hub) as console:
        yield hub, console


async def test_messages_appear_and_can_be_filtered_paused_and_opened(tmp_path: Path) -> None:
    async with everything(tmp_path) as (hub, console), page_of(console) as page:
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            await peer.publish("meters/1/power", {"watt": 1200})
            await peer.publish("notes", NASTY)
            await page.wait_for_selector("#messages >> text=meters/1/power")
            await page.wait_for_selector("#messages >> text=onerror")
            assert await page.title() == "Wireloom console" and await page.query_selector("#messages img") is None
            await page.wait_for_selector("#tile-yamp >> text=1 open")

            await page.keyboard.press("/")
            await page.keyboard.type("METERS watt")
            await page.wait_for_selector("#messages >> text=onerror", state="detached")
            assert await page.locator("#messages tbody tr").count() == 1

            await page.click("#messages tbody tr")
            assert '"watt": 1200' in await page.inner_text("#detail pre")
            await page.click("#hex")
            assert "000000  7b" in await page.inner_text("#detail pre")
            await page.keyboard.press("Escape")

            await page.click("#pause")
            await peer.publish("meters/2/power", {"watt": 7})
            await page.keyboard.press("2")
            await page.wait_for_selector("#topics >> text=meters/2/power")
            await page.keyboard.press("1")
            assert await page.locator("#messages >> text=meters/2/power").count() == 0
            await page.keyboard.press("p")
            await page.wait_for_selector("#messages >> text=meters/2/power")


async def test_sending_from_the_page(tmp_path: Path) -> None:
    async def add(message: wireloom.Message, peer: wireloom.Peer) -> object:
        return {"sum": sum(message.value())}  # type: ignore[arg-type]

    async with everything(tmp_path) as (hub, console), wireloom.connect(url_of(hub, "yamp"), handler=add) as peer:
        await peer.provide("math/add")
        async with page_of(console) as page:
            await page.click("#tab-send")
            await page.fill("[name=topic]", "math/add")
            await page.fill("[name=body]", "[1, 2, 39]")
            await page.click("button[value=request]")
            await page.wait_for_selector("#answer >> text=42")
            await page.click("#tab-exchanges")
            await page.wait_for_selector("#exchanges >> text=math/add")
            await page.wait_for_selector("#percentiles >> text=p99")
            await page.click("#tab-send")
            await page.fill("[name=topic]", "notes/today")
            await page.click("button[value=publish]")
            await page.wait_for_selector("#answer >> text=kept by the hub")
            await page.click("#tab-messages")
            await page.wait_for_selector("#messages >> text=notes/today")


def only(*schemes: str) -> str:
    """A hub with these listeners, in this order."""
    listeners = "".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\n' for scheme in schemes)
    return f'{listeners}[http]\nurl = "http://127.0.0.1:0"\n'


@asynccontextmanager
async def sending_through(folder: Path, *schemes: str) -> AsyncIterator[tuple[object, list[object]]]:
    """The panel Send of a hub where `math/add` is provided; what that service was called with, and what was published.

    The service is connected to the last of the listeners.
    """
    calls: list[object] = []

    async def add(message: wireloom.Message, peer: wireloom.Peer) -> object:
        calls.append(("called", message.body))
        return {"sum": 42} if message.body != b"nothing" else b""

    async def note(events: AsyncIterator[wireloom.Message]) -> None:
        nonlocal calls
        async for event in events:
            calls += [("published", event.body)]

    async with hub_on(folder, only(*schemes)) as hub, console_on(hub) as console:
        url = url_of(hub, schemes[-1])
        async with wireloom.connect(url, handler=add) as provider, wireloom.connect(url) as subscriber:
            await provider.provide("math/add")
            async with subscriber.subscribe("#") as events, page_of(console) as page:
                noting = asyncio.create_task(note(events))
                await page.click("#tab-send")
                yield page, calls
                noting.cancel()


async def fill_and_click(page: object, verb: str, topic: str, body: str) -> str:
    """Send something; returns what the page says then."""
    await page.fill("[name=topic]", topic)  # type: ignore[attr-defined]
    await page.fill("[name=body]", body)  # type: ignore[attr-defined]
    await page.click(f"button[value={verb}]")  # type: ignore[attr-defined]
    await page.wait_for_selector("#answer.good, #answer.bad")  # type: ignore[attr-defined]
    text: str = await page.inner_text("#answer")  # type: ignore[attr-defined]
    return text


async def test_a_publish_to_a_provided_topic_is_no_call_and_a_request_shows_its_answer(tmp_path: Path) -> None:
    async with sending_through(tmp_path, "hsp", "emp") as (page, seen):
        assert "kept by the hub" in await fill_and_click(page, "publish", "math/add", "[1]")
        await eventually(lambda: seen == [("published", b"[1]")])
        assert '"sum": 42' in await fill_and_click(page, "request", "math/add", "[2]")
        assert seen[1:] == [("called", b"[2]")]
        assert await fill_and_click(page, "request", "math/add", "nothing") == "answered, without a body"


async def test_where_a_publish_cannot_be_told_from_a_request_it_is_not_confirmed(tmp_path: Path) -> None:
    async with sending_through(tmp_path, "hsp") as (page, seen):
        told = await fill_and_click(page, "publish", "math/add", "[1]")
        assert "sent to math/add" in told and "not known" in told
        await eventually(lambda: seen == [("published", b"[1]")])
        assert "cannot carry a request with an answer" in await fill_and_click(page, "request", "math/add", "[2]")
        assert "the hub's own" in await fill_and_click(page, "publish", "$hub/subscribe", "[3]")
        assert await fill_and_click(page, "publish", "last", "[4]")
        await eventually(lambda: seen[1:] == [("published", b"[4]")])
        page.faults.clear()  # type: ignore[attr-defined]  # Chromium reports answers with status 502 as errors.


async def test_an_answer_without_a_topic_says_what_it_answers(tmp_path: Path) -> None:
    async with everything(tmp_path) as (hub, console), page_of(console) as page:
        async with wireloom.connect(url_of(hub, "hsp")) as peer:
            await peer.publish("notes/today", "1", ack=True)
            await page.wait_for_selector("#messages >> text=/^re: .*notes.today$/")


async def test_rejects_show_clause_and_bytes(tmp_path: Path) -> None:
    async with everything(tmp_path) as (hub, console), page_of(console) as page:
        reader, writer = await stream_to(hub)
        writer.write(b"\x09oops")
        await reader.read()
        writer.close()
        await page.wait_for_selector("#tab-rejects .count >> text=1")
        await page.keyboard.press("5")
        await page.click("#rejects >> text=hsp.command.unknown")
        assert "09 6f 6f 70 73" in await page.inner_text("#detail pre")


async def test_the_keyboard_reaches_everything_and_rows_stay_while_others_come(tmp_path: Path) -> None:
    focused = "document.activeElement.innerText"
    async with everything(tmp_path) as (hub, console), page_of(console) as page:
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            await peer.publish("keys/first", "1")
            await peer.publish("keys/second", {"n": 2})
            await page.wait_for_selector("#messages >> text=keys/second")
            await page.keyboard.press("/")
            await page.keyboard.type("keys/")
            await page.wait_for_function("document.querySelectorAll('#messages tbody tr').length === 2")
            for _ in range(2):  # over the button
                await page.keyboard.press("Tab")
            assert "keys/second" in await page.evaluate(focused)
            await page.keyboard.press("ArrowDown")
            assert "keys/first" in await page.evaluate(focused)
            await peer.publish("keys/third", "3")
            await page.wait_for_selector("#messages >> text=keys/third")
            assert "keys/first" in await page.evaluate(focused)
            await page.keyboard.press("ArrowUp")
            await page.keyboard.press("Enter")
            assert '"n": 2' in await page.inner_text("#detail[open] pre")
            await page.keyboard.press("Escape")
            assert "keys/second" in await page.evaluate(focused)

            await page.focus("#tab-messages")
            for key, panel in (("ArrowLeft", "send"), ("Home", "messages"), ("ArrowRight", "topics"), ("End", "send")):
                await page.keyboard.press(key)
                assert await page.locator(f"#tab-{panel}[aria-selected=true]").count() == 1
                assert await page.locator(f"#panel-{panel}").is_visible()


async def test_a_pause_counts_what_comes_meanwhile(tmp_path: Path) -> None:
    async with everything(tmp_path) as (hub, console), page_of(console) as page:
        await page.wait_for_selector("#state[data-state=up]")
        await page.keyboard.press("p")
        async with wireloom.connect(url_of(hub, "hsp")) as peer:
            await peer.publish("quiet/please", "1")
            await page.wait_for_selector("#skipped >> text=/paused; \\d+ new/")
            assert await page.locator("#messages >> text=quiet/please").count() == 0


async def test_while_messages_pause_topics_go_on_and_the_filter_works(tmp_path: Path) -> None:
    async with everything(tmp_path) as (hub, console), wireloom.connect(url_of(hub, "hsp")) as peer:
        await peer.publish("meters/power", "1", ack=True)
        await peer.publish("meters/water", "1", ack=True)
        async with page_of(console) as page:
            await page.wait_for_selector("#messages >> text=meters/water")
            await page.click("#pause")
            for count in range(2, 5):
                await peer.publish("meters/power", "1", ack=True)
                await page.keyboard.press("2")
                await page.wait_for_selector(f"#topics tr:has-text('meters/power') td:nth-child(3):text-is('{count}')")
            await page.keyboard.press("1")
            await page.fill("#filter", "event meters/power")
            await page.wait_for_selector("#messages >> text=meters/water", state="detached")
            assert await page.locator("#messages tbody tr").count() == 1
            await page.click("#pause")
            await page.wait_for_function("document.querySelectorAll('#messages tbody tr').length === 4")


async def test_a_hub_that_hangs_or_is_gone_is_not_shown_as_up(tmp_path: Path) -> None:
    hub = await asyncio.to_thread(HubProcess, tmp_path)
    try:
        async with console_on(hub) as console, page_of(console) as page:  # type: ignore[arg-type]
            await page.wait_for_selector("#state[data-state=up]")
            hub.process.send_signal(signal.SIGSTOP)
            # It used to be green for 8 seconds.
            await page.wait_for_selector("#state[data-state=down] >> text=/has not answered for [3-6] s/")
            await page.wait_for_selector("#tile-hsp .rates >> text=–")
            await page.keyboard.press("4")
            await page.wait_for_selector("#connections >> text=who is connected is not known")
            hub.process.send_signal(signal.SIGCONT)
            await page.wait_for_selector("#state[data-state=up]")
            hub.process.kill()
            await page.wait_for_selector("#state[data-state=down] >> text=(Connection refused): start the hub with")
            assert await page.inner_text("#state .text") == (
                f"nobody answers at {hub.urls['http']} (Connection refused): "
                "start the hub with `wireloom hub`, or name its pages with --hub URL"
            )
    finally:
        hub.kill()


async def test_a_console_that_hangs_is_not_shown_as_up(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        with started("console", "--url", "http://127.0.0.1:0", "--hub", hub.urls["http"]) as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            console = SimpleNamespace(url=line.split()[-1])
            async with page_of(console) as page:  # type: ignore[arg-type]
                await page.wait_for_selector("#state[data-state=up]")
                process.send_signal(signal.SIGSTOP)
                await page.wait_for_selector("#state[data-state=down] >> text=the console has said nothing for")
                process.send_signal(signal.SIGCONT)
                await page.wait_for_selector("#state[data-state=up]")


async def test_what_is_no_hub_is_told_in_words(tmp_path: Path) -> None:
    async with everything(tmp_path) as (_, other), console_on(SimpleNamespace(urls={"http": other.url})) as console:  # type: ignore[arg-type]
        async with page_of(console) as page:
            await page.wait_for_selector("#state[data-state=down] >> text=answers with status 404")


async def test_an_empty_page_says_how_to_publish_to_this_hub(tmp_path: Path) -> None:
    async with hub_on(tmp_path, only("hsp", "yamp")) as hub, console_on(hub) as console:
        async with page_of(console) as page:
            told = await page.inner_text("#messages .empty >> text=wireloom pub")
            await page.set_viewport_size({"width": 360, "height": 740})
            box = await page.locator("#messages .empty p").bounding_box()
            assert box is not None and box["x"] + box["width"] <= 360
            command = told.partition("with: wireloom ")[2].split()
            assert command[1] == url_of(hub, "yamp")
            done = await asyncio.create_subprocess_exec(*WIRELOOM, *command)
            assert await done.wait() == 0
            await page.wait_for_selector("#messages >> text=sensors/kitchen")


async def test_what_goes_out_counts_whatever_it_is(tmp_path: Path) -> None:
    async def add(message: wireloom.Message, peer: wireloom.Peer) -> object:
        return 42

    async def ask(peer: wireloom.Peer) -> None:
        while True:
            await peer.request("math/add", [1])
            await asyncio.sleep(0.01)

    async with everything(tmp_path) as (hub, console), page_of(console) as page:
        yamp, hsp = url_of(hub, "yamp"), url_of(hub, "hsp")
        async with wireloom.connect(yamp, handler=add) as provider, wireloom.connect(hsp) as asker:
            await provider.provide("math/add")
            asking = asyncio.create_task(ask(asker))
            # Nobody subscribes: what goes out are requests to yamp, and their answers to hsp.
            for protocol in ("yamp", "hsp"):
                out = "[title^='messages sent'] b:text-matches('^[1-9]')"
                await page.wait_for_selector(f"#tile-{protocol} {out}")
            asking.cancel()
        assert hub.metrics.delivered.value("yamp") == 0


async def test_a_request_that_is_passed_on_is_one_exchange(tmp_path: Path) -> None:
    async def add(message: wireloom.Message, peer: wireloom.Peer) -> object:
        return 42

    async with everything(tmp_path) as (hub, console), page_of(console) as page:
        yamp, hsp = url_of(hub, "yamp"), url_of(hub, "hsp")
        async with wireloom.connect(yamp, handler=add) as provider, wireloom.connect(hsp) as asker:
            await provider.provide("math/add")
            for body in ([1], [1], None):
                await asker.request("math/add", body)
            await asker.publish("over", "1", ack=True)
            await page.keyboard.press("3")
            await page.wait_for_selector("#exchanges >> text=over")
            rows = page.locator("#exchanges tbody tr", has_text="math/add")
            assert await rows.count() == 3
            for row in await rows.all():
                cells = await row.locator("td").all_inner_texts()
                assert cells[1:5] == ["hsp", "request", "math/add", "done"]
                assert re.fullmatch(r"yamp, [\d.]+ (µs|ms|s)", cells[7]), cells
            await page.keyboard.press("2")
            await page.wait_for_selector("#topics tr:has-text('math/add') td:nth-child(3):text-is('3')")


async def test_a_slow_consumer_is_shown(tmp_path: Path) -> None:
    text = HUB + "[limits]\nqueue_bytes = 1000000\n"
    async with hub_on(tmp_path, text) as hub, console_on(hub) as console, page_of(console) as page:
        body = b'{"topic":"load"}'
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", port_of(hub)))
            await loop.sock_sendall(slow, struct.pack(">BIHI", 1, 1, 0xFD01, len(body)) + body)
            assert await loop.sock_recv(slow, 5) == ack(1)
            async with wireloom.connect(url_of(hub, "yamp")) as peer:
                await page.click("#tab-connections")
                await page.wait_for_selector("#slow >> text=Nobody is slow")
                async with asyncio.timeout(60):
                    # The systems of both ends hold some megabytes before anything waits in the hub.
                    while not any(each.queued_bytes for each in hub.connections.values()):
                        await peer.publish("load", bytes(8000), ack=True)
                await page.wait_for_selector("#slow >> text=1 slow")
                await page.wait_for_selector("#connections td.warn, #connections td.bad")
                await page.wait_for_selector("#tab-connections .count.bad >> text=1")


async def test_a_full_disk_is_told(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"\0" * 800_000)
    async with hub_on(small_disk, HUB) as hub, console_on(hub) as console, page_of(console) as page:
        _, writer = await stream_to(hub)
        async with asyncio.timeout(30):
            for number in itertools.count():
                if not hub.commit.healthy:
                    break
                writer.write(data_ack(number, bytes(5000)))
                await asyncio.sleep(0.005)
        await page.wait_for_selector("#state[data-state=down] >> text=No space left on device")
        assert "nothing is acknowledged" in await page.inner_text("#state")
        (small_disk / "ballast").unlink()
        await page.wait_for_selector("#state[data-state=up]")
        writer.close()


async def test_findings_and_how_far_the_pipeline_is_are_shown(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    async with hub_on(tmp_path, HUB) as hub:
        reader, writer = await stream_to(hub)
        writer.write(ack(99) + bytes([3]))
        assert await reader.readexactly(1) == bytes([4])
        await eventually(lambda: any(True for _ in journaled(tmp_path)))
        await asyncio.to_thread(run_batches, warehouse, [[[part] for part in ranges(tmp_path / "journal")]])
        cursors = tmp_path / "journal" / "cursors"
        cursors.mkdir()
        segment = min((tmp_path / "journal").glob("*.pcapng")).name
        (cursors / "pipeline.json").write_text(json.dumps({"segment": segment, "position": 0}))
        async with console_on(hub, warehouse=warehouse) as console, page_of(console) as page:
            await page.wait_for_selector("#tab-findings .count >> text=1")
            await page.click("#tab-findings")
            await page.wait_for_selector("#findings >> text=hsp.response.unknown-id")
            await page.click("#tab-pipeline")
            shown = await page.inner_text("#progress")
            assert re.search(r"State\s+not running", shown) and re.search(r"Input rate\s+[\d.]+ messages/s", shown)
            assert re.search(r"Behind the journal\s+[1-9][\d.]* (B|KiB)", shown), shown
            assert re.search(r"Last commit\s+[\d:.]+ \(\d+ s ago\)", shown)
            await page.wait_for_selector("#tables >> text=findings")
        writer.close()


async def test_a_browser_signs_in_with_the_token(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("localhost")
    token = "correct horse battery"
    async with (
        hub_on(tmp_path / "data", HUB) as hub,
        console_on(hub, token=token, tls=wireloom.TLS(certificate, key)) as console,
        page_of(console, ignore_https_errors=True) as page,
    ):
        await page.fill("[name=token]", "something else")
        await page.keyboard.press("Enter")
        await page.wait_for_load_state()
        await page.fill("[name=token]", token)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#state[data-state=up]")
        assert token not in page.url and token not in await page.evaluate("document.cookie")
        page.faults.clear()  # Chromium reports the two answers with status 401 as errors.


async def test_a_long_topic_leaves_room_for_the_other_columns(tmp_path: Path) -> None:
    topic = "plant/" + 8 * "a-name-without-a-place-to-break-" + 200 * "x"
    async with everything(tmp_path) as (hub, console), wireloom.connect(url_of(hub, "hsp")) as peer:
        await peer.publish(topic, 500 * "y", ack=True)
        for width in (1280, 360):
            size = {"width": width, "height": 740}
            async with page_of(console, viewport=size) as page:
                await page.wait_for_selector("#messages >> text=plant/")
                for number, table in ((1, "messages"), (2, "topics"), (3, "exchanges")):
                    await page.keyboard.press(str(number))
                    row = page.locator(f"#{table} tbody tr", has_text="plant/").last
                    cell = await row.locator("td", has_text="plant/").first.bounding_box()
                    assert cell is not None and cell["width"] < (width if table == "topics" else width / 2), table
                    scroll = "(element) => element.scrollWidth - element.clientWidth"
                    hidden = await page.locator(".scroll", has=page.locator(f"#{table}")).evaluate(scroll)
                    assert width == 360 or hidden == 0, f"{hidden} pixels of {table} are out of sight"
                    assert await page.evaluate("document.documentElement.scrollWidth") <= width
                await page.keyboard.press("1")
                await page.locator("#messages tbody tr", has_text="event").last.click()
                assert topic in await page.inner_text("#detail dl")


async def test_times_of_other_days_and_the_plot_have_dates(tmp_path: Path) -> None:
    async with everything(tmp_path) as (hub, console), wireloom.connect(url_of(hub, "hsp")) as peer:
        today = datetime.now(UTC)
        await peer.publish("notes/today", "1", ack=True)
        async with page_of(console) as page:
            await page.wait_for_selector("#messages >> text=notes/today")
            time = await page.inner_text("#messages tbody tr:last-child td:first-child")
            assert re.fullmatch(r"[\d:.]{12}", time), time
            await page.clock.set_fixed_time(today + timedelta(days=1))
            await page.wait_for_selector(f"#messages tbody tr:last-child >> text={today:%Y-%m-%d} {time}")
            await page.keyboard.press("3")
            await page.wait_for_selector(f"#latency[aria-label*='from {today:%Y-%m-%d} ']")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_a_phone(tmp_path: Path, scheme: str) -> None:
    size = {"width": 360, "height": 740}
    async with everything(tmp_path) as (_, console), page_of(console, viewport=size, color_scheme=scheme) as page:
        await page.wait_for_selector("#state[data-state=up]")
        for number in range(1, 9):
            await page.keyboard.press(str(number))
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= size["width"], f"panel {number} is {wide} wide"
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(16, 22, 29)") is (scheme == "dark")
        await page.keyboard.press("t")
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
