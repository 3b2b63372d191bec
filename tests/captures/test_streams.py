"""TCP as TCP would: whatever happens to packets, streams come out as they were sent, and no byte is lost."""

from __future__ import annotations

import base64
import json
import random
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode

from tests.captures.conversations import (
    STREAM_PROTOCOLS,
    Wire,
    cut,
    exchange,
    expected,
    in_websocket,
    mixed_up,
    talk,
    websocket_frame,
)
from tests.captures.reading import read_files, read_packets
from tests.captures.writing import RST, START_NS
from tests.protocols.wolpertinger.talk import pair
from wireloom.model import ConfigError, Direction, Kind, Message
from wireloom.pipeline.captures import tcp, websocket
from wireloom.pipeline.captures.detect import Choice, parse_given
from wireloom.pipeline.captures.reader import CaptureReader
from wireloom.pipeline.options import SourceOptions
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.profile import ENVELOPE, make_envelope

PORTS = {"emp": 5040, "hsp": 5042, "yamp": 5043, "wolpertinger": 5045}


def wire_for(name: str, **given: object) -> Wire:
    return Wire(server=f"10.0.0.2:{PORTS[name]}", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STREAM_PROTOCOLS)
def test_streams_come_out_as_they_were_sent(name: str, tmp_path: Path) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        streams = talk(name, rng)
        wire = exchange(wire_for(name).open(), streams, rng).close()
        for packets in (wire.packets, mixed_up(wire.packets, rng)):
            found = read_packets(packets, tmp_path, cuts=seed, seed=seed)
            assert not found.rejects
            assert found.said("c2s") == expected(name, streams[0], Direction.C2S)
            assert found.said("s2c") == expected(name, streams[1], Direction.S2C)
            assert sorted(found.bytes_by_stream().values()) == sorted(len(s) for s in streams if s)
            assert found.whats() == [("opened", None), ("closed", "close")]


@pytest.mark.parametrize("name", STREAM_PROTOCOLS)
def test_lost_packets_lose_nothing_that_was_captured(name: str, tmp_path: Path) -> None:
    gaps = 0
    for seed in range(8):
        rng = random.Random(seed)
        streams = talk(name, rng, 30)
        wire = wire_for(name).open()
        captured = [0, 0]
        for side in range(2):
            for number, piece in enumerate(cut(streams[side], rng)):
                seen = number == 0 or rng.random() < 0.93
                wire.say(side, piece, seen=seen)
                captured[side] += len(piece) if seen else 0
        found = read_packets(wire.close().packets, tmp_path, cuts=seed, seed=seed)
        assert sorted(found.bytes_by_stream().values()) == sorted(filter(None, captured))
        gaps += found.clauses().count("capture.gap")
    assert gaps > 4


