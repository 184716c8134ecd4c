"""The careful path of a reader: one JSON row, field by field, every fault in words.

A reader's fast path may leave anything unexpected to this one; both must give the same values.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MOST_TOKENS = 2**31 - 1
FARTHEST_TIME = float(2**63)
SMALLEST_ID, LARGEST_ID = -(2**63), 2**64 - 1

Row = dict[str, Any]

_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_HEXADECIMAL = re.compile(r"-?(0[xX])?[0-9a-fA-F]+")


class RowError(ValueError):
    """What is wrong with one row, in words; the reader adds the file and the row."""


def kind(value: object) -> str:
    """What a JSON value is, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def short(value: object) -> str:
    """A number in at most 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def parse(text: bytes) -> object:
    """Parse one JSON text. Raises RowError in words; NaN and Infinity are left to the fields."""
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise RowError(f"not valid UTF-8 (byte {error.start + 1})") from error
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise RowError(f"not valid JSON ({place})") from error
    except RecursionError as error:
        raise RowError("nested too deeply") from error
    except ValueError as error:
        raise RowError("a number has too many digits") from error


def as_object(value: object) -> Row:
    """The value as an object. Raises RowError where it is something else."""
    if not isinstance(value, dict):
        raise RowError(f"must be a JSON object, not {kind(value)}")
    return value


def required(row: Row, name: str) -> object:
    """The value of a field. Raises RowError where it is missing."""
    if name not in row:
        raise RowError(f'"{name}" is missing')
    return row[name]


def number(row: Row, name: str) -> float:
    """A finite number. Raises RowError."""
    value = required(row, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(f'"{name}" must be a number, not {kind(value)}')
    if isinstance(value, float) and not math.isfinite(value):
        word = "NaN" if math.isnan(value) else "infinite"
        raise RowError(f'"{name}" must be a finite number: it is {word}')
    if not -FARTHEST_TIME < value < FARTHEST_TIME:
        raise RowError(f'"{name}" is out of range: {short(value)}')
    return float(value)


def time(row: Row, name: str) -> float:
    """A time as `number`, or the same as text. Raises RowError."""
    value = required(row, name)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return number({name: float(value)}, name)
    if isinstance(value, str):
        raise RowError(f'"{name}" must be a number, not the text {short(value)}')
    return number(row, name)


def integer(row: Row, name: str) -> int:
    """An integer of any size. Raises RowError."""
    value = required(row, name)
    if isinstance(value, float):
        raise RowError(f'"{name}" must be an integer, not {short(value)}')
    if isinstance(value, bool) or not isinstance(value, int):
        raise RowError(f'"{name}" must be an integer, not {kind(value)}')
    return value


def tokens(row: Row, name: str) -> int:
    """A number of tokens: an integer from 0 to 2^31 - 1. Raises RowError."""
    value = integer(row, name)
    if value < 0:
        raise RowError(f'"{name}" must not be negative: {short(value)}')
    if value > MOST_TOKENS:
        raise RowError(f'"{name}" is out of range: {short(value)} (at most {MOST_TOKENS})')
    return value


def optional_number(row: Row, name: str) -> float | None:
    """A number from 0 on, or None where the field is missing or null. Raises RowError."""
    if row.get(name) is None:
        return None
    value = number(row, name)
    if value < 0:
        raise RowError(f'"{name}" must not be negative: {short(row[name])}')
    return value


def optional_integer(row: Row, name: str, least: int) -> int | None:
    """An integer from ``least`` to 2^31 - 1, or None as `optional_number`. Raises RowError."""
    if row.get(name) is None:
        return None
    value = integer(row, name)
    if not least <= value <= MOST_TOKENS:
        raise RowError(f'"{name}" is out of range: {short(value)}')
    return value


def label(row: Row, name: str) -> str:
    """A name as `optional_label`, which must be there. Raises RowError."""
    required(row, name)
    value = optional_label(row, name)
    if value is None:
        raise RowError(f'"{name}" must be a string, not null')
    return value


def optional_label(row: Row, name: str) -> str | None:
    """A name: a string, or an integer as its digits; None as `optional_number`. Raises RowError."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise RowError(f'"{name}" must be a string, not {kind(value)}')
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(f'"{name}" is not valid Unicode (half of a surrogate pair)') from error
    return value


def block_ids(row: Row, name: str) -> list[int]:
    """A list of block ids from -2^63 to 2^64 - 1. Raises RowError."""
    value = required(row, name)
    if not isinstance(value, list):
        raise RowError(f'"{name}" must be a list, not {kind(value)}')
    for place, item in enumerate(value):
        if type(item) is int:
            if not SMALLEST_ID <= item <= LARGEST_ID:
                raise RowError(f'"{name}"[{place}] does not fit in 64 bits: {short(item)}')
        elif isinstance(item, float):
            raise RowError(f'"{name}"[{place}] must be an integer, not {short(item)}')
        else:
            raise RowError(f'"{name}"[{place}] must be an integer, not {kind(item)}')
    return value


def hexadecimal(text: str) -> int | None:
    """The number that ``text`` writes in hexadecimal, with ``0x`` or without; None for another."""
    return int(text, 16) if _HEXADECIMAL.fullmatch(text) else None


def low_64_bits(value: int) -> int:
    """The last 64 bits of an integer of any size, as a signed one."""
    bits = value & (2**64 - 1)
    return bits - 2**64 if bits >= 2**63 else bits
