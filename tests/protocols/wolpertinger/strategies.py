"""Random wolpertinger values, documents and lines."""

from __future__ import annotations

import string
import uuid

from hypothesis import strategies as st

from wireloom.protocols.wolpertinger import frames, layer1, layer2, values
from wireloom.protocols.wolpertinger.layer2 import Document, Error, RemoteMethodCall, Response
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
from wireloom.protocols.wolpertinger.values import Value

SETTINGS = WolpertingerSettings()

xml_text = st.text(
    st.one_of(
        st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="￾￿"),
        st.sampled_from("\t\n\r<>&'\"]"),
    ),
    max_size=20,
)
call_ids = st.builds(lambda number: str(uuid.UUID(int=number)), st.integers(0, 2**128 - 1))
names = st.one_of(st.text(string.ascii_letters, min_size=1, max_size=8), xml_text)

date_times = st.datetimes().map(lambda moment: values.from_python(moment))
scalars = st.one_of(
    st.booleans().map(lambda b: Value("boolean", b)),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: Value("int32", n)),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: Value("int64", n)),
    st.integers(0, 2**64 - 1).map(lambda n: Value("uint64", n)),
    st.floats().map(values.from_json),
    xml_text.map(lambda text: Value("string", text)),
    call_ids.map(lambda text: Value("guid", text)),
    date_times,
)
structured = st.sampled_from(values.STRUCTURED).map(lambda name: Value(name, '<a xmlns="urn:x">1</a>'))
any_value = st.recursive(
    st.one_of(scalars, structured), lambda inner: st.lists(inner, max_size=4).map(lambda v: Value("list", tuple(v))), max_leaves=6
)  # fmt: skip

calls = st.builds(RemoteMethodCall, names, call_ids, names, st.lists(any_value, max_size=4).map(tuple))
responses = st.builds(Response, names, call_ids, st.none() | any_value)
errors = st.builds(Error, names, st.integers(-(2**31), 2**31 - 1), st.none() | call_ids)
documents: st.SearchStrategy[Document] = st.one_of(calls, responses, errors)
ids = st.integers(0, 2**32 - 1)


def lines_of(document: Document, message_id: int, settings: WolpertingerSettings = SETTINGS) -> list[bytes]:
    return [frames.encode(piece) for piece in layer1.pack(layer2.write(document), message_id, settings)]


@st.composite
def stream(draw: st.DrawFn) -> bytes:
    """Lines of whole messages, of pieces in any order, and confirmations; pieces of messages mixed."""
    lines: list[bytes] = []
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            lines.append(frames.encode(frames.Confirmation(draw(ids), draw(st.integers(0, 6)))))
            continue
        split = draw(st.sampled_from((64, 100, 30_500)))
        gzip_from = draw(st.sampled_from((0, 1)))
        own = WolpertingerSettings(split=split, gzip_from=gzip_from)
        lines += lines_of(draw(documents), draw(st.integers(0, 20)), own)
    return b"".join(draw(st.permutations(lines)))


@st.composite
def mutated_stream(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(stream()))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 2)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 5))]
            case _:
                data[at:at] = draw(st.one_of(st.binary(max_size=5), st.sampled_from((b"\n", b";", b":", b"gzip:9;"))))
    return bytes(data)
