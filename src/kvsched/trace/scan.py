"""Text tables in compiled loops: cells cut and parsed where they lie in the buffer.

Each function gives up (and says so) at anything out of the ordinary; `cells` then takes the same
cells one by one, with the same values or the fault in words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.jit import hot
from kvsched.trace.ids import parse_id_lists
from kvsched.trace.model import Float64s, Int32s, Int64s

Bytes = NDArray[np.uint8]

MISSING = -(2**63)
"""In a parsed column of integers or dates: the cell is empty."""
_WORD = 0xFFFFFFFF


@hot
def cut(
    text: Bytes, mark: int, wanted: Int64s, first_line: int, starts: Any, ends: Any, lines: Int64s
) -> int:
    """Cut rows of ``len(wanted)`` cells; column c goes to slot ``wanted[c]``, or nowhere if -1.

    Fills ``starts`` and ``ends`` (slots, K) with the cells' bytes, without quotes, and ``lines``
    (K,) with each row's first line. Returns the rows, or -1 where a row has another number of
    cells, a quote stands inside a cell, or a wanted cell holds a doubled one. 1 ns a byte.
    """
    at = 0
    row = 0
    line = first_line
    end = len(text)
    while at < end:
        lines[row] = line
        for place in range(len(wanted)):
            slot = wanted[place]
            begin = at
            if at < end and text[at] == 34:
                begin = at + 1
                stop, breaks = _closing(text, begin, slot >= 0)
                at = stop + 1
                line += breaks
            else:
                stop = _cell_end(text, at, mark)
                at = stop
            if stop < 0:
                return -1
            if slot >= 0:
                starts[slot, row] = begin
                ends[slot, row] = stop
            if place + 1 < len(wanted):
                if at >= end or text[at] != mark:
                    return -1
                at += 1
        at = _row_end(text, at)
        if at < 0:
            return -1
        line += 1
        row += 1
    return row


def _closing(text: Bytes, at: int, wanted: bool) -> tuple[int, int]:
    """The place of the quote that closes a cell, and the lines that break in it, or -1.

    A doubled quote is part of the cell, and no cell that is wanted has one.
    """
    breaks = 0
    while at < len(text):
        if text[at] == 34:
            if at + 1 >= len(text) or text[at + 1] != 34:
                return at, breaks
            if wanted:
                break
            at += 1
        elif text[at] == 10:
            breaks += 1
        at += 1
    return -1, 0


def _cell_end(text: Bytes, at: int, mark: int) -> int:
    """The place after a cell without quotes, or -1 where one stands in it."""
    while at < len(text):
        byte = text[at]
        if byte in (mark, 10, 13):
            return at
        if byte in (34, 0):
            return -1
        at += 1
    return at


def _row_end(text: Bytes, at: int) -> int:
    """The place after the end of the line that must stand here, or -1."""
    if at >= len(text):
        return at
    if text[at] == 13:
        at += 1
    if at >= len(text) or text[at] != 10:
        return -1
    return at + 1


def _trimmed(text: Bytes, begin: int, end: int) -> tuple[int, int]:
    """The cell without the blanks around it."""
    while begin < end and text[begin] == 32:
        begin += 1
    while end > begin and text[end - 1] == 32:
        end -= 1
    return begin, end


def _whole(text: Bytes, begin: int, end: int) -> tuple[bool, int]:
    """An integer of at most 18 digits, with or without ``.0``: whether it is one, and which."""
    negative = begin < end and text[begin] == 45
    at = begin + 1 if negative else begin
    first = at
    value = 0
    while at < end and 48 <= text[at] <= 57:
        value = value * 10 + int(text[at]) - 48
        at += 1
        if at - first > 18:
            return False, 0
    if at == first:
        return False, 0
    if at < end and text[at] == 46:
        at += 1
        while at < end and text[at] == 48:
            at += 1
    return at == end, -value if negative else value


@hot
def integers(text: Bytes, starts: Int64s, ends: Int64s, out: Int64s) -> bool:
    """Parse a column of integers into ``out`` (K,), `MISSING` where a cell is empty."""
    for row in range(len(out)):
        begin, end = _trimmed(text, int(starts[row]), int(ends[row]))
        if begin == end:
            out[row] = MISSING
            continue
        sound, value = _whole(text, begin, end)
        if not sound:
            return False
        out[row] = value
    return True


@hot
def numbers(text: Bytes, starts: Int64s, ends: Int64s, out: Float64s) -> bool:
    """Parse a column of decimal numbers into ``out`` (K,), NaN where a cell is empty.

    At most 15 digits: the integer of them and the power of ten are then exact in a double, and
    their quotient is the double nearest to the number.
    """
    for row in range(len(out)):
        begin, end = _trimmed(text, int(starts[row]), int(ends[row]))
        if begin == end:
            out[row] = np.nan
            continue
        negative = text[begin] == 45
        at = begin + 1 if negative else begin
        digits = 0
        value = 0
        scale = 1
        point = False
        while at < end and digits <= 15:
            if text[at] == 46 and not point:
                point = True
            elif 48 <= text[at] <= 57:
                value = value * 10 + int(text[at]) - 48
                digits += 1
                if point:
                    scale *= 10
            else:
                return False
            at += 1
        if digits == 0 or digits > 15:
            return False
        quotient = value / scale
        out[row] = -quotient if negative else quotient
    return True


def _field(text: Bytes, at: int, digits: int) -> int:
    """The number that ``digits`` digits from ``at`` on say, or -1."""
    value = 0
    for place in range(at, at + digits):
        if not 48 <= text[place] <= 57:
            return -1
        value = value * 10 + int(text[place]) - 48
    return value


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01, or -1 where the calendar (of 1970 to 2199) has no such day."""
    if not (1970 <= year < 2200 and 1 <= month <= 12 and day >= 1):
        return -1
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = 31
    if month in (4, 6, 9, 11):
        longest = 30
    elif month == 2:
        longest = 29 if leap else 28
    if day > longest:
        return -1
    # The year is counted from March, so that the leap day is its last.
    from_march = year if month > 2 else year - 1
    months = month - 3 if month > 2 else month + 9
    days = 365 * from_march + from_march // 4 - from_march // 100 + from_march // 400
    return days + (153 * months + 2) // 5 + day - 1 - 719468


