"""`wireloom journal ls|cat|follow|verify|prune`: look into a journal or an archive, and keep it small."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from wireloom.cli import journal_archive
from wireloom.cli.jsonlines import json_line, message_to_json
from wireloom.escaping import visible
from wireloom.journal.archive_disk import ArchiveDisk, disk_for
from wireloom.journal.blocks import Block
from wireloom.journal.disk import Disk
from wireloom.journal.identity import load_identity
from wireloom.journal.reader import Entry, Record, Unreadable, read_all, read_blocks
from wireloom.journal.restore import find_archive
from wireloom.journal.retention import ARCHIVE, Keep, prune
from wireloom.journal.segment import committed_length, is_sealed, segments
from wireloom.journal.tail import Found, Since, Tail, parse_since
from wireloom.journal.verify import Verified, verify
from wireloom.model import ConfigError, iso_time, parse_size, type_of_json
from wireloom.protocols.contract import PUBLISH
from wireloom.store import is_url
from wireloom.topics import matches, validate_pattern

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2
"""Seconds between two looks at a journal in which nothing happens."""


_LOOK_AGAIN = 5.0
"""Seconds between two looks at an archive."""


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
    follow = commands.add_parser(
        "follow",
        help="show messages as they are committed",
        epilog="example: wireloom journal follow data/journal --since 15m --topic 'sensors/#' --json",
    )
    prune = commands.add_parser(
        "prune",
        help="remove old segments that every pipeline has read",
        epilog="example: wireloom journal prune data/journal --keep-days 30 --dry-run",
    )
    for command in (ls, cat, check, follow):
        command.add_argument(
            "folder",
            metavar="DIR",
            help="the journal's folder, one segment, or the URL of an archive or of a hub in it",
        )
    prune.add_argument("folder", metavar="DIR", type=Path, help="the journal's folder")
    journal_archive.add_commands(commands)
    for command in (cat, follow):
        command.add_argument(
            "--json", action="store_true", help="one JSON object a message, as `wireloom decode` gives"
        )
        command.add_argument(
            "--topic", metavar="PATTERN", help="only messages of these topics; + is one level, # the rest"
        )
        command.add_argument(
            "--since",
            metavar="POINT",
            help="begin at a time (2026-01-31T12:00:00Z), so long ago (15m), after an offset (1042.7), or at the start",
        )
    follow.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    prune.add_argument("--keep-days", type=float, default=0.0, metavar="DAYS", help="remove what is older")
    prune.add_argument("--keep-bytes", metavar="SIZE", help="remove the oldest above this, such as 10g")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    prune.add_argument("--ignore-cursors", action="store_true", help="also remove what a pipeline has not read yet")
    ls.set_defaults(run=run_ls)
    cat.set_defaults(run=run_cat)
    check.set_defaults(run=run_verify)
    follow.set_defaults(run=run_follow)
    prune.set_defaults(run=run_prune)


def run_ls(arguments: argparse.Namespace) -> int:
    """List segments: size, whether sealed, first and last time, number of blocks."""
    rows = [("segment", "bytes", "state", "first", "last", "blocks")]
    folder, disk = _place(arguments.folder)
    for path in segments(folder, disk):
        index = disk.index_of(path) if isinstance(disk, ArchiveDisk) else None
        if index is not None:
            times = iso_time(index.from_ns), iso_time(index.to_ns)
            rows.append((path.name, str(index.length), "archived", *times, str(index.blocks)))
            continue
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
    wanted = _Shown(arguments)
    folder, disk = _place(arguments.folder)
    since = None if arguments.since is None else _since(arguments.since, folder, disk)
    found = read_all(folder, disk=disk) if since is None else _until_end(Tail(folder, since, disk=disk))
    for each in found:
        wanted.show(each)
    return int(wanted.unreadable)


def _place(given: str) -> tuple[Path, Disk]:
    """The folder to read and the disk it is on: with its archive, if it has one, or the archive alone."""
    if not is_url(given):
        return Path(given), disk_for(Path(given))
    archive = find_archive(given)
    folder = Path(archive.store.url) / archive.identity.hub
    return folder, ArchiveDisk(folder, archive, archive_only=True)


def _since(text: str, folder: Path, disk: Disk) -> Since:
    identity = disk.archive.identity if isinstance(disk, ArchiveDisk) else load_identity(folder)
    return parse_since(text, identity=identity)


def _until_end(tail: Tail) -> Iterator[Found]:
    while found := tail.read():
        yield from found


def run_follow(arguments: argparse.Namespace) -> int:
    """Show messages as they are committed, until there were enough or somebody interrupts."""
    wanted = _Shown(arguments)
    folder, disk = _place(arguments.folder)
    since = None if arguments.since is None else _since(arguments.since, folder, disk)
    tail = Tail.at_end(folder, disk=disk) if since is None else Tail(folder, since, disk=disk)
    pause = _SHORTEST_PAUSE
    looked = time.monotonic()
    while arguments.count is None or wanted.messages < arguments.count:
        found = tail.read()
        if tail.missed:
            print(f"{arguments.folder}: some of what was asked for was removed by retention", file=sys.stderr)
            tail.missed = 0
        for each in found:
            wanted.show(each)
            if wanted.messages == arguments.count:
                break
        if found:
            sys.stdout.flush()
            pause = _SHORTEST_PAUSE
        else:
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            if is_url(arguments.folder) and isinstance(disk, ArchiveDisk) and time.monotonic() - looked > _LOOK_AGAIN:
                disk.archive.refresh()
                looked = time.monotonic()
    return int(wanted.unreadable)


class _Shown:
    """Prints what the options ask for, and counts it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._json = arguments.json
        self._pattern = None if arguments.topic is None else validate_pattern(arguments.topic)
        self.messages = 0
        self.unreadable = False

    def show(self, found: Found) -> None:
        """Print one thing if it is wanted."""
        if isinstance(found, Unreadable):
            self.unreadable = True
        if self._pattern is not None and not _is_about(found, self._pattern):
            return
        if isinstance(found, Entry):
            self.messages += 1
        if not self._json:
            sys.stdout.write(visible(_readable(found)) + "\n")
        elif not isinstance(found, Record):
            sys.stdout.write(json_line(_line(found)))