def test_reserved_types_of_hsp_are_the_hubs_only_where_a_setting_says_so(tmp_path: Path) -> None:
    envelope = make_envelope("a/b", b"21", "text/plain")
    said = [
        frames.Data(ENVELOPE, envelope),
        frames.DataAck(1, 0xFD01, b'{"topic": "x"}'),
        frames.DataAck(2, ENVELOPE, envelope),
    ]
    wire = Wire().open()
    for frame in said:
        wire.say(0, frames.encode(frame))
    packets = wire.close().packets
    foreign = read_packets(packets, tmp_path)
    assert foreign.said() == [
        ("event", "hsp/64768", envelope),
        ("request", "hsp/64769", b'{"topic": "x"}'),
        ("request", "hsp/64768", envelope),
    ]
    ours = read_packets(packets, tmp_path, choice=Choice.parse(given=parse_given("hsp.profile=true")))
    assert ours.said() == [("event", "a/b", b"21"), ("request", None, b'{"topic": "x"}'), ("event", "a/b", b"21")]
    assert [m["verb"] for m in ours.messages] == [None, "request", "publish"]
    assert dict(ours.messages[1]["attributes"])["operation"] == "subscribe"  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("hsp.profil=true", "unknown setting 'profil'"),
        ("htp.profile=true", "names the protocol 'htp'; known: emp, hsp"),
        ("hsp.profile=maybe", "profile"),
        ("hsp.profile", "write protocol, setting and value"),
    ],
)
def test_a_wrong_setting_for_captures_is_named(given: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(b"")
    with pytest.raises(ConfigError, match=said):
        SourceOptions.parse({"path": str(tmp_path / "a.pcap"), "set": given})


def test_a_gap_before_the_end_is_given_up_by_the_captures_own_clock(tmp_path: Path) -> None:
    """Both sides are through, and nothing more comes of the connection; another one tells the time."""
    whole, tail = data(b"whole", b"this is not captured")
    for lost in (tail, tail[:9]):
        times = set()
        wire = Wire().open().say(0, whole).say(0, lost, seen=False)
        if lost is not tail:
            wire.say(0, tail[9:])
        wire.close()
        last = wire.packets[-1].time_ns
        later = Wire("10.0.0.7:4000", time_ns=last + 10**9)
        later.step_ns = 20 * 10**9
        later.open().say(0, whole).say(0, whole)
        for cuts in (0, 6):
            found = read_packets([*wire.packets, *later.packets], tmp_path, cuts=cuts, seed=3)
            own = [row for row in found.rejects if row["clause"] == "capture.gap"]
            assert [row["size"] for row in own] == [len(tail) - len(lost) if lost is not tail else 0]
            assert f"{len(lost)} bytes were not captured" in str(own[0]["detail"])
            times.add(own[0]["time"])
            closed = [e for e in found.events if e.what == "closed"]  # type: ignore[attr-defined]
            assert (closed[0].reason, closed[0].time_us) == ("close", last // 1000)  # type: ignore[attr-defined]
        assert len(times) == 1


def test_tls_is_told_by_its_bytes_unless_ports_alone_count(tmp_path: Path) -> None:
    hello = bytes.fromhex("1603010005") + b"hello"
    packets = Wire().open().say(0, hello).close().packets
    told = read_packets(packets, tmp_path)
    assert not told.messages and not told.rejects and not told.events
    by_port = read_packets(packets, tmp_path, choice=Choice.parse(auto=False))
    assert [(row["clause"], row["size"]) for row in by_port.rejects] == [("hsp.command.unknown", len(hello))]


def data(*bodies: bytes) -> list[bytes]:
    return [frames.encode(frames.Data(7, body)) for body in bodies]


def test_after_a_gap_the_rest_of_that_direction_is_one_reject_that_names_it(tmp_path: Path) -> None:
    one, two, three, four = data(b"one", b"two", b"three", b"four")
    wire = Wire().open().say(0, one).say(0, two, seen=False).say(0, three).say(0, four).say(1, one).close()
    found = read_packets(wire.packets, tmp_path)
    assert [body for _, _, body in found.said("c2s")] == [b"one"]
    assert [body for _, _, body in found.said("s2c")] == [b"one"]
    (reject,) = found.rejects
    assert (reject["clause"], reject["size"], reject["bytes"]) == ("capture.gap", len(three + four), three + four)
    assert f"{len(two)} bytes were not captured" in str(reject["detail"])


def test_wolpertinger_goes_on_at_the_next_line_after_a_gap(tmp_path: Path) -> None:
    streams = talk("wolpertinger", random.Random(3), 12)
    lines = streams[0].splitlines(keepends=True)
    wire = wire_for("wolpertinger").open()
    wire.say(0, lines[0]).say(0, lines[1][:9]).say(0, lines[1][9:-9], seen=False).say(0, lines[1][-9:])
    for line in lines[2:]:
        wire.say(0, line)
    found = read_packets(wire.close().packets, tmp_path)
    (reject,) = found.rejects
    assert (reject["clause"], reject["bytes"]) == ("capture.gap", lines[1][:9] + lines[1][-9:])
    assert len(found.said("c2s")) == len(expected("wolpertinger", streams[0], Direction.C2S)) - 1


def test_the_first_byte_wins_where_segments_overlap(tmp_path: Path) -> None:
    (whole,) = data(b"first")
    (other,) = data(b"OTHER")
    wire = Wire().open()
    base = wire.isn[0] + 1
    wire.add(0, base + 7, whole[7:])
    wire.add(0, base, other)
    wire.position[0] = len(whole)
    found = read_packets(wire.close().packets, tmp_path)
    assert [body for _, _, body in found.said()] == [b"first"] and not found.rejects


def test_sessions_one_after_another_on_the_same_ports(tmp_path: Path) -> None:
    one, two = data(b"one", b"two")
    first = Wire(isn=(100, 200)).open().say(0, one).close()
    second = Wire(isn=(90_000, 70_000), time_ns=first.time_ns).open().say(0, two).reset()
    found = read_packets(first.packets + second.packets, tmp_path)
    assert len({m["connection"] for m in found.messages}) == 2
    assert sorted(m["body"] for m in found.messages) == [b"one", b"two"]  # type: ignore[type-var]
    assert [m["sequence"] for m in found.messages] == [0, 0]
    assert found.whats() == [("opened", None), ("opened", None), ("closed", "close"), ("closed", "reset")]


def test_silence_for_the_idle_limit_ends_a_connection(tmp_path: Path) -> None:
    one, two, *more = data(b"one", b"two", b"3", b"4", b"5")
    wire = Wire().open().say(0, one)
    wire.time_ns += 700 * 10**9
    for frame in (two, *more):
        wire.say(0, frame)
    wire.close()
    found = read_packets(wire.packets, tmp_path)
    assert len({m["connection"] for m in found.messages}) == 2 and len(found.messages) == 5
    assert ("closed", "idle") in found.whats()
    assert len({m["connection"] for m in read_packets(wire.packets, tmp_path, idle_s=1000).messages}) == 1


def test_a_connection_that_began_before_the_capture_is_read_from_the_first_frames_that_hold(tmp_path: Path) -> None:
    bodies = [bytes([65 + n]) * (20 + n) for n in range(12)]
    encoded = data(*bodies)
    wire = Wire()
    wire.say(0, b"\xff" + encoded[0][3:])  # the end of a frame whose beginning was before the capture
    for frame in encoded[1:]:
        wire.say(0, frame)
    found = read_packets(wire.packets, tmp_path)
    assert [body for _, _, body in found.said()] == bodies[1:]
    (reject,) = found.rejects
    assert (reject["clause"], reject["size"]) == ("capture.midstream", len(encoded[0]) - 2)
    assert ("opened", None) not in found.whats()


def test_a_connection_seen_from_a_frame_on_is_marked_and_read_from_its_first_byte(tmp_path: Path) -> None:
    wire = Wire()
    for frame in data(b"1", b"2", b"3", b"4"):
        wire.say(0, frame)
    found = read_packets(wire.packets, tmp_path)
    assert len(found.messages) == 4
    assert [(r["clause"], r["size"]) for r in found.rejects] == [("capture.midstream", 0)]


def test_a_violation_is_one_reject_with_everything_after_it(tmp_path: Path) -> None:
    one, two, three = data(b"one", b"two", b"three")
    wire = Wire().open().say(0, one).say(0, b"\x63" + two).say(0, three).say(1, one).close()
    for cuts in range(4):
        found = read_packets(wire.packets, tmp_path, cuts=cuts, seed=cuts)
        (reject,) = found.rejects
        assert (reject["clause"], reject["size"]) == ("hsp.command.unknown", 1 + len(two + three))
        assert len(found.messages) == 2


def test_half_a_frame_at_the_end_of_a_stream_is_a_reject(tmp_path: Path) -> None:
    one, two = data(b"one", b"two")
    found = read_packets(Wire().open().say(0, one).say(0, two[:5]).close().packets, tmp_path)
    assert [(r["clause"], r["bytes"]) for r in found.rejects] == [("stream.cut", two[:5])]


def test_bytes_after_a_reset_are_rejects(tmp_path: Path) -> None:
    one, two = data(b"one", b"two")
    wire = Wire().open().say(0, one).reset(0).say(1, two)
    found = read_packets(wire.packets, tmp_path)
    assert [(r["clause"], r["bytes"], r["direction"]) for r in found.rejects] == [("capture.after-close", two, "s2c")]


def test_bytes_after_the_end_of_a_connection_that_is_recognised_are_rejects_however_it_is_cut(tmp_path: Path) -> None:
    streams = talk("hsp", random.Random(4))
    wire = exchange(Wire(server="10.0.0.2:7777").open(), streams, random.Random(4)).reset(0).say(1, b"more")
    for cuts in (0, len(wire.packets) - 1):
        found = read_packets(wire.packets, tmp_path, cuts=cuts)
        assert [(r["clause"], r["bytes"]) for r in found.rejects] == [("capture.after-close", b"more")]


@pytest.mark.parametrize("name", ["hsp", "wolpertinger"])
def test_bytes_that_come_after_their_hole_was_given_up_are_rejects_once(name: str, tmp_path: Path) -> None:
    stream, _ = talk(name, random.Random(2), 20)
    first, second, third = len(stream) // 4, len(stream) // 2, len(stream) * 3 // 4
    wire = wire_for(name).open().say(0, stream[:first])
    base, hole = wire.isn[0] + 1, stream[first:second]
    wire.add(0, base + second, stream[second:third])
    wire.time_ns += 31 * 10**9
    wire.add(0, base + third, stream[third:])  # here it is given up
    wire.add(0, base + first + 5, hole[5:10])
    wire.add(0, base + first - 3, stream[first - 3 : second + 3])  # all of it, between what was taken
    wire.add(0, base, stream)
    wire.position[0] = len(stream)
    wire.close()
    rows = []
    for cuts in (0, 3, len(wire.packets) - 1):
        found = read_packets(wire.packets, tmp_path, cuts=cuts)
        late = [(r["clause"], r["bytes"]) for r in found.rejects if "late" in str(r["detail"])]
        assert sorted(late) == sorted(("capture.gap", part) for part in (hole[:5], hole[5:10], hole[10:]))
        assert sum(found.bytes_by_stream().values()) == len(stream)
        place = min(int(str(r["offset"])) for r in found.rejects if r["bytes"] == hole[5:10])
        rows.append([(r["clause"], r["time"], r["size"], r["bytes"]) for r in found.rejects])
        if not cuts:
            assert (tmp_path / "0000.pcap").read_bytes()[place : place + 5] == hole[5:10]
    assert sorted(rows[0]) == sorted(rows[1]) == sorted(rows[2])


def test_bytes_from_before_the_first_that_was_taken_are_rejects(tmp_path: Path) -> None:
    encoded = data(*(bytes([65 + n]) * 20 for n in range(12)))
    wire = Wire().say(0, encoded[0], seen=False)
    for frame in encoded[1:]:
        wire.say(0, frame)
    wire.add(0, wire.isn[0] + 1, encoded[0])
    wire.add(0, wire.isn[0] + 1, encoded[0] + encoded[1])
    for cuts in (0, 5):
        found = read_packets(wire.packets, tmp_path, cuts=cuts)
        assert len(found.said()) == 11
        assert [r["bytes"] for r in found.rejects if r["clause"] == "capture.gap"] == [encoded[0]]


def test_what_waits_behind_the_end_of_a_stream_is_a_reject(tmp_path: Path) -> None:
    one, two = data(b"one", b"two")
    wire = Wire().open()
    wire.add(0, wire.isn[0] + 1 + len(one) + 9, two)
    for cuts in (0, 4):
        found = read_packets([*wire.packets, *Wire().say(0, one).close().packets], tmp_path, cuts=cuts)
        assert [body for _, _, body in found.said()] == [b"one"]
        assert [(r["clause"], r["bytes"]) for r in found.rejects] == [("capture.gap", two)]


def test_of_many_holes_the_latest_are_remembered(tmp_path: Path) -> None:
    pieces = data(*(b"%4d" % n for n in range(200)))
    wire = Wire(step_ns=31 * 10**9).open()
    size, base = len(pieces[0]), wire.isn[0] + 1
    for number in range(0, 200, 2):
        wire.add(0, base + number * size, pieces[number])
    for number in range(1, 199, 2):
        wire.add(0, base + number * size, pieces[number])
    found = read_packets(wire.packets, tmp_path, cuts=20, idle_s=10**6)
    late = [r["bytes"] for r in found.rejects if "late" in str(r["detail"])]
    assert late == pieces[1:199:2][-tcp.MOST_HOLES :]


def test_a_segment_cut_by_the_snap_length_leaves_a_gap(tmp_path: Path) -> None:
    from tests.captures.writing import Captured

    one, two, three = data(b"one", b"t" * 80, b"three")
    wire = Wire().open().say(0, one).say(0, two).say(0, three).close()
    long = wire.packets[4]
    wire.packets[4] = Captured(long.time_ns, long.data, kept=len(long.data) - 30)
    found = read_packets(wire.packets, tmp_path)
    assert [body for _, _, body in found.said()] == [b"one"]
    (reject,) = found.rejects
    assert (reject["clause"], reject["size"]) == ("capture.gap", len(two) - 30 + len(three))
    assert "30 bytes were not captured" in str(reject["detail"])


def test_sequence_numbers_wrap_around(tmp_path: Path) -> None:
    rng = random.Random(5)
    bodies = [rng.randbytes(300) for _ in range(40)]
    wire = exchange(Wire(isn=(2**32 - 3000, 2**32 - 5)).open(), (b"".join(data(*bodies)), b""), rng).close()
    found = read_packets(mixed_up(wire.packets, rng), tmp_path)
    assert [body for _, _, body in found.said()] == bodies


def test_websocket_is_taken_off(tmp_path: Path) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        streams = talk("yamp", rng, 25)
        wrapped = tuple(in_websocket(s, rng, to_server=side == 0) for side, s in enumerate(streams))
        for port in (5044, 8080):  # by its port; recognised
            wire = exchange(Wire(server=f"10.0.0.2:{port}").open(), wrapped, rng, 900).close()  # type: ignore[arg-type]
            found = read_packets(mixed_up(wire.packets, rng), tmp_path, cuts=seed, seed=seed)
            assert not found.rejects
            assert found.said("c2s") == expected("yamp", streams[0], Direction.C2S)
            assert found.said("s2c") == expected("yamp", streams[1], Direction.S2C)
            assert sorted(found.bytes_by_stream().values()) == sorted(map(len, wrapped))


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("port", [5044, 8080])  # by its port; recognised
def test_compressed_websocket_messages_are_unpacked(port: int, anew: bool, tmp_path: Path) -> None:
    """permessage-deflate, RFC 7692, with and without a context that goes on from one message to the next."""
    for seed in range(4):
        rng = random.Random(seed)
        streams = talk("yamp", rng, 25)
        wrapped = tuple(
            in_websocket(s, rng, to_server=side == 0, most=400, packing=PerMessageDeflate(anew, anew, 15, 12))
            for side, s in enumerate(streams)
        )
        head = wrapped[0].index(b"\r\n\r\n") + 4
        wire = Wire(server=f"10.0.0.2:{port}").open().say(0, wrapped[0][:head])
        exchange(wire, (wrapped[0][head:], wrapped[1]), rng, 900).close()
        whole = read_packets(mixed_up(wire.packets, rng), tmp_path)
        assert not whole.rejects
        assert whole.said("c2s") == expected("yamp", streams[0], Direction.C2S)
        assert whole.said("s2c") == expected("yamp", streams[1], Direction.S2C)
        in_parts = read_packets(wire.packets, tmp_path, cuts=12, seed=seed)
        assert not in_parts.rejects and in_parts.said("s2c") == whole.said("s2c")
        for found in (whole, in_parts):
            assert sorted(found.bytes_by_stream().values()) == sorted(map(len, wrapped))


def test_a_compressed_message_has_the_time_of_its_last_byte_and_the_place_of_its_first(tmp_path: Path) -> None:
    rng, packing = random.Random(3), PerMessageDeflate(False, False, 15, 15)
    stream, _ = talk("yamp", rng, 1)
    head = in_websocket(b"", rng, to_server=True, packing=packing).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    packed = bytes(packing.encode(Frame(Opcode.BINARY, stream)).data)
    frame = websocket_frame(packed, rng, opcode=0x42, final=True, masked=True)
    wire = Wire(server="10.0.0.2:5044").open().say(0, head).say(0, frame[:10]).say(0, frame[10:])
    found = read_packets(wire.packets, tmp_path)
    data, first = (tmp_path / "0000.pcap").read_bytes(), found.messages[0]
    assert first["offset"] == data.index(frame[:10])
    assert first["time"] == datetime.fromtimestamp(wire.packets[-1].time_ns / 1e9, UTC)


def packed_by(side: int, how: str, rng: random.Random) -> tuple[list[bytes], tuple[bytes, bytes], int]:
    """Both streams, with a packed message in one of them that cannot be unpacked, and how many bytes are lost by it."""
    streams = talk("yamp", rng, 12)
    agreed = how != "nobody agreed"
    wrapped = [
        in_websocket(stream, rng, to_server=to == 0, packing=PerMessageDeflate(True, True, 15, 15) if agreed else None)
        for to, stream in enumerate(streams)
    ]
    content = {
        "nobody agreed": zlib.compress(b"packed"),
        "damaged": b"\xff" * 40,
        "too large": zlib.compress(bytes(websocket.LARGEST_MESSAGE + 1), wbits=-15),
    }[how]
    packed = websocket_frame(content, rng, opcode=0x42, final=True, masked=side == 0)
    closing = websocket_frame(b"\x03\xe8", rng, opcode=8, final=True, masked=side == 0)
    wrapped[side] = wrapped[side][: -len(closing)] + packed + closing
    return wrapped, streams, len(packed) + len(closing)


@pytest.mark.parametrize("how", ["nobody agreed", "damaged", "too large"])
@pytest.mark.parametrize("side", [0, 1])
def test_compressed_websocket_messages_that_cannot_be_unpacked_are_rejects_that_say_so(
    side: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "LARGEST_MESSAGE", 1 << 20)
    rng = random.Random(3)
    wrapped, streams, lost = packed_by(side, how, rng)
    wire = exchange(Wire(server="10.0.0.2:5044").open(), (wrapped[0], wrapped[1]), rng, 3000).close()
    found = read_packets(wire.packets, tmp_path, cuts=3, seed=side)
    assert found.clauses() == ["websocket.compressed"]
    assert "permessage-deflate" in str(found.rejects[0]["detail"])
    assert found.rejects[0]["size"] == lost
    assert found.said("c2s") == expected("yamp", streams[0], Direction.C2S)
    assert found.said("s2c") == expected("yamp", streams[1], Direction.S2C)
    assert sorted(found.bytes_by_stream().values()) == sorted(map(len, wrapped))


def test_a_compressed_websocket_message_that_never_ends_is_a_reject(tmp_path: Path) -> None:
    rng = random.Random(3)
    stream, _ = talk("yamp", rng, 12)
    wrapped = in_websocket(stream, rng, to_server=True, most=60, packing=PerMessageDeflate(False, False, 15, 15))
    wire = exchange(Wire(server="10.0.0.2:5044").open(), (wrapped[:-20], b""), rng, 100)
    for cuts in (0, 9):
        found = read_packets(wire.packets, tmp_path, cuts=cuts)
        assert found.clauses() == ["stream.cut"]
        assert sum(found.bytes_by_stream().values()) == len(wrapped) - 20


@pytest.mark.parametrize("broken", ["a gap", "a violation"])
def test_what_follows_in_a_broken_websocket_counts_once_however_it_is_cut(broken: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    stream, _ = talk("yamp", rng, 20)
    if broken == "a violation":
        stream = stream[: len(stream) // 2] + b"\xff" * 40 + stream[len(stream) // 2 :]
    wrapped = in_websocket(stream, rng, to_server=True, most=60)
    # The gap is after the first byte of a frame's header; it is given up long before the connection ends.
    at = wrapped.index(b"\r\n\r\n") + 5
    missing = 4 if broken == "a gap" else 0
    wire = Wire(server="10.0.0.2:5044", step_ns=10 * 10**9).open().say(0, wrapped[:at])
    wire.say(0, wrapped[at : at + missing], seen=not missing)
    for piece in cut(wrapped[at + missing :], rng, 30):
        wire.say(0, piece)
    rows = []
    for cuts in (0, 5, 30):
        found = read_packets(wire.packets, tmp_path, cuts=cuts)
        assert sum(found.bytes_by_stream().values()) == len(wrapped) - missing
        rows.append([(row["clause"], row["time"], row["size"], row["bytes"]) for row in found.rejects])
    assert len(rows[0]) == 1 and rows[0] == rows[1] == rows[2]


def test_numbers_of_topics_have_names_where_a_map_is_given(tmp_path: Path) -> None:
    from tests.captures.writing import pcap

    bodies = [frames.encode(frames.Data(number, b"x")) for number in (7, 8, 7)]
    wire = Wire(server="10.0.0.2:5042").open().say(0, b"".join(bodies)).close()
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(wire.packets))
    for name, text in (("map.json", '{"7": "sensors/kitchen"}'), ("map.toml", '[topics]\n7 = "sensors/kitchen"\n')):
        (tmp_path / name).write_text(text)
        options = SourceOptions.parse({"path": str(path), "topics": str(tmp_path / name)}).captures
        found = read_files([path], CaptureReader(Choice.parse(), topics=options.topics))
        plain = read_files([path])
        unnamed = plain.said()[1][1]
        assert [topic for _, topic, _ in found.said()] == ["sensors/kitchen", unnamed, "sensors/kitchen"]
        assert plain.said()[0][1] != "sensors/kitchen"
    (tmp_path / "wrong.json").write_text('{"seven": 7}')
    for wrong, words in (("wrong.json", "must map numbers to topics"), ("none.json", "cannot read the map of topics")):
        with pytest.raises(ConfigError, match=words):
            SourceOptions.parse({"path": str(path), "topics": str(tmp_path / wrong)})


@pytest.mark.parametrize("name", STREAM_PROTOCOLS)
def test_protocols_are_recognised_by_their_first_bytes(name: str, tmp_path: Path) -> None:
    rng = random.Random(4)
    streams = talk(name, rng)
    wire = exchange(Wire(server="10.0.0.2:7777").open(), streams, rng).close()
    found = read_packets(wire.packets, tmp_path, cuts=3)
    assert {m["protocol"] for m in found.messages} == {name}
    assert found.said("c2s") == expected(name, streams[0], Direction.C2S)
    assert not read_packets(wire.packets, tmp_path, choice=Choice.parse(auto=False)).messages
    by_port = read_packets(wire.packets, tmp_path, choice=Choice.parse(f"{name}=7777", auto=False))
    assert by_port.said("c2s") == found.said("c2s")


def test_other_traffic_is_counted_and_left_out(tmp_path: Path) -> None:
    from tests.captures.writing import pcap

    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    web = Wire(server="10.0.0.2:80").open().say(0, request).say(1, b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 900).close()
    secret = Wire(server="10.0.0.3:5042").open().say(0, bytes.fromhex("1603010200") + b"x" * 512).close()
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(web.packets + secret.packets))
    reader = CaptureReader(Choice.parse())
    found = read_files([path], reader)
    assert not found.messages and not found.rejects and not found.events
    assert reader.counts.other_bytes == len(request) + 19 + 900 + 517
    assert reader.counts.other_packets == reader.counts.packets == len(web.packets + secret.packets)


def test_a_second_reading_gives_the_same_rows(tmp_path: Path) -> None:
    rng = random.Random(9)
    wire = exchange(Wire().open(), talk("hsp", rng, 40), rng).close(RST, sides=(0,))
    assert read_packets(wire.packets, tmp_path) == read_packets(wire.packets, tmp_path)
    assert wire.packets[0].time_ns == START_NS


def test_pieces_of_a_message_that_never_was_complete_are_a_reject(tmp_path: Path) -> None:
    one, two, three, other = (
        b"fragment_index:0;fragment_count:4;MESSAGE_ID:7;PFJl\n",
        b"fragment_index:2;fragment_count:4;message_id:7;bW90\n",
        b"fragment_count:4;fragment_index:1;message_id:7;ZUVy\n",
        b"result:0;message_id:5;\n",
    )
    ends = {
        "closed": lambda wire: wire.close().packets,
        "reset": lambda wire: wire.reset().packets,
        "end of the capture": lambda wire: wire.packets,
    }
    for name, end in ends.items():
        wire = wire_for("wolpertinger").open().say(0, other).say(0, one).say(0, two + other).say(1, other).say(0, three)
        packets = end(wire)
        for cuts in (0, 3):  # read in one go, and in batches with the state frozen between them
            found = read_packets(packets, tmp_path, cuts=cuts, seed=1)
            (reject,) = found.rejects
            assert reject["clause"] == "wolpertinger.fragment.dropped", name
            assert (reject["bytes"], reject["size"]) == (one + two + three, len(one + two + three)), name
            assert reject["direction"] == "c2s"
            place = int(str(reject["offset"]))
            assert Path(str(reject["file"])).read_bytes()[place : place + len(one)] == one, (name, cuts)
            assert sum(found.bytes_by_stream().values()) == len(one + two + three) + 3 * len(other), name


def test_the_size_of_a_split_message_is_that_of_all_its_pieces(tmp_path: Path) -> None:
    payload = base64.b64encode(b"<RemoteError><ComponentName/><ErrorCode>1</ErrorCode></RemoteError>")
    pieces = [
        b"fragment_index:%d;fragment_count:2;message_id:7;%s\n" % (index, part)
        for index, part in enumerate((payload[:20], payload[20:]))
    ]
    wire = wire_for("wolpertinger").open()
    for piece in pieces:
        wire.say(0, piece)
    (message,) = read_packets(wire.close().packets, tmp_path).messages
    assert message["wire_size"] == sum(map(len, pieces))


def test_keys_beside_a_capture_open_what_is_encrypted(tmp_path: Path) -> None:
    both = pair({"authenticate": 2})
    both.settle()
    both.client.send(Message(Kind.REQUEST, "Test.Echo", b'["secret"]', content_type="application/json"), 0.0)
    both.settle()
    wire = wire_for("wolpertinger").open()
    for who, line in both.lines:
        wire.say(0 if who == "client" else 1, line)
    packets = wire.close().packets

    def requests() -> tuple[object, object]:
        found = read_packets(packets, tmp_path)
        assert not found.rejects
        return [(m["kind"], m["body"]) for m in found.messages if m["direction"] == "c2s" and m["kind"] != "ack"][-1]

    assert requests()[0] == "other"
    wrong = {"aes_key": "00" * 32, "aes_iv": "00" * 16}
    known = [("yamp", dict(both.client.secrets)), ("wolpertinger", wrong)]
    lines = [json.dumps({"protocol": name, "settings": values}) for name, values in known]
    keys = tmp_path / "keys.jsonl"
    keys.write_text("\n".join(lines))
    assert requests()[0] == "other"
    right = json.dumps({"protocol": "wolpertinger", "settings": dict(both.client.secrets)})
    keys.write_text("\n".join([*lines, "", right, ""]))
    assert requests() == ("request", b'["secret"]')
    keys.write_text(right + '\n{"settings": {}}\n')
    with pytest.raises(ConfigError, match=r"keys\.jsonl:2: a line must be"):
        requests()
    keys.rename(tmp_path / "elsewhere")
    given = {"path": str(tmp_path / "0000.pcap"), "keys": str(tmp_path / "elsewhere")}
    with pytest.raises(ConfigError, match=r"elsewhere:2: a line must be"):
        SourceOptions.parse(given)
    (tmp_path / "elsewhere").write_text(right)
    assert requests()[0] == "other"
    found = read_files([given["path"]], CaptureReader(Choice.parse(), keys=SourceOptions.parse(given).keys))
    assert ("request", b'["secret"]') in [(m["kind"], m["body"]) for m in found.messages]
    with pytest.raises(ConfigError, match="cannot read the key file: No such file"):
        SourceOptions.parse({**given, "keys": str(tmp_path / "nowhere")})
