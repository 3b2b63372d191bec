"""Another program reads the journal: every block with its addresses, names, times and comments."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from wireloom.journal import Journal, read_blocks, segments
from wireloom.model import Direction

from .conftest import data

TSHARK = shutil.which("tshark")
pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed: apt install tshark")


def tshark(segment: Path, *fields: str) -> list[list[str]]:
    arguments = [str(TSHARK), "-n", "-r", str(segment), "-T", "fields", "-E", "separator=/t"]
    for field in fields:
        arguments += ["-e", field]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_tshark_reads_every_block_as_we_do(folder):
    (segment,) = segments(folder)
    rows = tshark(
        segment, "frame.comment", "exported_pdu.prot_name", "ip.src", "ip.dst",
        "exported_pdu.src_port", "exported_pdu.dst_port", "frame.cap_len", "frame.time_epoch",
        "frame.packet_id",
    )  # fmt: skip
    ours = list(read_blocks(segment))
    assert len(rows) == len(ours) == 12
    for (comment, name, src, dst, src_port, dst_port, size, time, packet_id), block in zip(rows, ours, strict=True):
        assert name == f"wireloom.{block.protocol}"
        if block.record is None:
            assert comment.startswith(f"conn={block.connection:016x} dir={block.direction} seq={block.sequence} ")
            assert comment.endswith(" more") == block.more
            assert (f"{src}:{src_port}", f"{dst}:{dst_port}") == (block.source, block.destination)
        else:
            assert comment.startswith(f"record={block.record} ")
        assert int(size) == len(block.payload) + block.payload_offset - block.offset - 28
        seconds, _, fraction = time.partition(".")
        assert int(seconds) * 10**9 + int(fraction) == block.time_ns
        assert int(packet_id) == block.packet_id


def test_tshark_reads_ipv6_datagrams_and_blocks_without_addresses(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.append(
            *("mesh", 1, Direction.DGRAM, 0, b"datagram"),
            source="[2001:db8::1]:4000",
            destination="[2001:db8::2]:4001",
        )
        journal.append("hsp", 2, Direction.C2S, 0, data("a"), source="unix", destination=None)
    rows = tshark(segments(tmp_path)[0], "exported_pdu.prot_name", "ipv6.src", "ipv6.dst", "exported_pdu.port_type")
    assert rows[1] == ["wireloom.mesh", "2001:db8::1", "2001:db8::2", "3"]
    assert rows[2] == ["wireloom.hsp", "", "", ""]


def test_tshark_reads_the_refused_bytes_too(folder):
    rows = tshark(segments(folder / "refused")[0], "frame.comment", "exported_pdu.exported_pdu")
    assert rows[0][0].startswith("record=refused conn=")
    assert rows[0][1] == "09" * 4096
