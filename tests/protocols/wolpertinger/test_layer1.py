"""Compression, encryption, splitting and putting together again."""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.wolpertinger.strategies import documents
from tests.protocols.wolpertinger.talk import HELLO, call
from wireloom.model import ConfigError, LimitExceeded
from wireloom.protocols.wolpertinger import frames, layer1, layer2
from wireloom.protocols.wolpertinger.frames import Data
from wireloom.protocols.wolpertinger.keys import Cipher, KeyPair, from_base64, is_proof, is_token, prove
from wireloom.protocols.wolpertinger.layer1 import Assembly
from wireloom.protocols.wolpertinger.refusal import Refused
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings

SETTINGS = WolpertingerSettings()
CIPHER = Cipher(bytes(range(32)), bytes(range(16)))
XML = layer2.write(call("Test", "Echo", HELLO))


@given(documents, st.booleans(), st.booleans(), st.sampled_from((64, 99, 30_500)), st.randoms(use_true_random=False))
def test_every_document_survives_gzip_aes_base64_and_pieces_in_any_order(
    document: layer2.Document, compress: bool, encrypt: bool, size: int, order: object
) -> None:
    own = replace(SETTINGS, split=size)
    cipher = CIPHER if encrypt else None
    pieces = layer1.pack(layer2.write(document), 7, own, cipher, compress=compress)
    order.shuffle(pieces)  # type: ignore[attr-defined]
    assembly = Assembly(own)
    found = [whole for piece in pieces if (whole := assembly.add(piece)) is not None]
    assert len(found) == 1
    assert layer1.unpack(found[0][0], own, cipher) == document
    assert not assembly.open
    assert not assembly.pending


def test_sending_is_gzip_then_aes_then_base64_then_split() -> None:
    pieces = layer1.pack(XML, 7, replace(SETTINGS, split=100), CIPHER, compress=True)
    assert [(piece.fragment_index, piece.fragment_count) for piece in pieces] == [
        (index, len(pieces)) for index in range(len(pieces))
    ]
    assert all(len(piece.payload) == 100 for piece in pieces[:-1])
    sealed = base64.b64decode(b"".join(piece.payload for piece in pieces))
    text, sound = CIPHER.open(sealed)
    assert sound
    assert len(text) == pieces[0].gzip
    assert gzip.decompress(text) == XML


def test_all_metadata_is_on_all_pieces() -> None:
    pieces = layer1.pack(XML, 7, replace(SETTINGS, split=100), CIPHER, compress=True, others=(("signature", "x"),))
    assert len(pieces) > 1
    assert {(p.message_id, p.gzip, p.encryption, p.others) for p in pieces} == {
        (7, pieces[0].gzip, "aes", (("signature", "x"),))
    }


def test_a_message_of_30500_characters_is_not_split_and_one_more_is() -> None:
    whole = Data(1, b"A" * 30_500)
    # The fields of pieces are sent only where there are pieces.
    assert layer1.split(whole, SETTINGS.split, 10) == [whole]
    assert [len(p.payload) for p in layer1.split(Data(1, b"A" * 30_501), SETTINGS.split, 10)] == [30_500, 1]


def test_small_messages_are_not_compressed_and_large_ones_are() -> None:
    assert layer1.pack(b"x" * (SETTINGS.gzip_from - 1), 1, SETTINGS)[0].gzip is None
    assert layer1.pack(b"x" * SETTINGS.gzip_from, 1, SETTINGS)[0].gzip is not None
    assert layer1.pack(b"x" * 100_000, 1, replace(SETTINGS, gzip_from=0))[0].gzip is None


def test_gzip_is_the_length_after_compression_and_what_follows_is_padding() -> None:
    data = gzip.compress(XML)
    padded = Data(1, base64.b64encode(data + b"\0" * 9), gzip=len(data))
    assert layer1.unpack(padded, SETTINGS, None) == call("Test", "Echo", HELLO)


def test_gzip_data_may_have_several_members() -> None:
    data = gzip.compress(XML[:50]) + gzip.compress(XML[50:])
    assert layer1.unpack(Data(1, base64.b64encode(data), len(data)), SETTINGS, None) == call("Test", "Echo", HELLO)


@pytest.mark.parametrize(
    ("data", "length", "clause"),
    [
        (gzip.compress(XML), 10_000, "gzip.length"),
        (gzip.compress(XML), 20, "gzip.data"),
        (gzip.compress(XML), 0, "gzip.data"),
        (b"no gzip at all", 14, "gzip.data"),
        (zlib.compress(XML), len(zlib.compress(XML)), "gzip.data"),
        (gzip.compress(XML)[:-1] + b"\xff", len(gzip.compress(XML)), "gzip.data"),
        (gzip.compress(XML) + b"rest", len(gzip.compress(XML)) + 4, "gzip.data"),
    ],
)
def test_bad_gzip_data_is_an_invalid_format(data: bytes, length: int, clause: str) -> None:
    with pytest.raises(Refused) as caught:
        layer1.unpack(Data(1, base64.b64encode(data), length), SETTINGS, None)
    assert caught.value.clause == f"wolpertinger.{clause}"
    assert (caught.value.message_id, caught.value.result) == (1, 5)


