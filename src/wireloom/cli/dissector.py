"""`wireloom dissector`: what Wireshark needs to read our protocols."""

from __future__ import annotations

import argparse
import sys
from importlib import resources

from wireloom.protocols.registry import protocols


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `dissector`."""
    parser = subparsers.add_parser(
        "dissector",
        help="print a Wireshark dissector for the binary protocols",
        description="Print a Wireshark dissector in Lua, for journals of the hub and for captures.",
        epilog="example: wireloom dissector > wireloom.lua; tshark -X lua_script:wireloom.lua -r capture.pcapng",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the common part and that of every protocol that has one."""
    parts = [(resources.files("wireloom.protocols") / "dissector.lua").read_text()]
    parts += [part for protocol in protocols().values() if (part := protocol.dissector())]
    sys.stdout.write("\n".join(parts))
    return 0
