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
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.options import DefaultOptions
from numpy.typing import NDArray

with contextlib.suppress(ImportError):  # optional: some platforms have no such locks
    import fcntl

log = logging.getLogger("wireloom.kernels")
T = TypeVar("T", bound=np.generic)

SETTING = "WIRELOOM_KERNELS"
"""The environment variable that names the folder for compiled kernels."""
LOCK = "kernels.lock"

# This option of numba is not documented. Without it kernels work the same, but slower.
_UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


@cache
def _is_writable(folder: Path) -> bool:
    """Whether files can be written in a folder. It is created if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _folder_for(source: Path) -> Path:
    """The folder for the compiled kernels of a source file.

    It is the folder that the setting names. Otherwise it is beside the source, or in the user's cache if only that is
    writable. If neither is writable, it is beside the source: `wireloom warm` may have filled it with more rights.
    """
    part = f"{source.parent.name}-{hashlib.sha256(str(source.parent).encode()).hexdigest()[:16]}"
    if named := os.environ.get(SETTING):
        return Path(named) / part
    beside = source.parent / "__pycache__"
    users = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "wireloom" / part  # noqa: PTH111
    return next((each for each in (beside, users) if _is_writable(each)), beside)


@cache
def _digest(source: Path) -> bytes:
    return hashlib.sha256(source.read_bytes()).digest()


class _Place:
    """The location of the compiled code of one kernel, and the sources it was made from."""

    def __init__(self, function: Callable[..., Any], source: Path) -> None:
        self._function, self._source = function, source

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> Self:
        return cls(function, Path(source).absolute())

    def get_cache_path(self) -> str:
        return str(_folder_for(self._source))

    def ensure_cache_path(self) -> None:
        """Does nothing: the folder is created when it is locked."""

    def get_source_stamp(self) -> tuple[bytes, ...]:
        """A stamp of all sources that the machine code depends on: this kernel's file, and files of kernels that it
        calls.

        This module counts, too, because it says how kernels are compiled.
        """
        called = sorted({Path(__file__), *_files_called(self._function)} - {self._source})
        return tuple(_digest(each) for each in (self._source, *called))

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)


class _Compiled(FunctionCache._impl_class):  # type: ignore[misc, valid-type]
    _locator_classes = (_Place,)


class _SharedCache(FunctionCache):
    """A cache of compiled kernels on disk that several processes can fill at once.

    numba chooses a file for a new signature, then writes index and file without a lock. Two processes that compile one
    kernel for two signatures can choose the same file. Then the index names machine code for other arguments, and the
    next process that calls it crashes. Hubs, Spark workers and tests often start together, so this cache uses a lock.

    If the folder cannot be read or written, the kernel is compiled in memory.
    """

    _impl_class = _Compiled
    is_told: ClassVar[bool] = False
    """Whether this process has logged that kernels are being compiled."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        with contextlib.suppress(OSError):
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None and not _SharedCache.is_told:
            _SharedCache.is_told = True
            _tell(Path(self.cache_path))
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError), _locked(Path(self.cache_path)):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _tell(folder: Path) -> None:
    """Log why nothing happens for some seconds."""
    extra = {"event": "kernels.compile"}
    if _is_writable(folder):
        log.info("compiling kernels, once: some seconds; they are kept in %s", folder, extra=extra)
    else:
        log.warning(
            "compiling kernels in memory, at every start: %s is not writable; name a folder that is in the environment "
            "variable %s",
            *(folder, SETTING),
            extra=extra,
        )


def _files_called(function: Callable[..., Any]) -> Iterator[Path]:
    """The source files of the kernels that a function calls, directly or indirectly."""
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


def given(array: NDArray[T]) -> NDArray[T]:
    """A read-only, contiguous view of an array: the one form that kernels are compiled for.

    numba compiles a kernel again for each array layout, and Arrow returns various layouts.
    """
    found = np.ascontiguousarray(array).view()
    found.flags.writeable = False
    return found


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, store the result on disk, and run it without the interpreter lock.

    It may only use arrays that it is given, and return numbers. `allocating` is for others.
    """
    return _compiled(function, "never", allocates=False)


def allocating(function: Callable[..., Any]) -> Any:
    """A kernel that creates arrays or texts.

    numba then counts references to every array, including those it was given. If a loop calls another function, it does
    so in each iteration. That takes longer than decoding a small frame.
    """
    return _compiled(function, "never", allocates=True)


def inlined(function: Callable[..., Any]) -> Any:
    """A kernel that is inlined into each kernel that calls it; for the smallest ones."""
    return _compiled(function, "always", allocates=False)


def _compiled(function: Callable[..., Any], inline: Literal["never", "always"], *, allocates: bool) -> Any:
    dispatcher: Any = numba.njit(nogil=True, inline=inline, **({} if allocates else _UNCOUNTED))(function)
    if Path(function.__code__.co_filename).exists():  # code typed at a prompt has no file to be cached beside
        dispatcher._cache = _SharedCache(function)  # type: ignore[no-untyped-call]
    return dispatcher
