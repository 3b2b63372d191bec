"""The decoder and columns.py must give the same answer for the same bytes: valid, mutated, split, garbage."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agreement import assert_columns_agree, assert_split_columns_agree
from tests.protocols.wolpertinger.strategies import lines_of, mutated_stream, stream
from tests.protocols.wolpertinger.talk import pair
from wireloom.model import Direction, Kind, Message, NotSupported, ProtocolViolation
from wireloom.protocols.columns import KIND_CODES, Spans, Stream
from wireloom.protocols.contract import Decoded, Rejected, decode_stream
from wireloom.protocols.wolpertinger import WOLPERTINGER, WolpertingerSettings
from wireloom.protocols.wolpertinger.layer2 import RemoteMethodCall
from wireloom.protocols.wolpertinger.values import Value


@given(stream())
def test_columns_agree_with_the_decoder_on_valid_streams(data: bytes) -> None:
    assert_columns_agree(WOLPERTINGER, data)


@given(mutated_stream())
@settings(max_examples=200)
def test_columns_agree_with_the_decoder_on_mutated_streams(data: bytes) -> None:
    assert_columns_agree(WOLPERTINGER, data)


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_columns_agree_with_the_decoder_on_garbage(data: bytes) -> None:
    assert_columns_agree(WOLPERTINGER, data)


@given(stream(), st.lists(st.integers(0, 2000), max_size=8))
def test_any_split_of_the_stream_gives_the_same_columns(data: bytes, cuts: list[int]) -> None:
    assert_split_columns_agree(WOLPERTINGER, data, cuts)


@given(mutated_stream(), st.lists(st.integers(0, 2000), max_size=8))
def test_any_split_of_the_stream_gives_the_same_messages_and_rejects(data: bytes, cuts: list[int]) -> None:
    whole = list(decode_stream(WOLPERTINGER.decoder(Direction.C2S, WolpertingerSettings()), data))
    decoder = WOLPERTINGER.decoder(Direction.C2S, WolpertingerSettings())
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    found: list[Decoded | ProtocolViolation] = []
    for start, end in itertools.pairwise(edges):
        decoder.feed(data[start:end])
        while True:
            try:
                for each in decoder:
                    found.append(each)  # noqa: PERF402  # a violation must not lose what came before it
                break
            except ProtocolViolation as violation:
                found.append(violation)
    expected = [each.message if isinstance(each, Decoded) else each.clause for each in whole if each_is_not_cut(each)]
    got = [each.message if isinstance(each, Decoded) else each.clause for each in found]
    assert got == expected


def each_is_not_cut(each: object) -> bool:
    return getattr(each, "clause", "") not in ("stream.cut", "wolpertinger.fragment.dropped")


@given(mutated_stream(), st.integers(1, 3))
def test_every_byte_is_in_a_message_or_in_a_reject(data: bytes, most: int) -> None:
    decoder = WOLPERTINGER.decoder(Direction.C2S, WolpertingerSettings(max_open=most))
    sizes = [
        int(each.message.attributes.get("wire_size", each.size)) if isinstance(each, Decoded) else len(each.data)
        for each in decode_stream(decoder, data)
    ]
    assert sum(sizes) == len(data)


PIECES = [b"fragment_index:%d;fragment_count:3;message_id:%d;AAAA\n" % (index, number)
          for number in (1, 2) for index in range(3)]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "rejected"),
    [
        (PIECES[:2], {b"".join(PIECES[:2])}),
        # The oldest goes when there are too many.
        ([PIECES[0], PIECES[3], PIECES[1]], {PIECES[0], PIECES[3], PIECES[1]}),
        # Whole, but no document: the last piece, and those before it.
        (PIECES[:3], {PIECES[2], PIECES[0] + PIECES[1]}),
        # A piece of another message ends the message.
        ([PIECES[0], PIECES[1].replace(b"count:3", b"count:4")], {PIECES[0], PIECES[1].replace(b"count:3", b"count:4")}),
    ],
)  # fmt: skip
def test_pieces_that_never_become_a_message_are_rejects(lines: list[bytes], rejected: set[bytes]) -> None:
    own = WolpertingerSettings(max_open=1)
    decoder = WOLPERTINGER.decoder(Direction.C2S, own)
    assert {each.data for each in decode_stream(decoder, b"".join(lines)) if isinstance(each, Rejected)} == rejected
    # The same from columns, a line at a time: what is given up at once, and what the last state holds.
    columns, state, found = WOLPERTINGER.columns(), b"", set()
    for line in lines:
        rows = columns.decode(Spans.whole(line, Stream(Direction.C2S, state=state)), own)
        found |= {reject.content(np.frombuffer(line, np.uint8), 1000) for reject in rows.rejects}
        assert all(0 <= reject.offset < len(line) for reject in rows.rejects)
        state = rows.state[0]
    found |= {each.data for each in columns.unfinished(state, own)}
    assert found == rejected


def test_half_a_split_message_is_carried_over_in_the_state() -> None:
    own = WolpertingerSettings(split=64, gzip_from=0)
    lines = lines_of(
        RemoteMethodCall("Test", "0" * 8 + "-0000-0000-0000-" + "0" * 12, "Echo", (Value("string", "x" * 500),)), 7, own
    )
    random.Random(1).shuffle(lines)
    state, rows = b"", 0
    for line in lines:
        columns = WOLPERTINGER.columns().decode(Spans.whole(line, Stream(Direction.C2S, {}, state)), own)
        rows += len(columns)
        state = columns.state[0]
        assert not columns.rejects
    assert rows == 1
    assert state == b""
    assert columns.attributes.to_pylist()[0] == [
        ("message_id", "7"),
        ("fragment_count", str(len(lines))),
        ("wire_size", str(sum(map(len, lines)))),
        ("types", "string"),
    ]


def test_a_line_that_is_too_long_is_rejected_in_parts_and_the_next_line_stands_alone() -> None:
    own = WolpertingerSettings(max_message=64)
    long = b"message_id:1;" + b"A" * own.max_line + b"\n"
    data = long + b"result:0;message_id:5;\n"
    assert_columns_agree(WOLPERTINGER, data, values={"max_message": 64})
    state, rows, rejected, taken = b"", 0, 0, 0
    for end in (own.max_line - 10, own.max_line + 5, own.max_line + 10, len(data)):
        columns = WOLPERTINGER.columns().decode(Spans.whole(data[taken:end], Stream(Direction.C2S, {}, state)), own)
        rows += len(columns)
        rejected += sum(reject.size for reject in columns.rejects)
        assert {reject.clause for reject in columns.rejects} <= {"wolpertinger.line.too-long"}
        taken += int(columns.consumed[0])
        state = columns.state[0]
    assert rows == 1
    assert rejected == len(long)


def test_encrypted_messages_are_read_with_the_key_of_their_connection_and_stay_other_without_it() -> None:
    both = pair({"authenticate": 2})
    both.settle()
    both.client.send(Message(Kind.REQUEST, "Test.Echo", b'["secret"]', content_type="application/json"), 0.0)
    both.settle()
    data = b"".join(each for who, each in both.lines if who == "client")
    kinds = [each.message.kind for each in decoded(data, {})]
    assert kinds.count(Kind.OTHER) == 1
    assert_columns_agree(WOLPERTINGER, data)
    secrets = dict(both.client.secrets)
    assert secrets == dict(both.server.secrets)
    found = [each.message for each in decoded(data, secrets)]
    assert found[-1].value() == ["secret"]
    assert_columns_agree(WOLPERTINGER, data, values=secrets)
    # The key may come with the stream, among others, and never goes into its state.
    other = {"aes_key": "00" * 32, "aes_iv": "00" * 16}
    for found_in, expected in (((other, secrets), b'["secret"]'), ((other, {"aes_key": "zz"}), None)):
        stream = Stream(Direction.C2S, secrets=found_in)
        columns = WOLPERTINGER.columns().decode(Spans.whole(data, stream), WolpertingerSettings())
        if expected is None:
            assert columns.kind[-1] == KIND_CODES[Kind.OTHER]
        else:
            assert columns.body.to_pylist()[-1] == expected
        assert columns.state == [b""]
        assert not columns.rejects


def test_what_was_encrypted_is_written_again_as_it_was() -> None:
    settings = {"aes_key": "11" * 32, "aes_iv": "22" * 16}
    own = WOLPERTINGER.settings(settings)
    call = Message(
        Kind.REQUEST, "A.B", b'["x"]', "00000000-0000-0000-0000-000000000001", content_type="application/json",
        attributes={"message_id": "9", "encryption": "aes", "gzip": "1"},
    )  # fmt: skip
    data = WOLPERTINGER.encode(call, own)
    (sealed,) = [each.message for each in decoded(data, {})]
    assert sealed.kind is Kind.OTHER
    assert WOLPERTINGER.encode(sealed, WolpertingerSettings()) == data
    (opened,) = [each.message for each in decoded(data, settings)]
    assert (opened.topic, opened.body, opened.attributes["encryption"]) == ("A.B", b'["x"]', "aes")
    with pytest.raises(NotSupported, match="aes_key"):
        WOLPERTINGER.encode(opened, WolpertingerSettings())


def decoded(data: bytes, values: dict[str, str]) -> list[Decoded]:
    decoder = WOLPERTINGER.decoder(Direction.C2S, WOLPERTINGER.settings(values))
    return [each for each in decode_stream(decoder, data) if isinstance(each, Decoded)]
