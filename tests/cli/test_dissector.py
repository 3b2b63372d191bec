"""The Wireshark dissector against our own decoder: the same bytes, the same frames."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.protocols.emp import strategies as emp
from tests.protocols.hsp import strategies as hsp
from tests.protocols.mesh import strategies as mesh
from tests.protocols.yamp import strategies as yamp
from wireloom.cli.main import main
from wireloom.journal import Journal, segments
from wireloom.model import Direction
from wireloom.protocols.emp import extensions
from wireloom.protocols.emp import frames as emp_frames
from wireloom.protocols.hsp import frames as hsp_frames
from wireloom.protocols.mesh import frames as mesh_frames
from wireloom.protocols.yamp import frames as yamp_frames

TSHARK = shutil.which("tshark")
pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed: apt install tshark")

few = settings(
    max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate]
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lua") / "wireloom.lua"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["dissector"]) == 0
    return path


def columns(script: Path, file: Path, *fields: str) -> list[list[str]]:
    """All values of each field in the file, in order."""
    arguments = [str(TSHARK), "-n", "-X", f"lua_script:{script}", "-r", str(file), "-T", "fields"]
    arguments += ["-E", "separator=/t", "-E", "aggregator=,", "-E", "occurrence=a"]
    for field in fields:
        arguments += ["-e", f"wireloom.{field}"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "Lua" not in done.stderr, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [[value for row in rows for value in row[n].split(",") if value] for n in range(len(fields))]


def seen(script: Path, protocol: str, encoded: Sequence[bytes], *fields: str) -> list[list[str]]:
    """What the dissector finds in a journal that holds these frames."""
    with tempfile.TemporaryDirectory() as folder:
        with Journal.open(folder) as journal:
            if protocol == "mesh":
                for packet in encoded:
                    journal.append(protocol, 1, Direction.DGRAM, 0, packet)
            else:
                journal.append(protocol, 1, Direction.C2S, 0, b"".join(encoded))
        return columns(script, segments(folder)[0], *(f"{protocol}.{field}" for field in fields))


def texts(values: Sequence[object]) -> list[str]:
    return [str(value) for value in values]


def filled(values: Sequence[bytes]) -> list[str]:
    return [value.hex() for value in values if value]


def of(frames: Sequence[object], name: str) -> list[object]:
    return [getattr(frame, name) for frame in frames if hasattr(frame, name)]


@few
@given(found=st.lists(hsp.any_frame(), min_size=30, max_size=60))
def test_hsp(script: Path, found: list[hsp_frames.Frame]) -> None:
    encoded = [hsp_frames.encode(frame) for frame in found]
    command, id_, payload = seen(script, "hsp", encoded, "command", "id", "payload")
    assert command == texts([data[0] for data in encoded])
    assert id_ == texts(of(found, "message_id"))
    assert payload == filled(of(found, "payload"))  # type: ignore[arg-type]


@few
@given(found=st.lists(emp.any_frame(), min_size=30, max_size=60))
def test_emp(script: Path, found: list[emp_frames.Frame]) -> None:
    encoded = [emp_frames.encode(frame) for frame in found]
    type_, extension, id_, body = seen(script, "emp", encoded, "type", "extension", "id", "body")
    blocks = [block for frame in found for block in frame.blocks]
    assert type_ == texts([int(frame.type) for frame in found])
    assert extension == texts([int(block.extension) for block in blocks])
    assert id_ == texts([extensions.decode_request_response(b.content).id for b in blocks if b.extension == 0])
    assert body == filled([frame.body for frame in found if frame.type not in (0, 4)])


@few
@given(found=st.lists(yamp.any_frame, min_size=30, max_size=60))
def test_yamp(script: Path, found: list[yamp_frames.Frame]) -> None:
    encoded = [yamp_frames.encode(frame) for frame in found]
    type_, uid, request, body = seen(script, "yamp", encoded, "type", "uid", "request_uid", "body")
    assert type_ == texts([data[0] for data in encoded])
    assert [text.replace("-", "") for text in uid] == filled(of(found, "uid"))  # type: ignore[arg-type]
    assert [text.replace("-", "") for text in request] == filled(of(found, "request_uid"))  # type: ignore[arg-type]
    assert body == filled(of(found, "body"))  # type: ignore[arg-type]


@few
@given(found=st.lists(mesh.datagrams(), min_size=30, max_size=60))
def test_mesh(script: Path, found: list[bytes]) -> None:
    packets = [mesh_frames.decode(data) for data in found]
    id_, type_, field, node = seen(script, "mesh", found, "id", "type", "field", "node")
    assert [int(text, 16) for text in id_] == [packet.message_id for packet in packets]
    assert type_ == texts([int(packet.event_type) for packet in packets])
    fields = [each for packet in packets for each in packet.fields]
    assert [int(text, 16) for text in field] == [int(each.type) for each in fields]
    assert [text.replace("-", "") for text in node] == [each.value.hex() for each in fields if each.type == 0x14]


def test_frames_cut_anywhere_by_tcp_are_put_together(script: Path, tmp_path: Path) -> None:
    frames = [hsp_frames.encode(hsp_frames.DataAck(number, 7, b"x" * number)) for number in range(1, 40)]
    capture = tmp_path / "cut.pcap"
    capture.write_bytes(pcap(b"".join(frames), 5042, step=13))
    id_, size = columns(script, capture, "hsp.id", "hsp.size")
    assert id_ == size == texts(list(range(1, 40)))


def test_what_is_no_frame_is_said(script: Path) -> None:
    good = hsp_frames.encode(hsp_frames.Data(7, b"fine"))
    (command,) = seen(script, "hsp", [good, b"\x09rest"], "command")
    assert command == ["0"]


def pcap(stream: bytes, port: int, step: int) -> bytes:
    """A capture of raw IPv4 packets that carry a stream in segments of `step` bytes."""
    out = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)]

    def packet(sequence: int, flags: int, data: bytes) -> None:
        tcp = struct.pack(">HHIIBBHHH", 40000, port, sequence, 1, 0x50, flags, 65535, 0, 0) + data
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
        out.append(struct.pack("<IIII", len(out), 0, len(ip + tcp), len(ip + tcp)) + ip + tcp)

    packet(0, 0x02, b"")
    for at in range(0, len(stream), step):
        packet(1 + at, 0x18, stream[at : at + step])
    return b"".join(out)
