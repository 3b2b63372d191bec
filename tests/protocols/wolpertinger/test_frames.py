"""Lines and their metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.model import NotSupported
from wireloom.protocols.wolpertinger import frames
from wireloom.protocols.wolpertinger.frames import Confirmation, Data, parse
from wireloom.protocols.wolpertinger.refusal import Refused, ResultCode

payloads = st.text("ABCabc019+/", max_size=20).map(str.encode)
others = st.lists(
    st.tuples(st.text("abcxyz_-", min_size=1, max_size=6), st.text("abc:0 ", max_size=6)),
    max_size=2,
    unique_by=lambda pair: pair[0],
).map(tuple)
numbers = st.integers(0, 2**32 - 1)


@st.composite
def data_frames(draw: st.DrawFn) -> Data:
    count = draw(st.none() | st.integers(1, 2**31))
    return Data(
        draw(numbers),
        draw(payloads),
        draw(st.none() | numbers),
        draw(st.sampled_from((None, "aes"))),
        None if count is None else draw(st.integers(0, count - 1)),
        count,
        draw(others),
    )


@given(data_frames() | st.builds(Confirmation, numbers, st.integers(0, 9999), others))
def test_every_frame_is_read_as_it_was_written(frame: frames.Frame) -> None:
    line = frames.encode(frame)
    assert frames.decode(line) == (frame, len(line))


def test_metadata_is_written_in_the_order_of_the_decisions() -> None:
    frame = Data(3, b"QUJD", gzip=50, encryption="aes", fragment_index=1, fragment_count=2)
    assert frames.encode(frame) == b"fragment_index:1;fragment_count:2;message_id:3;gzip:50;encryption:aes;QUJD\n"


def test_the_examples_of_the_specification() -> None:
    payload = b"xdzBd2ITRH5uk00xz7sdPC4n4JFDKEFlAyyyeWO4WObAux4iRMi5MoQD"
    assert parse(b"message_id:1;encryption:aes;gzip:50;" + payload) == Data(1, payload, 50, "aes")
    assert parse(b"message_id:8;fragment_count:5;fragment_index:2;secure:aes;" + payload) == Data(
        8, payload, None, "aes", 2, 5
    )
    # The signed example lacks the id that the text calls mandatory.
    with pytest.raises(Refused, match=r"wolpertinger\.message-id\.missing") as caught:
        parse(b"signature:HvEjPJcGxW2K7K5;encryption:aes;gzip:50;" + payload)
    assert caught.value.message_id is None


@pytest.mark.parametrize("line", [b"MESSAGE_ID:7;GZIP:3;AAAA", b"gzip:3;Message_Id:7;AAAA"])
def test_keys_are_compared_without_case_and_in_any_order(line: bytes) -> None:
    assert parse(line) == Data(7, b"AAAA", 3)


def test_other_keys_and_the_signature_are_kept() -> None:
    assert parse(b"message_id:7;signature:abc;x-y:1:2;AAAA").others == (("signature", "abc"), ("x-y", "1:2"))


def test_a_carriage_return_before_the_newline_is_no_part_of_the_payload() -> None:
    assert parse(b"message_id:7;gzip:1;AAAA\r") == Data(7, b"AAAA", 1)
    assert parse(b"message_id:7;AAAA\r") == Data(7, b"AAAA")


def test_an_unsplit_message_may_say_that_it_is_one_piece() -> None:
    assert parse(b"fragment_index:0;fragment_count:1;message_id:7;AAAA") == Data(7, b"AAAA", None, None, 0, 1)


@pytest.mark.parametrize(
    ("line", "clause", "message_id", "result"),
    [
        (b"", "metadata.form", None, 0),
        (b"AAAA", "metadata.form", None, 0),
        (b"message_id;AAAA", "metadata.form", None, 0),
        (b":1;message_id:1;AAAA", "metadata.form", 1, 5),
        (b"message_id:1;x;AAAA", "metadata.form", 1, 5),
        (b"message_id:1;\xff:1;AAAA", "metadata.form", 1, 5),
        (b"gzip:1;AAAA", "message-id.missing", None, 0),
        (b"message_id:;AAAA", "message-id.range", None, 0),
        (b"message_id:-1;AAAA", "message-id.range", None, 0),
        (b"message_id:4294967296;AAAA", "message-id.range", None, 0),
        (b"message_id:\xd9\xa3;AAAA", "message-id.range", None, 0),
        (b"message_id:1;message_id:1;AAAA", "metadata.twice", None, 5),
        (b"message_id:1;gzip:1;GZIP:1;AAAA", "metadata.twice", 1, 5),
        (b"message_id:1;secure:aes;encryption:aes;AAAA", "metadata.twice", 1, 5),
        (b"message_id:1;gzip:x;AAAA", "gzip.length", 1, 5),
        (b"message_id:1;encryption:rot13;AAAA", "encryption.unknown", 1, 4),
        (b"message_id:1;encryption:aes;gzip:x;AAAA", "encryption.unreadable", 1, 4),
        (b"message_id:1;encryption:aes;A%AA", "encryption.unreadable", 1, 4),
        (b"message_id:1;fragment_index:0;AAAA", "fragment.form", 1, 3),
        (b"message_id:1;fragment_count:2;AAAA", "fragment.form", 1, 3),
        (b"message_id:1;fragment_index:2;fragment_count:2;AAAA", "fragment.form", 1, 3),
        (b"message_id:1;fragment_index:0;fragment_count:0;AAAA", "fragment.form", 1, 3),
        (b"message_id:1;fragment_index:-1;fragment_count:2;AAAA", "fragment.form", 1, 3),
        (b"message_id:1;A%AA", "payload.base64", 1, 5),
        (b"message_id:1;AA=A", "payload.base64", 1, 5),
        (b"message_id:1;result:x;", "result.form", None, 0),
        (b"result:0;message_id:1;AAAA", "result.form", None, 0),
    ],
)
def test_what_is_wrong_with_a_line(line: bytes, clause: str, message_id: int | None, result: int) -> None:
    with pytest.raises(Refused) as caught:
        parse(line)
    refused = caught.value
    assert (refused.clause, refused.message_id) == (f"wolpertinger.{clause}", message_id)
    assert message_id is None or refused.result == ResultCode(result)


def test_a_line_that_is_too_long_is_refused_before_it_ends() -> None:
    assert frames.decode(b"message_id:1;" + b"A" * 10, 0, 23) is None
    with pytest.raises(Refused, match=r"wolpertinger\.line\.too-long"):
        frames.decode(b"message_id:1;" + b"A" * 11, 0, 23)
    with pytest.raises(Refused, match=r"wolpertinger\.line\.too-long"):
        frames.decode(b"message_id:1;" + b"A" * 11 + b"\n", 0, 23)


@pytest.mark.parametrize("pair", [("", "x"), ("gzip", "1"), ("a;b", "c"), ("a:b", "c"), ("a", "b;c"), ("a", "b\nc")])
def test_metadata_that_would_be_read_otherwise_cannot_be_written(pair: tuple[str, str]) -> None:
    with pytest.raises(NotSupported):
        frames.check_others((pair,))
