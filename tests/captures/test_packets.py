"""The kernels that find packets and read their headers, against the plain readers and against what was written."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.captures import plain, writing
from tests.captures.writing import START_NS, Captured
from wireloom.pipeline.captures import pcap
from wireloom.pipeline.captures.headers import parse_headers
from wireloom.pipeline.captures.packets import PacketScanner

A, B = "10.0.0.1:4000", "10.0.0.2:5042"
A6, B6 = "[fd00::1]:4000", "[fd00::2]:5042"


def scan(data: bytes, pieces: list[int] | None = None) -> list[plain.Packet | pcap.CaptureDamage]:
    """Everything the kernel finds, in the form of the plain reader; the data arrives in pieces that end at `pieces`."""
    scanner = PacketScanner()
    found: list[plain.Packet | pcap.CaptureDamage] = []
    base = 0
    buffer = b""
    given = 0
    for end in [*(pieces or []), len(data)]:
        buffer += data[given:end]
        given = end
        final = end == len(data)
        while True:
            array = np.frombuffer(buffer, np.uint8)
            packets, at = scanner.scan(array, 0, len(buffer), base, final=final)
            for row in range(len(packets)):
                start = int(packets.offset[row])
                content = buffer[start : start + int(packets.captured[row])]
                found.append(
                    plain.Packet(
                        base + start,
                        int(packets.time_ns[row]),
                        int(packets.link[row]),
                        int(packets.original[row]),
                        content,
                    )
                )
            buffer = buffer[at:]
            base += at
            if not at or scanner.damage is not None:
                break
        if scanner.damage is not None:
            found.append(scanner.damage)
            break
    return found


def some_packets(count: int, link: int, rng: random.Random) -> list[Captured]:
    packets = []
    for number in range(count):
        v6 = link == 229 or (link != 228 and rng.random() < 0.5)
        ends = (A6, B6) if v6 else (A, B)
        payload = rng.randbytes(rng.randrange(60))
        if rng.random() < 0.7:
            content, protocol = writing.tcp(*ends, number, payload, options=rng.choice((b"", b"\1\1\1"))), 6
        else:
            content, protocol = writing.udp(*ends, payload), 17
        extensions = rng.choice(((), ((0, bytes(6)), (60, bytes(14)))))
        packet = writing.ip(*ends, protocol, content, options=rng.choice((b"", b"\1\1")), extensions=extensions)
        tags = rng.choice(((), (7,), (7, 9)))
        whole = writing.linked(packet, link, tags=tags)
        kept = rng.choice((None, None, rng.randrange(len(whole) + 1)))
        packets.append(Captured(START_NS + number * 1_000_001_000, whole, kept))
    return packets


@pytest.mark.parametrize("nano", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_pcap_in_both_byte_orders_and_resolutions(order: str, nano: bool) -> None:
    packets = some_packets(40, 1, random.Random(1))
    found = scan(writing.pcap(packets, order=order, nano=nano))
    assert [(p.time_ns, p.data, p.original, p.link) for p in found] == [
        (p.time_ns, p.bytes, len(p.data), 1) for p in packets
    ]


@pytest.mark.parametrize("resolution", [0, 3, 6, 9, 12, 0x80 | 0, 0x80 | 10, 0x80 | 32, 0x80 | 40])
@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_any_resolution_and_offset(order: str, resolution: int) -> None:
    offset_s = START_NS // 10**9 - 5 if resolution in (12, 0x80 | 40) else 0
    times = [START_NS, START_NS + 10**9]
    packets = [Captured(time, writing.linked(writing.ip(A, B, 6, writing.tcp(A, B, 1, b"x")), 1)) for time in times]
    data = writing.pcapng(packets, order=order, resolution=resolution, offset_s=offset_s)
    assert [p.time_ns for p in scan(data)] == times == [p.time_ns for p in plain.read_packets(data)]


def test_sections_of_either_order_with_several_interfaces_and_all_kinds_of_packet_blocks() -> None:
    one = Captured(START_NS, b"one", interface=1)
    two = Captured(START_NS + 5000, b"second")
    three = Captured(START_NS + 7000, b"third")
    data = (
        writing.section("<") + writing.interface(113) + writing.interface(101, resolution=9)
        + writing.enhanced(one, resolution=9) + writing.block(0x0BAD, b"something else")
        + writing.section(">") + writing.interface(276, ">", snap=4)
        + writing.enhanced(two, ">", kind=2) + writing.simple(three, ">")
    )  # fmt: skip
    found = scan(data)
    assert [(p.data, p.link, p.time_ns, p.original) for p in found] == [
        (b"one", 101, START_NS, 3), (b"second", 276, START_NS + 5000, 6), (b"thir", 276, START_NS + 5000, 5),
    ]  # fmt: skip
    assert found == list(plain.read_packets(data))


def mixed(rng: random.Random) -> bytes:
    link = rng.choice(writing.LINKS)
    order = rng.choice("<>")
    packets = some_packets(12, link, rng)
    if rng.random() < 0.4:
        return writing.pcap(packets, link, order=order, nano=rng.random() < 0.5)
    whole = b""
    for _ in range(2):
        whole += writing.pcapng(packets, link, order=order, resolution=rng.choice((6, 9, 0x80 | 20)))
        whole += writing.simple(packets[0], order) + writing.enhanced(packets[1], order, kind=2, resolution=9)
    return whole


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        changed[rng.randrange(len(changed))] = rng.choice((0, 1, 4, 255, rng.randrange(256)))
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.3 else changed)


def test_kernel_and_plain_reader_agree_on_mutated_captures_however_they_are_cut() -> None:
    rng = random.Random(7)
    damaged = 0
    for _ in range(400):
        data = mutated(mixed(rng), rng)
        expected = list(plain.read_packets(data))
        pieces = sorted(rng.sample(range(len(data)), min(3, len(data))))
        assert scan(data) == expected
        assert scan(data, pieces) == expected
        damaged += any(isinstance(found, pcap.CaptureDamage) for found in expected)
    assert 50 < damaged < 350


def headers_by_kernel(packets: list[bytes], link: int) -> list[plain.Segment | None]:
    data = writing.pcap([Captured(0, packet) for packet in packets], link)
    found, _ = PacketScanner().scan(np.frombuffer(data, np.uint8), 0, len(data), final=True)
    segments = parse_headers(found, 0, 0)
    rows: list[plain.Segment | None] = []
    for row in range(len(segments)):
        if segments.protocol[row] == 0:
            rows.append(None)
            continue
        address = b"".join(int(half).to_bytes(8, "big") for half in segments.addresses[:, row])
        at = int(found.offset[row])
        seq = int(segments.seq[row]) - (at if segments.protocol[row] == 252 else 0)
        rows.append(
            plain.Segment(
                int(segments.protocol[row]), address[:16], address[16:], int(segments.ports[0, row]),
                int(segments.ports[1, row]), int(segments.start[row]) - at, int(segments.kept[row]),
                int(segments.size[row]), seq, int(segments.ack[row]), int(segments.flags[row]),
            )
        )  # fmt: skip
    return rows


@pytest.mark.parametrize("link", writing.LINKS)
def test_payloads_are_found_behind_every_link_type(link: int) -> None:
    ends = (A6, B6) if link == 229 else (A, B)
    segment = writing.tcp(*ends, 77, b"payload", writing.ACK | writing.PSH, 88, options=b"\1\1\1")
    packet = writing.linked(writing.ip(*ends, 6, segment, options=b"\1\1\1"), link)
    (found,) = headers_by_kernel([packet], link)
    assert found is not None
    assert packet[found.start : found.start + found.kept] == b"payload"
    assert (found.protocol, found.source_port, found.destination_port) == (6, 4000, 5042)
    assert (found.seq, found.ack, found.flags, found.size) == (77, 88, 24, 7)
    assert pcap.address(found.source) == ends[0].rpartition(":")[0].strip("[]")


def test_ipv6_extension_headers_are_passed_over() -> None:
    extensions = ((0, bytes(6)), (43, bytes(14)), (60, bytes(22)))
    packet = writing.ip(A6, B6, 17, writing.udp(A6, B6, b"payload"), extensions=extensions)
    (found,) = headers_by_kernel([packet], 101)
    assert found is not None and packet[found.start :] == b"payload"


def test_a_packet_cut_by_the_snap_length_says_how_much_is_missing() -> None:
    packet = writing.ip(A, B, 6, writing.tcp(A, B, 1, b"p" * 100))
    (found,) = headers_by_kernel([packet[:60]], 101)
    assert found is not None and (found.kept, found.size) == (20, 100)


def test_kernel_and_plain_headers_agree_on_mutated_packets() -> None:
    rng = random.Random(11)
    seen: set[int] = set()
    for _ in range(150):
        link = rng.choice(writing.LINKS)
        packets = [mutated(packet.bytes or b"\0", rng) for packet in some_packets(10, link, rng)]
        fragment = writing.ip(A6, B6, 17, b"f" * 16, offset=16, more=True)
        packets += [mutated(writing.linked(fragment, link), rng)]
        expected = [plain.parse_headers(packet, link) for packet in packets]
        assert headers_by_kernel(packets, link) == expected
        seen.update(0 if segment is None else segment.protocol for segment in expected)
    assert seen >= {0, 1, 6, 17}


def test_upper_pdu_tags_agree_on_mutated_packets() -> None:
    from wireloom.journal.blocks import encode_tags

    rng = random.Random(3)
    for _ in range(200):
        whole = encode_tags("hsp", "10.0.0.1:4000", "10.0.0.2:5042") + b"payload"
        packets = [mutated(whole, rng) for _ in range(5)]
        assert headers_by_kernel(packets, 252) == [plain.parse_headers(packet, 252) for packet in packets]
    (found,) = headers_by_kernel([whole], 252)
    assert found is not None and whole[found.seq : found.seq + found.ack] == b"wireloom.hsp"
    assert whole[found.start :] == b"payload" and found.destination_port == 5042
