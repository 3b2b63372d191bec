"""`wireloom warm`: compile the kernels ahead, so that the first start of a hub or a pipeline does not wait for it."""

from __future__ import annotations

import argparse
import logging
import sys
import time

EXAMPLE = """\
examples:
  wireloom warm                                              beside the package, or in your cache
  WIRELOOM_KERNELS=/var/cache/wireloom wireloom warm         in a folder that a service can read
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `warm`."""
    parser = subparsers.add_parser(
        "warm",
        help="compile the kernels ahead, so that the first start is quick",
        description="Compile the kernels of the hub and, where its packages are installed, of the pipeline.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compile or load everything; say how long it took."""
    from wireloom.journal import encoding
    from wireloom.protocols.contract import Role
    from wireloom.protocols.registry import protocol, protocols
    from wireloom.transports import many_writes

    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("wireloom.kernels").setLevel(logging.INFO)
    begun = time.monotonic()
    encoding.warm()
    many_writes.warm()
    for each in map(protocol, protocols()):
        each.sessions(each.lenient(), None).new(Role.SERVER).enable_columns()
    done = ["hub"]
    try:
        from wireloom.pipeline import decode
        from wireloom.pipeline.captures import reader as capture_reader
    except ModuleNotFoundError as error:
        print(f"without the pipeline's: {error.name} is not installed")
    else:
        decode.warm()
        capture_reader.warm()
        done.append("pipeline")
    print(f"kernels of {' and '.join(done)} are ready after {time.monotonic() - begun:.1f} s")
    return 0