@pytest.mark.parametrize("compress", [False, True])
def test_a_message_that_is_too_large_is_refused_before_memory_is_taken_for_it(compress: bool) -> None:
    own = replace(SETTINGS, max_message=1000)
    (bomb,) = layer1.pack(b"A" * 5_000_000, 1, replace(SETTINGS, split=10**7), compress=compress)
    with pytest.raises(Refused, match=r"wolpertinger\.message\.too-large"):
        layer1.unpack(bomb, own, None)
    with pytest.raises(LimitExceeded, match="max_message"):
        layer1.pack(b"A" * 1001, 1, own)


@pytest.mark.parametrize("payload", [b"A", b"AA", b"AA=", b"AAAA=", b"AA==AA==", b"A==="])
def test_wrong_base64_is_an_invalid_format(payload: bytes) -> None:
    with pytest.raises(Refused) as caught:
        layer1.unpack(Data(1, payload), SETTINGS, None)
    assert (caught.value.clause, caught.value.result) == ("wolpertinger.payload.base64", 5)


# Pieces


def pieces_of(message_id: int, text: str, count: int) -> list[Data]:
    own = replace(SETTINGS, gzip_from=0)
    (whole,) = layer1.pack(layer2.write(call("Test", "Echo", HELLO._replace(data=text))), message_id, own)
    return layer1.split(whole, -(-len(whole.payload) // count), 1000)


def test_pieces_of_two_messages_may_be_mixed() -> None:
    assembly = Assembly(SETTINGS)
    one, two = pieces_of(1, "one", 4), pieces_of(2, "two", 4)
    mixed = [piece for both in zip(reversed(one), two, strict=True) for piece in both]
    found = [whole for piece in mixed if (whole := assembly.add(piece)) is not None]
    assert [layer1.unpack(whole, SETTINGS, None).parameters[0].data for whole, *_ in found] == ["one", "two"]  # type: ignore[union-attr]


def test_a_piece_that_comes_twice_counts_once() -> None:
    assembly = Assembly(SETTINGS)
    pieces = pieces_of(1, "x", 3)
    assert assembly.add(pieces[0]) is None
    assert assembly.add(pieces[0]) is None
    assert assembly.add(pieces[1]) is None
    assert assembly.add(pieces[2]) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"gzip": 9},
        {"encryption": "aes"},
        {"fragment_count": 9},
        {"others": (("a", "b"),)},
        {"payload": b"ABCD", "fragment_index": 0},
    ],
)
def test_a_piece_whose_metadata_differs_ends_the_message(change: dict[str, object]) -> None:
    assembly = Assembly(SETTINGS)
    pieces = pieces_of(1, "x", 3)
    assembly.add(pieces[0])
    with pytest.raises(Refused) as caught:
        assembly.add(pieces[1]._replace(**change))  # type: ignore[arg-type]
    assert (caught.value.clause, caught.value.result) == ("wolpertinger.fragment.differs", 3)
    assert not assembly.open
    assert not assembly.pending


def test_the_number_of_pieces_is_limited() -> None:
    with pytest.raises(Refused) as caught:
        Assembly(SETTINGS).add(Data(1, b"A", None, None, 0, SETTINGS.max_fragments + 1))
    assert (caught.value.clause, caught.value.result) == ("wolpertinger.fragment.too-many", 3)
    with pytest.raises(LimitExceeded, match="max_fragments"):
        layer1.split(Data(1, b"A" * 100), 1, 99)


def test_pieces_together_must_not_be_larger_than_a_message() -> None:
    own = replace(SETTINGS, max_message=64)
    assembly = Assembly(own)
    with pytest.raises(Refused, match=r"wolpertinger\.message\.too-large"):
        for index in range(100):
            assembly.add(Data(1, b"A" * 1000, None, None, index, 100))
    assert not assembly.pending


def test_the_number_of_incomplete_messages_is_limited_and_the_oldest_goes_first() -> None:
    own = replace(SETTINGS, max_open=3)
    assembly = Assembly(own)
    for number in range(5):
        assembly.add(pieces_of(number, "x", 2)[0])
    assert list(assembly.open) == [2, 3, 4]
    assert assembly.dropped == 2
    assert assembly.pending == sum(kept.size for kept in assembly.open.values())


def test_all_incomplete_messages_together_are_limited() -> None:
    own = replace(SETTINGS, max_message=64)
    assembly = Assembly(own)
    for number in range(20):
        assembly.add(Data(number, b"A" * 5000, None, None, 0, 2))
        assert assembly.pending <= 2 * own.max_line
    assert assembly.dropped


