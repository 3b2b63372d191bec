"""`wireloom replay`: send messages of a warehouse back to a live peer."""

from __future__ import annotations

import argparse
import time

from wireloom.cli import options
from wireloom.model import ConfigError
from wireloom.transports.loop import run

COLUMNS = "time, protocol, kind, topic, body, content_type, attributes"
ORDER = "time, connection, direction, sequence"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `replay`."""
    parser = subparsers.add_parser(
        "replay",
        help="send messages of a warehouse back to a live peer",
        description="Send messages of a warehouse back to a live peer, in the order of their times.",
        epilog="example: wireloom replay --warehouse data/warehouse --to hsp://127.0.0.1:5042 "
        "--where \"topic = 'sensors/kitchen'\" --pace 10",
    )
    parser.add_argument("--warehouse", required=True, metavar="DIR", help="where the tables are")
    parser.add_argument("--to", required=True, metavar="URL", help="the peer, such as hsp://127.0.0.1:5042")
    parser.add_argument("--where", default="true", metavar="SQL", help="which rows of `messages`; default: all")
    parser.add_argument("--limit", type=int, metavar="N", help="no more than the first N rows")
    parser.add_argument(
        "--pace", type=float, default=0.0, metavar="F", help="1: the original pace, 2: twice as fast; 0: no pauses (0)"
    )
    parser.add_argument("--ack", action="store_true", help="let the other end acknowledge every event")
    parser.add_argument("--requests", action="store_true", help="ask requests again, too")
    parser.add_argument("--topic-prefix", default="", metavar="TEXT", help="put this before every topic")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="default 30")
    options.add_settings(parser)
    options.add_tls(parser, server=False)
    parser.set_defaults(run=run_replay)


def run_replay(arguments: argparse.Namespace) -> int:
    """Send what was selected, then say what became of it."""
    from wireloom.pipeline.query import ask_batches
    from wireloom.pipeline.send import send_batches
    from wireloom.pipeline.send_options import SendOptions
    from wireloom.pipeline.warehouse import Warehouse

    if arguments.limit is not None and arguments.limit < 0:
        raise ConfigError(f"--limit {arguments.limit}: it must be a number of rows such as 1000")
    if not arguments.where.strip():
        raise ConfigError("--where is empty; write a condition such as \"topic = 'sensors/kitchen'\", or leave it out")
    chosen = SendOptions(
        arguments.to,
        pace=arguments.pace,
        ack=arguments.ack,
        requests=arguments.requests,
        topic_prefix=arguments.topic_prefix,
        timeout=arguments.timeout,
        settings=options.settings(arguments),
        topics=options.topics(arguments),
        token=options.token(arguments),
        tls=options.tls(arguments),
    )
    # A wrong warehouse is told before anybody is connected to.
    Warehouse.existing(arguments.warehouse)
    limit = "" if arguments.limit is None else f" limit {arguments.limit}"
    # The condition ends with its line: a comment in it hides nothing of ours.
    query = f"select {COLUMNS} from messages where ({arguments.where}\n) order by {ORDER}{limit}"  # noqa: S608
    began = time.monotonic()
    sent = run(send_batches(ask_batches(arguments.warehouse, query), chosen))
    print(f"{sent}; to {arguments.to} in {time.monotonic() - began:.1f} s")
    return 0
