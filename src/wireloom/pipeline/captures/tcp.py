"""The bytes of a TCP connection in order: RFC 9293 as one who only listens sees it.

`walk` takes the packets of one flow as they were captured and gives pieces of payload in the order of the two
streams. Of bytes that were sent twice those that were captured first count. Pieces that are early wait for what
is missing before them, within limits; a hole that is not filled becomes a piece of the kind `GAP`. It is remembered:
should its bytes come after all, they are no repetition of others, and become pieces of the kind `MISSED`.

Whatever is decided here is decided at a packet, by packets before it, or by the capture's clock in a way that the next
packet would not change: so it does not matter how a capture is cut into parts, and a batch and a stream give the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.pipeline.captures.headers import ACK, FIN, RST, SYN

DATA, GAP, LATE, MISSED = 0, 1, 2, 3
"""Kinds of pieces: payload, bytes that were not captured, payload after the connection's end, payload that came after
what follows it was taken."""

# What is known of one direction.
KNOWN, BASE, NEXT, FIN_AT, WAITING, HELD, SINCE, ISN = range(8)
"""How its start is known; the sequence number of its byte 0; the next byte wanted; where it ends (-1: not known);
how many pieces wait, with how many bytes, since when; the initial sequence number (-1: not seen)."""
NOT_YET, FROM_START, MIDSTREAM = 0, 1, 2

# What is known of the connection.
CLOSED, CLOSED_AT, LAST, FIRST, CLIENT, ENDED = range(6)
"""How it was closed (0: not) and when; the latest and the first packet's time (-1: none); the side that opened it; from
`ENDED` on, when each side was through with its stream (-1: not)."""
BY_FIN, BY_RST = 1, 2

MOST_WAITING = 2048
"""So many pieces of one direction may wait."""
MOST_HELD = 4 << 20
"""So many bytes of one direction may wait: more than a window."""
LONGEST_WAIT_US = 30_000_000
ANY_TIME = 1 << 62
"""Later than any time."""
MOST_HOLES = 64
"""So many holes of one direction are remembered, the latest."""
_MOST_AT_ONCE = 8 * MOST_WAITING
"""One packet makes fewer pieces than that."""
START_PACKETS, START_US = 8, 1_000_000
"""A direction whose start was not seen is taken from its lowest byte after so many packets, or so long."""
_FAR = 1 << 28
"""A segment that far from what is wanted belongs to another connection."""

END, SILENT, ANOTHER, FULL = range(4)
"""Why `walk` stopped: no more packets; the next one comes after the idle limit; it belongs to a new connection;
no more room for pieces."""

ROW = 6
"""Columns of a piece: stream, kind, place in the data, size, packet, time."""


def new_sides() -> NDArray[np.int64]:
    """What is known of both directions before the first packet."""
    sides = np.zeros((2, 8), np.int64)
    sides[:, FIN_AT] = sides[:, ISN] = -1
    return sides


def new_connection() -> NDArray[np.int64]:
    """What is known of a connection before its first packet."""
    return np.array([0, -1, -1, -1, -1, -1, -1], np.int64)


def room(packets: int) -> NDArray[np.int64]:
    """Room for the pieces of so many packets."""
    return np.empty((packets + 2 * _MOST_AT_ONCE, ROW), np.int64)


def waiting_room() -> NDArray[np.int64]:
    """Room for pieces that wait: for both sides begin, end, place and packet."""
    return np.zeros((2, MOST_WAITING * 2, 4), np.int64)


def holes_room() -> NDArray[np.int64]:
    """Room for holes that were given up: for both sides begin and end; those that end where they begin are none."""
    return np.zeros((2, MOST_HOLES, 2), np.int64)


@kernel
def walk(  # type: ignore[no-untyped-def]
    order, first, last, side_of, flags, seq, ack, start, kept, size, time_us,
    streams, idle_us, connection, sides, waiting, holes, pieces, made,
):  # fmt: skip
    """Take packets order[first:last]: where it stopped, why, and how many pieces there are now."""
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
        # Sequence numbers wrap around: the nearest of all that could be meant.
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
    """Whether something has waited too long for what is missing before it."""
    for side in range(2):
        if sides[side, WAITING] and now - sides[side, SINCE] > LONGEST_WAIT_US:
            return True
    return False


@kernel
def give_up(connection, sides, waiting, holes, streams, before, pieces, made):  # type: ignore[no-untyped-def]
    """What has waited since before some time goes out, with the holes between; how many pieces there are now.

    It makes no difference whether a packet of the connection or the capture's clock is what tells the time: the pieces
    have the time of the last packet before.
    """
    made = _give_up(sides, waiting, holes, streams, before, connection[LAST], pieces, made)
    _note_ends(connection, sides, connection[LAST])
    return made


@kernel
def _note_ends(connection, sides, now):  # type: ignore[no-untyped-def]
    """Note which sides are through, and that the connection is closed if both are."""
    for side in range(2):
        if connection[ENDED + side] < 0 and _is_done(sides[side]):
            connection[ENDED + side] = now
    if not connection[CLOSED] and _is_done(sides[0]) and _is_done(sides[1]):
        connection[CLOSED], connection[CLOSED_AT] = BY_FIN, now


@kernel
def _mark_end(own, waiting, packet):  # type: ignore[no-untyped-def]
    """A piece of no bytes where the stream ends: the end waits for what is missing before it, as bytes would."""
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
    """What has waited since before some time goes out, with the holes between; how many pieces there are now."""
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
    """Learn where a direction begins; False when that is another connection's beginning."""
    if own[ISN] >= 0:
        return own[ISN] == isn
    if own[KNOWN] == MIDSTREAM:
        return False
    base = (isn + 1) & 0xFFFFFFFF
    if own[WAITING]:
        # Data that was captured before the SYN that it follows.
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
    """Begin with the lowest byte there is: the start was not captured."""
    own[NEXT] = begin
    own[KNOWN] = MIDSTREAM
    _lose(holes, begin - _FAR, begin)


@kernel
def _lose(holes, begin, end):  # type: ignore[no-untyped-def]
    """Remember a hole that was given up, in a free place or in that of the oldest."""
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
    """The parts of begin:end that are in holes become pieces, once; the rest was taken before."""
    for index in range(len(holes) - 1, -1, -1):  # backwards: what is remembered anew goes to the end
        first, last, after = max(begin, holes[index, 0]), min(end, holes[index, 1]), holes[index, 1]
        if first < last:
            made = _put(pieces, made, stream, kind, place + first - begin, last - first, packet, now)
            holes[index, 1] = first
            _lose(holes, last, after)
    return made


@kernel
def _insert(own, waiting, begin, end, place, packet):  # type: ignore[no-untyped-def]
    """Keep the parts of begin:end that are neither delivered nor waiting yet; `place` -1: not captured."""
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
    """A place further on; places in kept bytes of earlier parts count from -2 downwards."""
    if place >= 0:
        return place + by
    return place if place == -1 else place - by


@kernel
def _drain(own, waiting, holes, stream, now, pieces, made):  # type: ignore[no-untyped-def]
    """Deliver what waits and is next."""
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
    """Give up what is missing before the first piece that waits."""
    made = _put(pieces, made, stream, GAP, -1, waiting[0, 0] - own[NEXT], waiting[0, 3], now)
    _lose(holes, own[NEXT], waiting[0, 0])
    own[NEXT] = waiting[0, 0]
    return _drain(own, waiting, holes, stream, now, pieces, made)
