"""`wireloom journal follow`: what is committed appears, across rotation, from a point on, filtered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wireloom.cli.main import main
from wireloom.journal import Journal
from wireloom.model import Direction

from .conftest import TOPICS, data


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path, segment_bytes=2000) as journal:
        yield journal


def say(journal: Journal, text: str, number: int = 7) -> None:
    journal.append("hsp", 1, Direction.C2S, 0, data(text, number), topics=TOPICS)
    journal.commit()


def test_follow_shows_what_comes_across_rotation_and_only_the_topics_asked_for(journal: Journal) -> None:
    say(journal, "before")
    command = [sys.executable, "-m", "wireloom", "journal", "follow", str(journal.folder)]
    follow = subprocess.Popen(
        [*command, "--since", "start", "--topic", "sensors/#", "--json", "--count", "41"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout is not None
    first = json.loads(follow.stdout.readline())
    assert (first["body"], first["topic"]) == ("before", "sensors/kitchen")
    for number in range(40):
        say(journal, str(number))
        say(journal, "unwanted", 10)
    lines = [json.loads(line) for line in follow.communicate(timeout=60)[0].splitlines()]
    assert follow.returncode == 0
    assert [line["body"] for line in lines] == [str(number) for number in range(40)]
    assert len({line["segment"] for line in lines}) > 2


def test_an_offset_from_one_run_goes_on_in_the_next(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(10):
        say(journal, str(number))
    assert main(["journal", "follow", str(journal.folder), "--since", "start", "--count", "4", "--json"]) == 0
    offset = json.loads(capsys.readouterr().out.splitlines()[-1])["journal_offset"]
    assert main(["journal", "cat", str(journal.folder), "--since", offset, "--json"]) == 0
    assert [json.loads(line)["body"] for line in capsys.readouterr().out.splitlines()] == [str(n) for n in range(4, 10)]
    assert main(["journal", "cat", str(journal.folder), "--since", "1h", "--topic", "alerts/#", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_wrong_point_or_pattern_is_one_line(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "follow", str(journal.folder), "--since", "tomorrow"]) == 2
    assert main(["journal", "follow", str(journal.folder), "--topic", "a/#/b"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
