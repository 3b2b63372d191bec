"""Write to many sockets with one call.

Theory of operation
-------------------
Problem: one pass of the hub answers hundreds of peers. For a few bytes, `Transport.write` of an event loop takes longer
than the system call inside it. Between two such calls, peers wake up and go to sleep again.

Idea: one compiled kernel calls `send` for all sockets, without the interpreter in between. Needs numba.

Invariant: the bytes of a connection keep their order. The kernel writes to a socket only while the buffer of its event
loop is empty (`Pipe.descriptor` is -1 otherwise). What a socket does not accept goes to `Pipe.write`, which buffers it.

Example: a frame of 100 bytes goes to three pipes. The first socket accepts all of it. The second accepts 60 bytes, so
its pipe writes the last 40. The third has a descriptor of -1, so its pipe writes all 100.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.transports.base import Pipe

# `ssize_t send(int socket, const void *data, size_t size, int flags)` of the C library.
_bytes: Any = types.CPointer(types.uint8)  # type: ignore[no-untyped-call]
_send: Any = types.ExternalFunction("send", types.intp(types.intc, _bytes, types.uintp, types.intc))
_FLAGS = int(socket.MSG_DONTWAIT)


@kernel
def _send_each(data: NDArray[np.uint8], places: NDArray[np.int64], sent: NDArray[np.int64]) -> None:
    """Send to each socket its part of the data; `sent` gets how many bytes it accepted, 0 where that failed.

    `places` has a column for each: the descriptor (-1: none), and where its part begins and ends.
    """
    for index in range(places.shape[1]):
        descriptor, start, end = places[0, index], places[1, index], places[2, index]
        sent[index] = 0
        if descriptor >= 0:
            part = data[start:end]
            sent[index] = max(0, _send(np.intc(descriptor), part.ctypes, np.uint64(end - start), np.intc(_FLAGS)))


def write_each(pipes: Sequence[Pipe], data: bytes, starts: Sequence[int], ends: Sequence[int]) -> None:
    """Write `data[starts[i]:ends[i]]` to pipe `i`; no pipe may be listed twice."""
    places = np.empty((3, len(pipes)), np.int64)
    places[0], places[1], places[2] = [pipe.descriptor() for pipe in pipes], starts, ends
    sent = np.empty(len(pipes), np.int64)
    _send_each(np.frombuffer(data, np.uint8), places, sent)
    reached = places[1] + sent
    for index in np.flatnonzero(reached < places[2]).tolist():
        start, end = int(reached[index]), ends[index]
        # Many pipes may have to buffer the same data: they share it where possible.
        pipes[index].write(data if end - start == len(data) else data[start:end])


@cache
def warm() -> None:
    """Compile or load the kernel, before a peer waits for it."""
    _send_each(np.frombuffer(b"x", np.uint8), np.full((3, 1), -1, np.int64), np.empty(1, np.int64))
