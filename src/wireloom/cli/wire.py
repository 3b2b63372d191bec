"""`wireloom decode` and `wireloom encode`: bytes on the wire to lines of JSON, and back."""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from wireloom.cli import options
from wireloom.cli.jsonlines import json_line, message_from_json, message_to_json
from wireloom.model import ConfigError, Direction, ProtocolViolation, WireloomError, type_of_json
from wireloom.protocols import registry
from wireloom.protocols.contract import CUT, Decoded, Decoder, Framing, Protocol, Rejected, Settings

CHUNK = 256 * 1024
RAW = "raw_base64"

DECODE = """\
examples:
  wireloom decode hsp capture.bin
  echo 0000070000000568656c6c6f | wireloom decode hsp --hex
  wireloom decode hsp capture.bin | jq -r .topic | sort | uniq -c
  wireloom decode yamp answers.bin --direction s2c --format msgpack    (bodies, where no handshake says it)
  wireloom decode mesh packets.hex --hex --trust trust.json            (who signed, and whether it holds)
  wireloom decode wolpertinger lines.txt --key HEX --iv HEX            (what was encrypted)
"""
ENCODE = """\
examples:
  echo '{"kind": "event", "topic": "hsp/7", "body": "hello"}' | wireloom encode hsp > frames.bin
  wireloom decode hsp frames.bin | wireloom encode hsp | cmp - frames.bin
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `decode` and `encode`."""
    decode = subparsers.add_parser(
        "decode",
        help="show what bytes on the wire say",
        description="Bytes of one direction of one connection to lines of JSON. Bytes that do not decode give a line "
        '{"reject": ...} and exit code 1.',
        epilog=DECODE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    encode = subparsers.add_parser(
        "encode",
        help="turn messages into bytes on the wire",
        description="Lines of JSON, as `decode` gives them, to bytes.",
        epilog=ENCODE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for parser in (decode, encode):
        parser.add_argument("protocol", metavar="PROTOCOL", help="emp, hsp, yamp, ...")
        parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="default: standard input")
        options.add_settings(parser)
    decode.add_argument("--hex", action="store_true", help="input is hex digits; of datagrams, one a line")
    decode.add_argument(
        "--direction",
        choices=["c2s", "s2c"],
        default="c2s",
        help="who sent it: the client (default) or the server",
    )
    decode.add_argument("--raw", action="store_true", help=f"add the bytes of each message as {RAW}")
    encode.add_argument(
        "--raw",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=f"write {RAW} of lines that have it instead of encoding them (default)",
    )
    encode.add_argument("--hex", action="store_true", help="write hex digits, a message a line")
    decode.set_defaults(run=run_decode, takes_more=True)
    encode.set_defaults(run=run_encode, takes_more=True)


def run_decode(arguments: argparse.Namespace) -> int:
    """Decode a stream; exit code 1 when something did not decode."""
    protocol, settings = _protocol(arguments)
    direction = Direction(arguments.direction)
    if protocol.framing is Framing.DATAGRAM:
        direction = Direction.DGRAM
    decoder = protocol.decoder(direction, settings, options.topics(arguments))
    rejected = False
    with _input(arguments.file) as source:
        chunks = _hex_chunks(source, protocol) if arguments.hex else _chunks(source, protocol)
        for batch in decode_chunks(decoder, chunks, keep=arguments.raw):
            lines = []
            for found, raw in batch:
                rejected |= isinstance(found, Rejected)
                line = _line(found)
                if arguments.raw:
                    line[RAW] = base64.b64encode(raw).decode()
                lines.append(json_line(line))
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
    return 1 if rejected else 0


def run_encode(arguments: argparse.Namespace) -> int:
    """Encode lines of JSON."""
    protocol, settings = _protocol(arguments)
    topics = options.topics(arguments)
    out = sys.stdout.buffer
    with _input(arguments.file) as source:
        for number, text in enumerate(source, 1):
            if not text.strip():
                continue
            data = _encoded(text, number, arguments.raw, protocol, settings, topics)
            out.write(data.hex().encode() + b"\n" if arguments.hex else data)
    out.flush()
    return 0


Found = Decoded | Rejected


def decode_chunks(
    decoder: Decoder, chunks: Iterable[bytes], *, keep: bool = False
) -> Iterator[list[tuple[Found, bytes]]]:
    """Messages and rejects of a stream that comes in chunks, a list a chunk; with their bytes if `keep`.

    Of a datagram protocol a chunk is one datagram. After a violation that ends the stream the rest is read only
    when it is to be kept.
    """
    held = bytearray()
    start = 0
    for chunk in chunks:
        if keep:
            held += chunk
        if decoder.violation is None:
            decoder.feed(chunk)
            batch: list[tuple[Found, bytes]] = []
            for found in _available(decoder):
                end = decoder.offset if isinstance(found, Rejected) else found.offset + found.size
                batch.append((found, bytes(held[: end - start])))
                del held[: end - start]
                start = end
            yield batch
        if decoder.violation is not None and not keep:
            break
    broken = decoder.violation
    if broken is not None:
        yield [(Rejected(broken.clause, broken.detail, decoder.offset, b""), bytes(held))]
    elif len(decoder.buffered) > 0:
        yield [(Rejected(CUT, "the stream ends inside a frame", decoder.offset, b""), bytes(held))]


def _available(decoder: Decoder) -> Iterator[Found]:
    """What can be decoded now. A violation that ends the stream ends this, too, and stays in the decoder."""
    while True:
        start = decoder.offset
        try:
            for found in decoder:
                yield found
                start = decoder.offset
            return
        except ProtocolViolation as violation:
            if decoder.violation is not None:
                return
            yield Rejected(violation.clause, violation.detail, start, b"")


def _line(found: Decoded | Rejected) -> dict[str, type_of_json]:
    if isinstance(found, Rejected):
        return {"reject": {"clause": found.clause, "detail": found.detail, "offset": found.offset}}
    return message_to_json(found.message, found.offset, found.size)


def _encoded(
    text: bytes, number: int, raw: bool, protocol: Protocol, settings: Settings, topics: dict[int, str] | None
) -> bytes:
    try:
        line = json.loads(text)
        if not isinstance(line, dict):
            raise ConfigError("it must be a JSON object")
        if raw and RAW in line:
            return base64.b64decode(str(line[RAW]), validate=True)
        if "reject" in line:
            raise ConfigError("it is a reject, which has no bytes here: use `decode --raw`")
        return protocol.encode(message_from_json(line), settings, topics)
    except (WireloomError, ValueError, binascii.Error) as error:
        raise ConfigError(f"line {number}: {error}") from None


def _protocol(arguments: argparse.Namespace) -> tuple[Protocol, Settings]:
    protocol = registry.protocol(arguments.protocol)
    values = {**options.settings(arguments), **options.protocol_options(protocol, arguments.more)}
    return protocol, protocol.settings(values)


def _input(path: Path | None) -> AbstractContextManager[BinaryIO]:
    if path is None or str(path) == "-":
        return nullcontext(sys.stdin.buffer)
    return path.open("rb")


def _chunks(source: BinaryIO, protocol: Protocol) -> Iterator[bytes]:
    """What is there, as soon as it is there; of a datagram protocol the whole input is one datagram."""
    if protocol.framing is Framing.DATAGRAM:
        yield source.read()
        return
    read = getattr(source, "read1", source.read)
    while chunk := read(CHUNK):
        yield chunk


def _hex_chunks(source: BinaryIO, protocol: Protocol) -> Iterator[bytes]:
    for number, text in enumerate(source, 1):
        try:
            data = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            raise ConfigError(f"line {number} is not pairs of hex digits: {text[:40]!r}") from None
        if data:
            yield data
