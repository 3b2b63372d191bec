"""An ext4 file system in a file, whose power can be cut.

`EXT4_IOC_SHUTDOWN` stops a mounted file system at once: what it has not given to its device by then is lost, every
later call fails. Mounting it again replays ext4's own journal, as after a power cut. The device is a loop device over a
file, so a lost cache of the device itself is not part of this; simulated disks do that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import pytest

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, `_IOR('X', 125, __u32)`; asked through any file of the file system, by root."""
SIZE = 256 << 20
LEFT_OUT = "LEFT OUT: power cuts of a real ext4 file system"


class Cut(IntEnum):
    """How the power is cut: what is written before everything stops."""

    EVERYTHING = 0
    """All data and ext4's journal: the mildest."""
    LOG = 1
    """ext4's journal, with the data that it orders before itself."""
    NOTHING = 2
    """As when a plug is pulled."""


class PowerlessDisk:
    """The file system, mounted at `folder`."""

    def __init__(self, image: Path, folder: Path, mode: str) -> None:
        self.folder = folder
        self._image = image
        self._mode = mode
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(SIZE)
        run("mkfs.ext4", "-q", "-F", str(image))
        self.mount()

    def mount(self) -> None:
        """After a cut this replays ext4's journal."""
        run("mount", "-t", "ext4", "-o", f"loop,data={self._mode}", str(self._image), str(self.folder))

    def cut(self, how: Cut) -> None:
        """From now on nothing reaches the disk."""
        root = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(root, SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(root)

    def unmount(self) -> None:
        """Everybody who used it must be gone; the loop device goes with it."""
        until = time.monotonic() + 10
        while True:
            try:
                run("umount", str(self.folder))
                return
            except CommandFailed:
                # A process that was killed may hold its files for a moment.
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def remount(self) -> None:
        """Take it off and mount it again."""
        self.unmount()
        self.mount()

    def remove(self) -> None:
        """However the test ended: unmounted, detached, deleted."""
        if os.path.ismount(self.folder):
            try:
                self.unmount()
            except CommandFailed:
                # It goes when the last who uses it does.
                run("umount", "--lazy", str(self.folder))
        with contextlib.suppress(FileNotFoundError):
            self._image.unlink()


class CommandFailed(Exception):
    """A command that did not work, and what it said."""


def run(*command: str) -> None:
    """Run a command of the system."""
    program = shutil.which(command[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise CommandFailed(f"there is no {command[0]} here")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


@contextlib.contextmanager
def powerless_disk(folder: Path, mode: str) -> Iterator[PowerlessDisk]:
    """A new file system with `data=mode`; the test is skipped, and says so, where there can be none."""
    if os.geteuid() != 0:
        pytest.skip(f"{LEFT_OUT} (data={mode}): mounting one needs root")
    image, mounted = folder / "disk.ext4", folder / "disk"
    try:
        disk = PowerlessDisk(image, mounted, mode)
    except CommandFailed as failure:
        image.unlink(missing_ok=True)
        pytest.skip(f"{LEFT_OUT} (data={mode}): {failure}")
    try:
        yield disk
    finally:
        disk.remove()
