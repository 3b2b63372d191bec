"""`wireloom hub`: run the hub, or check its configuration."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.escaping import visible
from wireloom.model import ConfigError

if TYPE_CHECKING:
    from wireloom.hub.config import HubConfig

EXAMPLE = """\
examples:
  wireloom hub                               loopback, default ports, journal in wireloom-data/journal
  wireloom hub --config hub.toml --data /var/lib/wireloom
  wireloom hub check hub.toml                say what is wrong with a configuration, without starting
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `hub`."""
    parser = subparsers.add_parser(
        "hub",
        help="run the hub that joins peers of all protocols and keeps every message",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", nargs="?", default="run", help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration in TOML; default: loopback only")
    parser.add_argument("--data", type=Path, metavar="DIR", help="data folder; the journal is in DIR/journal")
    parser.add_argument("--verbose", action="store_true", help="log every connection")
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="the log for people, or a JSON object a line"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run or check; of a wrong configuration every mistake has its line."""
    from wireloom.hub.config_errors import Mistakes

    try:
        return _run(arguments)
    except Mistakes as mistakes:
        for each in mistakes.found:
            print(f"wireloom: {visible(str(each))}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from wireloom.hub.config import default_config, load_config
    from wireloom.hub.logs import LogFormat, about, start_logging
    from wireloom.hub.process_tuning import keep_buffers
    from wireloom.transports.loop import run as run_loop

    if arguments.action not in ("run", "check"):
        raise ConfigError(f"hub knows no action {arguments.action!r}; a configuration is named with --config FILE")
    path = arguments.config or arguments.file
    if arguments.action == "check":
        if path is None:
            print("wireloom: hub check needs a file: wireloom hub check hub.toml", file=sys.stderr)
            return 2
        config = load_config(path, arguments.data)
        for warning in config.warnings:
            print(f"warning: {warning}")
        print(f"{path}: fine; {len(config.listeners)} listeners, journal in {config.journal_folder}")
        return 0
    config = (
        default_config(arguments.data or Path("wireloom-data")) if path is None else load_config(path, arguments.data)
    )
    start_logging(LogFormat(arguments.log_format), verbose=arguments.verbose)
    for warning in config.warnings:
        logging.getLogger("wireloom.hub").warning("%s", warning, extra=about("config.warning"))
    keep_buffers()
    run_loop(_serve(config, (lambda: config) if path is None else lambda: load_config(path, arguments.data)))
    return 0


async def _serve(config: HubConfig, load: Callable[[], HubConfig]) -> None:
    from wireloom.hub.hub import Hub
    from wireloom.hub.process_tuning import collect_rarely, prefer_the_loop
    from wireloom.hub.reload import reload_from

    hub = Hub(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hub.ask_to_stop)
    async with hub:
        for url in hub.urls.values():
            print(f"listening on {url}", flush=True)
        print(f"journal in {config.journal_folder}", flush=True)
        loop.add_signal_handler(signal.SIGHUP, lambda: reload_from(hub, load))
        collect_rarely()
        prefer_the_loop()
        print("ready", flush=True)
        await hub.stopped()
        print("draining", flush=True)
    print("stopped", flush=True)
