"""`wireloom console`: the live page."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from wireloom.model import ConfigError

EXAMPLE = """\
examples:
  wireloom console                                      watch the hub on this machine at http://127.0.0.1:5080
  wireloom console --warehouse data/warehouse           with the pipeline's progress and findings
  wireloom console --url https://0.0.0.0:5080 --token-file token --certificate cert.pem --key key.pem
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `console`."""
    parser = subparsers.add_parser(
        "console",
        help="show what the hub and the pipeline are doing, in a browser",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", default="http://127.0.0.1:5080", help="where to listen (default %(default)s)")
    parser.add_argument(
        "--hub", default="http://127.0.0.1:5046", metavar="URL", help="the hub's pages (default %(default)s)"
    )
    parser.add_argument(
        "--journal", type=Path, metavar="DIR", help="the hub's journal; default: where the hub says it is"
    )
    parser.add_argument("--warehouse", metavar="DIR|URL", help="the pipeline's warehouse")
    parser.add_argument("--via", metavar="URL", help="the hub's listener to publish and request through")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a file with the token that browsers must show")
    parser.add_argument("--certificate", metavar="FILE", help="TLS certificate (PEM)")
    parser.add_argument("--key", metavar="FILE", help="its key (PEM)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the console until it is stopped."""
    from wireloom.console import Console, ConsoleSettings
    from wireloom.transports.tls import TLS

    token = arguments.token_file.read_text().strip() if arguments.token_file else None
    if token is not None and len(token) < 16:
        raise ConfigError(f"{arguments.token_file}: the token must have at least 16 characters")
    settings = ConsoleSettings(
        url=arguments.url,
        hub=arguments.hub,
        journal=arguments.journal,
        warehouse=arguments.warehouse,
        via=arguments.via,
        token=token,
        tls=TLS(certificate=arguments.certificate, key=arguments.key) if arguments.certificate else None,
    )

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with Console(settings) as console:
            print(f"console at {console.url}", flush=True)
            await stop.wait()

    asyncio.run(serve())
    return 0
