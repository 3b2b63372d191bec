"""A journal read from its archive on a real S3 server, against the same journal read from the local disk.

100,000 messages of about 60 bytes, twenty to a block, in segments of 2 MiB; a `Tail` reads and decodes all of them, as
`since` does. The S3 server (SeaweedFS) runs on the same machine, so its time counts, too. Repeat with

    .venv/bin/python -m benchmarks archive
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from tests.object_store import running_server, set_environment

from benchmarks.harness import Result, compare
from wireloom.journal import Journal
from wireloom.journal.archive import Archive, not_archived
from wireloom.journal.archive_disk import ArchiveDisk
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.identity import load_identity
from wireloom.journal.segment import segments
from wireloom.journal.tail import Tail
from wireloom.model import Direction
from wireloom.protocols.hsp import frames
from wireloom.store import open_store

MESSAGES, TOGETHER = 100_000, 20


def write(folder: Path) -> None:
    choose = random.Random(1)
    with Journal.open(folder, hub="bench", sync=False, segment_bytes=2 << 20) as journal:
        connection = journal.new_connection_id()
        for first in range(0, MESSAGES, TOGETHER):
            bodies = (
                b'{"c": %d, "id": %d, "at": %d}' % (each, choose.randrange(1000), first) for each in range(TOGETHER)
            )
            run = b"".join(frames.encode(frames.Data(7, body)) for body in bodies)
            journal.append("hsp", connection, Direction.C2S, first, run, topics={7: "sensors/kitchen"})
            if first % 2000 == 0:
                journal.commit()


def read(folder: Path, disk: Disk) -> float:
    """Messages a second."""
    began, count, tail = time.perf_counter(), 0, Tail(folder, disk=disk)
    while found := tail.read():
        count += len(found)
    tail.close()
    return count / (time.perf_counter() - began)


def run() -> list[Result]:
    with tempfile.TemporaryDirectory() as name, running_server() as server, set_environment(server.environment()):
        local, gone = Path(name) / "local", Path(name) / "gone"
        write(local)
        identity = load_identity(local)
        assert identity is not None
        url = server.make_bucket("bench")
        archive = Archive(open_store(url), identity)
        own = archive.claim()
        found = segments(local)
        stored = sum(archive.upload(path, own).stored for path in not_archived(archive, found))
        size = sum(path.stat().st_size for path in found)
        print(f"a message takes {size / MESSAGES:.1f} bytes on disk and {stored / MESSAGES:.1f} in the archive")

        def archived() -> float:
            return read(gone, ArchiveDisk(gone, Archive(open_store(url), identity), archive_only=True))

        return [
            compare(
                "a journal read from its archive on S3",
                "the local disk",
                archived,
                lambda: read(local, LOCAL),
                goal=0.7,
            )
        ]
