"""A proof that cannot fail proves nothing: journals that are broken on purpose, and what the replay says of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ledger import GONE, LOST, TWO_CONTENTS, Imbalance
from tests.powerloss.lineage import FAULT, STATE_LOST
from tests.powerloss.replay import Replay, WatchedDisk
from wireloom.journal import blocks, identity, log, recovery

MOST_REPLAYS = 30
STEPS, RATE = 40, 0.2


@pytest.fixture
def is_caught(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Whether replays find what is broken and call it by one of these names, and find nothing once it is mended."""

    def caught(*kinds: str, disk: type[WatchedDisk] = WatchedDisk) -> bool:
        found: list[str] = []
        for seed in range(MOST_REPLAYS):
            try:
                Replay(seed, disk=disk).run(STEPS, RATE)
            except Imbalance as imbalance:
                found += imbalance.kinds
                if set(kinds) & set(imbalance.kinds):
                    monkeypatch.undo()
                    Replay(seed).run(STEPS, RATE)
                    return True
        raise AssertionError(f"{MOST_REPLAYS} replays found only {found}")

    return caught


class SegmentsWithoutSync(WatchedDisk):
    """Says that a segment is synced when it is not."""

    def sync(self, file: int) -> None:
        if not self._path_of(file).name.endswith(".pcapng"):
            super().sync(file)

    def pwritev(self, file, buffers, at, flags=0):
        return super().pwritev(file, buffers, at)


class FoldersWithoutSync(WatchedDisk):
    """Says that names are synced when they are not."""

    def sync_folder(self, path: Path) -> None:
        self.look(path)


class StateWithoutSync(WatchedDisk):
    """A state file is renamed without a sync before."""

    def sync(self, file: int) -> None:
        if not self._path_of(file).name.endswith(".json.new"):
            super().sync(file)


def test_acknowledge_before_the_sync(is_caught):
    assert is_caught(LOST, disk=SegmentsWithoutSync)


def test_skip_the_sync_of_a_folder(is_caught):
    assert is_caught(LOST, disk=FoldersWithoutSync)


def test_forget_the_sync_of_a_state_file(is_caught):
    assert is_caught(STATE_LOST, disk=StateWithoutSync)


def test_a_reservation_of_packet_ids_that_nobody_looks_at(is_caught, monkeypatch):
    def claim(folder, last, *rest):
        file, why = real(folder, last, *rest)
        file.identity = replace(file.identity, reserved=last.frames + 1, refused_reserved=last.refused + 1)
        return file, why

    real = identity.claim
    monkeypatch.setattr("wireloom.journal.writer.claim", claim)
    assert is_caught(TWO_CONTENTS)


def test_packet_ids_that_are_taken_again_after_a_failed_sync(is_caught, monkeypatch):
    def begin_again(self: log.SegmentLog) -> None:
        first = self.packet_id(self.durable + 1)
        real(self)
        shift = self._parts[0].begins - first
        for part in self._parts:
            data = part.joined()
            for at in log._packet_offsets(data):
                blocks.renumber(data, blocks.packet_id_at(data, at) - shift, at)
            part.last_packet_id -= shift
            if part.begins is not None:
                part.begins -= shift
        self.next_packet_id -= shift
        self._shift_from(self.durable + 1, -shift)

    real = log.SegmentLog._begin_again
    monkeypatch.setattr(log.SegmentLog, "_begin_again", begin_again)
    assert is_caught(TWO_CONTENTS)


def test_seal_in_recovery_without_a_sync(is_caught, monkeypatch):
    class Unsynced:
        """A disk on which recovery's syncs of files do nothing."""

        def __init__(self, disk: WatchedDisk) -> None:
            self._disk = disk

        def __getattr__(self, name: str) -> Callable[..., object]:
            return getattr(self._disk, name)

        def sync(self, file: int) -> None:
            """Nothing."""

    real = recovery.recover
    monkeypatch.setattr("wireloom.journal.writer.recover", lambda folder, disk: real(folder, Unsynced(disk)))
    assert is_caught(GONE, LOST, FAULT)
