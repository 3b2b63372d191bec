"""XMPP: every write is the body of one `message` stanza, and a pipe is a pair of addresses on an XMPP server.

    wolpertinger+xmpp://user@server/peer                 talk to peer@server, as user@server
    wolpertinger+xmpp://user@server/peer@other/resource  talk to an address on another server
    wolpertinger+xmpp://user@server/resource             listen as user@server/resource

The options of a URL, after a question mark, are `password_file`, `host` (where the server is, if its name does not
tell), `allow` (the bare addresses that may talk to a listener, separated by commas) and `tls=off`, for tests only. The
password comes from that file, from the environment (`WIRELOOM_XMPP_PASSWORD`, or the name of a file in
`WIRELOOM_XMPP_PASSWORD_FILE`), or is asked for; never from the URL.

Connections to the server use STARTTLS with verified certificates and SASL. Messages go straight to the peer's address;
rosters are not touched. Presence, sent to the peer alone, tells each end when the other one leaves. A listener has a
pipe for every full address that writes to it.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import ssl
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape, quoteattr

from slixmpp import JID, ClientXMPP
from slixmpp.exceptions import XMPPError
from slixmpp.jid import InvalidJID

from wireloom.model import ConfigError
from wireloom.transports.address import Address
from wireloom.transports.base import Listener, Options, Owner, OwnerFactory, Pipe, TLSInfo, Transport
from wireloom.transports.tcp import tls_info
from wireloom.transports.tls import TLS

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger("wireloom.transports.xmpp")
PORT = 5222
PASSWORD, PASSWORD_FILE = "WIRELOOM_XMPP_PASSWORD", "WIRELOOM_XMPP_PASSWORD_FILE"
OPTIONS = ("password_file", "host", "allow", "tls")
IDLE = 3600.0
"""Seconds after which a listener forgets a silent address; not every peer announces that it leaves."""
RETRY = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between a listener's attempts to reach its server again."""
SMALLEST_LIMIT = 10_000
"""Bytes of a stanza that every server must take (RFC 6120, 13.12)."""
_LAST_WORDS = 2.0
_SHELL = 256
"""Bytes of a stanza besides its body and addresses, at most."""


_STRICT: set[str] = set()
"""Servers that closed a stream because of a stanza limit that they had not announced."""


class XMPPPipe(Pipe):
    """Messages between an account of ours and one address."""

    carries_messages = True

    def __init__(self, account: _Account, owner: Owner, to: JID) -> None:
        self._account = account
        self._owner = owner
        self.to = to
        self.peername, self.sockname = str(to), str(account.stream.boundjid.full)
        self.tls = account.tls_of(to)
        self.identities = (f"xmpp:{to.bare}",)
        limit = account.stanza_limit
        self.max_write = 0 if limit is None else max(limit - _SHELL - 2 * len(str(to)), 1)
        self._reading = True
        self._held: deque[bytes] = deque()
        self._held_size = 0
        self._over = False
        self.heard = account.loop.time()

    def start(self) -> None:
        """Tell the peer where we are, so that it learns when we leave; then tell the owner."""
        self._account.send(f"<presence to={quoteattr(str(self.to))}/>")
        self._owner.opened(self)

    def write(self, data: bytes) -> None:
        """Send each line as one stanza."""
        if self._over:
            return
        head = f'<message to={quoteattr(str(self.to))} type="chat"><body>'
        for line in data.splitlines():
            self._account.send(f'{head}{escape(line.decode())}</body><no-store xmlns="urn:xmpp:hints"/></message>')

    def heard_from(self, sender: JID, text: str) -> None:
        """A stanza arrived. A peer address without resource gets the resource of the first sender."""
        self.heard = self._account.loop.time()
        if not self.to.resource and sender.resource:
            self._account.rename(self, sender)
            self.to, self.peername = sender, str(sender)
            self._account.send(f"<presence to={quoteattr(str(sender))}/>")
        data = text.encode() + b"\n"
        if self._reading and not self._held:
            self._owner.received(data)
            return
        self._held.append(data)
        self._held_size += len(data)
        self._account.check_pressure()

    @property
    def is_stuffed(self) -> bool:
        """Whether more is buffered than the limit."""
        return self._held_size > self._account.options.high_water

    def pause_reading(self) -> None:
        """Keep what arrives."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver what was buffered."""
        self._reading = True
        while self._reading and self._held and not self._over:
            data = self._held.popleft()
            self._held_size -= len(data)
            self._owner.received(data)
        self._account.check_pressure()

    def paused(self) -> None:
        """The server reads too slowly."""
        self._owner.writing_paused()

    def resumed(self) -> None:
        """The server reads again."""
        self._owner.writing_resumed()

    def finish(self) -> None:
        """There are no halves to close."""
        self.close()

    def close(self) -> None:
        """Say goodbye to the peer."""
        if not self._over:
            self._account.send(f'<presence to={quoteattr(str(self.to))} type="unavailable"/>')
            self.end(None)

    def abort(self) -> None:
        """The same: what was written is on its way already."""
        self.close()

    def peer_left(self) -> None:
        """The peer said goodbye, or its server did for it."""
        if not self._over:
            self._owner.input_ended()
            self.close()

    def end(self, error: Exception | None) -> None:
        """The pipe is gone."""
        if self._over:
            return
        self._over = True
        self._held.clear()
        self._account.forget(self)
        self._account.loop.call_soon(self._owner.ended, error)


