"""Random emp: frames, messages, streams, and streams with mistakes in them."""

from __future__ import annotations

from hypothesis import strategies as st

from wireloom.model import Kind, Message
from wireloom.protocols.emp import EmpSettings, extensions, frames
from wireloom.protocols.emp.extensions import CompressionScheme, HubExtension, RequestResponse
from wireloom.protocols.emp.frames import Extension, ExtensionBlock, Frame, SizeMode, Type
from wireloom.protocols.emp.messages import to_frame

ids = st.one_of(st.integers(1, 300), st.integers(1, 2**64 - 1))
texts = st.one_of(st.none(), st.sampled_from(["", "sensors/kitchen", "größe", "application/json"]), st.text(max_size=8))
bodies = st.one_of(st.binary(max_size=40), st.just(b"z" * 300))
hubs = st.builds(HubExtension, texts, texts, texts, st.booleans())
contexts = st.sampled_from([b'{"traceparent": "00-%032x-%016x-01"}' % (5, 7), b'{"tracestate": "a=1"}', b"{}"])
unknown = st.builds(ExtensionBlock, st.integers(2, 127) | st.integers(129, 255), st.binary(max_size=10)) | st.builds(
    ExtensionBlock, st.just(129), contexts
)


@st.composite
def any_frame(draw: st.DrawFn) -> Frame:
    """A valid frame of any type with any blocks."""
    type_ = draw(st.sampled_from([*Type, Type.DATA, Type.DATA, Type.DATA]) | st.integers(128, 255))
    if type_ == Type.HELLO:
        body = frames.encode_hello(frames.Hello(draw(st.integers(0, 255))))
    elif type_ == Type.ERROR:
        codes = st.integers(0, 255)
        body = frames.encode_error(frames.Error(draw(codes), draw(st.text(max_size=9)), draw(codes), draw(codes)))
    else:
        body = draw(bodies)
    blocks = draw(st.lists(unknown, max_size=2))
    if draw(st.booleans()):
        content = extensions.encode_request_response(RequestResponse(draw(st.booleans()), draw(ids)))
        blocks.append(ExtensionBlock(Extension.REQUEST_RESPONSE, content))
    if draw(st.booleans()):
        blocks.append(ExtensionBlock(Extension.HUB, extensions.encode_hub(draw(hubs))))
    if draw(st.integers(0, 3)) == 0:
        scheme = draw(st.sampled_from(CompressionScheme))
        blocks.append(ExtensionBlock(Extension.COMPRESSION, extensions.encode_compression(scheme)))
        body = extensions.gzip(body) if scheme is CompressionScheme.GZIP else body
    return Frame(type_, body, tuple(draw(st.permutations(blocks))))


def stream(size_mode: SizeMode = SizeMode.INCLUSIVE) -> st.SearchStrategy[bytes]:
    many = st.lists(any_frame(), max_size=12)
    return many.map(lambda found: b"".join(frames.encode(frame, size_mode) for frame in found))


@st.composite
def mutated_stream(draw: st.DrawFn, size_mode: SizeMode = SizeMode.INCLUSIVE) -> bytes:
    data = bytearray(draw(stream(size_mode)))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                del data[at : at + draw(st.integers(1, 5))]
            case _:
                data[at:at] = draw(st.binary(max_size=5))
    return bytes(data)


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    """A message that emp can say without loss, as the decoder gives it."""
    attributes: dict[str, str] = {}
    kind = draw(st.sampled_from([Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.OTHER]))
    identifier = str(draw(ids))
    status = draw(texts)
    if kind is Kind.RESPONSE and status is None:
        status = "done"
    elif kind is Kind.ERROR and status is None:
        status = "error"
    if kind is Kind.OTHER:
        attributes["type"] = str(draw(st.integers(128, 255)))
    scheme = draw(st.sampled_from([None, None, "identity", "gzip"]))
    if scheme is not None:
        attributes["compression"] = scheme
    for extension in draw(st.lists(st.integers(2, 127) | st.integers(129, 255), max_size=2, unique=True)):
        contents = draw(st.lists(st.binary(max_size=4), min_size=1, max_size=3))
        attributes[f"extension.{extension}"] = ",".join(content.hex() for content in contents)
    answers = kind in (Kind.RESPONSE, Kind.ERROR) or (kind is Kind.OTHER and draw(st.booleans()))
    asks = kind is Kind.REQUEST or (kind is Kind.OTHER and not answers and draw(st.booleans()))
    return Message(
        kind, draw(texts), draw(bodies), identifier if asks else None, identifier if answers else None, status,
        draw(texts), attributes, "emp",
    )  # fmt: skip


def said(message: Message, **settings: object) -> bytes:
    """A message on the wire."""
    options = EmpSettings.parse(settings)
    return frames.encode(to_frame(message, options), options.size_mode)
