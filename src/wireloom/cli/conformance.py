"""`wireloom conformance`: leads a server, or the clients that connect, through what its protocol asks of everybody."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from wireloom.cli import options
from wireloom.conformance import report
from wireloom.conformance.run import TIMEOUT, WAIT, CaseResult, check_clients, check_server
from wireloom.model import ConfigError

EXAMPLE = """\
examples:
  wireloom conformance hsp://127.0.0.1                      check the server that listens there
  wireloom conformance yamp://127.0.0.1 --html report.html  and write a page about it
  wireloom conformance mesh://127.0.0.1 --set key=node.json a node that takes signed packets only
  wireloom conformance --listen emp://127.0.0.1:5040        check the client that connects
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `conformance`."""
    parser = subparsers.add_parser(
        "conformance",
        help="check whether a server or a client keeps to its protocol",
        description="Run the conformance cases of a protocol against any server, or any client. Exit code 1 when the "
        "peer fails in something that it must do.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="the server to check, such as hsp://127.0.0.1")
    parser.add_argument(
        "--listen", action="store_true", help="listen at the URL, and give each client that connects the next case"
    )
    parser.add_argument("--only", metavar="PATTERN", help="only cases with such a name; * stands for anything")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="SECONDS", help=f"for each answer of the peer ({TIMEOUT:g})"
    )
    parser.add_argument(
        "--wait", type=float, default=WAIT, metavar="SECONDS", help=f"with --listen: for the next client ({WAIT:g})"
    )
    options.add_settings(parser, topics=False)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    options.add_tls(parser, server=False, token=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the cases; a MUST that fails gives exit code 1."""
    for name in ("timeout", "wait"):
        if not getattr(arguments, name) > 0:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}; it must be more than 0 seconds")
    settings, tls = options.settings(arguments), options.tls(arguments)
    outcome = asyncio.run(
        check_clients(
            arguments.url,
            settings=settings,
            tls=tls,
            patience=arguments.timeout,
            wait=arguments.wait,
            only=arguments.only,
            tell=_tell,
            listening=lambda url: print("listening on", url, flush=True),
        )
        if arguments.listen
        else check_server(
            arguments.url,
            settings=settings,
            tls=tls,
            patience=arguments.timeout,
            only=arguments.only,
            tell=_tell,
        )
    )
    print(report.summary(outcome))
    if arguments.html is not None:
        arguments.html.write_text(report.to_html(outcome), encoding="utf-8")
    if arguments.json is not None:
        text = json.dumps(report.to_json(outcome), indent=2, ensure_ascii=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 0 if outcome.conforms else 1


def _tell(result: CaseResult) -> None:
    print(report.line(result), flush=True)
