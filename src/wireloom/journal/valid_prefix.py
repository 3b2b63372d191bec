"""How much of a segment is whole: complete blocks of complete runs, with the right hashes. No files here.

Recovery cuts a segment there after a crash; a reader stops there where nobody has recovered it yet.

A file system may give a file its new size before its new bytes. After a power cut old sectors can stand there, even
whole blocks of another segment that was removed. So a block must also have the packet id that comes next, and the head
must be of the epoch in the segment's name.
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
    """How much of a segment is whole, and why it ends there ("" at the end of the data or at padding).

    At least `committed`, which is not judged. `first` and `epoch` are what the segment's name says, as far as it does;
    `refused` tells whether its folder is that of refused bytes. Blocks with a packet id after `last` do not count: what
    was in doubt when their segment ended was written again to the next one.
    """
    try:
        head = blocks.head_of(data)
        if epoch and (head.epoch != epoch or head.refused != refused):
            raise blocks.BlockFault(0, "the head of another segment")
        if committed > head.size:
            # A sound tail is found without a walk through what was committed.
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
    """The packet id that follows the block that ends at `end`; None if that does not tell."""
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
                # A run counts once its last block is there: half a message is none.
                sound = block.offset + block.size
    except blocks.BlockFault as fault:
        return sound, fault.reason
    whole = sound == len(data) or blocks.is_padding(data, sound)
    return sound, "" if whole else "a run that goes on in a block that is missing"


def without_padding(data: blocks.Buffer, start: int) -> int:
    """Where the padding at the end of a segment begins, if not before `start`."""
    end = len(data)
    while end - blocks.PAGE >= start and data[end - blocks.PAGE : end] == blocks.PAGE_OF_PADDING:
        end -= blocks.PAGE
    return start if data[start:end] == blocks.filler(start) else end


def holds_no_packet(data: blocks.Buffer, end: int) -> bool:
    """Whether a segment has a head and nothing behind it."""
    return end <= blocks.check_head(data)
