"""A proxy before an object store that makes faults: scripted, or at random from a seed.

    with FaultProxy(server.port) as proxy:
        proxy.script = ["503", "lost answer"]       # the next requests, in this order
        proxy.seed(7, rate=0.2)                     # then one request in five, by a seed
        proxy.is_away = True                        # nobody answers at all

| fault | what happens |
|---|---|
| `500`, `503` | the server's status; the request is not passed on |
| `slow down` | 503 with the code `SlowDown`, as S3 says it |
| `timeout` | the request is taken and never answered, for `hold` seconds |
| `cut request` | the connection ends in the middle of the request's body; nothing is passed on |
| `cut answer` | the connection ends in the middle of the answer's body; the request took effect |
| `lost answer` | the request takes effect, and the connection ends without an answer |
| `delay` | the request is passed on after `delay` seconds |
"""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self, cast

FAULTS = ("500", "503", "slow down", "timeout", "cut request", "cut answer", "lost answer", "delay")
SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
)
Choose = Callable[[str, str], bool]
"""Whether a request of this method and path may have a fault."""


class FaultProxy:
    """A proxy on a free port of this machine."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = host, port
        self.script: list[str] = []
        self.rate = 0.0
        self.kinds: tuple[str, ...] = FAULTS
        self.applies: Choose = lambda method, path: True
        self.is_away = False
        self.hold, self.delay = 2.0, 0.2
        self.made: Counter[str] = Counter()
        """Faults that were made, by kind."""
        self.requests: list[tuple[str, str]] = []
        """Method and path of every request that came."""
        self._random = random.Random(0)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._ends = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def seed(self, seed: int, rate: float, kinds: tuple[str, ...] = FAULTS) -> None:
        """Make faults at random from now on."""
        with self._lock:
            self._random, self.rate, self.kinds = random.Random(seed), rate, kinds

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._server.shutdown()
        self.cut_all()
        self._server.server_close()

    def cut_all(self) -> None:
        """End every connection."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _next(self, method: str, path: str) -> str:
        with self._lock:
            self.requests.append((method, path))
            if self.is_away:
                return "away"
            if not self.applies(method, path):
                return ""
            if self.script:
                fault = self.script.pop(0)
            elif self._random.random() < self.rate:
                fault = self._random.choice(self.kinds)
            else:
                return ""
            self.made[fault] += 1
            return fault


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: FaultProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that end are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def proxy(self) -> FaultProxy:
        return cast(_Server, self.server).proxy

    def setup(self) -> None:
        super().setup()
        with self.proxy._lock:
            self.proxy._open.add(self.connection)

    def finish(self) -> None:
        with self.proxy._lock:
            self.proxy._open.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def _pass(self) -> None:
        fault = self.proxy._next(self.command, self.path)
        size = int(self.headers.get("content-length") or 0)
        if fault == "away":
            self._end()
            return
        if fault == "cut request":
            self.rfile.read(size // 2)
            self._end()
            return
        body = self.rfile.read(size)
        if fault == "timeout":
            self.proxy._ends.wait(self.proxy.hold)
            self._end()
            return
        if fault in ("500", "503", "slow down"):
            self._answer(503 if fault == "slow down" else int(fault), [], SLOW_DOWN if fault == "slow down" else b"")
            return
        if fault == "delay":
            time.sleep(self.proxy.delay)
        upstream = http.client.HTTPConnection(*self.proxy.target, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            content = answer.read()
        except OSError:
            self._end()
            return
        finally:
            upstream.close()
        if fault == "lost answer":
            self._end()
            return
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OWN]
        is_head = self.command == "HEAD"
        length = answer.getheader("content-length") if is_head else None
        self._answer(answer.status, kept, content, length, cut=fault == "cut answer")

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, length: str | None = None, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", length or str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self._end()

    def _end(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass  # noqa: N815


_OWN = frozenset(("content-length", "transfer-encoding", "connection"))
