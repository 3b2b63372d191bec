"""Random hsp frames and streams."""

from __future__ import annotations

from hypothesis import strategies as st

from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.profile import ENVELOPE, OPERATIONS, make_envelope

ids = st.integers(0, 2**32 - 1)
types = st.one_of(st.integers(0, 2**16 - 1), st.sampled_from([7, 300, ENVELOPE, *OPERATIONS]))
payloads = st.one_of(
    st.binary(max_size=60),
    st.builds(make_envelope, st.text(max_size=12), st.binary(max_size=9), st.sampled_from([None, "text/plain"])),
)


def any_frame() -> st.SearchStrategy[frames.Frame]:
    return st.one_of(
        st.builds(frames.Data, types, payloads),
        st.builds(frames.DataAck, ids, types, payloads),
        st.builds(frames.Ack, ids),
        st.builds(frames.Error, ids, types, payloads),
        st.builds(frames.ErrorUndef, ids),
        st.sampled_from([frames.PING, frames.PONG]),
    )


def stream() -> st.SearchStrategy[bytes]:
    return st.lists(any_frame(), max_size=20).map(lambda many: b"".join(map(frames.encode, many)))


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
                data[at:at] = draw(st.binary(max_size=5))
    return bytes(data)