class _Stream(ClientXMPP):
    """The library's stream, with what asyncio tells a protocol about back-pressure."""

    on_pause: Callable[[], None]
    on_resume: Callable[[], None]

    def pause_writing(self) -> None:
        """asyncio: too much is unsent."""
        self.on_pause()

    def resume_writing(self) -> None:
        """asyncio: most of it is sent."""
        self.on_resume()


class _Account:
    """One login at one server, and the pipes that go over it."""

    def __init__(self, jid: JID, address: Address, query: dict[str, str], options: Options, *, priority: int) -> None:
        self.jid = jid
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.pipes: dict[str, XMPPPipe] = {}
        self.accept: Callable[[JID], XMPPPipe | None] | None = None
        self.on_lost: Callable[[Exception | None], None] = lambda error: None
        self._address = address
        self._query = query
        self._priority = priority
        self._up: asyncio.Future[None] | None = None
        self.gone: asyncio.Future[None] | None = None
        """Done when the account has left its server; None before the first login."""
        self._leaving = False
        self._reason = ""
        self._full = False
        self._largest = 0
        """Characters of the largest stanza sent since a message came, or since the login."""
        self.stream: Any = None

    async def login(self, password: str) -> None:
        """Connect, secure, authenticate. Raises OSError."""
        stream = self.stream = _Stream(self.jid, password)
        stream.on_pause, stream.on_resume = self._pause, self._resume
        stream.ssl_context = self.options.tls if self.options.tls is not None else TLS().client_context()
        stream.enable_direct_tls = False
        stream.enable_plaintext = self._query.get("tls") == "off"
        stream.enable_starttls = not stream.enable_plaintext
        if stream.enable_plaintext:
            stream.plugin["feature_mechanisms"].unencrypted_scram = True
        stream.roster.auto_authorize = False
        stream.roster.auto_subscribe = False
        self._largest = 0
        up = self._up = self.loop.create_future()
        stream.add_event_handler("session_start", self._started)
        stream.add_event_handler("failed_all_auth", lambda _: self._failed("the server refused user name or password"))
        stream.add_event_handler("connection_failed", lambda why: self._failed(str(why)))
        stream.add_event_handler(
            "ssl_invalid_chain", lambda why: self._failed(f"its certificate is not trusted: {why}")
        )
        stream.add_event_handler("stream_error", self._stream_error)
        stream.add_event_handler("disconnected", self._disconnected)
        stream.add_event_handler("message", self._message)
        stream.add_event_handler("message_error", self._message_error)
        stream.add_event_handler("presence_unavailable", self._unavailable)
        host = self._query.get("host")
        if host is not None or self._address.port != PORT:
            stream.connect(host or self._address.host, self._address.port)
        else:
            stream.connect()
        try:
            async with asyncio.timeout(self.options.handshake_timeout):
                await up
        except TimeoutError:
            raise ConnectionError(f"XMPP server {self.jid.domain} did not let {self.jid} in in time") from None
        finally:
            if up.cancelled() or not up.done() or up.exception() is not None:
                self._drop()

    def _drop(self) -> None:
        self.stream.cancel_connection_attempt()
        self.stream.abort()

    def _started(self, _: object) -> None:
        self.stream.transport.set_write_buffer_limits(high=self.options.high_water)
        self.send(f"<presence><priority>{self._priority}</priority></presence>")
        self.gone = self.loop.create_future()
        if self._up is not None and not self._up.done():
            self._up.set_result(None)

    def _failed(self, why: str) -> None:
        if self._up is not None and not self._up.done():
            self._up.set_exception(ConnectionError(f"XMPP server {self.jid.domain}: {why}"))

    @property
    def stanza_limit(self) -> int | None:
        """The most bytes of a stanza, as announced or observed; None if no limit is known."""
        stated: int | None = self.stream.limits.max_bytes
        return SMALLEST_LIMIT if stated is None and self.jid.domain in _STRICT else stated

    def _stream_error(self, error: Any) -> None:
        self._reason = f"{error['condition']} {error['text']}".strip()
        if error["condition"] == "policy-violation":
            self._suspect_limit()
        self._failed(self._reason)

    def _suspect_limit(self) -> None:
        if self._largest > SMALLEST_LIMIT:
            _STRICT.add(self.jid.domain)

    def _disconnected(self, why: object) -> None:
        self._failed(f"the connection was closed ({why or 'no reason given'})")
        if self.gone is None or self.gone.done():
            return
        self.gone.set_result(None)
        if not self._reason and not self._leaving:
            # A server that closes while we send resets the connection, and its error message may get lost.
            self._suspect_limit()
        detail = self._reason or (str(why) if why else "")
        error = ConnectionResetError(
            f"the XMPP server {self.jid.domain} closed the connection: {detail or 'no reason'}"
        )
        for pipe in list(self.pipes.values()):
            pipe.end(error)
        if not self._leaving:
            self.on_lost(error)

    def tls_of(self, peer: JID) -> TLSInfo | None:
        """TLS of the connection to the server, which authenticates the bare address of the peer."""
        transport = self.stream.transport
        secured = None if transport is None else transport.get_extra_info("ssl_object")
        if secured is None:
            return None
        info = tls_info(cast(ssl.SSLObject, secured))
        return TLSInfo(info.version, info.cipher, info.peer_certificate, str(peer.bare))

    # What the server sends

    def _message(self, stanza: Any) -> None:
        if stanza["type"] == "error":
            return
        self._largest = 0
        sender = stanza["from"]
        pipe = self.pipes.get(str(sender)) or self.pipes.get(str(sender.bare))
        if pipe is None and self.accept is not None:
            pipe = self.accept(sender)
        if pipe is not None:
            pipe.heard_from(sender, stanza["body"])

    def _message_error(self, stanza: Any) -> None:
        sender = stanza["from"]
        pipe = self.pipes.get(str(sender)) or self.pipes.get(str(sender.bare))
        if pipe is not None:
            why = f"{stanza['error']['condition']} {stanza['error']['text']}".strip()
            pipe.end(ConnectionResetError(f"{sender} cannot be reached: {why}"))

    def _unavailable(self, stanza: Any) -> None:
        pipe = self.pipes.get(str(stanza["from"]))
        if pipe is not None:
            pipe.peer_left()

    # What pipes need

    def add(self, pipe: XMPPPipe) -> None:
        """A new pipe."""
        self.pipes[str(pipe.to)] = pipe

    def rename(self, pipe: XMPPPipe, to: JID) -> None:
        """A pipe's peer has told its full address."""
        self.pipes.pop(str(pipe.to), None)
        self.pipes[str(to)] = pipe

    def forget(self, pipe: XMPPPipe) -> None:
        """A pipe is gone."""
        if self.pipes.get(str(pipe.to)) is pipe:
            del self.pipes[str(pipe.to)]
        self.check_pressure()
        if self._leaving and not self.pipes:
            self._logout()

    def send(self, stanza: str) -> None:
        """Send a stanza, if still connected."""
        if self.stream.transport is not None:
            self._largest = max(self._largest, len(stanza))
            self.stream.send_raw(stanza)

    def check_pressure(self) -> None:
        """Back-pressure: stop reading from the server while any pipe has too much buffered."""
        full = any(pipe.is_stuffed for pipe in self.pipes.values())
        transport = self.stream.transport
        if full != self._full and transport is not None and not transport.is_closing():
            self._full = full
            (transport.pause_reading if full else transport.resume_reading)()

    def _pause(self) -> None:
        for pipe in list(self.pipes.values()):
            pipe.paused()

    def _resume(self) -> None:
        for pipe in list(self.pipes.values()):
            pipe.resumed()

    def leave(self) -> None:
        """Leave the server as soon as the last pipe is gone."""
        self._leaving = True
        if not self.pipes:
            self._logout()

    def _logout(self) -> None:
        self.stream.disconnect(wait=_LAST_WORDS)


