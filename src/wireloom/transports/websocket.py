"""WebSocket: a byte stream carried in binary messages, each write one message. Plain (`ws`) or with TLS (`wss`).

The protocol itself is the sans-IO core of the `websockets` package; sockets come from `tcp`. Servers check the
Origin: a web page may connect only if its Origin is named in `Options.origins`. Programs send none and may.

A read can hold forty thousand pings, and each takes tens of microseconds. So a read is parsed in portions, and nothing
more is read from the socket meanwhile. All answers of a portion are sent by one write.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Event, Protocol, State
from websockets.server import ServerProtocol
from websockets.typing import Origin
from websockets.uri import parse_uri

from wireloom.transports.acceptor import Place
from wireloom.transports.address import Address
from wireloom.transports.base import Listener, Options, Owner, OwnerFactory, Pipe, Transport
from wireloom.transports.busy_poll import awake
from wireloom.transports.portions import LONG, SHORT, clock, portions_of
from wireloom.transports.tcp import TCPPipe, connect_stream, listen_with_handshake

GOING_AWAY, NORMAL, UNSUPPORTED = 1001, 1000, 1003
ANY_ORIGIN = "*"
CHUNK = 1024
"""Bytes that are parsed between two checks of the time: up to 170 frames."""


class WebSocketPipe(TCPPipe):
    """One WebSocket connection: TCP below, messages as bytes above."""

    carries_messages = True

    def __init__(self, owner: Owner, options: Options, protocol: Protocol, place: Place | None = None) -> None:
        super().__init__(_Mute(), options, place)
        self.data_received = awake(self._data_received, options.busy_poll)  # type: ignore[method-assign, assignment]
        self._above = owner
        self._protocol = protocol
        self._announced = False
        self._told_end = False
        self._held: deque[bytes] = deque()
        """Messages that arrived while reading was paused; at most those of one read."""
        self._paused_above = False
        self._rest = b""
        """Bytes that were read; those from `_at` on are not parsed yet."""
        self._at = 0
        self._is_parsing = False
        self._is_due = False
        """Whether it is in the queue of `Portions`."""
        self._input_over = False
        """Whether the input ends after `_rest`."""
        self._lost: tuple[Exception | None] | None = None
        """Set when the socket is gone, with the error; `_rest` is still processed."""
        self._portions = portions_of(asyncio.get_running_loop())
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadline = asyncio.get_running_loop().call_later(options.handshake_timeout, self._too_slow)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: TCP (and TLS) is up; the client asks for the upgrade."""
        super().connection_made(transport)
        self._tcp_write = self._open.write
        self.write = self._write_message  # type: ignore[method-assign]
        if isinstance(self._protocol, ClientProtocol):
            self._protocol.send_request(self._protocol.connect())
            self._send()

    def greet(self) -> None:
        """TCP, and TLS where there is some, is up: the WebSocket's own handshake comes now."""

    def _data_received(self, data: bytes) -> None:
        has_rest = bool(self._rest)
        self._rest, self._at = self._rest[self._at :] + data if has_rest else data, 0
        if has_rest or (len(data) > SHORT and len(self._portions)):
            self.stand_in_row()
        else:
            self.take_portion(clock() + LONG)
            self.stand_in_row()

    def stand_in_row(self) -> None:
        """Queue the rest for a later iteration of the loop, unless the owner has paused reading."""
        if self._rest and not self._is_due and not self._is_parsing:
            super().pause_reading()
            if self._lost is not None or not self._paused_above:
                self._is_due = True
                self._portions.join(self)

    def take_portion(self, until: float) -> None:
        """Parse until a time; after all is parsed, handle the end of the input."""
        self._is_due, self._is_parsing = False, True
        rest = self._rest
        try:
            while self._at < len(rest) and (self._lost is not None or not self._paused_above):
                at = self._at
                self._at += CHUNK
                self._protocol.receive_data(rest[at : at + CHUNK] if len(rest) > CHUNK else rest)
                self._take_events()
                if clock() > until:
                    break
            self._send()
        finally:
            self._is_parsing = False
        if self._at < len(rest):
            return
        self._rest, self._at = b"", 0
        if self._lost is not None:
            self._end(*self._lost)
        elif self._input_over:
            self._end_of_tcp()
        elif not self._paused_above:
            super().resume_reading()

    def eof_received(self) -> bool:
        """asyncio: TCP ended; a WebSocket has no halves."""
        if self._rest:
            self._input_over = True
            return self.tls is None
        self._protocol.receive_eof()
        self._take_events()
        self._send()
        return False

    def _end_of_tcp(self) -> None:
        self.eof_received()
        self._open.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone. Bytes that were read before are processed first."""
        self._deadline.cancel()
        self.leave_handshakes()
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionResetError("closed during the WebSocket handshake"))
            self.ready.exception()
        self._lost = (exc,)
        if self._rest and self._announced and not self._is_parsing:
            self.stand_in_row()
        else:
            self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        if self._announced:
            while self._held:
                self._above.received(self._held.popleft())
            self._above.ended(exc)

    def pause_writing(self) -> None:
        """asyncio: too much is unsent."""
        if self._announced:
            self._above.writing_paused()

    def resume_writing(self) -> None:
        """asyncio: most of it is sent."""
        if self._announced:
            self._above.writing_resumed()

    # The owner's side

    def _write_message(self, data: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._send()

    def write(self, data: bytes) -> None:
        """Send bytes as one binary message."""
        self._write_message(data)

    def finish(self) -> None:
        """Begin the closing handshake: a WebSocket closes both halves."""
        self.close()

    def close(self) -> None:
        """Say goodbye; the connection closes when the peer has answered, or the owner aborts."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(NORMAL)
            self._send()
        elif self._protocol.state is State.CLOSED or not self._announced:
            self._open.close()

    def pause_reading(self) -> None:
        """Deliver nothing; stop reading from the socket."""
        self._paused_above = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Deliver buffered messages, then read again."""
        self._paused_above = False
        while self._held and not self._paused_above:
            self._above.received(self._held.popleft())
        if self._rest:
            self.stand_in_row()
        elif not self._paused_above:
            super().resume_reading()

    # Inside

    def _take_events(self) -> None:
        """Act on what the WebSocket protocol made of the bytes."""
        for event in self._protocol.events_received():
            self._take(event)
        if self._protocol.handshake_exc is not None:
            self._refused(self._protocol.handshake_exc)

    def _take(self, event: Event) -> None:
        if isinstance(event, Request):
            server = cast(ServerProtocol, self._protocol)
            self.headers = _headers(event)
            response = server.accept(event)
            server.send_response(response)
            if server.state is State.OPEN:
                self._send()
                self._begin()
        elif isinstance(event, Response):
            self.headers = _headers(event)
            if self._protocol.handshake_exc is None:
                self._begin()
        elif isinstance(event, Frame):
            self._take_frame(event)

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self._protocol.fail(UNSUPPORTED, "only binary messages are understood here")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            # The stream ignores message boundaries, so fragments are delivered as they arrive.
            if frame.data:
                self._hand_over(bytes(frame.data))
        elif frame.opcode is Opcode.CLOSE:
            self._end_input()

    def _hand_over(self, data: bytes) -> None:
        if self._paused_above:
            self._held.append(data)
        else:
            self._above.received(data)

    def _end_input(self) -> None:
        if self._announced and not self._told_end:
            self._told_end = True
            self._above.input_ended()

    def _begin(self) -> None:
        self._deadline.cancel()
        self.leave_handshakes()
        self._announced = True
        if not self.ready.done():
            self.ready.set_result(None)
        self._above.opened(self)

    def _refused(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionRefusedError(f"the WebSocket handshake failed: {error}"))
            self.ready.exception()
        if self._transport is not None:
            self._send()
            self._transport.close()

    def _too_slow(self) -> None:
        self._refused(TimeoutError("the WebSocket handshake took too long"))
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        """Write what the WebSocket protocol has to say, in one piece; an empty piece is its end."""
        pieces = self._protocol.data_to_send()
        if not pieces or self._lost is not None:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if data:
            self._tcp_write(data)
        if b"" in pieces:
            self._open.close()


class _Mute:
    """A placeholder owner that does nothing, until the handshake is over."""

    def opened(self, pipe: Pipe) -> None:
        """Nothing: the WebSocket handshake comes first."""

    def received(self, data: bytes) -> None:
        """Nothing."""

    def input_ended(self) -> None:
        """Nothing."""

    def ended(self, error: Exception | None) -> None:
        """Nothing."""

    def writing_paused(self) -> None:
        """Nothing."""

    def writing_resumed(self) -> None:
        """Nothing."""


class WebSocketTransport(Transport):
    """WebSocket; `secure` puts TLS below it."""

    has_query = True

    def __init__(self, name: str, *, secure: bool) -> None:
        self.name = name
        self._secure = secure

    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Connect and upgrade. The address's path is the request's."""
        url = f"{self.name}://{address.with_path('/' + address.path.removeprefix('/'))}"
        protocol = ClientProtocol(parse_uri(url), max_size=options.max_message)
        pipe = WebSocketPipe(owner, options, protocol)
        await connect_stream(address, pipe, options, secure=self._secure)
        try:
            await pipe.ready
        except BaseException:
            pipe.abort()
            raise
        return pipe

    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Listen for upgrades, at any path."""
        origins = allowed_origins(options.origins)

        def accept(place: Place) -> WebSocketPipe:
            return WebSocketPipe(owner(), options, ServerProtocol(origins=origins, max_size=options.max_message), place)

        return await listen_with_handshake(address, accept, options, secure=self._secure)


def allowed_origins(names: tuple[str, ...] | None) -> Sequence[Origin | re.Pattern[str] | None] | None:
    """The Origins that may connect, in the form the protocol core takes: None in the list is `no Origin`.

    >>> allowed_origins(("https://example.org",))
    ['https://example.org', None]
    >>> allowed_origins(("http://localhost:*",))[0].fullmatch("http://localhost:8080") is not None
    True
    >>> allowed_origins(None)
    [None]
    >>> allowed_origins(("*",)) is None
    True
    """
    if names is not None and ANY_ORIGIN in names:
        return None
    return [*map(_origin, names or ()), None]


def _origin(name: str) -> Origin | re.Pattern[str]:
    """An Origin, or with `*` for its port all those of one host."""
    host = name.removesuffix(f":{ANY_ORIGIN}")
    return Origin(name) if host == name else re.compile(re.escape(host) + r"(:\d+)?")


def _headers(message: Request | Response) -> dict[str, str]:
    return {name.lower(): value for name, value in message.headers.raw_items()}


WS = WebSocketTransport("ws", secure=False)
WSS = WebSocketTransport("wss", secure=True)
