"""Unix sockets: guarded by the rights of a file, told who connects, and tidy about what they leave behind."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.transports.recorder import Recorder
from wireloom.transports import Address, Credentials, Options, transport

UNIX = transport("unix")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.sock"


def place(path: Path) -> Address:
    return Address("", path=str(path))


def stale(path: Path) -> None:
    """What a server leaves that was killed: a socket file that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def put(path: Path, text: str) -> None:
    """Another file in place of whatever is there."""
    path.unlink(missing_ok=True)
    path.write_text(text)


def found(path: Path) -> str | None:
    """What is there now: the rights of a socket, the text of a file, or None."""
    if not path.exists():
        return None
    mode = path.lstat().st_mode
    return f"socket {stat.S_IMODE(mode):o}" if stat.S_ISSOCK(mode) else path.read_text()


class Door:
    """Who came in; everybody is shown out in the end."""

    def __init__(self) -> None:
        self.servers: list[Recorder] = []

    def __call__(self) -> Recorder:
        self.servers.append(Recorder())
        return self.servers[-1]

    async def reach(self, path: Path) -> tuple[Recorder, Recorder]:
        """Connect; the client's end and the server's."""
        before = len(self.servers)
        client = Recorder()
        await UNIX.connect(place(path), client, Options())
        while len(self.servers) == before or not self.servers[-1].events:
            await asyncio.sleep(0)
        return client, self.servers[-1]

    async def close(self) -> None:
        # Whoever looked whether the socket is stale may be on the way still.
        await asyncio.sleep(0.01)
        for server in self.servers:
            if "ended" not in server.events:
                server.pipe.abort()
                await server.until("ended")


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door()
    yield made
    await made.close()


async def test_only_the_user_who_serves_can_connect(path: Path, door: Door) -> None:
    listener = await UNIX.listen(place(path), Recorder, Options())
    assert found(path) == "socket 600"
    listener.close()


async def test_the_kernel_tells_who_connected(path: Path, door: Door) -> None:
    listener = await UNIX.listen(place(path), door, Options())
    client, server = await door.reach(path)
    own = Credentials(os.getpid(), os.getuid(), os.getgid())
    assert server.pipe.credentials == own
    assert client.pipe.credentials == own, "the server runs in this process, too"
    assert server.pipe.principal == f"uid:{os.getuid()}"
    listener.close()
    client.pipe.abort()
    await client.until("ended")


async def test_the_file_is_gone_with_the_listener(path: Path, door: Door) -> None:
    listener = await UNIX.listen(place(path), Recorder, Options())
    listener.close()
    await asyncio.sleep(0)
    assert found(path) is None
    listener.close()


async def test_a_file_that_is_no_longer_ours_stays(path: Path, door: Door) -> None:
    listener = await UNIX.listen(place(path), Recorder, Options())
    put(path, "somebody else's")
    listener.close()
    assert found(path) == "somebody else's"


async def test_what_a_dead_server_left_is_replaced(path: Path, door: Door) -> None:
    stale(path)
    listener = await UNIX.listen(place(path), door, Options())
    client, _ = await door.reach(path)
    client.pipe.abort()
    listener.close()


async def test_a_living_server_keeps_its_socket(path: Path, door: Door) -> None:
    first = await UNIX.listen(place(path), door, Options())
    with pytest.raises(OSError, match="in use") as caught:
        await UNIX.listen(place(path), Recorder, Options())
    assert caught.value.filename == str(path)
    client, _ = await door.reach(path)
    client.pipe.abort()
    first.close()


async def test_of_many_servers_that_find_a_stale_socket_one_gets_it(path: Path, door: Door) -> None:
    stale(path)
    results = await asyncio.gather(
        *(UNIX.listen(place(path), door, Options()) for _ in range(5)), return_exceptions=True
    )
    listeners = [result for result in results if not isinstance(result, BaseException)]
    assert len(listeners) == 1
    assert all(isinstance(result, OSError) for result in results if result not in listeners)
    listeners[0].close()


async def test_a_file_that_is_no_socket_is_never_removed(path: Path) -> None:
    put(path, "precious")
    with pytest.raises(FileExistsError, match="no socket; move it away"):
        await UNIX.listen(place(path), Recorder, Options())
    assert found(path) == "precious"


async def test_a_path_that_is_too_long_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="at most about 100 bytes"):
        await UNIX.listen(place(tmp_path / ("x" * 120)), Recorder, Options())


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await UNIX.listen(place(tmp_path / "none" / "hub.sock"), Recorder, Options())