class XMPPListener(Listener):
    """An account that waits for messages, and logs in again when the connection to its server is lost."""

    def __init__(self, address: Address, account: _Account, owner: OwnerFactory, password: str) -> None:
        self.address = address
        self._account = account
        self._owner = owner
        self._password = password
        allow = account._query.get("allow")
        self._allow = None if allow is None else {JID(each.strip()).bare for each in allow.split(",")}
        self._again: asyncio.Task[None] | None = None
        account.accept = self._accept
        account.on_lost = self._lost
        self._sweep = account.loop.call_later(IDLE / 4, self._forget_idle)

    def _accept(self, sender: JID) -> XMPPPipe | None:
        if self._allow is not None and sender.bare not in self._allow:
            LOG.warning("a message of %s was ignored: not in the list of those allowed", sender.bare)
            return None
        pipe = XMPPPipe(self._account, self._owner(), sender)
        self._account.add(pipe)
        pipe.start()
        return pipe if self._account.pipes.get(str(sender)) is pipe else None

    def _forget_idle(self) -> None:
        limit = self._account.loop.time() - IDLE
        for pipe in [each for each in self._account.pipes.values() if each.heard < limit]:
            pipe.close()
        self._sweep = self._account.loop.call_later(IDLE / 4, self._forget_idle)

    def _lost(self, error: Exception | None) -> None:
        LOG.warning("%s; logging in again", error)
        self._again = self._account.loop.create_task(self._relogin())

    async def _relogin(self) -> None:
        attempt = 0
        while True:
            await asyncio.sleep(RETRY[min(attempt, len(RETRY) - 1)])
            try:
                await self._account.login(self._password)
            except OSError as error:
                LOG.warning("%s", error)
                attempt += 1
            else:
                LOG.info("%s is logged in again", self._account.jid)
                return

    def close(self) -> None:
        """Take no new conversations; the account leaves when the last of them is over."""
        self._sweep.cancel()
        if self._again is not None:
            self._again.cancel()
        self._account.accept = None
        self._account.leave()

    async def wait_closed(self) -> None:
        """Until the account has left its server."""
        if self._account.gone is not None:
            await self._account.gone


