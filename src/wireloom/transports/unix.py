"""Unix sockets: the same bytes as TCP between processes of one machine, guarded by the rights of a file.

Only the user who runs the server can connect, and the kernel tells the server who did (`Pipe.credentials`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from wireloom.model import NotSupported
from wireloom.transports.address import Address
from wireloom.transports.base import Credentials, Listener, Options, Owner, OwnerFactory, Pipe, Transport
from wireloom.transports.tcp import TCPPipe

MODE = 0o600
TRIES = 200
"""How often, every hundredth of a second, another server is given time to make its socket in the same folder."""
_CREDENTIALS = struct.Struct("3i")


class UnixPipe(TCPPipe):
    """One connection over a Unix socket. The client's end has no name of its own but its process."""

    def __init__(self, owner: Owner, options: Options, path: str, *, server: bool) -> None:
        super().__init__(owner, options)
        self._path = path
        self._server = server

    def name_ends(self, transport: asyncio.BaseTransport) -> None:
        """Ask the kernel who the other end is."""
        self.credentials = _peer_of(transport.get_extra_info("socket"))
        here = f"unix:{self._path}"
        if self.credentials is not None:
            self.identities = (f"uid:{self.credentials.uid}",)
        if self._server:
            client = "client" if self.credentials is None else str(self.credentials.pid)
            self.sockname, self.peername = here, f"{here}@{client}"
        else:
            self.sockname, self.peername = f"{here}@{os.getpid()}", here


def _peer_of(sock: socket.socket | None) -> Credentials | None:
    option = getattr(socket, "SO_PEERCRED", None)
    if sock is None or option is None:
        return None
    return Credentials(*_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)))


class UnixListener(Listener):
    """A socket file that is listened at, and removed with the listener."""

    def __init__(self, server: asyncio.Server, address: Address, identity: tuple[int, int]) -> None:
        self._server = server
        self.address = address
        self._identity = identity

    def close(self) -> None:
        """Stop listening and remove the file, if it is still ours."""
        self._server.close()
        with contextlib.suppress(OSError):
            if _identity(self.address.path) == self._identity:
                Path(self.address.path).unlink()


class UnixTransport(Transport):
    """Sockets in the file system; the address's path is the file."""

    name = "unix"

    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Open a connection."""
        _check_platform()
        pipe = UnixPipe(owner, options, address.path, server=False)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: pipe, address.path)
        except BaseException:
            pipe.connecting_failed()
            raise
        return pipe

    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Make the socket file and listen at it. A file that a dead server left behind is replaced."""
        _check_platform()
        path = address.path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            async with _alone_in(Path(path).parent):
                _remove_stale(path)
                # Before it has a name, so that it never has it with other rights.
                os.fchmod(sock.fileno(), MODE)
                _bind(sock, path)
                _own(path)
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: UnixPipe(owner(), options, path, server=True), sock=sock, backlog=options.backlog
            )
        except BaseException:
            sock.close()
            raise
        return UnixListener(server, address, _identity(path))


def _check_platform() -> None:
    if not hasattr(socket, "AF_UNIX"):
        raise NotSupported("this platform has no Unix sockets; use the protocol over TCP on 127.0.0.1")


def _own(path: str) -> None:
    """Once more by name, for systems where the rights of a nameless socket count for nothing."""
    Path(path).chmod(MODE)


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


@contextlib.asynccontextmanager
async def _alone_in(folder: Path) -> AsyncIterator[None]:
    """No other server makes a socket in this folder meanwhile: two would take the same file for stale."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for attempt in range(TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens at; anything else in its place is an error."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket; move it away or choose another", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:
            pass  # a busy process listens there
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)


def _bind(sock: socket.socket, path: str) -> None:
    try:
        sock.bind(path)
    except OSError as error:
        if error.errno is None:  # Python's own check
            raise OSError(errno.ENAMETOOLONG, "a socket's path is at most about 100 bytes long", path) from None
        raise OSError(error.errno, error.strerror, path) from None


UNIX = UnixTransport()
