"""`wireloom pub`, `sub`, `req` and `echo`: talk to any peer from the shell."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeAlias

from wireloom.cli import options
from wireloom.cli.jsonlines import json_line, message_to_json
from wireloom.escaping import visible
from wireloom.model import ConfigError, HandshakeFailed, Kind, Message, PeerClosed, RequestFailed, RequestTimeout
from wireloom.peers import Client, Peer, Subscription, connect, serve
from wireloom.protocols.contract import HUB_PREFIX
from wireloom.transports.loop import run

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_parser(subparsers: Subparsers) -> None:
    """Add the commands `pub`, `sub`, `req` and `echo`."""
    pub = _command(
        subparsers,
        "pub",
        "publish an event",
        [
            "wireloom pub hsp://127.0.0.1:5042 sensors/kitchen '{\"c\": 21.5}'",
            "tail -f app.log | wireloom pub hsp://127.0.0.1 logs/app --lines",
        ],
        publish,
    )
    _topic_and_body(pub)
    pub.add_argument(
        "--ack",
        action="store_true",
        help="wait until the other end has acknowledged it; without, nobody says if it was refused",
    )
    pub.add_argument("--lines", action="store_true", help="publish each line of standard input")

    req = _command(
        subparsers,
        "req",
        "send a request and show the answer",
        [
            'wireloom req yamp://127.0.0.1:5043 math/add \'{"a": 1, "b": 2}\'',
            "seq 1000 | wireloom req yamp://127.0.0.1:5043 math/square --lines",
        ],
        request,
    )
    _topic_and_body(req)
    req.add_argument("--lines", action="store_true", help="a request for each line of standard input, many at a time")
    req.add_argument("--json", action="store_true", help="show the answer as a line of JSON, as `decode` does")

    sub = _command(
        subparsers,
        "sub",
        "show events as they come",
        [
            "wireloom sub hsp://127.0.0.1:5042 'sensors/#'",
            "wireloom sub hsp://127.0.0.1 'sensors/+' --count 10 --body",
        ],
        subscribe,
    )
    sub.add_argument("topic", metavar="TOPIC", help="a topic or a pattern: + is one level, # the rest")
    sub.add_argument("--count", type=_count, metavar="N", help="stop after N events")
    sub.add_argument("--body", action="store_true", help="show bodies alone instead of lines of JSON")
    sub.add_argument(
        "--since",
        metavar="POINT",
        help="first what came since a time (2026-01-31T12:00:00Z), so long ago (15m), after an offset, or the start",
    )
    sub.add_argument("--retained", action="store_true", help="first the last value of each topic")
    sub.add_argument("--local", action="store_true", help="do not ask the other end: it sends events unasked")

    echo = _command(
        subparsers,
        "echo",
        "a server that sends events back and answers requests with their body",
        ["wireloom echo hsp://127.0.0.1:5042", "wireloom echo hsp://127.0.0.1:0    (any free port)"],
        echo_server,
        server=True,
    )
    echo.set_defaults(quiet=False)


def _command(
    subparsers: Subparsers,
    name: str,
    help_: str,
    examples: list[str],
    action: Callable[[argparse.Namespace], Coroutine[object, object, int]],
    *,
    server: bool = False,
) -> argparse.ArgumentParser:
    lines = "\n".join(f"  {example}" for example in examples)
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=help_,
        description=f"{help_[:1].upper()}{help_[1:]}.",
        epilog=f"example{'s' if len(examples) > 1 else ''}:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="such as hsp://127.0.0.1:5042")
    if not server:
        parser.add_argument("--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="default 30")
    options.add_settings(parser)
    options.add_tls(parser, server=server)
    parser.set_defaults(run=lambda arguments: run(action(arguments)))
    return parser


def _topic_and_body(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("body", metavar="BODY", nargs="?", default=None, help="text; - reads standard input")
    # argparse gives an optional argument up once an option follows the topic.
    parser.set_defaults(takes_more=True)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _peer(arguments: argparse.Namespace) -> Client:
    return connect(
        arguments.url,
        settings=options.settings(arguments),
        topics=options.topics(arguments),
        tls=options.tls(arguments),
        token=options.token(arguments),
        reconnect=False,
        resend=True,  # where a redirect leads
        timeout=arguments.timeout,
    )


def _warn_topicless(peer: Peer, topic: str) -> None:
    """Say it where the other end has no topics: what was typed is not sent."""
    if not peer.session.sends_topics:
        text = f"{peer.name} does not know the hub's extension that carries topics: the topic is not sent: {topic}"
        print(f"wireloom: {visible(text)}", file=sys.stderr)


async def publish(arguments: argparse.Namespace) -> int:
    """Publish one body, or each line of standard input."""
    if any(level in ("+", "#") for level in arguments.topic.split("/")):
        raise ConfigError(f"{arguments.topic!r} is a pattern, which is for `wireloom sub`: publish to one topic")
    body = _body(arguments)
    async with _peer(arguments) as peer:
        _warn_topicless(peer, arguments.topic)
        if arguments.lines:
            async for line in _lines():
                await _publish(peer, arguments, line)
        else:
            await _publish(peer, arguments, body)
    if not arguments.ack and sys.stderr.isatty():
        print(
            f"sent to {visible(arguments.url)}; whether it was taken or refused, only --ack can tell", file=sys.stderr
        )
    return 0


async def _publish(peer: Peer, arguments: argparse.Namespace, body: bytes) -> None:
    if arguments.ack:
        topic = f"{HUB_PREFIX}publish/{arguments.topic}"
        await peer.ask(_message(Kind.REQUEST, topic, body), timeout=arguments.timeout)
    else:
        peer.send(_message(Kind.EVENT, arguments.topic, body))
        await peer.drain()


async def request(arguments: argparse.Namespace) -> int:
    """Ask once, or for each line of standard input, and show the answers in the order of the requests."""
    show = _show if arguments.json else _show_body
    message = _message(Kind.REQUEST, arguments.topic, _body(arguments))
    async with _peer(arguments) as peer:
        _warn_topicless(peer, arguments.topic)
        if arguments.lines:
            requests = (_message(Kind.REQUEST, arguments.topic, line) async for line in _lines())
            async for answer in peer.ask_many(requests, timeout=arguments.timeout):
                show(answer)
                sys.stdout.flush()
        else:
            show(await peer.ask(message, timeout=arguments.timeout))
        if peer.protocol.request_is_publish and not arguments.json:
            print(f"done; answers of {peer.protocol.name} carry no value", file=sys.stderr)
    return 0


async def _start(events: Subscription, arguments: argparse.Namespace) -> None:
    """Ask for the events, within the time that was given."""
    hint = "if it is no hub and sends events unasked, use --local"
    try:
        async with asyncio.timeout(arguments.timeout):
            await events.start()
    except RequestTimeout:
        raise
    except TimeoutError:
        within = f"{arguments.url} did not answer the subscription within {arguments.timeout:g} s"
        raise RequestTimeout(f"{within}; {hint}") from None
    except RequestFailed as error:
        if error.code[:1] in ("4", "5") and error.code != "404":  # a hub says so
            raise
        raise RequestFailed(error.code, error.body + f"; {hint}".encode()) from None


async def subscribe(arguments: argparse.Namespace) -> int:
    """Show events until there were enough of them, or the connection ends."""
    left = arguments.count
    asked = {"local": arguments.local, "since": arguments.since, "retained": arguments.retained}
    async with _peer(arguments) as peer:
        events = peer.subscribe(arguments.topic, **asked)
        await _start(events, arguments)
        if left == 0:
            return 0
        try:
            async for event in events:
                if arguments.body:
                    _show_body(event)
                else:
                    _show(event)
                sys.stdout.flush()
                if left is not None:
                    left -= 1
                    if left == 0:
                        break
        except HandshakeFailed:
            raise
        except PeerClosed as error:
            raise PeerClosed(f"{error}; the subscription ended") from error
    return 0


async def echo_server(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serve(
        arguments.url,
        echo_handler,
        settings=options.settings(arguments),
        topics=options.topics(arguments),
        tls=options.tls(arguments),
    ) as server:
        print(f"listening on {server.url}", flush=True)
        await stop.wait()
    return 0


async def echo_handler(message: Message, peer: Peer) -> Message | None:
    """Send an event back as it came; answer a request with its body."""
    if message.kind is Kind.EVENT:
        # Who publishes and leaves does not wait for it.
        with contextlib.suppress(PeerClosed):
            peer.send(Message(Kind.EVENT, message.topic, message.body, content_type=message.content_type))
            await peer.drain()
        return None
    return Message(Kind.RESPONSE, message.topic, message.body, content_type=message.content_type)


def _message(kind: Kind, topic: str, body: bytes) -> Message:
    """What was typed, with the content type it looks like; sessions that agreed on another convert it."""
    if not topic:
        raise ConfigError("the topic must not be empty")
    return Message(kind, topic, body, content_type=_content_type(body))


def _content_type(body: bytes) -> str | None:
    """JSON where it is an object or an array, else text, else nothing.

    >>> _content_type(b'{"a": 1}'), _content_type(b"21.5"), _content_type(bytes([255]))
    ('application/json', 'text/plain', None)
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    if text[:1] in "{[":
        try:
            json.loads(text)
            return "application/json"
        except ValueError:
            pass
    return "text/plain"