def _is_about(found: Found, pattern: str) -> bool:
    """Whether this is a message of such a topic; an acknowledged publish is one of the topic it publishes to."""
    topic = found.message.topic if isinstance(found, Entry) else None
    return topic is not None and matches(pattern, topic.removeprefix(PUBLISH))


def run_prune(arguments: argparse.Namespace) -> int:
    """Remove segments, or say which would be; a line each."""
    size = 0 if arguments.keep_bytes is None else parse_size("--keep-bytes", arguments.keep_bytes)
    disk = disk_for(arguments.folder)
    is_archived = disk.archive.holds if isinstance(disk, ArchiveDisk) else None
    keep = Keep(arguments.keep_days, size, arguments.ignore_cursors, is_archived=is_archived)
    if not keep.days and not keep.size:
        raise ConfigError("say how much to keep: --keep-days, --keep-bytes, or both")
    found = prune(arguments.folder, keep, time.time_ns(), dry_run=arguments.dry_run)
    verb = "would be removed" if arguments.dry_run else "removed"
    for each in found:
        fate = verb if each.kept_for is None else f"kept: {_why_kept(each.kept_for)}"
        print(f"{each.path.name}  {each.size} bytes  {each.why}  {fate}")
    gone = [each for each in found if each.kept_for is None]
    count = f"{len(gone)} segment{'s' if len(gone) != 1 else ''}"
    print(f"{arguments.folder}: {count}, {sum(each.size for each in gone)} bytes {verb}")
    return 0


def _why_kept(kept_for: str) -> str:
    return "it is not archived yet" if kept_for == ARCHIVE else f"pipeline {kept_for} has not read it"


def _line(found: Entry | Unreadable) -> dict[str, type_of_json]:
    if isinstance(found, Entry):
        place: dict[str, type_of_json] = {"segment": found.segment, "journal_offset": str(found.place)}
        return message_to_json(found.message, found.offset, found.size) | place
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
    folder, disk = _place(arguments.folder)
    for fault in verify(folder, seen, disk):
        print(visible(str(fault)), file=sys.stderr)
        faults += 1
    verdict = "no fault" if not faults else f"{faults} fault{'s' if faults > 1 else ''}"
    segments = f"{seen.segments} segment{'s' if seen.segments != 1 else ''}"
    print(f"{arguments.folder}: {segments}, {seen.blocks} blocks, {seen.size} bytes: {verdict}")
    return 1 if faults else 0
