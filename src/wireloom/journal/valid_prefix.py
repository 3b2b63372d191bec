"""The valid prefix of a segment: complete blocks of complete runs, with correct checksums. Works on bytes, not files.

Recovery cuts a segment at the end of its valid prefix. A reader of a segment that was not recovered yet stops there.

A file system may store the new size of a file before its new bytes. After a power cut, the file may then end with old
sectors, even with complete blocks of a deleted segment. So valid checksums are not enough. Packet ids must also be
consecutive, and the head must name the same epoch as the file's name.
"""

from __future__ import annotations

from wireloom.journal import blocks


def sound_length(
    data: blocks.Buffer,
    committed: int = 0,
    *,
    first: int = 0,
    epoch: str = "",
    refused: bool = False,
    last: int | None = None,
) -> tuple[int, str]:
    """The length of the valid prefix, and why it ends there ("" at the end of the data or at padding).

    It is at least `committed`: those bytes are not checked. `first` and `epoch` come from the segment's name, if they
    are known. `refused` tells whether the segment stands in the folder of refused bytes. Blocks with a packet id above
    `last` do not count: after a failed write they were repeated in the next segment.
    """
    try:
        head = blocks.head_of(data)
        if epoch and (head.epoch != epoch or head.refused != refused):
            raise blocks.BlockFault(0, "the head of another segment")
        if committed > head.size:
            # Fast path: if all bytes after the committed length are valid, the bytes before it need no check.
            tail, reason = _sound_from(data, committed, _id_after(data, committed), last)
            if not reason:
                return tail, ""
        sound, reason = _sound_from(data, head.size, first or None, last)
        if sound < committed:
            return _sound_from(data, committed, _id_after(data, committed), last)
    except blocks.BlockFault as fault:
        return committed, fault.reason
    return sound, reason


def _id_after(data: blocks.Buffer, end: int) -> int | None:
    """The packet id after that of the block which ends at `end`; None if no packet block ends there."""
    size = int.from_bytes(data[end - 4 : end], "little")
    try:
        if not 32 <= size <= end or blocks.block_at(data, end - size, end)[0] != blocks.ENHANCED_PACKET:
            return None
        return blocks.packet_id_at(data, end - size) + 1
    except (blocks.BlockFault, IndexError, ValueError):
        return None


def _sound_from(data: blocks.Buffer, start: int, expected: int | None, last: int | None) -> tuple[int, str]:
    sound = start
    try:
        for block in blocks.blocks(data, start, len(data)):
            if last is not None and block.packet_id > last:
                return sound, "blocks that went into the next segment"
            if expected is not None and block.packet_id != expected:
                return sound, f"packet id {block.packet_id} where {expected} should come"
            expected = block.packet_id + 1
            if not block.more:
                # A run counts only with its last block: no reader must see half a message.
                sound = block.offset + block.size
    except blocks.BlockFault as fault:
        return sound, fault.reason
    whole = sound == len(data) or blocks.is_padding(data, sound)
    return sound, "" if whole else "a run that goes on in a block that is missing"


def without_padding(data: blocks.Buffer, start: int) -> int:
    """Where the padding at the end of a segment begins; at least `start`."""
    end = len(data)
    while end - blocks.PAGE >= start and data[end - blocks.PAGE : end] == blocks.PAGE_OF_PADDING:
        end -= blocks.PAGE
    return start if data[start:end] == blocks.filler(start) else end


def holds_no_packet(data: blocks.Buffer, end: int) -> bool:
    """Whether a segment has no blocks after its head."""
    return end <= blocks.check_head(data)