def _body(arguments: argparse.Namespace) -> bytes:
    """The body that was typed, wherever among the options it stands."""
    text, more = arguments.body, list(arguments.more)
    if text is None:
        text = more.pop(0) if more and (more[0] == "-" or not more[0].startswith("-")) else ""
    if more:
        raise ConfigError(f"unknown arguments: {' '.join(more)}; see `wireloom {arguments.command} --help`")
    if arguments.lines and text:
        raise ConfigError("--lines takes every body from standard input: leave BODY out")
    return sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")


async def _lines() -> AsyncIterator[bytes]:
    """Lines of standard input, read beside the event loop so that it is never blocked."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        yield line.rstrip(b"\r\n")


def _show(message: Message) -> None:
    sys.stdout.write(json_line(message_to_json(message)))


def _show_body(message: Message) -> None:
    """The body as it is, for programs; on a terminal, what a terminal would obey is shown as an escape.

    With a line end where it is text without one.
    """
    sys.stdout.flush()
    if sys.stdout.isatty():
        sys.stdout.buffer.write(visible(message.body.decode(errors="backslashreplace"), keep="\n\t").encode())
    else:
        sys.stdout.buffer.write(message.body)
    if message.body and not message.body.endswith(b"\n") and _content_type(message.body) is not None:
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
