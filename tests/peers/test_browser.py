"""yamp from a web page in a real browser, over WebSocket and secure WebSocket."""

from __future__ import annotations

import asyncio
import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import wireloom
from tests.certificates import Authority
from tests.hub.running import hub_on, url_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--ignore-certificate-errors",
]  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium): pages not tried")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def page_url() -> Iterator[str]:
    folder = str(Path(__file__).parent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def ask_from_page(page_url: str, url: str) -> dict[str, object]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await browser.new_page()
            await page.goto(f"{page_url}/yamp-client.html")
            return await page.evaluate("url => ask(url, 'math/add', [1, 2, 3])", url)
        finally:
            await browser.close()


async def add(message: wireloom.Message, peer: wireloom.Peer) -> object:
    numbers = message.value()
    assert isinstance(numbers, list)
    return {"sum": sum(numbers)}


@pytest.mark.parametrize("scheme", ["yamp+ws", "yamp+wss"])
async def test_a_page_talks_to_a_server(page_url: str, scheme: str, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("localhost")
    tls = wireloom.TLS(certificate, key) if scheme == "yamp+wss" else None
    async with wireloom.serve(f"{scheme}://127.0.0.1:0", add, tls=tls, origins=(page_url,)) as server:
        answer = await asyncio.wait_for(ask_from_page(page_url, server.url.removeprefix("yamp+")), 60)
    assert answer == {"handshake": "json", "answersUs": True, "type": 0, "value": {"sum": 6}}


async def test_a_page_of_another_origin_is_turned_away(page_url: str) -> None:
    async with wireloom.serve("yamp+ws://127.0.0.1:0", add, origins=("https://example.org",)) as server:
        with pytest.raises(Exception, match="closed 1006"):
            await asyncio.wait_for(ask_from_page(page_url, server.url.removeprefix("yamp+")), 60)


@pytest.mark.parametrize("scheme", ["yamp+ws", "yamp+wss"])
async def test_the_hub_admits_pages_of_listed_origins_and_no_others(page_url: str, scheme: str, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("localhost")
    tls = f'tls = {{ certificate = "{certificate}", key = "{key}" }}\n' if scheme == "yamp+wss" else ""
    # The same page under another name is of another origin.
    other = page_url.replace("127.0.0.1", "localhost")
    text = (
        f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\norigins = ["{page_url}"]\n{tls}'
        '[[listener]]\nurl = "emp://127.0.0.1:0"\n[http]\nurl = "off"\n'
    )
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub, "emp"), handler=add) as provider:
            await provider.provide("math/add")
            url = url_of(hub, scheme).removeprefix("yamp+")
            answer = await asyncio.wait_for(ask_from_page(page_url, url), 60)
            assert answer == {"handshake": "json", "answersUs": True, "type": 0, "value": {"sum": 6}}
            with pytest.raises(Exception, match="closed 1006"):
                await asyncio.wait_for(ask_from_page(other, url), 60)
