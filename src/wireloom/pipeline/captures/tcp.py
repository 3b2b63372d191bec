"""TCP reassembly, first step: brings the payload of captured packets into stream order (RFC 9293, passive observer).

Theory of operation
===================

**The problem.** A capture holds packets as they passed the observer: out of order, repeated, or not at all. The
observer cannot ask for a retransmission. It must decide by itself when to stop waiting for missing bytes.

**The idea.** `walk` reads the packets of one flow in order of capture. For each direction it knows the next byte of the
stream. A payload is handled by its position:

- It is the next: it becomes a piece of the kind `DATA`. So do pieces that were waiting for it.
- It is early: it waits, up to `MOST_WAITING` pieces, `MOST_HELD` bytes and `LONGEST_WAIT_US`. Beyond such a limit the
  missing bytes are given up: they become a piece of the kind `GAP`, and the waiting pieces follow.
- It is old: it is a retransmission, and is dropped. The bytes that were captured first count. But if it fills a hole
  that was given up, its bytes were never delivered. It then becomes a piece of the kind `MISSED`.
- It comes after the end of the connection: it becomes a piece of the kind `LATE`.

**The invariant.** The pieces do not depend on how a capture is cut into parts. Each decision depends only on packets
before it. A time-out of the capture's clock gives the same pieces as the next packet would. So a batch job and a stream
produce the same rows.

**Example.** The next byte is 100. Packets bring 100-199, 300-399, 200-299, 200-299. The pieces are 100-199, then (when
the third packet comes) 200-299 and 300-399. The fourth packet is a retransmission. If the third and fourth came only
after 30 seconds, the pieces would be 100-199, a gap of 100 bytes, 300-399, and then 200-299 as `MISSED`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.pipeline.captures.headers import ACK, FIN, RST, SYN

DATA, GAP, LATE, MISSED = 0, 1, 2, 3
"""Kinds of pieces: payload; bytes that were not captured; payload after the connection's end; payload of a hole that
was given up before."""

# Columns of the state of one direction.
KNOWN, BASE, NEXT, FIN_AT, WAITING, HELD, SINCE, ISN = range(8)
"""How its start is known; the sequence number of its byte 0; its next byte; where it ends (-1: not known); how many
pieces wait, with how many bytes, since when; the initial sequence number (-1: not seen)."""
NOT_YET, FROM_START, MIDSTREAM = 0, 1, 2

# Columns of the state of the connection.
CLOSED, CLOSED_AT, LAST, FIRST, CLIENT, ENDED = range(6)
"""How it was closed (0: not closed) and when; the time of the latest and of the first packet (-1: none); the side that
opened it; from `ENDED` on, when each side ended its stream (-1: not ended)."""
BY_FIN, BY_RST = 1, 2

MOST_WAITING = 2048
"""Limit of waiting pieces per direction."""
MOST_HELD = 4 << 20
"""Limit of waiting bytes per direction; more than a usual window."""
LONGEST_WAIT_US = 30_000_000
ANY_TIME = 1 << 62
"""Later than any time."""
MOST_HOLES = 64
"""Limit of remembered holes per direction. Beyond it, the oldest is forgotten."""
_MOST_AT_ONCE = 8 * MOST_WAITING
"""An upper bound of the pieces that one packet makes."""
START_PACKETS, START_US = 8, 1_000_000
"""If the start of a direction was not captured, it begins with the lowest byte among this many packets, or among those
of this many microseconds."""
_FAR = 1 << 28
"""A segment whose sequence number is this far from the next byte belongs to another connection."""

END, SILENT, ANOTHER, FULL = range(4)
"""Why `walk` stopped: there are no more packets; the next packet comes after the idle limit; the next packet belongs to
a new connection; the array of pieces is full."""

ROW = 6
"""Columns of a piece: stream, kind, place in the data, size, packet, time."""


def new_sides() -> NDArray[np.int64]:
    """The state of both directions before the first packet."""
    sides = np.zeros((2, 8), np.int64)
    sides[:, FIN_AT] = sides[:, ISN] = -1
    return sides


def new_connection() -> NDArray[np.int64]:
    """The state of a connection before its first packet."""
    return np.array([0, -1, -1, -1, -1, -1, -1], np.int64)


def room(packets: int) -> NDArray[np.int64]:
    """An array that is large enough for the pieces of so many packets."""
    return np.empty((packets + 2 * _MOST_AT_ONCE, ROW), np.int64)


def waiting_room() -> NDArray[np.int64]:
    """An array for waiting pieces: begin, end, place and packet, for both sides."""
    return np.zeros((2, MOST_WAITING * 2, 4), np.int64)


def holes_room() -> NDArray[np.int64]:
    """An array for holes that were given up: begin and end, for both sides. An entry with begin = end is free."""
    return np.zeros((2, MOST_HOLES, 2), np.int64)


@kernel
def walk(  # type: ignore[no-untyped-def]
    order, first, last, side_of, flags, seq, ack, start, kept, size, time_us,
    streams, idle_us, connection, sides, waiting, holes, pieces, made,
):  # fmt: skip
    """Process packets order[first:last]. Returns where it stopped, why, and how many pieces there are now."""
    for index in range(first, last):
        if made + _MOST_AT_ONCE > len(pieces):
            return index, FULL, made
        row = order[index]
        side, flag, now = np.int64(side_of[row]), flags[row], time_us[row]
        if connection[LAST] >= 0 and now - connection[LAST] > idle_us:
            return index, SILENT, made
        own, other = sides[side], sides[1 - side]
        if _has_waited(sides, now):
            made = give_up(connection, sides, waiting, holes, streams, now - LONGEST_WAIT_US, pieces, made)
        length = size[row]
        number = seq[row]
        if flag & SYN:
            if not _take_syn(own, number, waiting[side]):
                return index, ANOTHER, made
            if flag & ACK and other[ISN] < 0 and not _take_syn(other, (ack[row] - 1) & 0xFFFFFFFF, waiting[1 - side]):
                return index, ANOTHER, made
            if connection[CLIENT] < 0:
                connection[CLIENT] = 1 - side if flag & ACK else side
            number = (number + 1) & 0xFFFFFFFF
        if own[KNOWN] == NOT_YET and own[WAITING] == 0:
            own[BASE], own[NEXT], own[SINCE] = number, 0, now
        # Sequence numbers wrap around at 2**32: take the position that is nearest to the next byte.
        ahead = (number - own[BASE] - own[NEXT]) & 0xFFFFFFFF
        if ahead >= 1 << 31:
            ahead -= 1 << 32
        begin = own[NEXT] + ahead
        if length > 0 and abs(ahead) > _FAR and not flag & RST:
            return index, ANOTHER, made
        if connection[FIRST] < 0:
            connection[FIRST] = now
        connection[LAST] = max(connection[LAST], now)
        if length > 0:
            is_late = connection[CLOSED] or _is_done(own)
            if begin < own[NEXT]:
                kind = LATE if is_late else MISSED
                made = _fill(
                    holes[side], begin, begin + kept[row], streams[side], kind, start[row], row, now, pieces, made
                )
            if is_late:
                if own[KNOWN] == NOT_YET:
                    _take_from(own, holes[side], begin)
                _lose(holes[side], own[NEXT], begin)
                if begin + length > own[NEXT]:
                    skip = max(own[NEXT] - begin, 0)
                    if kept[row] > skip:
                        made = _put(pieces, made, streams[side], LATE, start[row] + skip, kept[row] - skip, row, now)
                    own[NEXT] = max(own[NEXT], begin + length)
                continue
            if own[KNOWN] != NOT_YET and own[WAITING] == 0 and kept[row] == length and ahead <= 0:
                if begin + length > own[NEXT]:
                    made = _put(pieces, made, streams[side], DATA, start[row] - ahead, length + ahead, row, now)
                    own[NEXT] = begin + length
            else:
                if own[WAITING] == 0:
                    own[SINCE] = now
                _insert(own, waiting[side], begin, begin + kept[row], start[row], row)
                _insert(own, waiting[side], begin + kept[row], begin + length, -1, row)
                if own[KNOWN] == NOT_YET and (own[WAITING] >= START_PACKETS or now - own[SINCE] > START_US):
                    _take_from(own, holes[side], waiting[side, 0, 0])
                if own[KNOWN] != NOT_YET:
                    made = _drain(own, waiting[side], holes[side], streams[side], now, pieces, made)
                    while own[WAITING] and (own[WAITING] >= MOST_WAITING - 1 or own[HELD] > MOST_HELD):
                        made = _skip_hole(own, waiting[side], holes[side], streams[side], now, pieces, made)
        if flag & FIN and own[FIN_AT] < 0:
            if own[KNOWN] == NOT_YET:
                _take_from(own, holes[side], waiting[side, 0, 0] if own[WAITING] else begin)
                made = _drain(own, waiting[side], holes[side], streams[side], now, pieces, made)
            own[FIN_AT] = begin + length
            if not _is_done(own):
                if own[WAITING] == 0:
                    own[SINCE] = now
                _mark_end(own, waiting[side], row)
        while own[WAITING] and _is_done(own):
            made = _skip_hole(own, waiting[side], holes[side], streams[side], now, pieces, made)
        if flag & RST and not connection[CLOSED]:
            made = _give_up(sides, waiting, holes, streams, ANY_TIME, now, pieces, made)
            connection[CLOSED], connection[CLOSED_AT] = BY_RST, now
        _note_ends(connection, sides, now)
    return last, END, made


@kernel
def _has_waited(sides, now):  # type: ignore[no-untyped-def]
    """Whether a piece has waited for missing bytes for too long."""
    for side in range(2):
        if sides[side, WAITING] and now - sides[side, SINCE] > LONGEST_WAIT_US:
            return True
    return False


@kernel
def give_up(connection, sides, waiting, holes, streams, before, pieces, made):  # type: ignore[no-untyped-def]
    """Deliver pieces that have waited since before a time, with gaps between them. Returns the number of pieces.

    The pieces get the time of the connection's last packet. So the result is the same whether a packet of the
    connection or the capture's clock caused the call.
    """
    made = _give_up(sides, waiting, holes, streams, before, connection[LAST], pieces, made)
    _note_ends(connection, sides, connection[LAST])
    return made


@kernel
def _note_ends(connection, sides, now):  # type: ignore[no-untyped-def]
    """Note which sides have ended their streams; if both have, the connection is closed."""
    for side in range(2):
        if connection[ENDED + side] < 0 and _is_done(sides[side]):
            connection[ENDED + side] = now
    if not connection[CLOSED] and _is_done(sides[0]) and _is_done(sides[1]):
        connection[CLOSED], connection[CLOSED_AT] = BY_FIN, now


@kernel
def _mark_end(own, waiting, packet):  # type: ignore[no-untyped-def]
    """Add an empty piece at the end of the stream. So the end waits for missing bytes before it, as payload does."""
    index = own[WAITING]
    while index > 0 and waiting[index - 1, 0] > own[FIN_AT]:
        for column in range(4):
            waiting[index, column] = waiting[index - 1, column]
        index -= 1
    waiting[index, 0] = own[FIN_AT]
    waiting[index, 1] = own[FIN_AT]
    waiting[index, 2] = -1
    waiting[index, 3] = packet
    own[WAITING] += 1


@kernel
def _give_up(sides, waiting, holes, streams, before, now, pieces, made):  # type: ignore[no-untyped-def]
    """`give_up` with the time `now` for the pieces."""
    for side in range(2):
        own = sides[side]
        if own[SINCE] >= before:
            continue
        if own[KNOWN] == NOT_YET and own[WAITING]:
            _take_from(own, holes[side], waiting[side, 0, 0])
            made = _drain(own, waiting[side], holes[side], streams[side], now, pieces, made)
        while own[WAITING]:
            made = _skip_hole(own, waiting[side], holes[side], streams[side], now, pieces, made)
    return made


@kernel
def _is_done(own):  # type: ignore[no-untyped-def]
    return own[FIN_AT] >= 0 and own[NEXT] >= own[FIN_AT]


@kernel
def _put(pieces, made, stream, kind, place, size, packet, now):  # type: ignore[no-untyped-def]
    pieces[made, 0] = stream
    pieces[made, 1] = kind
    pieces[made, 2] = place
    pieces[made, 3] = size
    pieces[made, 4] = packet
    pieces[made, 5] = now
    return made + 1


@kernel
def _take_syn(own, isn, waiting):  # type: ignore[no-untyped-def]
    """Learn from a SYN where a direction begins; False if the SYN belongs to a new connection."""
    if own[ISN] >= 0:
        return own[ISN] == isn
    if own[KNOWN] == MIDSTREAM:
        return False
    base = (isn + 1) & 0xFFFFFFFF
    if own[WAITING]:
        # Payload was captured before the SYN: its positions must be corrected.
        shift = (own[BASE] - base) & 0xFFFFFFFF
        if shift >= 1 << 31:
            shift -= 1 << 32
        if waiting[0, 0] + shift < 0 or shift > MOST_HELD:
            return False
        for index in range(own[WAITING]):
            waiting[index, 0] += shift
            waiting[index, 1] += shift
    own[BASE], own[NEXT], own[ISN], own[KNOWN] = base, 0, isn, FROM_START
    return True


@kernel
def _take_from(own, holes, begin):  # type: ignore[no-untyped-def]
    """Begin the stream with the lowest byte that was captured: its start is missing."""
    own[NEXT] = begin
    own[KNOWN] = MIDSTREAM
    _lose(holes, begin - _FAR, begin)


@kernel
def _lose(holes, begin, end):  # type: ignore[no-untyped-def]
    """Remember a hole that was given up, in a free entry or instead of the oldest."""
    if begin >= end:
        return
    free = 0
    for index in range(len(holes)):
        if holes[index, 0] >= holes[index, 1]:
            free = index
    for index in range(free, len(holes) - 1):
        holes[index, 0] = holes[index + 1, 0]
        holes[index, 1] = holes[index + 1, 1]
    holes[-1, 0] = begin
    holes[-1, 1] = end


@kernel
def _fill(holes, begin, end, stream, kind, place, packet, now, pieces, made):  # type: ignore[no-untyped-def]
    """Make pieces of those parts of begin:end that fill holes. The rest is a retransmission."""
    for index in range(len(holes) - 1, -1, -1):  # backwards: what is remembered anew goes to the end
        first, last, after = max(begin, holes[index, 0]), min(end, holes[index, 1]), holes[index, 1]
        if first < last:
            made = _put(pieces, made, stream, kind, place + first - begin, last - first, packet, now)
            holes[index, 1] = first
            _lose(holes, last, after)
    return made


@kernel
def _insert(own, waiting, begin, end, place, packet):  # type: ignore[no-untyped-def]
    """Let those parts of begin:end wait that are neither delivered nor waiting yet; `place` -1: not captured."""
    if own[KNOWN] != NOT_YET and begin < own[NEXT]:
        place = _moved(place, own[NEXT] - begin)
        begin = own[NEXT]
    index = 0
    while begin < end:
        while index < own[WAITING] and waiting[index, 1] <= begin:
            index += 1
        stop = end
        if index < own[WAITING]:
            if waiting[index, 0] <= begin:
                place = _moved(place, waiting[index, 1] - begin)
                begin = waiting[index, 1]
                continue
            stop = min(end, waiting[index, 0])
        for moved in range(own[WAITING], index, -1):
            for column in range(4):
                waiting[moved, column] = waiting[moved - 1, column]
        waiting[index, 0] = begin
        waiting[index, 1] = stop
        waiting[index, 2] = place
        waiting[index, 3] = packet
        own[WAITING] += 1
        own[HELD] += stop - begin
        place = _moved(place, stop - begin)
        begin = stop


@kernel
def _moved(place, by):  # type: ignore[no-untyped-def]
    """A place, advanced by some bytes. Places in held bytes count from -2 downwards (see `reassemble.py`)."""
    if place >= 0:
        return place + by
    return place if place == -1 else place - by


@kernel
def _drain(own, waiting, holes, stream, now, pieces, made):  # type: ignore[no-untyped-def]
    """Deliver the waiting pieces that continue the stream without a hole."""
    taken = 0
    while taken < own[WAITING] and waiting[taken, 0] == own[NEXT]:
        length = waiting[taken, 1] - waiting[taken, 0]
        kind = GAP if waiting[taken, 2] == -1 else DATA
        if kind == GAP:
            _lose(holes, waiting[taken, 0], waiting[taken, 1])
        if length > 0:
            made = _put(pieces, made, stream, kind, waiting[taken, 2], length, waiting[taken, 3], now)
        own[NEXT] = waiting[taken, 1]
        own[HELD] -= length
        taken += 1
    if taken:
        for index in range(taken, own[WAITING]):
            for column in range(4):
                waiting[index - taken, column] = waiting[index, column]
        own[WAITING] -= taken
        own[SINCE] = now
    return made


@kernel
def _skip_hole(own, waiting, holes, stream, now, pieces, made):  # type: ignore[no-untyped-def]
    """Give up the missing bytes before the first waiting piece: they become a gap."""
    made = _put(pieces, made, stream, GAP, -1, waiting[0, 0] - own[NEXT], waiting[0, 3], now)
    _lose(holes, own[NEXT], waiting[0, 0])
    own[NEXT] = waiting[0, 0]
    return _drain(own, waiting, holes, stream, now, pieces, made)
