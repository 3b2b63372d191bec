"""The console in a real browser: what the hub receives appears on the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import wireloom
from tests.console.test_server import HUB, console_on
from tests.hub.running import hub_on, stream_to, url_of
from tests.peers.test_browser import CHROMIUM, FLAGS
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
