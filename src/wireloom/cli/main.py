"""`wireloom`: finds the command, runs it, and says in one line what went wrong.

A command lives in a module with `add_parser(subparsers)`; each parser sets `run`, a function from the parsed
arguments to an exit code. Only the module of the command that was asked for is imported.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from wireloom.escaping import visible
from wireloom.extras import how_to_install
from wireloom.model import HandshakeFailed, PeerClosed, RequestFailed, RequestTimeout, WireloomError

COMMANDS = {
    "decode": "wireloom.cli.wire",
    "encode": "wireloom.cli.wire",
    "pub": "wireloom.cli.talk",
    "sub": "wireloom.cli.talk",
    "req": "wireloom.cli.talk",
    "echo": "wireloom.cli.talk",
    "hub": "wireloom.cli.hub",
    "console": "wireloom.cli.console",
    "conformance": "wireloom.cli.conformance",
    "dissector": "wireloom.cli.dissector",
    "doctor": "wireloom.cli.doctor",
    "up": "wireloom.cli.up",
    "warm": "wireloom.cli.warm",
    "journal": "wireloom.cli.journal",
    "keys": "wireloom.cli.keys",
    "pipeline": "wireloom.cli.pipeline",
    "replay": "wireloom.cli.replay",
    "report": "wireloom.cli.pipeline",
    "sql": "wireloom.cli.pipeline",
    "tables": "wireloom.cli.pipeline",
}

EXTRAS = {
    "hub": "hub",
    "warm": "hub",
    "pipeline": "spark",
    "report": "spark",
    "sql": "spark",
    "tables": "spark",
    "replay": "spark",
}
"""The extra that brings everything a command needs; other commands need what their URL does."""

EXAMPLE = """\
examples:
  wireloom hub                                        run a hub on this machine
  wireloom sub hsp://127.0.0.1 'sensors/#'            show what is published
  wireloom pub hsp://127.0.0.1 sensors/kitchen 21.5   publish something
  wireloom COMMAND --help                             more about a command
"""

FAILED = 2
REFUSED = 3
"""The other end answered, and said no."""
UNREACHED = 4
"""The other end was not reached, did not answer in time, or is gone."""
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = _parser(words)
        if not words:
            parser.print_help(sys.stderr)
            return FAILED
        arguments, more = parser.parse_known_args(words)
        arguments.more = more
        if more and not getattr(arguments, "takes_more", False):
            fail(f"unknown arguments: {' '.join(more)}; see `wireloom {arguments.command} --help`")
            return FAILED
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except WireloomError as error:
        fail(str(error))
        return _code(error)
    except OSError as error:
        return fail(explain(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "wireloom":
            raise
        wanted = next((word for word in words if not word.startswith("-")), "")
        return fail(f"this needs the package {error.name}: {how_to_install(error.name, EXTRAS.get(wanted))}")


def _code(error: WireloomError) -> int:
    """What a script learns from an error."""
    if isinstance(error, RequestFailed):
        return REFUSED
    return UNREACHED if isinstance(error, HandshakeFailed | PeerClosed | RequestTimeout) else FAILED


def fail(text: str) -> int:
    """Say what went wrong, in one line."""
    print("wireloom:", visible(" ".join(text.split())), file=sys.stderr)
    return FAILED


def explain(error: OSError) -> str:
    """An error of the operating system, and what to do about it.

    >>> explain(FileNotFoundError(2, "No such file or directory", "x.bin"))
    'x.bin: no such file or directory'
    """
    where = f"{error.filename}: " if error.filename else ""
    text = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.EADDRINUSE:
        return f"{where}{text}: something listens there already; stop it or choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where}{text}: this machine does not have that address; 127.0.0.1 and 0.0.0.0 always work"
    if error.errno == errno.EACCES:
        return f"{where}{text}: check the permissions; ports below 1024 need the rights of an administrator"
    if error.errno == errno.ENOSPC:
        return f"{where}{text}: make room on that disk, then start again"
    return f"{where}{text[:1].lower()}{text[1:]}"


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the one command that was asked for, or with all of them."""
    parser = _Parser(
        prog="wireloom",
        description="Five lightweight messaging protocols, one hub, and Spark tables of everything that was said.",
        epilog=EXAMPLE,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in words if not word.startswith("-")), None)
    modules = {COMMANDS[wanted]: None} if wanted in COMMANDS else dict.fromkeys(COMMANDS.values())
    for module in modules:
        import_module(module).add_parser(subparsers)
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is said; how to use a command is in its `--help`."""

    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"wireloom: {message}; see `{self.prog} --help`\n")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Adds the indent of commands to the column width. argparse omits it, so the longest name would wrap."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **rest: object) -> None:
        super().__init__(option_strings, dest, nargs=0, help=str(rest.get("help")))

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print("wireloom", version("wireloom"))
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
