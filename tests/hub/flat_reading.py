"""What `flatc --python --gen-object-api` makes of `table Reading { celsius: int; room: string; }`, as far as needed."""

from __future__ import annotations

import flatbuffers
from flatbuffers import number_types
from flatbuffers.table import Table


class ReadingT:
    def __init__(self) -> None:
        self.celsius = 0
        self.room: str | bytes | None = None

    @classmethod
    def InitFromPackedBuf(cls, buffer: bytes, position: int = 0) -> ReadingT:  # noqa: N802
        root = flatbuffers.encode.Get(flatbuffers.packer.uoffset, buffer, position)
        table = Table(buffer, position + root)
        made = cls()
        at = number_types.UOffsetTFlags.py_type(table.Offset(4))
        made.celsius = table.Get(number_types.Int32Flags, at + table.Pos) if at else 0
        at = number_types.UOffsetTFlags.py_type(table.Offset(6))
        made.room = table.String(at + table.Pos) if at else None
        return made

    def Pack(self, builder: flatbuffers.Builder) -> int:  # noqa: N802
        room = builder.CreateString(self.room) if self.room is not None else None
        builder.StartObject(2)
        builder.PrependInt32Slot(0, self.celsius, 0)
        if room is not None:
            builder.PrependUOffsetTRelativeSlot(1, room, 0)
        return builder.EndObject()
