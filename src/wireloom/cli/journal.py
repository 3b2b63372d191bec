"""`wireloom journal ls|cat|verify`: look into a journal without a hub."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from wireloom.cli.jsonlines import message_to_json
from wireloom.journal.blocks import Block
from wireloom.journal.reader import Entry, Record, Unreadable, read_all, read_blocks
from wireloom.journal.segment import committed_length, is_sealed, segments
from wireloom.journal.verify import Verified, verify
from wireloom.model import iso_time, type_of_json


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `journal` to the command line."""
    journal = subparsers.add_parser(
        "journal",
        help="look into a journal",
        description="Look into the journal a hub writes.",
        epilog="example: wireloom journal cat data/journal --json",
    )
    commands = journal.add_subparsers(dest="journal_command", required=True, metavar="COMMAND")

    ls = commands.add_parser("ls", help="list the segments", epilog="example: wireloom journal ls data/journal")
    cat = commands.add_parser(
        "cat", help="show the messages", epilog="example: wireloom journal cat data/journal --json"
    )
    check = commands.add_parser(
        "verify",
        help="check every block; exit 1 if something is wrong",
        epilog="example: wireloom journal verify data/journal",
    )
    for command in (ls, cat, check):
        command.add_argument("folder", metavar="DIR", type=Path, help="the journal's folder, or one segment")
    cat.add_argument("--json", action="store_true", help="one JSON object a message, as `wireloom decode` gives")
    ls.set_defaults(run=run_ls)
    cat.set_defaults(run=run_cat)
    check.set_defaults(run=run_verify)


def run_ls(arguments: argparse.Namespace) -> int:
    """List segments: size, whether sealed, first and last time, number of blocks."""
    rows = [("segment", "bytes", "state", "first", "last", "blocks")]
    for path in segments(arguments.folder):
        first: Block | None = None
        last: Block | None = None
        count = 0
        for block in read_blocks(path):
            first = first or block
            last = block
            count += 1
        rows.append(
            (
                path.name,
                str(committed_length(path)),
                "sealed" if is_sealed(path) else "being written",
                "-" if first is None else iso_time(first.time_ns),
                "-" if last is None else iso_time(last.time_ns),
                str(count),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def run_cat(arguments: argparse.Namespace) -> int:
    """Show every message; with `--json` exactly one object a line. Exit 1 if some bytes do not decode."""
    code = 0
    write = sys.stdout.write
    for found in read_all(arguments.folder):
        if isinstance(found, Unreadable):
            code = 1
        if not arguments.json:
            write(_readable(found) + "\n")
        elif not isinstance(found, Record):
            write(json.dumps(_line(found), ensure_ascii=False) + "\n")
    return code


def _line(found: Entry | Unreadable) -> dict[str, type_of_json]:
    if isinstance(found, Entry):
        return message_to_json(found.message, found.offset, found.size) | {"segment": found.segment}
    return {
        "reject": {"clause": found.clause, "detail": found.detail, "offset": found.offset},
        "protocol": found.block.protocol,
        "connection": f"{found.block.connection or 0:016x}",
        "direction": str(found.block.direction),
        "time": iso_time(found.block.time_ns),
        "size": found.size,
        "segment": found.segment,
    }


def _readable(found: Entry | Unreadable | Record) -> str:
    if isinstance(found, Record):
        block = found.block
        connection = "-" if block.connection is None else f"{block.connection:016x}"
        details = " ".join(f"{name}={value}" for name, value in block.details.items())
        return f"{iso_time(block.time_ns)} {connection} -- {block.record} {details}".rstrip()
    if isinstance(found, Unreadable):
        block = found.block
        head = f"{iso_time(block.time_ns)} {block.connection or 0:016x} {block.direction}"
        return f"{head} {block.protocol} REJECT {found.clause}: {found.detail} ({found.size} bytes)"
    message = found.message
    words = [iso_time(message.time or 0), message.connection or "-", str(message.direction), message.protocol]
    words += [str(message.kind), message.topic or "-"]
    words += [
        f"{name}={value}"
        for name, value in (
            ("id", message.id),
            ("correlation_id", message.correlation_id),
            ("status", message.status),
        )
        if value is not None
    ]
    shown = message.body[:60].decode(errors="backslashreplace")
    if shown.isprintable() and message.body:
        words.append(shown + ("…" if len(message.body) > 60 else ""))
    elif message.body:
        words.append(f"({len(message.body)} bytes)")
    return " ".join(words)


def run_verify(arguments: argparse.Namespace) -> int:
    """Check everything; one line a fault on standard error."""
    seen = Verified()
    faults = 0
    for fault in verify(arguments.folder, seen):
        print(fault, file=sys.stderr)
        faults += 1
    verdict = "no fault" if not faults else f"{faults} fault{'s' if faults > 1 else ''}"
    segments = f"{seen.segments} segment{'s' if seen.segments != 1 else ''}"
    print(f"{arguments.folder}: {segments}, {seen.blocks} blocks, {seen.size} bytes: {verdict}")
    return 1 if faults else 0