def test_an_incomplete_message_is_dropped_after_60_seconds() -> None:
    assembly = Assembly(SETTINGS)
    assembly.add(pieces_of(1, "x", 2)[0], now=10.0)
    assert assembly.deadline == 70.0
    assembly.expire(69.9)
    assert assembly.open
    assembly.expire(70.0)
    assert not assembly.open
    assert assembly.deadline is None


# Keys


@given(st.binary(max_size=100))
def test_what_is_sealed_can_be_opened(data: bytes) -> None:
    sealed = CIPHER.seal(data)
    assert len(sealed) % 16 == 0
    assert len(sealed) > len(data)
    assert CIPHER.open(sealed) == (data, True)


def test_aes_256_cbc_as_everybody_has_it() -> None:
    # NIST SP 800-38A, F.2.5: the first block of CBC-AES256.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    cipher = Cipher(key, bytes(range(16)))
    sealed = cipher.seal(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a"))
    assert sealed[:16].hex() == "f58c4c04d6e5f1ba779eabfb5f7bfbd6"


@pytest.mark.parametrize("data", [b"", b"x" * 15, b"x" * 17, b"x" * 16, b"x" * 32])
def test_what_cannot_be_opened_is_no_exception(data: bytes) -> None:
    assert CIPHER.open(data)[1] is False


@pytest.mark.parametrize("last", [0, 17, 255, 2])
def test_wrong_padding_is_seen(last: int) -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher as Machine
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    encryptor = Machine(AES(CIPHER.key), CBC(CIPHER.iv)).encryptor()
    text, sound = CIPHER.open(encryptor.update(b"\x01" * 15 + bytes([last])) + encryptor.finalize())
    assert not sound
    assert len(text) == 16


def test_both_ends_agree_on_a_key_and_it_is_the_hash_of_the_shared_secret() -> None:
    one, two = KeyPair.draw(b"1" * 80), KeyPair.draw(b"2" * 80)
    iv = bytes(16)
    agreed = one.agree(two.public, iv)
    assert agreed is not None
    assert agreed == two.agree(one.public, iv)
    assert agreed != one.agree(one.public, iv)
    shared = one._private.exchange(ec.ECDH(), two._private.public_key())
    assert (agreed.key, agreed.iv) == (hashlib.sha256(shared).digest(), iv)


def test_a_public_key_travels_as_eck5_66_x_y() -> None:
    pair = KeyPair.draw(b"1" * 80)
    blob = from_base64(pair.public)
    assert blob is not None
    point = pair._private.public_key().public_numbers()
    assert (int.from_bytes(blob[8:74]), int.from_bytes(blob[74:])) == (point.x, point.y)
    assert blob[:8] == b"ECK5" + (66).to_bytes(4, "little")
    assert len(blob) == 8 + 66 + 66


@pytest.mark.parametrize("change", ["magic", "short", "long", "point", "base64", "iv"])
def test_what_is_no_public_key_is_refused(change: str) -> None:
    pair = KeyPair.draw(b"1" * 80)
    blob = from_base64(KeyPair.draw(b"2" * 80).public) or b""
    changed = {
        "magic": b"ECK3" + blob[4:],
        "short": blob[:-1],
        "long": blob + b"\0",
        "point": blob[:-1] + bytes([blob[-1] ^ 1]),
        "iv": blob,
    }.get(change, b"")
    text = "%" if change == "base64" else base64.b64encode(changed).decode()
    assert pair.agree(text, bytes(15 if change == "iv" else 16)) is None


def test_a_proof_is_pbkdf2_with_sha1_a_thousand_rounds_and_64_bytes() -> None:
    import hashlib

    token = base64.b64encode(bytes(32)).decode()
    expected = base64.b64encode(hashlib.pbkdf2_hmac("sha1", b"secret", bytes(32), 1000, 64)).decode()
    assert prove("secret", token) == expected
    assert is_proof(expected, "secret", token)
    assert not is_proof(expected, "Secret", token)
    assert not is_proof("", "secret", token)
    assert is_token(token)
    assert not is_token("AAAA")


def test_a_key_of_the_wrong_size_is_a_setting_that_is_wrong() -> None:
    with pytest.raises(ConfigError):
        Cipher(bytes(16), bytes(16))
    with pytest.raises(ConfigError, match="aes_key"):
        WolpertingerSettings(aes_key="00")
    with pytest.raises(ConfigError, match="cluster_key"):
        WolpertingerSettings(cluster_key="xyz")


def test_pieces_that_come_again_and_again_are_no_larger_message_but_bounded() -> None:
    own = WolpertingerSettings(max_message=64)
    piece = Data(1, b"A" * (own.max_line // 2), fragment_index=0, fragment_count=2)
    line = frames.encode(piece)
    assembly = layer1.Assembly(own)
    for _ in range(4):  # sent once, and three times again
        assert assembly.add(piece, wire=len(line), line=line) is None
    with pytest.raises(Refused, match="too-large"):
        for _ in range(20):
            assembly.add(piece, wire=len(line), line=line)
    assert not assembly.open
    assert assembly.pending == 0