class XMPPTransport(Transport):
    """Messages through an XMPP server."""

    name = "xmpp"
    listens_as_client = True
    has_query = True

    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Log in, and talk to the address in the path."""
        path, query = _split(address)
        own = _jid(f"{address.user}@{address.host}" if address.user else "", address)
        to = _jid(path if "@" in path else f"{path}@{address.host}" if path else "", address)
        account = _Account(own, address, query, options, priority=-1)
        await account.login(await password_for(own, query))
        pipe = XMPPPipe(account, _Leaving(owner, account), to)
        account.add(pipe)
        pipe.start()
        return pipe

    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Log in, and wait for messages. The path is the resource."""
        path, query = _split(address)
        own = _jid(f"{address.user}@{address.host}" + (f"/{path}" if path else "") if address.user else "", address)
        password = await password_for(own, query)
        account = _Account(own, address, query, options, priority=0)
        await account.login(password)
        bound = str(account.stream.boundjid.resource)
        return XMPPListener(address.with_path(f"/{bound}"), account, owner, password)


class _Leaving:
    """Wraps the owner of a client: the account leaves the server when the pipe is gone."""

    def __init__(self, owner: Owner, account: _Account) -> None:
        self._owner = owner
        self._account = account
        self.opened, self.received, self.input_ended = owner.opened, owner.received, owner.input_ended
        self.writing_paused, self.writing_resumed = owner.writing_paused, owner.writing_resumed

    def ended(self, error: Exception | None) -> None:
        """The pipe is gone; the owner learns it when the account has left."""
        self._account.leave()
        if self._account.gone is None or self._account.gone.done():
            self._owner.ended(error)
        else:
            self._account.gone.add_done_callback(lambda _: self._owner.ended(error))


async def password_for(jid: JID, query: dict[str, str]) -> str:
    """The password of an account: from the file a URL names, the environment, or the terminal."""
    file = query.get("password_file") or os.environ.get(PASSWORD_FILE)
    if file:
        try:
            return (await asyncio.to_thread(Path(file).read_text)).removesuffix("\n")
        except OSError as error:
            raise ConfigError(f"the password of {jid.bare} cannot be read from {file}: {error.strerror}") from None
    if PASSWORD in os.environ:
        return os.environ[PASSWORD]
    if sys.stdin is not None and sys.stdin.isatty():
        return await asyncio.to_thread(getpass.getpass, f"Password of {jid.bare}: ")
    raise ConfigError(
        f"no password for {jid.bare}: name a file with ?password_file=... in the URL or in {PASSWORD_FILE}, "
        f"or set {PASSWORD}"
    )


def _split(address: Address) -> tuple[str, dict[str, str]]:
    """The path of an address without its slash, and its options."""
    path, _, query = address.path.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"unknown option {name!r} of an XMPP URL; known: {', '.join(OPTIONS)}")
    return unquote(path).removeprefix("/"), options


def _jid(text: str, address: Address) -> JID:
    try:
        if text:
            return JID(text)
    except (InvalidJID, XMPPError):
        pass
    raise ConfigError(f"{address}: an XMPP URL is written <scheme>://user@server/peer, not with {text or 'nothing'!r}")


XMPP = XMPPTransport()
