"""How a loop over many frames is compiled: the decorators for every kernel of the project.

    >>> import numpy as np
    >>> @kernel
    ... def total(data):
    ...     found = 0
    ...     for each in data:
    ...         found += each
    ...     return found
    >>> total(np.array([1, 2, 3]))
    6

Needs numba, so nothing imports it that the bare library needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numba
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.options import DefaultOptions

with contextlib.suppress(ImportError):  # a platform without such locks does without
    import fcntl

LOCK = "kernels.lock"

# numba does not promise this option. Without it kernels do the same and take longer.
_UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


class _SharedCache(FunctionCache):
    """The compiled kernels on disk, safe to fill from several processes at once.

    numba picks a file for a new signature and then writes index and file without a lock. Two processes that compile
    one kernel for two signatures can pick the same file; the index then names machine code for other arguments,
    and the next process that calls it crashes. Hubs, Spark workers and tests do start together.

    numba also looks only at a kernel's own file to see whether it is still what was compiled; kernels of other files
    that it calls are part of the machine code, too.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        own = Path(function.__code__.co_filename)
        # This file, too: it says how kernels are compiled.
        stats = [file.stat() for file in sorted({Path(__file__), *_files_called(function)} - {own})]
        self._cache_file._source_stamp = (
            self._cache_file._source_stamp, *((each.st_mtime, each.st_size) for each in stats),
        )  # fmt: skip

    def save_overload(self, sig: Any, data: Any) -> None:
        with _locked(Path(self.cache_path)):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _files_called(function: Callable[..., Any]) -> Iterator[Path]:
    """Where the kernels stand that a function calls, and those that they call."""
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, Dispatcher) and called.py_func is not function:
            yield Path(called.py_func.__code__.co_filename)
            yield from _files_called(called.py_func)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("wb") as lock:
        if "fcntl" in globals():
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, keep the result on disk, and run it without the interpreter lock.

    It works on arrays that it is given, makes none and returns numbers: see `allocating` for others.
    """
    return _compiled(function, "never", allocates=False)


def allocating(function: Callable[..., Any]) -> Any:
    """A kernel that makes arrays or texts of its own.

    Then numba counts who holds each array, those that were given to it included. Where a loop calls another function
    that is done for each of its rounds, and takes longer than looking at a small frame.
    """
    return _compiled(function, "never", allocates=True)


def inlined(function: Callable[..., Any]) -> Any:
    """A kernel that becomes part of each kernel that calls it; for the smallest ones."""
    return _compiled(function, "always", allocates=False)


def _compiled(function: Callable[..., Any], inline: Literal["never", "always"], *, allocates: bool) -> Any:
    dispatcher: Any = numba.njit(nogil=True, inline=inline, **({} if allocates else _UNCOUNTED))(function)
    if Path(function.__code__.co_filename).exists():  # what is typed at a prompt has no place to be kept at
        dispatcher._cache = _SharedCache(function)
    return dispatcher
