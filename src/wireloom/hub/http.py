"""A few pages over HTTP for those who watch the hub: metrics and health. GET only, one answer a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wireloom.transports.address import Address

_MAX_REQUEST = 16 * 1024
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: str
    status: str = "200 OK"
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Page]]


async def serve_pages(address: Address, pages: Pages) -> tuple[asyncio.Server, int]:
    """Serve pages by path; returns the server and its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                page = _page(head, pages)
                body = page.body.encode()
                answer = (
                    f"HTTP/1.1 {page.status}\r\nContent-Type: {page.content_type}\r\nContent-Length: {len(body)}\r\n"
                    "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
                )
                writer.write(answer.encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, address.host, address.port, limit=_MAX_REQUEST)
    return server, server.sockets[0].getsockname()[1]


def _page(head: bytes, pages: Pages) -> Page:
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3:
        return Page("bad request\n", "400 Bad Request")
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        return Page("only GET is served here\n", "405 Method Not Allowed")
    page = pages.get(target.partition("?")[0])
    if page is None:
        return Page(f"not found; there are: {', '.join(sorted(pages))}\n", "404 Not Found")
    found = page()
    return found if method == "GET" else Page("", found.status, found.content_type)
