"""Buckets of S3, Google Cloud and Azure, through the package `obstore`."""

from __future__ import annotations

import configparser
import contextlib
import functools
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar, cast

from wireloom.model import ConfigError
from wireloom.store.base import (
    AccessRefused,
    ObjectChanged,
    ObjectInfo,
    ObjectMissing,
    Store,
    StoreError,
    checked_key,
    checked_range,
    joined,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion
    from obstore.store import AzureStore, GCSStore, S3Store

    Bucket = AzureStore | GCSStore | S3Store

SCHEMES = ("s3", "gs", "az")
TRIES = 6
"""How often one request is made at most."""
TIMEOUT = 120.0
"""Seconds that one try may take."""
CONNECT_TIMEOUT = 5.0
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds before the second try, and at most before any."""
_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Decode|Request)")

_T = TypeVar("_T")


class BucketStore(Store):
    """A bucket, or a folder in it, through `obstore`."""

    def __init__(
        self,
        scheme: str,
        bucket: str,
        prefix: str,
        *,
        tries: int | None = None,
        timeout: float | None = None,
        opened: Bucket | None = None,
    ) -> None:
        """Use `open_store`."""
        self._tries, self._timeout = tries or TRIES, timeout or TIMEOUT
        self.url = joined(f"{scheme}://{bucket}", prefix)
        self._scheme, self._name, self._prefix = scheme, bucket, prefix
        self._options = _profile_options() if scheme == "s3" else {}
        self._bucket = opened or _open_bucket(f"{scheme}://{bucket}", self._options, self._timeout)

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object, by `If-None-Match: *`."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        path = self._path(key)

        def create() -> bool:
            try:
                obstore.put(self._bucket, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        created, is_sure = self._ask(create, "write", key)
        return created or (not is_sure and self._holds(key, data))

    def put(self, key: str, data: bytes) -> str:
        """Create or overwrite an object."""
        import obstore

        path = self._path(key)
        result, _ = self._ask(lambda: obstore.put(self._bucket, path, data, use_multipart=False), "write", key)
        return self._tag(result)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Swap an object, by `If-Match`."""
        import obstore
        from obstore.exceptions import PreconditionError

        path = self._path(key)

        # Google compares generations, the others etags.
        mode: UpdateVersion = {"version": etag} if self._scheme == "gs" else {"e_tag": etag}

        def swap() -> str | None:
            try:
                return self._tag(obstore.put(self._bucket, path, data, mode=mode, use_multipart=False))
            except (PreconditionError, FileNotFoundError):
                return None

        found, is_sure = self._ask(swap, "write", key)
        if found is None and not is_sure:
            with contextlib.suppress(ObjectMissing):
                info = self.head(key)
                if self.get(key) == data:
                    return info.etag
        if found is None:
            raise ObjectChanged(f"{self._shown(key)}: somebody else has replaced or removed it")
        return found

    def _holds(self, key: str, data: bytes) -> bool:
        """Whether an object holds exactly these bytes."""
        try:
            return self.head(key).size == len(data) and self.get(key) == data
        except ObjectMissing:
            return False

    def get(self, key: str) -> bytes:
        """Read an object."""
        import obstore

        path = self._path(key)
        return self._ask(lambda: obstore.get(self._bucket, path).bytes().to_bytes(), "read", key)[0]

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Read a range of an object."""
        import obstore

        if start >= end:
            return b""
        path = self._path(key)
        read = lambda: obstore.get_range(self._bucket, path, start=start, end=end).to_bytes()  # noqa: E731
        return checked_range(self._ask(read, "read", key)[0], start, end, self._shown(key))

    def head(self, key: str) -> ObjectInfo:
        """Ask for an object's size and etag."""
        import obstore

        path = self._path(key)
        meta, _ = self._ask(lambda: obstore.head(self._bucket, path), "read", key)
        return self._info(meta)

    def list(self, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """List a folder, a page at a time. A page that fails is asked for again, from the last key on."""
        import obstore

        folder = joined(self._prefix, checked_key(prefix) if prefix else "") or None

        def page(last: str) -> tuple[ObjectInfo, ...]:
            offset = joined(self._prefix, last) if last else None
            found = next(obstore.list(self._bucket, folder, offset=offset, chunk_size=1000), ())
            return tuple(self._info(each) for each in found)

        while found := self._ask(functools.partial(page, after), "list", prefix)[0]:
            yield from found
            after = found[-1].key

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """List one level."""
        import obstore

        folder = joined(self._prefix, checked_key(prefix) if prefix else "")
        found, _ = self._ask(lambda: obstore.list_with_delimiter(self._bucket, folder or None), "list", prefix)
        return tuple(sorted(PurePosixPath(each).name for each in found["common_prefixes"]))

    def delete(self, key: str) -> None:
        """Remove an object."""
        import obstore

        path = self._path(key)
        with contextlib.suppress(ObjectMissing):
            self._ask(lambda: obstore.delete(self._bucket, path), "delete", key)

    def below(self, prefix: str) -> BucketStore:
        """A folder in the same bucket; connections are shared."""
        place = joined(self._prefix, checked_key(prefix))
        return BucketStore(
            self._scheme, self._name, place, tries=self._tries, timeout=self._timeout, opened=self._bucket
        )

    def delta_options(self) -> dict[str, str]:
        """The package reads the same environment; what it cannot find there is added."""
        options = {"timeout": f"{int(self._timeout)}s", "connect_timeout": f"{int(CONNECT_TIMEOUT)}s"}
        if self._scheme == "s3":
            options |= {f"aws_{name}": value for name, value in self._options.items()} | {"aws_conditional_put": "etag"}
        return options

    def delta_url(self, key: str = "") -> str:
        """The URL."""
        return joined(self.url, key)

    def _tag(self, found: ObjectMeta | PutResult) -> str:
        """What tells one version of an object from the next."""
        return (found["version"] if self._scheme == "gs" else found["e_tag"]) or ""

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        key = meta["path"][len(self._prefix) + 1 :] if self._prefix else meta["path"]
        return ObjectInfo(key, meta["size"], self._tag(meta), meta["last_modified"])

    def _path(self, key: str) -> str:
        return joined(self._prefix, checked_key(key))

    def _shown(self, key: str) -> str:
        return joined(self.url, key)

    def _ask(self, ask: Callable[[], _T], verb: str, key: str) -> tuple[_T, bool]:
        """Make a request, with retries. Returns its result, and whether no earlier try can have taken effect."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        for tried in range(1, self._tries + 1):
            try:
                return ask(), tried == 1
            except FileNotFoundError:
                missing = "object" if verb == "read" else "bucket"
                raise ObjectMissing(f"{self._shown(key)}: there is no such {missing}") from None
            except BaseError as error:
                if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _is_refusal(error):
                    raise AccessRefused(
                        f"{self._shown(key)}: the store does not let us {verb} it: {_reason(error)}; "
                        "check the credentials in the environment and the rights they have"
                    ) from None
                if tried == self._tries or not _may_pass(error):
                    times = f"; tried {tried} times" if tried > 1 else ""
                    raise StoreError(f"{self._shown(key)}: cannot {verb} it: {_reason(error)}{times}") from None
            time.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2 ** (tried - 1)) * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")


def _open_bucket(url: str, options: dict[str, str], timeout: float) -> Bucket:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        opened = from_url(
            url,
            config=options,  # type: ignore[call-overload]
            client_options={
                "timeout": timedelta(seconds=timeout),
                "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT),
                "user_agent": "wireloom",
                **({"allow_http": True} if _allows_http() else {}),
            },
            # `_ask` tries again, by one rule for every kind of request.
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=timeout)},
        )
    except BaseError as error:
        raise ConfigError(f"{url}: this store cannot be opened: {_first_line(error)}") from None
    return cast("Bucket", opened)


def _allows_http() -> bool:
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes")


def _profile_options() -> dict[str, str]:
    """The static credentials, the region and the endpoint of `AWS_PROFILE`; nothing if it is not set."""
    profile = os.environ.get("AWS_PROFILE")
    if not profile:
        return {}
    home = Path.home() / ".aws"
    stated = configparser.ConfigParser(interpolation=None)
    files = [
        Path(os.environ.get("AWS_CONFIG_FILE", home / "config")),
        Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials")),
    ]
    try:
        stated.read(files)
    except configparser.Error:
        raise ConfigError(f"AWS_PROFILE is {profile!r}, and {files[0]} or {files[1]} cannot be read") from None
    found: dict[str, str] = {}
    for section in (f"profile {profile}", profile):
        if stated.has_section(section):
            found |= dict(stated[section])
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
        "endpoint_url": "endpoint",
    }
    options = {ours: found[theirs] for theirs, ours in names.items() if theirs in found}
    if "access_key_id" not in options or "secret_access_key" not in options:
        raise ConfigError(
            f"AWS_PROFILE is {profile!r}, and no static credentials of it stand in {files[0]} or {files[1]}"
        )
    return options


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _may_pass(error: Exception) -> bool:
    """Whether a retry may succeed: the connection failed, or the server had an error."""
    status = _status(error)
    if status is None:
        return _KIND.search(str(error)) is not None
    return status >= 500 or status in (408, 409, 425, 429)


def _is_refusal(error: Exception) -> bool:
    """Whether a list or a removal was refused: the package has no class for that."""
    return _status(error) in (401, 403) or "AccessDenied" in str(error)


def _status(error: Exception) -> int | None:
    """The status in the server's answer."""
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


def _reason(error: Exception) -> str:
    """What went wrong, in words of our own: the answers of servers quote keys and signatures."""
    text = str(error)
    status, code, kind = _status(error), _CODE.search(text), _KIND.search(text)
    if status is not None:
        return f"status {status}" + (f" ({code[1]})" if code else "")
    if kind is not None:
        return {
            "Connect": "cannot connect to the server",
            "Timeout": "no answer in time",
            "Interrupted": "the connection broke",
            "Decode": "the answer was cut off",
            "Request": "the request failed on its way",
        }[kind[1]]
    return code[1] if code else type(error).__name__
