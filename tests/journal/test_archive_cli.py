"""`wireloom journal archive`, `restore`, `recipient`, and the other commands on an archive."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.object_store import S3Server, bucket, s3_server
from wireloom.cli.main import main
from wireloom.journal import Journal
from wireloom.journal.identity import load_identity
from wireloom.journal.keys import Keys, keys_in
from wireloom.journal.reader import read_all
from wireloom.journal.segment import segments
from wireloom.journal.verify import verify
from wireloom.model import Direction
from wireloom.protocols.hsp import frames
from wireloom.store import AccessRefused, open_store

__all__ = ["bucket", "s3_server"]


def write(folder: Path, numbers: range, *, keys: bool = False) -> None:
    with Journal.open(folder, hub="kitchen", segment_bytes=3000, refused_quota=80_000) as journal:
        connection = journal.new_connection_id()
        secret = Keys("wolpertinger", connection, {"aes_key": "c0ffee"}) if keys else None
        for number in numbers:
            body = frames.encode(frames.Data(7, f"{number} ".encode() + b"x" * 100))
            journal.append("hsp", connection, Direction.C2S, number, body, topics={7: "sensors"}, keys=secret)
            journal.commit()
        journal.refuse("hsp", connection, Direction.C2S, b"nonsense", clause="x.y", detail="d")


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main([str(each) for each in arguments]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data" / "journal", range(60))
    return tmp_path / "data" / "journal"


def test_a_folder_is_archived_read_from_there_and_restored(
    folder: Path, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{bucket}/pre/fix"
    lines = run(capsys, "journal", "cat", folder, "--json")
    expected = list(read_all(folder))
    count = len(segments(folder)) + 1
    said = run(capsys, "journal", "archive", folder, "--to", url)
    assert f"{count} segments archived, 0 were there already" in said
    assert f"0 segments archived, {count} were there already" in run(capsys, "journal", "archive", folder, "--to", url)
    # From the archive alone, by its URL or that of the hub.
    for each in (url, f"{url}/kitchen"):
        assert run(capsys, "journal", "cat", each, "--json") == lines
        listed = run(capsys, "journal", "ls", each).splitlines()[1:]
        assert [line.split()[0] for line in listed] == [path.name for path in segments(folder)]
        assert all(line.split()[2] == "archived" for line in listed)
        assert "no fault" in run(capsys, "journal", "verify", each)
        assert run(capsys, "journal", "follow", each, "--since", "start", "--count", "60", "--json") == lines
    # From folder and archive together.
    for path in segments(folder)[:5]:
        path.unlink()
    assert run(capsys, "journal", "cat", folder, "--json") == lines
    assert [line.split()[2] for line in run(capsys, "journal", "ls", folder).splitlines()[1:7]] == ["archived"] * 5 + [
        "sealed"
    ]
    # The machine is lost.
    identity = load_identity(folder)
    assert identity is not None
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "new").mkdir()
    said = run(capsys, "journal", "restore", "--from", url, "--data", tmp_path / "new")
    restored = tmp_path / "new" / "journal"
    assert "hub kitchen" in said and "begins a new epoch" in said
    assert list(read_all(restored)) == expected
    assert list(verify(restored)) == []
    with Journal.open(restored) as journal:
        assert journal.identity.hub == "kitchen"
        assert journal.epoch != identity.epoch
        assert journal.identity.ancestors[0].epoch == identity.epoch
        assert journal.identity.ancestors[0].end == expected[-1].block.packet_id  # type: ignore[union-attr]
    assert "is there already" in run(capsys, "journal", "restore", "--from", url, "--data", tmp_path / "new", code=2)


def test_a_restored_journal_goes_on_in_the_archive_and_older_segments_stay_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/archive"
    run(capsys, "journal", "archive", folder, "--to", url)
    (tmp_path / "new").mkdir()
    run(capsys, "journal", "restore", "--from", url, "--data", tmp_path / "new", "--newest", 2)
    restored = tmp_path / "new" / "journal"
    assert len(segments(restored)) == 2
    write(restored, range(60, 100))
    run(capsys, "journal", "archive", restored, "--to", url)
    shutil.rmtree(tmp_path / "new")
    lines = [json.loads(line) for line in run(capsys, "journal", "cat", url, "--json").splitlines()]
    assert [int(line["body"].split()[0]) for line in lines] == list(range(100))
    (tmp_path / "third").mkdir()
    run(capsys, "journal", "restore", "--from", url, "--data", tmp_path / "third")
    assert len([each for each in read_all(tmp_path / "third" / "journal") if hasattr(each, "message")]) == 100
    assert list(verify(tmp_path / "third" / "journal")) == []


def test_keys_come_back_for_whom_they_are_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data" / "journal", range(5), keys=True)
    url = f"file://{tmp_path}/archive"
    recipient = run(capsys, "journal", "recipient", tmp_path / "key").strip()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert "cannot write" in run(capsys, "journal", "recipient", tmp_path / "key", code=2)
    run(capsys, "journal", "archive", tmp_path / "data" / "journal", "--to", url, "--recipient", recipient)
    for name, options in (("without", ()), ("with", ("--keys", tmp_path / "key"))):
        (tmp_path / name).mkdir()
        said = run(capsys, "journal", "restore", "--from", url, "--data", tmp_path / name, *options)
        data = segments(tmp_path / name / "journal")[0].read_bytes()
        found = list(keys_in(data, 0, len(data)))
        assert bool(found) == (name == "with")
        assert ("cannot be read" in said) == (name == "without")
    original = segments(tmp_path / "data" / "journal")[0]
    assert data == original.read_bytes()


def test_wrong_words_are_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/archive"
    assert "--to is 'x'" in run(capsys, "journal", "archive", folder, "--to", "x", code=2)
    assert "--compression" in run(capsys, "journal", "archive", folder, "--to", url, "--compression", 77, code=2)
    assert "no archive of a hub here" in run(capsys, "journal", "ls", url, code=2)
    run(capsys, "journal", "archive", folder, "--to", url)
    with Journal.open(tmp_path / "other", hub="bedroom"):
        pass
    run(capsys, "journal", "archive", tmp_path / "other", "--to", url)
    assert "name one of bedroom, kitchen" in run(capsys, "journal", "ls", url, code=2)
    (tmp_path / "new").mkdir()
    restore = ("journal", "restore", "--from", url, "--data", tmp_path / "new")
    assert "no archive of hub 'attic'" in run(capsys, *restore, "--hub", "attic", code=2)
    run(capsys, *restore, "--hub", "kitchen")
    with Journal.open(folder):
        assert "a hub writes this journal" in run(capsys, "journal", "archive", folder, "--to", url, code=2)


def test_prune_spares_what_is_not_archived(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/archive"
    run(capsys, "journal", "archive", folder, "--to", url)
    found = segments(folder)
    index = next((tmp_path / "archive").rglob(f"{found[2].name[:20]}.index.json"))
    index.unlink()
    said = run(capsys, "journal", "prune", folder, "--keep-bytes", "1")
    assert "not archived yet" in said
    assert segments(folder) == found[2:]


def test_the_policy_of_the_how_to_is_enough_and_allows_no_more(
    folder: Path,
    bucket: str,
    s3_server: S3Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "keep-history-in-a-bucket.md").read_text()
    policy = re.findall(r'^```json title="policy.json"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)[0]
    name = bucket.removeprefix("s3://")
    for variable, value in s3_server.add_user(f"hub-of-{name}", policy.replace("my-bucket", name)).items():
        monkeypatch.setenv(variable, value)
    url = f"{bucket}/wireloom"
    run(capsys, "journal", "archive", folder, "--to", url)
    run(capsys, "journal", "archive", folder, "--to", url)
    run(capsys, "journal", "verify", url)
    (tmp_path / "new").mkdir()
    run(capsys, "journal", "restore", "--from", url, "--data", tmp_path / "new")
    store = open_store(bucket)
    for forbidden in (
        lambda: store.delete("wireloom/kitchen/claim.json"),
        lambda: store.put_new("elsewhere/a", b""),
        lambda: store.get("elsewhere/a"),
        lambda: open_store("s3://another-bucket").put_new("a", b""),
    ):
        with pytest.raises(AccessRefused):
            forbidden()
