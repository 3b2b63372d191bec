"""How much of a segment is whole: complete blocks of complete runs, with the right hashes. No files here.

Recovery cuts a segment there after a crash; a reader stops there where nobody has recovered it yet.
"""

from __future__ import annotations

from wireloom.journal import blocks


def sound_length(data: blocks.Buffer, committed: int = 0, last: int | None = None) -> tuple[int, str]:
    """How much of a segment is whole, and why it ends there ("" at the end of the data or at padding).

    At least `committed`, which is not judged. Blocks with a packet id after `last` do not count: what was in doubt when
    their segment ended was written again to the next one.
    """
    try:
        head = blocks.check_head(data)
        if committed > head:
            # A sound tail is found without a walk through what was committed.
            tail, reason = _sound_from(data, committed, last)
            if not reason:
                return tail, ""
        sound, reason = _sound_from(data, head, last)
        if sound < committed:
            return _sound_from(data, committed, last)
    except blocks.BlockFault as fault:
        return committed, fault.reason
    return sound, reason


def _sound_from(data: blocks.Buffer, start: int, last: int | None) -> tuple[int, str]:
    sound = start
    try:
        for block in blocks.blocks(data, start, len(data)):
            if last is not None and block.packet_id > last:
                return sound, "blocks that went into the next segment"
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
