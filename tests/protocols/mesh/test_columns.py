"""frames.py and columns.py must give the same answer for the same bytes: valid, mutated, runs, garbage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agreement import assert_columns_agree, rows_of_columns, rows_of_decoder
from tests.protocols.mesh.strategies import BOTH, NODE, TRUST, WITH_HMAC, WITH_SIGNATURE, datagrams, mutated
from wireloom.model import Direction
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.kernel_bytes import is_utf8
from wireloom.protocols.mesh import MESH, frames, scan
from wireloom.protocols.mesh.encryption import Cipher, compress, encrypt
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.security import sign_packet
from wireloom.protocols.mesh.trust import TrustStore

DGRAM = Direction.DGRAM


@pytest.fixture(scope="module")
def trust_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mesh") / "trust.json"
    TrustStore(TRUST, {bytes(16): bytes(32)}).save(path)
    return str(path)


@given(datagrams())
def test_columns_agree_with_frames_on_valid_packets(data: bytes) -> None:
    assert_columns_agree(MESH, data, direction=DGRAM)


@given(mutated())
@settings(max_examples=400)
def test_columns_agree_with_frames_on_mutated_packets(data: bytes) -> None:
    assert_columns_agree(MESH, data, direction=DGRAM)


@given(st.binary(max_size=80))
@settings(max_examples=200)
def test_columns_agree_with_frames_on_garbage(data: bytes) -> None:
    assert_columns_agree(MESH, data, direction=DGRAM)


@given(st.lists(st.one_of(datagrams(), mutated()), max_size=6))
def test_columns_agree_with_frames_on_runs(packets: list[bytes]) -> None:
    assert_columns_agree(MESH, b"".join(packets), direction=DGRAM)


@given(st.lists(st.one_of(datagrams(), mutated(), st.binary(max_size=30)), min_size=1, max_size=8))
def test_each_span_is_a_datagram_that_stands_alone(packets: list[bytes]) -> None:
    ends = np.cumsum([len(packet) for packet in packets])
    spans = Spans(
        np.frombuffer(b"".join(packets), np.uint8),
        np.concatenate(([0], ends[:-1])).astype(np.int64),
        ends.astype(np.int64),
        np.zeros(len(packets), np.int32),
        [Stream(DGRAM)],
    )
    columns = MESH.columns().decode(spans, MESH.settings())
    rows, rejects = rows_of_columns(columns)
    expected_rows, expected_rejects, expected_spans = [], [], []
    for index, packet in enumerate(packets):
        start = int(spans.start[index])
        found, refused, _ = rows_of_decoder(MESH, packet, DGRAM, {}, {})
        expected_rows += [(int(str(row[0])) + start, *row[1:]) for row in found]
        expected_rejects += [(int(str(row[0])) + start, *row[1:]) for row in refused]
        expected_spans += [index] * len(found)
    assert (rows, rejects) == (expected_rows, expected_rejects)
    assert columns.span.tolist() == expected_spans
    assert columns.consumed.tolist() == spans.end.tolist()


@given(data=st.lists(st.one_of(datagrams(), mutated()), max_size=6))
def test_columns_check_authenticity_as_the_decoder_does(trust_file: str, data: list[bytes]) -> None:
    assert_columns_agree(MESH, b"".join(data), direction=DGRAM, values={"trust": trust_file})


def special_packets() -> list[Packet]:
    name = (Field(Type.STRING, b"a/b"),)
    event = Packet(7, EventType.EVENT, 1_700_000_000, name)
    cipher = Cipher(bytes(32), bytes(16))
    long_text = "ä" * 200
    return [
        event,
        Packet(2**32 - 1, 3, 2**63, name, 1),
        Packet(0, 3, 2**62 - 1, name, 1),
        Packet(7, 3, 0, (*name, Field(Type.JSON, b"1"))),
        Packet(7, 3, 0, (*name, Field(Type.STRING, "ü€𝄞".encode()))),
        Packet(7, 3, 0, tuple(frames.split(Type.STRING, long_text.encode()))),
        Packet(7, 3, 0, (*name, Field(Type.BINARY, bytes(255)))),
        Packet(7, 3, 0, (*name, Field(Type.BINARY, bytes(254)))),
        Packet(7, 3, 0, (Field(Type.BINARY, b"first"), *name)),
        Packet(7, 3, 0, (Field(Type.NODE_ID, NODE), *name)),
        Packet(7, 9, 0, (Field(0x80, b"x"),)),
        compress(event),
        compress(event, keep_name=True),
        encrypt(event, cipher, bytes(12)),
        encrypt(compress(event), cipher, bytes(12), keep_name=True),
        *(
            sign_packet(event, who, with_public_key=show)
            for who in (BOTH, WITH_HMAC, WITH_SIGNATURE)
            for show in (0, 1)
        ),
        sign_packet(event, Identity(b"s" * 16, b"key9", ed25519_private=b"p" * 32), with_public_key=True),
        sign_packet(Packet(7, 1, 5, (Field(Type.BINARY, b"caps"),)), WITH_HMAC),
        sign_packet(Packet(7, 2, 5, (Field(Type.TIMESTAMP, bytes(8)),)), WITH_HMAC),
    ]


def test_columns_agree_on_every_shape_of_packet(trust_file: str) -> None:
    data = b"".join(map(frames.encode, special_packets()))
    assert_columns_agree(MESH, data, direction=DGRAM)
    assert_columns_agree(MESH, data, direction=DGRAM, values={"trust": trust_file})
    assert_columns_agree(MESH, data, direction=DGRAM, values={"max_payload": 50, "max_fields": 3})
    assert_columns_agree(MESH, data.replace(b"\x07\0\x03", b"\x07\x80\x03"), values={"ignore_reserved_flags": True})


def test_usual_packets_are_taken_apart_by_the_kernel() -> None:
    usual = [sign_packet(Packet(7, 3, 5, (Field(1, b"a"), Field(5, b"1"))), who) for who in (BOTH, WITH_HMAC)]
    usual += [sign_packet(Packet(7, 1, 5, (Field(4, b"{}"),)), WITH_SIGNATURE, with_public_key=True)]
    data = np.frombuffer(b"".join(map(frames.encode, usual)), np.uint8)
    found = scan.scan_packets(data, np.array([0]), np.array([len(data)]), frames.DEFAULT_LIMITS)
    assert found.table[scan.PLAIN].tolist() == [1, 1, 1]
    table = scan.read_packets(data, found.offset, found.size, frames.DEFAULT_LIMITS)
    assert table.tolist() == found.table.tolist()


def test_a_batch_with_higher_limits_is_checked_with_those_limits(trust_file: str) -> None:
    unknown = Identity(NODE, b"none", hmac_secret=b"x")
    fields = (Field(Type.STRING, b"a"), *(Field(0x80 + n % 16, b"") for n in range(70)))
    large = [
        sign_packet(Packet(7, 3, 5, (Field(1, b"n" * 254), Field(Type.BINARY, b"b" * 254))), unknown),
        sign_packet(Packet(8, 3, 5, fields), unknown),
    ]
    data = b"".join(frames.encode(packet, frames.PacketLimits(2000, 100)) for packet in large)
    rows, rejects = rows_of_columns(
        MESH.columns().decode(
            Spans.whole(data, Stream(DGRAM)),
            MESH.settings({"trust": trust_file, "max_payload": 2000, "max_fields": 100}),
        )
    )
    assert (len(rows), rejects) == (2, [])
    assert_columns_agree(
        MESH, data, direction=DGRAM, values={"trust": trust_file, "max_payload": 2000, "max_fields": 100}
    )


@given(st.binary(max_size=12))
@settings(max_examples=500)
def test_the_kernels_utf8_is_pythons(data: bytes) -> None:
    try:
        data.decode()
        good = True
    except UnicodeDecodeError:
        good = False
    assert is_utf8(np.frombuffer(data, np.uint8), 0, len(data)) == good


def test_an_empty_input_has_no_rows(tmp_path: Path) -> None:
    spans = Spans(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32), [])
    assert len(MESH.columns().decode(spans, MESH.settings())) == 0
    MESH.columns().warm()
