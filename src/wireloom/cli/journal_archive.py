"""`wireloom journal archive|restore|recipient`: put a journal into an archive, and get it back, without a hub."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from wireloom.journal.archive import Archive, not_archived
from wireloom.journal.archive_disk import remember_archive
from wireloom.journal.archive_format import SegmentId
from wireloom.journal.archive_keys import check_recipient, new_key
from wireloom.journal.identity import load_identity
from wireloom.journal.restore import find_archive, restore
from wireloom.journal.segment import REFUSED, has_writer, is_sealed, segments
from wireloom.model import ConfigError, iso_time
from wireloom.store import is_url, open_store


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to `wireloom journal`."""
    archive = commands.add_parser(
        "archive",
        help="put the sealed segments of a journal that no hub writes into an archive",
        epilog="example: wireloom journal archive data/journal --to s3://bucket/prefix",
    )
    archive.add_argument("folder", metavar="DIR", type=Path, help="the journal's folder")
    archive.add_argument("--to", metavar="URL", required=True, help="s3://, gs://, az:// or file:/// and a folder")
    archive.add_argument("--compression", type=int, default=3, metavar="LEVEL", help="of zstd, 1 to 19; default: 3")
    archive.add_argument("--recipient", default="", help="for whom keys of encrypted connections are encrypted")
    archive.set_defaults(run=run_archive)

    back = commands.add_parser(
        "restore",
        help="make a journal folder of an archive; the hub goes on there as a new epoch",
        epilog="example: wireloom journal restore --from s3://bucket/prefix --data data",
    )
    back.add_argument("--from", metavar="URL", required=True, dest="url", help="the archive, or a hub's folder in it")
    back.add_argument("--data", metavar="DIR", required=True, type=Path, help="the data folder, in which it is made")
    back.add_argument("--hub", metavar="ID", default="", help="whose, where the archive has several hubs")
    back.add_argument("--newest", metavar="N", type=int, help="only so many segments; older ones stay in the archive")
    back.add_argument("--keys", metavar="FILE", type=Path, help="the recipient's secret key: keys are put back")
    back.set_defaults(run=run_restore)

    recipient = commands.add_parser(
        "recipient",
        help="make a key pair for keys in an archive: the secret key goes to a file, the recipient is printed",
        epilog="example: wireloom journal recipient recipient.key",
    )
    recipient.add_argument("file", metavar="FILE", type=Path, help="where the secret key is written")
    recipient.set_defaults(run=run_recipient)


def run_archive(arguments: argparse.Namespace) -> int:
    """Archive what is sealed; a line for each segment that was not archived before."""
    if not is_url(arguments.to):
        raise ConfigError(f"--to is {arguments.to!r}; it looks like s3://bucket/prefix or file:///folder")
    if not 1 <= arguments.compression <= 19:
        raise ConfigError(f"--compression is {arguments.compression}; it must be from 1 to 19")
    if arguments.recipient:
        check_recipient(arguments.recipient)
    folder: Path = arguments.folder
    found = [*segments(folder), *(segments(folder / REFUSED) if (folder / REFUSED).is_dir() else [])]
    if has_writer(folder):
        raise ConfigError(f"{folder}: a hub writes this journal; set `url` under [archive] in its configuration")
    identity = load_identity(folder)
    if identity is None:
        raise ConfigError(f"{folder}: has no journal.json; let a hub open it once")
    archive = Archive(open_store(arguments.to), identity)
    own = archive.claim()
    archive.refresh()
    left = [path for path in not_archived(archive, found) if is_sealed(path)]
    for path in left:
        index = archive.upload(path, own, level=arguments.compression, recipient=arguments.recipient)
        print(f"{path.name}  {index.length} bytes as {index.stored}")
    remember_archive(folder, archive.store.url)
    total = sum(is_sealed(path) for path in found)
    before = total - len(left)
    print(f"{archive.store.url}/{identity.hub}: {_segments(len(left))} archived, {before} were there already")
    if total < len(found):
        print(f"{_segments(len(found) - total)} not sealed: a crash left that; let a hub open the folder once")
    return 0


def _segments(count: int) -> str:
    return f"{count} segment{'s' if count != 1 else ''}"


def run_restore(arguments: argparse.Namespace) -> int:
    """Make a journal folder; says how far it goes."""
    if arguments.newest is not None and arguments.newest < 1:
        raise ConfigError(f"--newest is {arguments.newest}; it must be 1 or more")
    secret_key = "" if arguments.keys is None else _read_key(arguments.keys)
    archive = find_archive(arguments.url, arguments.hub)
    folder = arguments.data / "journal"

    def tell(segment: SegmentId) -> None:
        print(f"{'refused/' if segment.refused else ''}{segment.file_name}")

    done = restore(archive, folder, newest=arguments.newest, secret_key=secret_key, tell=tell)
    print(
        f"{folder}: hub {done.identity.hub}, {_segments(done.segments)}, {done.size} bytes, "
        f"up to packet id {done.last} of {iso_time(done.to_ns)}"
    )
    if done.without_keys:
        print(f"keys of {done.without_keys} encrypted connections are not in it: their messages cannot be read")
    print("What the lost journal had after that is not in the archive. A hub that opens the folder begins a new epoch.")
    return 0


def _read_key(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the secret key: {error.strerror}") from None


def run_recipient(arguments: argparse.Namespace) -> int:
    """Make a key pair."""
    secret, recipient = new_key()
    try:
        file = os.open(arguments.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise ConfigError(f"{arguments.file}: cannot write the secret key: {error.strerror}") from None
    with os.fdopen(file, "w") as opened:
        opened.write(secret + "\n")
    print(recipient)
    return 0
