"""Unique keys that Python tells apart and the database does not, in another case for instance.

The database alone knows its collations, so it says which keys are the same. It is asked only about
keys that look alike, and about most responses not at all.

Note [Looks]

Two keys that some database takes for the same must look the same here; the reverse is harmless, it
costs one question. While all text is printable ASCII, nothing but case and trailing spaces can
differ. Other text may be equal even to ASCII, by rules that differ between collations: é is e, ß is
ss, or s (MariaDB's general_ci), ü is u, ue (German phone books) or y (Swedish), ø is o, æ is ae or
ä, カ is か, every emoji is every other one (general_ci), and control characters are nothing. So
what is compared are the letters without marks and variants, Latin ones without vowels, and no
letter twice in a row. Left out are collations that ignore punctuation (ICU's ka-shifted) or compare
digits as numbers (kn), and scripts that nobody writes any more.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from django.db import connections
from django.db.models import Model

from django_vega.writing.faults import ColumnField
from django_vega.writing.unique import MOST_VARIABLES, UniqueKey, chunks

# A key with the number of those that look alike, and its own in the list that it comes from.
_Numbered: TypeAlias = tuple[int, int, UniqueKey]

# What some letters are in the collations of some language.
_LETTERS: Final = {"ð": "d", "þ": "th", "\N{MIDDLE DOT}": ""}
_VOWELS: Final = frozenset("aeiouy")
_LETTER: Final = re.compile(r"(?P<script>.*?)\b(?:LETTER|LIGATURE) (?P<name>.*?)(?: WITH .*)?")
_REPEATED: Final = re.compile(r"([^\W\d])\1+")

# What has the type and the collation of a column on every database is a union that begins with it.
_SAME: Final = (
    "WITH k AS (SELECT -1 AS g, -1 AS n{columns} FROM {table} WHERE 1 = 0{keys}) "
    "SELECT a.n, MAX(b.n) FROM k a JOIN k b ON a.g = b.g AND a.n < b.n{same} GROUP BY a.n"
)


def latest(
    alias: str, model: type[Model], unique: Sequence[ColumnField], keys: Iterable[UniqueKey]
) -> dict[UniqueKey, UniqueKey]:
    """Return, for each key that the database takes for the same as a later one, the last of those.

    Reads no rows, but compares as the columns of the unique key do.

    Args:
        alias: The database.
        model: Whose table.
        unique: The fields of the keys.
        keys: Distinct for Python, in their order.
    """
    listed = list(keys)
    found: dict[int, int] = {}
    for numbered in _statements(_alike(listed), len(unique)):
        for number, last in _same(alias, model, unique, numbered):
            found[number] = max(last, found.get(number, 0))
    return {listed[number]: listed[last] for number, last in found.items()}


def _alike(keys: list[UniqueKey]) -> Iterator[list[_Numbered]]:
    """Yield the keys that look like others, with those, in their order; see Note [Looks]."""
    texts = [part for key in keys for part in key if isinstance(part, str)]
    is_plain = all(map(str.isascii, texts)) and all(map(str.isprintable, texts))
    look = _plain_look if is_plain else _look
    groups: defaultdict[UniqueKey, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        looks = tuple([look(part) if isinstance(part, str) else part for part in key])
        groups[looks].append(number)
    for numbers in groups.values():
        if len(numbers) > 1:
            yield [(numbers[0], number, keys[number]) for number in numbers]


def _plain_look(text: str) -> str:
    return text.lower().rstrip()


def _look(text: str) -> str:
    return _REPEATED.sub(r"\1", text.translate(_skeletons)).rstrip()


class _Skeletons(dict[int, str]):
    """By character what is left of it, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        parts = unicodedata.normalize("NFKD", chr(code))
        letters = "".join(part for part in parts if unicodedata.category(part)[0] not in "CM")
        self[code] = skeleton = "".join(map(_skeleton, letters.casefold()))
        return skeleton


_skeletons: Final = _Skeletons()


def _skeleton(char: str) -> str:
    if char.isascii():
        return "" if char in _VOWELS else char
    if (digit := unicodedata.digit(char, None)) is not None:
        return str(digit)
    if ord(char) > 0xFFFF:
        return "\N{REPLACEMENT CHARACTER}"
    if char in _LETTERS:
        return _LETTERS[char]
    if (match := _LETTER.fullmatch(unicodedata.name(char, ""))) is None:
        return char
    # Without what tells variants apart: SMALL, FINAL, OPEN, DOTLESS.
    name = match["name"].rpartition(" ")[2].lower()
    if match["script"].startswith("LATIN"):
        return "".join(part for part in name if part not in _VOWELS)
    return name


def _statements(groups: Iterable[list[_Numbered]], width: int) -> Iterator[list[_Numbered]]:
    """Pack groups into lists that one statement takes, so that each pair of a group meets."""
    # One more SELECT names the columns; SQLite takes 500 of them together.
    most = max(MOST_VARIABLES // width - 1, 2)
    packed: list[_Numbered] = []
    for group in groups:
        if len(group) > most:
            for one, other in combinations(chunks(group, most // 2), 2):
                yield [*one, *other]
            continue
        if len(packed) + len(group) > most:
            yield packed
            packed = []
        packed += group
    if packed:
        yield packed


def _same(
    alias: str, model: type[Model], unique: Sequence[ColumnField], numbered: list[_Numbered]
) -> list[tuple[int, int]]:
    """Return the numbers of keys that are the same as a later one, with the number of the last."""
    connection = connections[alias]
    quote = connection.ops.quote_name
    # All but the text is equal where keys look alike.
    texts = {n: f for n, f in enumerate(unique) if any(isinstance(k[n], str) for *_, k in numbered)}
    given = ", %s" * len(texts)
    sql = _SAME.format(
        columns="".join(f", {quote(str(field.column))} AS k{n}" for n, field in texts.items()),
        table=quote(model._meta.db_table),
        keys="".join(
            f" UNION ALL SELECT {group}, {number}{given}" for group, number, _ in numbered
        ),
        same="".join(f" AND a.k{n} = b.k{n}" for n in texts),
    )
    params = [
        field.get_db_prep_value(key[n], connection, prepared=True)
        for *_, key in numbered
        for n, field in texts.items()
    ]
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [(number, last) for number, last in cursor.fetchall()]
