"""wolpertinger a buffer at a time: a plain loop over lines, because XML leaves no choice.

Uses the decoder itself, so it gives exactly what that gives. A stream's state is what a decoder has in mind between
two lines: the pieces of messages that are not complete, whether it is inside a line that is too long, and the key of an
encrypted connection, if whoever made the state knows it (`WolpertingerSession.secrets` as JSON).
"""

from __future__ import annotations

import json
from typing import cast

import numpy as np

from wireloom.protocols.columns import KIND_CODES, ColumnDecoder, Columns, Reject, Spans
from wireloom.protocols.contract import Decoded, Settings, decode_stream
from wireloom.protocols.wolpertinger import frames
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.protocol import WolpertingerDecoder
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings


class WolpertingerColumns(ColumnDecoder):
    """One Python object a message."""

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """Decode span by span; spans of one stream share their decoder's state."""
        import pyarrow as pa

        own = cast(WolpertingerSettings, settings)
        rows: list[tuple[int, int, Decoded]] = []
        rejects: list[Reject] = []
        consumed = spans.end.copy()
        states = [stream.state for stream in spans.streams]
        data = spans.data.tobytes()
        for index in range(len(spans.start)):
            start, end, number = int(spans.start[index]), int(spans.end[index]), int(spans.stream[index])
            decoder = WolpertingerDecoder(spans.streams[number].direction, own)
            if states[number]:
                restore(decoder, states[number])
            for found in decode_stream(decoder, data[start:end], final=False):
                at = start + found.offset
                if isinstance(found, Decoded):
                    rows.append((index, at, found))
                else:
                    rejects.append(Reject(index, at, len(found.data), found.clause, found.detail))
            consumed[index] = start + decoder.offset
            states[number] = freeze(decoder, secret=b"aes_key" in states[number])
        messages = [found.message for _, _, found in rows]
        text = pa.string()
        return Columns(
            span=np.array([index for index, _, _ in rows], np.int32),
            offset=np.array([at for _, at, _ in rows], np.int64),
            size=np.array([found.size for _, _, found in rows], np.int64),
            kind=np.array([KIND_CODES[m.kind] for m in messages], np.uint8),
            topic=pa.array([m.topic for m in messages], text),
            message_id=pa.array([m.id for m in messages], text),
            correlation_id=pa.array([m.correlation_id for m in messages], text),
            status=pa.array([m.status for m in messages], text),
            content_type=pa.array([m.content_type for m in messages], text),
            body=pa.array([m.body for m in messages], pa.binary()),
            attributes=pa.MapArray.from_arrays(
                np.cumsum([0, *[len(m.attributes) for m in messages]], dtype=np.int32),
                pa.array([key for m in messages for key in m.attributes], text),
                pa.array([value for m in messages for value in m.attributes.values()], text),
            ),
            authenticity=pa.array([str(m.authenticity) for m in messages], text),
            rejects=rejects,
            consumed=consumed,
            state=states,
        )


def freeze(decoder: WolpertingerDecoder, *, secret: bool = False) -> bytes:
    """What a decoder has in mind between two lines, with its key if that came with the state; empty if nothing."""
    kept = [
        {
            "id": message_id,
            "gzip": piece.first.gzip,
            "encryption": piece.first.encryption,
            "count": piece.first.fragment_count,
            "others": piece.first.others,
            "pieces": {str(index): payload.decode("ascii") for index, payload in piece.pieces.items()},
            "wire": piece.wire,
        }
        for message_id, piece in decoder.assembly.open.items()
    ]
    state: dict[str, object] = {}
    if kept:
        state["open"] = kept
    if decoder.skipping:
        state["skipping"] = True
    if decoder.cipher is not None and secret:
        state.update(aes_key=decoder.cipher.key.hex(), aes_iv=decoder.cipher.iv.hex())
    return json.dumps(state).encode() if state else b""


def restore(decoder: WolpertingerDecoder, state: bytes) -> None:
    """Bring a decoder to where another one stopped."""
    kept = json.loads(state)
    if "aes_key" in kept:
        decoder.cipher = Cipher(bytes.fromhex(kept["aes_key"]), bytes.fromhex(kept["aes_iv"]))
    decoder.skipping = bool(kept.get("skipping"))
    for entry in kept.get("open", ()):
        others = tuple([(str(key), str(value)) for key, value in entry["others"]])
        wire = int(entry["wire"])
        for index, payload in entry["pieces"].items():
            piece = frames.Data(
                int(entry["id"]), payload.encode("ascii"), entry["gzip"], entry["encryption"], int(index),
                int(entry["count"]), others,
            )  # fmt: skip
            decoder.assembly.add(piece, wire=wire)
            wire = 0
