"""Frames and streams of yamp, valid and spoiled, for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from wireloom.formats import body_formats
from wireloom.protocols.yamp import frames

uids = st.binary(min_size=16, max_size=16)

names = st.text(st.characters(exclude_categories=("Cs",)), max_size=24)
"""What UTF-8 can hold, and always less than 255 bytes of it."""
bodies = st.binary(max_size=60)
handshakes = st.builds(
    frames.Handshake, st.integers(0, 0xFFFF) | st.just(1), st.sampled_from(("", *body_formats.SERIALIZERS)) | names
)
system_frames = st.one_of(
    handshakes,
    st.builds(frames.Ping, st.binary(max_size=255)),
    st.builds(frames.Pong, st.binary(max_size=255)),
    st.builds(frames.Close, names),
    st.builds(frames.CloseRedirect, names | st.just("tcp://192.168.0.42:5000")),
)
user_frames = st.one_of(
    st.builds(frames.Event, uids, names, bodies),
    st.builds(frames.Request, uids, names, st.booleans(), bodies),
    st.builds(frames.Cancel, uids, names, uids, st.booleans()),
    st.builds(frames.Response, uids, names, uids, st.sampled_from(frames.ResponseType), bodies),
)
any_frame: st.SearchStrategy[frames.Frame] = system_frames | user_frames
streams = st.lists(any_frame, max_size=8).map(lambda found: b"".join(map(frames.encode, found)))
cuts = st.lists(st.integers(0, 2000), max_size=6)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A stream with some bytes changed, put in, or taken out."""
    data = bytearray(draw(streams))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0 if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case 1:
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
            case 2:
                del data[at : at + draw(st.integers(1, 4))]
            case _:
                data[at : at + 4] = draw(st.integers(0, 2**32 - 1)).to_bytes(4)
    return bytes(data)
