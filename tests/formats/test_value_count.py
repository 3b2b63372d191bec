"""How many values a body holds is known before any of them is made, and agrees with what the libraries make of it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import bson
import cbor2
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.formats.body_formats import CONTENT_TYPES, body_format
from wireloom.formats.conversion import QUICK, Conversion, conversion_of, convert, takes_long
from wireloom.formats.value_count import COUNTERS, LARGE_NUMBERS, TooManyValues, count_cbor
from wireloom.model import BodyError, Kind, Message, ProtocolViolation
from wireloom.protocols.contract import Role, Session
from wireloom.protocols.registry import protocol

WRITE: dict[str, Callable[[object], bytes]] = {
    "json": lambda value: json.dumps(value).encode(),
    "msgpack": msgpack.packb,
    "cbor": cbor2.dumps,
    "bson": lambda value: bson.encode({"": value}),
}
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text().filter(lambda t: "\0" not in t), inner),
)


def values_in(value: object) -> int:
    """All values in a value, itself and the keys of maps included."""
    if isinstance(value, list):
        return 1 + sum(map(values_in, value))
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(values_in, value.values()))
    return 1


@given(VALUES)
def test_every_value_of_cbor_and_msgpack_is_counted(value: object) -> None:
    for name in ("cbor", "msgpack"):
        assert COUNTERS[name](WRITE[name](value), 1 << 30) == values_in(value)


@given(VALUES, st.integers(0, 20))
def test_a_body_with_more_values_than_may_be_is_refused_in_every_format(value: object, most: int) -> None:
    for name, write in WRITE.items():
        # Names of BSON come with their values; texts of JSON are no lists.
        held = values_in(value) - (1 if name == "bson" else 0)
        try:
            COUNTERS[name](write(value), most)
        except TooManyValues:
            # JSON is counted by its brackets and commas: an empty list or map counts for two.
            assert (2 * held if name == "json" else held) > most or name == "bson", "refused although it is few enough"
        else:
            assert name == "bson" or held <= most or name == "json"


def test_text_full_of_commas_is_one_value_of_json() -> None:
    assert COUNTERS["json"](json.dumps("[,:{" * 1000 + '\\"').encode(), 10) == 1


@pytest.mark.parametrize(
    "head", [b"\xd8\x1c", b"\xd9\x00\x1c", b"\xda\x00\x00\x00\x1d", b"\xdb" + bytes(7) + b"\x19", b"\xd9\x01\x00"]
)
def test_references_are_refused_however_their_tag_is_written(head: bytes) -> None:
    with pytest.raises(ValueError, match="references"):
        count_cbor(b"\x81" + head + b"\x00", 100)
    with pytest.raises(ProtocolViolation, match="references"):
        body_format("cbor").loads(b"\x81" + head + b"\x00")
    # The same bytes in a text say nothing.
    assert body_format("cbor").loads(cbor2.dumps(head)) == head


def test_numbers_that_take_long_are_refused() -> None:
    assert body_format("cbor").loads(cbor2.dumps(10**100)) == 10**100
    with pytest.raises(ProtocolViolation, match="1024 bytes"):
        body_format("cbor").loads(cbor2.dumps(1 << 9000))
    with pytest.raises(ProtocolViolation, match="more than"):
        body_format("cbor").loads(cbor2.dumps([1 << 70] * (LARGE_NUMBERS + 1)))
    with pytest.raises(ProtocolViolation):
        body_format("cbor").loads(b"\xc2\x5f\x44abcd\xff")  # in pieces


@pytest.mark.parametrize("source", ["json", "msgpack", "cbor"])
def test_a_conversion_has_a_limit_on_values_and_on_bytes(source: str) -> None:
    kind, target = CONTENT_TYPES[source], CONTENT_TYPES["bson" if source == "json" else "json"]
    with pytest.raises(BodyError, match="more than 16000 bytes"):
        convert(WRITE[source]({"a": [[]] * 1001}), kind, target, 16_000)
    with pytest.raises(BodyError, match="decompressed_bytes"):
        convert(WRITE[source]({"a": "\x01" * 20_000}), kind, target, 16_000)
    small = {"a": [1, 2, 3]}
    assert body_format(target.rpartition("/")[2]).loads(convert(WRITE[source](small), kind, target, 16_000)[0]) == small


def test_lengths_that_promise_more_than_there_is_take_no_memory() -> None:
    nested = b"\xdd" + struct.pack(">I", 1 << 20)
    with pytest.raises(BodyError):
        convert(nested * 1000, CONTENT_TYPES["msgpack"], CONTENT_TYPES["json"])
    with pytest.raises(ProtocolViolation):
        convert(b"\x9a" + struct.pack(">I", 1 << 16) + b"\x01", CONTENT_TYPES["cbor"], CONTENT_TYPES["json"])


def test_subscribers_of_one_format_share_a_conversion_while_somebody_waits_for_it() -> None:
    body = json.dumps(list(range(5000))).encode()
    asked = body, CONTENT_TYPES["json"], CONTENT_TYPES["msgpack"], 1 << 24
    one, two = conversion_of(*asked), conversion_of(*asked)
    assert one is two and isinstance(one, Conversion)
    assert one.result() is two.result()
    assert takes_long(*asked[:3]) and not takes_long(body[:QUICK], *asked[1:3])


def opened(serializer: str) -> tuple[Session, Session]:
    own = protocol("yamp")
    client, server = (
        own.session(Role.CLIENT, own.settings({"serializer": serializer})),
        own.session(Role.SERVER, own.settings({})),
    )
    server.enable_work()
    for each in (client, server):
        each.connected(0.0)
    server.receive(client.outgoing(), 0.0)
    client.receive(server.outgoing(), 0.0)
    return client, server


def test_answers_that_take_time_to_convert_keep_their_order() -> None:
    client, server = opened("msgpack")
    large = json.dumps({"a": list(range(5000))}).encode()
    for _ in range(2):
        client.send(Message(Kind.REQUEST, "a", b"\xc0"), 0.0)
    requests = [each for batch in server.receive(client.outgoing(), 0.0) for each in batch.messages]
    server.send(Message(Kind.RESPONSE, body=large, correlation_id=requests[0].id, content_type="application/json"), 0.0)
    server.send(Message(Kind.RESPONSE, body=b"1", correlation_id=requests[1].id, content_type="application/json"), 0.0)
    assert server.outgoing() == b"" and server.offloads
    work = server.work()
    assert work is not None and server.work() is None
    list(server.worked(work(), 0.0))
    answers = [each for batch in client.receive(server.outgoing(), 0.0) for each in batch.messages]
    assert [each.correlation_id for each in answers] == [each.id for each in requests]
    assert msgpack.unpackb(answers[0].body) == json.loads(large)
    assert not server.offloads


def test_an_answer_that_cannot_be_converted_becomes_an_error() -> None:
    client, server = opened("msgpack")
    client.send(Message(Kind.REQUEST, "a", b"\xc0"), 0.0)
    [request] = [each for batch in server.receive(client.outgoing(), 0.0) for each in batch.messages]
    wrong = b"[" * 5000
    server.send(Message(Kind.RESPONSE, body=wrong, correlation_id=request.id, content_type="application/json"), 0.0)
    server.close(0.0)
    work = server.work()
    assert work is not None
    list(server.worked(work(), 0.0))
    answers = [each for batch in client.receive(server.outgoing(), 0.0) for each in batch.messages]
    assert [each.kind for each in answers] == [Kind.ERROR, Kind.CLOSE], "and only then goodbye"


def test_a_request_that_cannot_be_converted_fails_for_whoever_asked() -> None:
    _, server = opened("msgpack")
    sent = server.send(Message(Kind.REQUEST, "a", b"[" * 5000, content_type="application/json"), 0.0)
    work = server.work()
    assert work is not None
    [batch] = server.worked(work(), 0.0)
    [failed] = batch.messages
    assert (failed.kind, failed.correlation_id, failed.status) == (Kind.ERROR, sent.id, "413")
    assert batch.count == 0 and server.outgoing() == b""