def _zone(text: Bytes, at: int, end: int) -> tuple[bool, int]:
    """Whether the rest of a date is a time zone, and its seconds east of UTC."""
    if at == end or (at + 1 == end and text[at] == 90):
        return True, 0
    colon = at + 6 == end and text[at + 3] == 58
    if not colon and at + 5 != end:
        return False, 0
    if text[at] != 43 and text[at] != 45:
        return False, 0
    hours = _field(text, at + 1, 2)
    minutes = _field(text, at + 4 if colon else at + 3, 2)
    if hours < 0 or minutes < 0:
        return False, 0
    seconds = 60 * (60 * hours + minutes)
    return True, -seconds if text[at] == 45 else seconds


@hot
def dates(text: Bytes, starts: Int64s, ends: Int64s, out: Int64s) -> bool:
    """Parse dates as ``2023-11-16 18:15:46.6805900+00:00`` to nanoseconds since 1970.

    `MISSING` where a cell is empty. A ``T`` may stand for the blank; fraction (up to 9 digits)
    and zone may be missing.
    """
    for row in range(len(out)):
        begin, end = _trimmed(text, int(starts[row]), int(ends[row]))
        if begin == end:
            out[row] = MISSING
            continue
        if end - begin < 19:
            return False
        if text[begin + 4] != 45 or text[begin + 7] != 45 or text[begin + 13] != 58:
            return False
        if text[begin + 16] != 58 or (text[begin + 10] != 32 and text[begin + 10] != 84):
            return False
        days = _days(_field(text, begin, 4), _field(text, begin + 5, 2), _field(text, begin + 8, 2))
        hour = _field(text, begin + 11, 2)
        minute = _field(text, begin + 14, 2)
        second = _field(text, begin + 17, 2)
        if days < 0 or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
            return False
        at = begin + 19
        fraction = 0
        if at < end and text[at] == 46:
            at += 1
            first = at
            while at < end and 48 <= text[at] <= 57 and at - first < 9:
                fraction = fraction * 10 + int(text[at]) - 48
                at += 1
            if at == first:
                return False
            for _ in range(9 - (at - first)):
                fraction *= 10
        sound, east = _zone(text, at, end)
        if not sound:
            return False
        seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - east
        out[row] = seconds * 1000000000 + fraction
    return True


@hot
def number_labels(
    text: Bytes, starts: Int64s, ends: Int64s, codes: Int32s, firsts: Int64s, table: Int32s
) -> int:
    """Number the different cells in order of first appearance: ``codes`` (K,), -1 where empty.

    ``firsts`` (K,) gets the row where each was seen first; ``table``, a power of two over 2K
    long, must be all -1. Returns how many there are.
    """
    mask = len(table) - 1
    found = 0
    for row in range(len(codes)):
        begin, end = int(starts[row]), int(ends[row])
        if begin == end:
            codes[row] = -1
            continue
        value = 0x811C9DC5
        for place in range(begin, end):
            value = ((value ^ int(text[place])) * 0x01000193) & _WORD
        slot = (value ^ (value >> 15)) & mask
        while table[slot] >= 0:
            other = int(firsts[table[slot]])
            same = ends[other] - starts[other] == end - begin
            place = 0
            while same and place < end - begin:
                same = text[starts[other] + place] == text[begin + place]
                place += 1
            if same:
                break
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = found
            firsts[found] = row
            found += 1
        codes[row] = table[slot]
    return found


@hot
def _as_json(text: Bytes, starts: Int64s, ends: Int64s, out: Bytes) -> int:
    """Write each cell as a JSON list into ``out``; return its length."""
    at = 0
    for row in range(len(starts)):
        begin, end = _trimmed(text, int(starts[row]), int(ends[row]))
        if begin < end and text[begin] == 91:
            for place in range(begin, end):
                out[at] = text[place]
                at += 1
            continue
        out[at] = 91
        at += 1
        between = False
        for place in range(begin, end):
            byte = text[place]
            if byte in (32, 59, 44, 124):
                between = True
                continue
            if between:
                out[at] = 44
                at += 1
                between = False
            out[at] = byte
            at += 1
        out[at] = 93
        at += 1
    return at


def blocks(text: Bytes, starts: Int64s, ends: Int64s, counts: Int64s) -> tuple[Int64s, int] | None:
    """A column of lists of integers, as `ids.parse_id_lists`; fills ``counts`` (K,)."""
    room = int((ends - starts).sum()) + 2 * len(starts)
    out = np.empty(room, np.uint8)
    length = _as_json(text, starts, ends, out)
    return parse_id_lists([out[:length].data], counts)
