"""The interface of a store: objects by key, and the errors it raises."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from wireloom.model import ConfigError, WireloomError

TEMPORARY = ".wireloom-"
"""How names in a folder begin that are no objects yet."""


class StoreError(WireloomError):
    """An object store or a folder did not do what it was asked for; the text says which object and why."""


class ObjectMissing(StoreError):
    """There is no such object."""


class ObjectChanged(StoreError):
    """The object has another etag than expected: somebody else replaced or deleted it first."""


class AccessRefused(StoreError):
    """The store does not let these credentials do that."""


class ObjectInfo(NamedTuple):
    """What a store says of an object."""

    key: str
    size: int
    etag: str
    modified: datetime


class Store(abc.ABC):
    """Objects by key below a URL. A key is a relative path with `/`, such as `kitchen/00c0ffee/7.index.json`."""

    url: str
    """Without credentials and without a slash at the end."""

    @abc.abstractmethod
    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object; False if there is one already, which is then left as it is."""

    @abc.abstractmethod
    def put(self, key: str, data: bytes) -> str:
        """Create or overwrite an object; returns its etag."""

    @abc.abstractmethod
    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Overwrite the object that has this etag; returns the new one. ObjectChanged if it has another by now."""

    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """All of an object; ObjectMissing if there is none."""

    @abc.abstractmethod
    def get_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`; StoreError if the object is shorter."""

    @abc.abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """What the store says of an object; ObjectMissing if there is none."""

    @abc.abstractmethod
    def list(self, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """The objects in a folder and in those below, in order of their keys; only keys behind `after`, if given."""

    @abc.abstractmethod
    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """The names of the folders directly in a folder, in order."""

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; one that is not there counts as removed."""

    @abc.abstractmethod
    def below(self, prefix: str) -> Store:
        """The store of the objects in a folder."""

    @abc.abstractmethod
    def delta_options(self) -> dict[str, str]:
        """The `storage_options` with which `deltalake` opens tables of this store. They may hold secrets."""

    @abc.abstractmethod
    def delta_url(self, key: str = "") -> str:
        """The place of a table, as the `deltalake` package takes it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[Callable[[str], Store], tuple[str]]:
        from wireloom.store.urls import open_store

        return open_store, (self.url,)


def checked_key(key: str) -> str:
    """A key as it is; ConfigError for one that could leave its folder or that a folder could not hold."""
    names = key.split("/")
    if any(name in ("", ".", "..") or name.startswith(TEMPORARY) or "\0" in name for name in names):
        raise ConfigError(f"{key!r} is no key of an object: it is a relative path such as kitchen/7.json")
    return key


def joined(prefix: str, key: str) -> str:
    """A key below a prefix, either of which may be empty."""
    return f"{prefix}/{key}" if prefix and key else prefix or key


def checked_range(data: bytes, start: int, end: int, shown: str) -> bytes:
    """What was read from `start` to `end`; StoreError if that is less than was asked for."""
    if len(data) != max(end - start, 0):
        raise StoreError(f"{shown}: bytes {start} to {end} were asked for, and {len(data)} of them came")
    return data
