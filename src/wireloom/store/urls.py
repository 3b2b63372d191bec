"""Which store a URL or a path names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from wireloom.model import ConfigError
from wireloom.store.base import Store, checked_key
from wireloom.store.bucket import SCHEMES, BucketStore
from wireloom.store.folder import FolderStore


def open_store(url: str | Path, *, tries: int | None = None, timeout: float | None = None) -> Store:
    """The store under a URL or a path; ConfigError for a URL that is none of a store. Nothing is asked of it yet.

    `tries` and `timeout` are for those who cannot wait: how often one request is made at most, and seconds for each.

    >>> open_store("ftp://me:secret@example.org/x")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: 'ftp://example.org/x' is no store: name s3://, gs://, az:// or file:/// and a folder
    """
    text = os.fspath(url)
    if not is_url(text):
        return FolderStore(Path(text))
    parts = urlsplit(text)
    shown = shown_url(text)
    if parts.scheme not in (*SCHEMES, "file"):
        raise ConfigError(f"{shown!r} is no store: name s3://, gs://, az:// or file:/// and a folder")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{shown!r} was given with credentials or a query: set credentials in the environment")
    path = unquote(parts.path)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise ConfigError(f"{shown!r} names no folder of this machine: it looks like file:///var/lib/wireloom")
        return FolderStore(Path(path))
    if not parts.netloc:
        raise ConfigError(f"{shown!r} names no bucket: it looks like {parts.scheme}://bucket/prefix")
    return BucketStore(
        parts.scheme,
        parts.netloc,
        checked_key(path.strip("/")) if path.strip("/") else "",
        tries=tries,
        timeout=timeout,
    )


def is_url(text: str) -> bool:
    """Whether a text is a URL and not a path.

    >>> is_url("s3://bucket/x"), is_url("/var/lib/wireloom"), is_url("file:/tmp")
    (True, False, True)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text) is not None


def shown_url(url: str) -> str:
    """A URL as it may be shown: without user, password, query and fragment.

    >>> shown_url("s3://key:secret@bucket/prefix?token=1")
    's3://bucket/prefix'
    """
    scheme, _, rest = url.partition(":")
    rest = re.split(r"[?#]", rest.lstrip("/") if scheme != "file" else rest, maxsplit=1)[0]
    if scheme == "file":
        return f"{scheme}:{rest}"
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
