"""`wireloom keys`, and what the other commands do with the files it makes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.running import wireloom
from wireloom.protocols.mesh.identity import load_identity
from wireloom.protocols.mesh.trust import load_trust


def test_new_makes_a_private_file_and_does_not_replace_one(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    assert wireloom("keys", "new", path).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    first = load_identity(path)
    assert first.ed25519_private is not None and first.hmac_secret is None
    again = wireloom("keys", "new", path)
    assert (again.code, "keys rotate" in again.errors) == (2, True)
    assert load_identity(path) == first
    assert wireloom("keys", "new", path, "--force", "--both", "--node-id", "ab" * 16).code == 0
    second = load_identity(path)
    assert (second.node_id, second.hmac_secret is None, second.ed25519_private is None) == (b"\xab" * 16, False, False)
    assert wireloom("keys", "new", tmp_path / "h.json", "--hmac").code == 0
    assert load_identity(tmp_path / "h.json").ed25519_private is None


def test_show_gives_what_others_need_and_no_private_key(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    wireloom("keys", "new", path)
    shown = wireloom("keys", "show", path)
    identity = load_identity(path)
    assert json.loads(shown.out) == identity.trusted_key().to_json()
    assert (identity.ed25519_private or b"").hex() not in shown.out.decode()
    wireloom("keys", "new", path, "--force", "--hmac")
    assert "shared secret" in wireloom("keys", "show", path).errors


def test_trust_adds_lists_and_removes(tmp_path: Path) -> None:
    one, two, trust = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "trust.json"
    wireloom("keys", "new", one)
    wireloom("keys", "new", two, "--both")
    shown = wireloom("keys", "show", two)
    assert wireloom("keys", "trust", trust, one).code == 0
    assert wireloom("keys", "trust", trust, "-", stdin=shown.out).code == 0
    identities = [load_identity(path) for path in (one, two)]
    assert list(load_trust(trust)) == [identity.trusted_key() for identity in identities]
    listed = wireloom("keys", "trust", trust).lines
    assert [line.split()[1] for line in listed] == [identity.node_id.hex() for identity in identities]
    assert wireloom("keys", "trust", trust, "--encryption-key", "cd" * 16).code == 0
    assert len(load_trust(trust).encryption_keys[b"\xcd" * 16]) == 32
    assert wireloom("keys", "trust", trust, "--encryption-key", "cd" * 16).code == 2
    assert wireloom("keys", "trust", trust, "--remove", identities[0].node_id.hex()).code == 0
    assert list(load_trust(trust)) == [identities[1].trusted_key()]
    assert wireloom("keys", "trust", trust, "--remove", identities[0].node_id.hex()).code == 2


def test_rotate_trusts_the_new_key_and_keeps_the_old_one_until_told(tmp_path: Path) -> None:
    path, trust = tmp_path / "node.json", tmp_path / "trust.json"
    wireloom("keys", "new", path)
    wireloom("keys", "trust", trust, path)
    old = load_identity(path)
    assert wireloom("keys", "rotate", path, "--trust", trust).code == 0
    new = load_identity(path)
    assert (new.node_id, new.auth_key_id == old.auth_key_id) == (old.node_id, False)
    assert list(load_trust(trust)) == [old.trusted_key(), new.trusted_key()]
    assert wireloom("keys", "rotate", path, "--trust", trust, "--remove-old").code == 0
    assert [key.auth_key_id for key in load_trust(trust)] == [old.auth_key_id, load_identity(path).auth_key_id]
    assert wireloom("keys", "rotate", path, "--remove-old").code == 2


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for words in (
        ("keys", "show", tmp_path / "none.json"),
        ("keys", "show", tmp_path / "bad.json"),
        ("keys", "trust", tmp_path / "none.json"),
        ("keys", "trust", tmp_path / "t.json", tmp_path / "bad.json"),
        ("keys", "trust", tmp_path / "t.json", "--remove", "zz"),
        ("keys", "new", tmp_path / "n.json", "--node-id", "00"),
    ):
        done = wireloom(*words)
        assert (done.code, len(done.errors.splitlines())) == (2, 1), words


def test_encode_signs_and_decode_checks(tmp_path: Path) -> None:
    path, trust = tmp_path / "node.json", tmp_path / "trust.json"
    wireloom("keys", "new", path)
    wireloom("keys", "trust", trust, path)
    line = json.dumps({"kind": "event", "topic": "a/b", "body": "hello"}).encode()
    packet = wireloom("encode", "mesh", "--set", f"key={path}", stdin=line).out
    found = [
        json.loads(wireloom("decode", "mesh", *words, stdin=data).out)["authenticity"]
        for words, data in (
            ((), packet),
            (("--trust", str(trust)), packet),
            (("--trust", str(trust)), packet.replace(b"hello", b"jello")),
        )
    ]
    assert found == ["unchecked", "verified", "failed"]
    decoded = wireloom("decode", "mesh", stdin=packet)
    assert wireloom("encode", "mesh", stdin=decoded.out).out == packet
    lines = wireloom("decode", "mesh", "--hex", stdin=packet.hex().encode() + b"\nff\n" + packet.hex().encode() + b"\n")
    assert [json.loads(each).get("kind") or "reject" for each in lines.lines] == ["event", "reject", "event"]
