"""State files: whole or not at all, checked, and never written through a link."""

from __future__ import annotations

import errno
import json

import pytest

from wireloom.journal.state import StateDamaged, load_state, save_state


def test_what_was_saved_is_loaded(tmp_path):
    save_state(tmp_path / "a.json", {"offset": "7.0", "ü": [1, None]})
    assert load_state(tmp_path / "a.json") == {"offset": "7.0", "ü": [1, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_no_file_is_no_state(tmp_path):
    assert load_state(tmp_path / "a.json") is None


def test_any_changed_byte_is_found(tmp_path):
    path = tmp_path / "a.json"
    save_state(path, {"offset": "7.0"})
    good = path.read_bytes()
    for at in range(len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            assert load_state(path) != {"offset": "7.0"}
            assert b'"crc32"' not in path.read_bytes()
        except StateDamaged:
            pass


@pytest.mark.parametrize("text", ["", "{", "[]", "\0" * 100])
def test_what_is_no_state_is_damaged(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(StateDamaged, match="is damaged"):
        load_state(tmp_path / "a.json")


def test_a_file_of_before_there_were_checksums_is_taken_as_it_is(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"position": 9}))
    assert load_state(tmp_path / "a.json") == {"position": 9}


def test_a_link_is_replaced_and_what_it_names_is_left_alone(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("a.json", ".a.json.new"):
        (tmp_path / name).symlink_to(victim)
    save_state(tmp_path / "a.json", {"position": 9})
    assert victim.read_text() == "mine"
    assert load_state(tmp_path / "a.json") == {"position": 9}


def test_a_link_is_not_read(tmp_path):
    (tmp_path / "victim").write_text("{}")
    (tmp_path / "a.json").symlink_to(tmp_path / "victim")
    with pytest.raises(StateDamaged, match=f"{errno.ELOOP and 'symbolic links'}"):
        load_state(tmp_path / "a.json")
