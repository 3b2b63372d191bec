"""A store does what it promises on a folder and on a real S3 server, and through a proxy that makes faults."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.object_store import SECRET, S3Server, bucket, s3_server
from tests.store_faults import FAULTS, FaultProxy
from wireloom.model import ConfigError
from wireloom.store import AccessRefused, ObjectChanged, ObjectMissing, Store, StoreError, open_store
from wireloom.store import bucket as bucket_module

__all__ = ["bucket", "s3_server"]


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(f"file://{tmp_path}/objects")
    return open_store(f"{request.getfixturevalue('bucket')}/some/prefix")


@pytest.fixture
def proxy(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(bucket_module, "TIMEOUT", 1.0)
    monkeypatch.setattr(bucket_module, "FIRST_WAIT", 0.01)
    with FaultProxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def test_an_object_is_created_once(store: Store) -> None:
    assert store.put_new("a/b.json", b"first")
    assert not store.put_new("a/b.json", b"second")
    assert store.get("a/b.json") == b"first"


def test_of_many_who_create_an_object_one_wins(store: Store) -> None:
    gate = threading.Barrier(6)

    def race(number: int) -> bool:
        gate.wait()
        return store.put_new("lock", str(number).encode())

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(race, range(6)))
    assert sum(won) == 1
    assert store.get("lock") == str(won.index(True)).encode()


def test_of_many_who_replace_an_object_one_wins(store: Store) -> None:
    etag = store.put("claim", b"0")
    gate = threading.Barrier(6)

    def race(number: int) -> bool:
        gate.wait()
        try:
            store.replace("claim", f"by {number}".encode(), etag)
        except ObjectChanged:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(race, range(6)))
    assert sum(won) == 1
    assert store.get("claim") == f"by {won.index(True)}".encode()


def test_the_etag_of_a_replaced_object_is_stale(store: Store) -> None:
    first = store.put("claim", b"1")
    assert store.head("claim").etag == first
    second = store.replace("claim", b"2", first)
    assert store.head("claim").etag == second
    with pytest.raises(ObjectChanged, match="claim"):
        store.replace("claim", b"3", first)
    with pytest.raises(ObjectChanged):
        store.replace("never there", b"3", first)
    assert store.get("claim") == b"2"


def test_ranges_are_exact_or_an_error(store: Store) -> None:
    store.put("digits", b"0123456789")
    assert store.get_range("digits", 2, 5) == b"234"
    assert store.get_range("digits", 0, 10) == b"0123456789"
    assert store.get_range("digits", 4, 4) == b""
    for start, end in ((8, 12), (20, 30)):
        with pytest.raises(StoreError, match="digits"):
            store.get_range("digits", start, end)


def test_what_is_missing_is_said(store: Store) -> None:
    for ask in (store.get, store.head, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(ObjectMissing, match="some/thing"):
            ask("some/thing")
    store.delete("some/thing")
    assert list(store.list("some")) == []
    assert store.folders("some") == ()


def test_lists_are_in_order_and_below_a_folder(store: Store) -> None:
    keys = ["hub/b/2", "hub/a/10", "hub/a/1", "hubs/x", "top"]
    for key in keys:
        store.put(key, key.encode())
    assert [info.key for info in store.list()] == sorted(keys)
    assert [(info.key, info.size) for info in store.list("hub/a")] == [("hub/a/1", 7), ("hub/a/10", 8)]
    assert [info.key for info in store.list("hub", after="hub/a/10")] == ["hub/b/2"]
    assert store.folders() == ("hub", "hubs")
    assert store.folders("hub") == ("a", "b")
    below = store.below("hub").below("a")
    assert below.url == f"{store.url}/hub/a"
    assert [info.key for info in below.list()] == ["1", "10"]
    assert below.get("10") == b"hub/a/10"
    store.delete("hub/a/1")
    assert [info.key for info in below.list()] == ["10"]


def test_lists_are_longer_than_a_page(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"many/{number:04d}", b""), range(1103)))
    assert [info.key for info in store.list("many")] == [f"many/{number:04d}" for number in range(1103)]


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../../b", "a/", ".wireloom-x"])
def test_a_key_stays_in_its_folder(store: Store, key: str) -> None:
    with pytest.raises(ConfigError, match="no key"):
        store.put(key, b"")


def test_a_store_travels_to_another_process_by_its_url(store: Store) -> None:
    store.put("a", b"1")
    again = pickle.loads(pickle.dumps(store.below("x")))
    assert again.url == f"{store.url}/x"
    assert SECRET.encode() not in pickle.dumps(store)


def test_a_folder_shows_only_complete_objects(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / ".wireloom-12345678").write_bytes(b"half")
    store.put("a", b"1")
    assert [info.key for info in store.list()] == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".wireloom-12345678", "a"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://me:secret@example.org/x", "ftp://example.org/x"),
        ("http://example.org/x?token=secret", "http://example.org/x"),
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("s3://bucket/x?sas=secret", "s3://bucket/x"),
        ("s3:///x", "s3:"),
        ("file://elsewhere/x", "file://elsewhere/x"),
        ("s3://bucket/../x", "../x"),
    ],
)
def test_a_url_of_no_store_is_refused_without_its_credentials(url: str, shown: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(url)
    assert shown in str(error.value)
    assert "secret" not in str(error.value)


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
    with pytest.raises(StoreError, match="s3://no-such-bucket/x/a: there is no such bucket"):
        open_store("s3://no-such-bucket/x").put_new("a", b"")


def test_refused_credentials_are_an_error_that_does_not_hold_them(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    store = open_store(bucket)
    for ask in (lambda: store.put_new("a", b""), lambda: store.get("a"), lambda: list(store.list())):
        with pytest.raises(AccessRefused) as error:
            ask()
        assert "credentials in the environment" in str(error.value)
        assert "wrong-secret" not in f"{error.value!r} {store!r}"
        assert error.value.__cause__ is None and error.value.__suppress_context__


def test_credentials_of_a_profile_are_used(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    for name in stated:
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text("[archive]\n" + "".join(f"{k.lower()} = {v}\n" for k, v in stated.items()))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "archive")
    store = open_store(bucket)
    assert store.put_new("a", b"1")
    assert store.delta_options()["aws_access_key_id"] == stated["AWS_ACCESS_KEY_ID"]
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="nobody"):
        open_store(bucket)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_of_each_kind_is_no_error(proxy: FaultProxy, bucket: str, fault: str) -> None:
    store = open_store(bucket)
    data = os.urandom(300_000)
    etag = store.put("claim", b"0")
    for ask, expected in (
        (lambda: store.put_new("a", data), True),
        (lambda: store.get("a"), data),
        (lambda: store.get_range("a", 1000, 200_000), data[1000:200_000]),
        (lambda: store.head("a").size, len(data)),
        (lambda: [info.key for info in store.list()], ["a", "claim"]),
        (lambda: store.replace("claim", b"1", etag) != etag, True),
        (lambda: store.delete("a"), None),
    ):
        proxy.script = [fault]
        assert ask() == expected
    assert proxy.made[fault] == 7
    assert store.get("claim") == b"1"


def test_an_answer_that_was_lost_does_not_hide_that_another_won(proxy: FaultProxy, bucket: str) -> None:
    store = open_store(bucket)
    store.put("claim", b"of another")
    proxy.script = ["503"]
    assert not store.put_new("claim", b"of ours!!!")


def test_faults_at_random_leave_every_object_as_it_should_be(proxy: FaultProxy, bucket: str) -> None:
    store = open_store(bucket)
    proxy.hold = 1.2
    proxy.seed(11, rate=0.25)
    expected = {f"{number:03d}": os.urandom(1000 * number) for number in range(20)}
    for key, data in expected.items():
        assert store.put_new(key, data)
    assert {info.key: store.get(info.key) for info in store.list()} == expected
    assert sum(proxy.made.values()) > 5


def test_a_store_that_is_away_is_an_error_after_a_bounded_time(proxy: FaultProxy, bucket: str) -> None:
    proxy.is_away = True
    store = open_store(bucket)
    with pytest.raises(StoreError, match=r"cannot read it: .*tried 6 times"):
        store.get("a")
    assert len(proxy.requests) == 6


def test_buckets_of_google_and_azure_open_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of them: no server of theirs runs here."""
    assert open_store("gs://bucket/some/prefix").below("x").url == "gs://bucket/some/prefix/x"
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="az://container: this store cannot be opened"):
        open_store("az://container/prefix")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    store = open_store("az://container/prefix")
    assert "c2VjcmV0" not in f"{store!r} {store.delta_options()}"
