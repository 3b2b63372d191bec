"""What a connection agreed on, for those who read its bytes later: every decoder follows it, connection by connection."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.agreement import rows_of_columns
from wireloom.model import ConfigError, Direction, Kind, Message
from wireloom.protocols.columns import SlowColumns, Spans, Stream
from wireloom.protocols.contract import Decoded, Protocol, Role, Session, Settings, apply_agreed, decode_stream
from wireloom.protocols.emp import EMP
from wireloom.protocols.emp.frames import SizeMode
from wireloom.protocols.emp.settings import EmpSettings
from wireloom.protocols.hsp import HSP
from wireloom.protocols.hsp.protocol import HspSettings
from wireloom.protocols.registry import protocol, protocols
from wireloom.protocols.yamp import YAMP
from wireloom.protocols.yamp.protocol import YampSettings

Agreed = Mapping[str, str | bool]

TOLD: list[tuple[Protocol, Agreed]] = [
    (EMP, {"size_mode": "exclusive"}),
    (YAMP, {"serializer": "msgpack"}),
    (YAMP, {"serializer": "cbor"}),
    (HSP, {"profile": False}),
]
"""Protocols, and settings of a connection that differ from what a reader assumes."""


def said(protocol: Protocol, settings: Settings) -> bytes:
    """A few messages of one connection."""
    messages = [
        Message(Kind.EVENT, "rooms/1", b'{"c":1}', content_type="application/json"),
        Message(Kind.EVENT, "rooms/2", b"\x81\xa1c\x02"),
    ]
    if protocol is HSP:
        # With the profile an envelope, without it a payload of the type 0xFD00.
        return protocol.encode(messages[0], HSP.settings()) * 2
    if protocol is YAMP:
        messages = [message.with_(id="00" * 16, content_type=None) for message in messages]
    return b"".join(protocol.encode(message, settings) for message in messages)


def opened(protocol: Protocol, values: Mapping[str, object]) -> tuple[Session, Session]:
    """Both ends of a connection, after the handshake."""
    settings = protocol.settings(values)
    client, server = protocol.session(Role.CLIENT, settings), protocol.session(Role.SERVER, protocol.settings(values))
    for end in (client, server):
        end.connected(0.0)
    for _ in range(4):
        for one, other in ((client, server), (server, client)):
            data = one.outgoing()
            if data:
                other.receive(data, 0.0)
    return client, server


def test_settings_with_what_was_agreed() -> None:
    assert apply_agreed(EmpSettings(), {"size_mode": "exclusive"}).size_mode is SizeMode.EXCLUSIVE
    assert apply_agreed(HspSettings(max_payload=5), {"profile": False}) == HspSettings(max_payload=5, profile=False)
    assert apply_agreed(YampSettings(), {"serializer": "cbor"}).serializer == "cbor"


def test_nothing_agreed_leaves_settings_as_they_are() -> None:
    settings = EmpSettings()
    assert apply_agreed(settings, {}) is settings


def test_names_of_a_later_version_are_ignored() -> None:
    settings = EmpSettings()
    assert apply_agreed(settings, {"colour": "blue"}) is settings
    assert apply_agreed(settings, {"colour": "blue", "size_mode": "exclusive"}).size_mode is SizeMode.EXCLUSIVE


def test_a_journal_changes_no_other_settings() -> None:
    """Limits hold whatever a journal says: it may come from anybody."""
    assert apply_agreed(EmpSettings(), {"max_decompressed": "5"}) == EmpSettings()
    assert apply_agreed(HspSettings(), {"max_payload": "5"}) == HspSettings()


@pytest.mark.parametrize(
    ("settings", "agreed"),
    [
        (EmpSettings(), {"size_mode": "sometimes"}),
        (EmpSettings(), {"size_mode": True}),
        (YampSettings(), {"serializer": "yaml"}),
        (YampSettings(), {"serializer": False}),
        (HspSettings(), {"profile": "perhaps"}),
        (HspSettings(), {"profile": 7}),
    ],
)
def test_a_value_that_makes_no_sense_is_an_error(settings: Settings, agreed: Agreed) -> None:
    with pytest.raises(ConfigError, match=next(iter(agreed))):
        apply_agreed(settings, agreed)


@pytest.mark.parametrize(("protocol", "values"), TOLD)
def test_sessions_tell_what_a_later_reader_cannot_know(protocol: Protocol, values: Agreed) -> None:
    for session in opened(protocol, values):
        assert dict(session.agreed()) == values
        assert session.agreed() is session.agreed()
        assert dict(session.topic_numbers()) == {}
    again = opened(protocol, values)[0]
    assert again.agreed() is session.agreed(), "the same for all connections that agreed on the same"


@pytest.mark.parametrize("name", protocols())
def test_sessions_with_the_usual_settings_tell_nothing(name: str) -> None:
    session = protocol(name).session(Role.SERVER, protocol(name).settings())
    assert dict(session.agreed()) == {}
    assert session.agreed() is session.agreed()
    assert session.topic_numbers() is session.topic_numbers()


@pytest.mark.parametrize("name", protocols())
def test_what_sessions_tell_is_what_settings_may_be_told(name: str) -> None:
    own = protocol(name)
    for each, values in TOLD:
        if each is own:
            assert set(values) <= set(own.settings_type.agreed_fields)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("protocol", "values"), TOLD)
def test_columns_follow_what_each_stream_agreed_on(protocol: Protocol, values: Agreed, slow: bool) -> None:
    agreed: list[Agreed] = [{}, values, {}, values, {"unknown": "x", **values}]
    parts = [said(protocol, apply_agreed(protocol.lenient(), each)) for each in agreed]
    ends = np.cumsum([len(part) for part in parts])
    spans = Spans(
        np.frombuffer(b"".join(parts), np.uint8),
        ends - [len(part) for part in parts],
        ends,
        np.arange(len(parts), dtype=np.int32),
        [Stream(Direction.C2S, agreed=each) for each in agreed],
    )
    columns = (SlowColumns(protocol) if slow else protocol.columns()).decode(spans, protocol.lenient())
    _, rejects = rows_of_columns(columns)
    assert rejects == []
    assert columns.span.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    expected = []
    for part, each in zip(parts, agreed, strict=True):
        decoder = protocol.decoder(Direction.C2S, apply_agreed(protocol.lenient(), each))
        expected += [found.message for found in decode_stream(decoder, part) if isinstance(found, Decoded)]
    found = zip(*(getattr(columns, name).to_pylist() for name in ("topic", "content_type", "body")), strict=True)
    assert list(found) == [(m.topic, m.content_type, m.body) for m in expected]
    assert (expected[0].topic, expected[0].content_type) != (expected[2].topic, expected[2].content_type) or (
        protocol is EMP
    )


@pytest.mark.parametrize(("protocol", "value"), [(EMP, "exclusive"), (YAMP, "msgpack")])
def test_number_0_of_a_map_is_understood_for_journals_of_format_1(protocol: Protocol, value: str) -> None:
    name = protocol.settings_type.agreed_fields[0]
    data = said(protocol, apply_agreed(protocol.lenient(), {name: value}))
    decoded = [
        [each.message for each in decode_stream(decoder, data) if isinstance(each, Decoded)]
        for decoder in (
            protocol.decoder(Direction.C2S, protocol.lenient(), {0: value}),
            protocol.decoder(Direction.C2S, apply_agreed(protocol.lenient(), {name: value})),
        )
    ]
    assert decoded[0] == decoded[1]
    assert len(decoded[0]) == 2
    old = protocol.columns().decode(Spans.whole(data, Stream(Direction.C2S, {0: value})), protocol.lenient())
    new = protocol.columns().decode(Spans.whole(data, Stream(Direction.C2S, agreed={name: value})), protocol.lenient())
    assert rows_of_columns(old) == rows_of_columns(new)
