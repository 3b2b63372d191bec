"""A capture to `messages`, TCP put together, against tshark with a dissector in Lua, and against scapy reading alone.

Ours runs on one core: file to Arrow rows of `messages`, written to Parquet. tshark puts streams together, dissects each
frame with the Lua script below and prints JSON. scapy does nothing but parse packets. Peers read a smaller capture of
the same kind, because they need minutes for what takes ours a second; compared are packets a second.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Result, compare
from benchmarks.servers import Unavailable

CONNECTIONS = 40
OURS, THEIRS = 10_000, 500
"""Messages a connection."""

DISSECTOR = """
local hsp = Proto("wl_hsp", "HSP")
local kind = ProtoField.uint8("wl_hsp.command", "command")
local type_ = ProtoField.uint16("wl_hsp.type", "type")
local size = ProtoField.uint32("wl_hsp.length", "length")
local body = ProtoField.bytes("wl_hsp.body", "body")
hsp.fields = {kind, type_, size, body}
local function length(tvb, pinfo, offset) return 7 + tvb(offset + 3, 4):uint() end
local function dissect(tvb, pinfo, tree)
  local sub = tree:add(hsp, tvb())
  sub:add(kind, tvb(0, 1)); sub:add(type_, tvb(1, 2)); sub:add(size, tvb(3, 4)); sub:add(body, tvb(7))
  return tvb:len()
end
function hsp.dissector(tvb, pinfo, tree) dissect_tcp_pdus(tvb, tree, 7, length, dissect) end
DissectorTable.get("tcp.port"):add(5042, hsp)
"""


def run() -> list[Result]:
    """Two rows."""
    if shutil.which("tshark") is None:
        raise Unavailable("tshark is not installed")
    try:
        import scapy  # noqa: F401
    except ImportError:
        raise Unavailable("scapy is not installed") from None
    with captures() as (large, small, packets_large, packets_small, script):

        def ours() -> float:
            return packets_large / timed_ours(large)

        def tshark() -> float:
            return packets_small / timed_tshark(small, script)

        def scapy_reads() -> float:
            return packets_small / timed_scapy(small)

        return [
            compare("capture → `messages`", "tshark, Lua to JSON", ours, tshark, goal=20, unit="packets/s", rounds=3),
            compare(
                "capture → `messages`", "scapy reading alone", ours, scapy_reads, goal=50, unit="packets/s", rounds=3
            ),
        ]


@contextmanager
def captures() -> Iterator[tuple[Path, Path, int, int, Path]]:
    """A large and a small capture of the same kind, how many packets they hold, and the dissector."""
    with tempfile.TemporaryDirectory() as folder:
        large, small, script = (Path(folder) / name for name in ("large.pcap", "small.pcap", "hsp.lua"))
        script.write_text(DISSECTOR)
        yield large, small, write_capture(large, OURS), write_capture(small, THEIRS), script


def write_capture(path: Path, messages: int) -> int:
    """Events of 100 bytes on many connections, some of them cut in two, out of order or repeated."""
    rng = random.Random(7)
    frames = [struct.pack(">BHI", 0, number % 50, 100) + rng.randbytes(100) for number in range(500)]
    out = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)]
    clock = 1_794_800_000_000_000
    position = [1000] * CONNECTIONS

    def packet(number: int, side: int, seq: int, payload: bytes, flags: int) -> bytes:
        ends = [(struct.pack(">I", 0x0A000001 + number), 40_000 + number), (b"\x0a\x00\x01\x01", 5042)]
        (source, port), (destination, other_port) = ends[side], ends[1 - side]
        tcp = (
            struct.pack(">HHIIBBHHH", port, other_port, seq, 500 if side == 0 else 1000, 80, flags, 65535, 0, 0)
            + payload
        )
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0, source, destination)
        return b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\0" + ip + tcp

    made: list[bytes] = []
    for number in range(CONNECTIONS):
        made += [packet(number, 0, 999, b"", 2), packet(number, 1, 499, b"", 18)]
    for index in range(messages):
        for number in range(CONNECTIONS):
            frame = frames[(index * 7 + number) % 500]
            pieces = (frame[:40], frame[40:]) if rng.random() < 0.3 else (frame,)
            new = []
            for piece in pieces:
                new.append(packet(number, 0, position[number], piece, 24))
                position[number] += len(piece)
            if rng.random() < 0.02:
                new = new[::-1] + new[:1]
            made += new
    for data in made:
        clock += 2
        out.append(struct.pack("<IIII", clock // 10**6, clock % 10**6, len(data), len(data)) + data)
    path.write_bytes(b"".join(out))
    return len(made)


def timed_ours(path: Path) -> float:
    import pyarrow.parquet as pq

    from wireloom.pipeline.captures.detect import Choice
    from wireloom.pipeline.captures.reader import CaptureReader, read_captures

    began = time.perf_counter()
    reader = CaptureReader(Choice.parse())
    count = 0
    target = path.with_suffix(".parquet")
    writer: pq.ParquetWriter | None = None
    for rows in read_captures([str(path)], reader):
        count += rows.messages.num_rows
        if rows.messages.num_rows:
            writer = writer or pq.ParquetWriter(target, rows.messages.schema, compression="zstd")
            writer.write_table(rows.messages)
    if writer is not None:
        writer.close()
    took = time.perf_counter() - began
    assert count == OURS * CONNECTIONS, f"{count} messages"
    return took


def timed_tshark(path: Path, script: Path) -> float:
    began = time.perf_counter()
    order = ("-o", "tcp.reassemble_out_of_order:TRUE")
    command = ["tshark", "-r", str(path), *order, "-X", f"lua_script:{script}", "-T", "json", "-J", "wl_hsp"]
    done = subprocess.run(command, capture_output=True, check=True)
    took = time.perf_counter() - began
    found = done.stdout.count(b'"wl_hsp.body"')
    assert found >= THEIRS * CONNECTIONS * 9 // 10, f"tshark found {found} frames"
    return took


def timed_scapy(path: Path) -> float:
    from scapy.layers import inet, l2
    from scapy.utils import PcapReader

    assert inet.TCP and l2.Ether
    began = time.perf_counter()
    with PcapReader(str(path)) as packets:
        total = sum(1 for packet in packets if packet.haslayer(inet.TCP))
    assert total > THEIRS * CONNECTIONS
    return time.perf_counter() - began
