"""Keys that the database takes for the same in spite of their spelling are one row, as it says."""

import unicodedata
from collections import defaultdict
from datetime import date
from itertools import product

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_vega.core.errors import DuplicateRowError
from django_vega.models import RefreshState
from django_vega.writing.spelling import _look, _plain_look, latest
from django_vega.writing.upsert import Upsert
from tests.writing.refreshing import refresh
from tests.writing_app.models import (
    INSENSITIVE,
    Caption,
    Label,
    Placard,
    Quake,
    SharedLabel,
    Tag,
)

MODELS = [Label, SharedLabel, Caption, Placard]
LABELS = Upsert(Label, ["name"])


@pytest.fixture
def tables(transactional_db):
    """Create the tables whose text is insensitive to case."""
    connection = connections["default"]
    made_here = connection.vendor == "postgresql"
    if made_here:
        with connection.cursor() as cursor:
            cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_collation WHERE collprovider = 'i')")
            if cursor.fetchone() != (True,):
                pytest.skip("this PostgreSQL was built without ICU")
            cursor.execute(
                f"CREATE COLLATION {INSENSITIVE} "
                "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
    with connection.schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)
    yield
    with connection.schema_editor() as editor:
        for model in reversed(MODELS):
            editor.delete_model(model)
    if made_here:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP COLLATION {INSENSITIVE}")


def labels(names):
    """Return a row for each name, whose value is its place in the response."""
    return [Label(name=name, value=value) for value, name in enumerate(names)]


def stored():
    """Return what is stored, by name."""
    return dict(Label.objects.values_list("name", "value"))


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("batch_size", [None, 1, 2])
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["A", "a"], {"a": 1}),
        (["a", "A"], {"A": 1}),
        (["a", "b", "A", "c", "a"], {"b": 1, "c": 3, "a": 4}),
        (["ab", "c", "AB", "aB", "Ab", "AB", "c"], {"AB": 5, "c": 6}),
        (["b", "A", "B", "a"], {"B": 2, "a": 3}),
    ],
)
def test_duplicates__last_of_the_response_wins(names, expected, batch_size):
    """Of rows with one key for the database the last of the response stays; the others count."""
    rows = labels(names)
    upsert = Upsert(Label, ["name"], batch_size=batch_size)
    result = refresh(rows, 1, upsert=upsert)
    assert stored() == expected
    assert (result.rows, result.written) == (len(expected), len(expected))
    assert result.duplicates == len(names) - len(expected)
    pks = {name.lower(): pk for name, pk in Label.objects.values_list("name", "pk")}
    assert [row.pk for row in rows] == [pks[row.name.lower()] for row in rows]
    assert not any(row._state.adding for row in rows)


@pytest.mark.usefixtures("tables")
def test_duplicates__error():
    """With duplicates="error" they are refused with the later key, and nothing is written."""
    upsert = Upsert(Label, ["name"], duplicates="error")
    with pytest.raises(DuplicateRowError) as caught:
        refresh(
            labels(["b", "A", "a"]),
            1,
            upsert=upsert,
            begin_writing=lambda: pytest.fail("nothing is to be written"),
        )
    assert caught.value.unique_key == (("name", "a"),)
    assert (stored(), RefreshState.objects.count()) == ({}, 0)


@pytest.mark.usefixtures("tables")
def test_duplicates__superseded():
    """A response that comes too late still says how many rows it had."""
    refresh(labels(["a"]), 5, upsert=LABELS)
    result = refresh(labels(["A", "a", "b"]), 4, upsert=LABELS)
    assert (result.outcome, result.rows, result.duplicates) == ("superseded", 2, 1)


@pytest.mark.usefixtures("tables")
def test_duplicates__thousand_spellings():
    """Even spellings of one key that no statement holds together are one row."""
    names = ["".join(letters) for letters in product(*zip("abcdefghij", "ABCDEFGHIJ", strict=True))]
    names.insert(0, "other")
    result = refresh(labels(names), 1, upsert=LABELS)
    assert stored() == {"other": 0, "ABCDEFGHIJ": 1024}
    assert (result.rows, result.duplicates) == (2, 1023)


@pytest.mark.usefixtures("tables")
def test_duplicates__many_pairs():
    """Pairs that fill several statements are all found."""
    names = [f"{letter}{n}" for n in range(700) for letter in "xX"]
    result = refresh(labels(names), 1, upsert=LABELS)
    assert (result.rows, result.duplicates) == (700, 700)
    assert all(name.startswith("X") for name in stored())


@pytest.mark.usefixtures("tables")
def test_duplicates__key_of_several_fields():
    """Text counts in each of several fields, and only where the rest of the key is the same."""
    days = [date(2026, 1, day) for day in (1, 2)]
    refresh([{"text": "x"}], 1, upsert=Upsert(Caption, ["text"]))
    rows = [
        Placard(day=day, caption_id=caption, name=name, value=value)
        for value, (name, day, caption) in enumerate(product("aA", days, "xX"))
    ]
    result = refresh(rows, 1, key="x", upsert=Upsert(Placard, ["day", "caption", "name"]))
    assert (result.rows, result.duplicates) == (2, 6)
    assert dict(Placard.objects.values_list("day", "value")) == {days[0]: 5, days[1]: 7}
    assert {(row.day, row.pk) for row in rows} == set(Placard.objects.values_list("day", "pk"))


@pytest.mark.usefixtures("tables")
def test_stored__primary_key_of_another_spelling():
    """A row that is stored in another spelling tells its primary key."""
    old = SharedLabel.objects.create(name="A")
    rows = [SharedLabel(name="A"), SharedLabel(name="a"), SharedLabel(name="b")]
    refresh(rows, 1, upsert=Upsert(SharedLabel, ["name"]))
    assert [rows[0].pk, rows[1].pk] == [old.pk, old.pk]
    assert set(SharedLabel.objects.values_list("name", "pk")) == {("A", old.pk), ("b", rows[2].pk)}


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("tells", [True, False])
def test_stored__guarded_in_another_spelling(monkeypatch, tells):
    """A newer row in another spelling is guarded, and counted, with and without RETURNING."""
    features = type(connections["default"].features)
    monkeypatch.setattr(features, "can_return_rows_from_bulk_insert", tells)
    upsert = Upsert(SharedLabel, ["name"])
    refresh([{"name": "A", "value": 9}], 9, key="one", upsert=upsert)
    rows = [{"name": name, "value": 5} for name in ("A", "a", "b")]
    result = refresh(rows, 5, key="two", upsert=upsert)
    assert (result.rows, result.written, result.guarded, result.duplicates) == (2, 1, 1, 1)
    assert dict(SharedLabel.objects.values_list("name", "value")) == {"A": 9, "b": 5}


@pytest.mark.usefixtures("tables")
def test_stored__unchanged_in_another_spelling():
    """A row that holds the same values under another spelling of its key is not written."""
    refresh(labels(["A", "b", "C"]), 1, upsert=LABELS)
    rows = [Label(name=name, value=value) for name, value in (("a", 9), ("a", 0), ("B", 7))]
    result = refresh(rows, 2, upsert=Upsert(Label, ["name"], skip_unchanged=True))
    assert (result.rows, result.unchanged, result.written, result.duplicates) == (2, 1, 1, 1)
    assert stored() == {"A": 0, "b": 7, "C": 2}
    assert rows[0].pk == rows[1].pk == Label.objects.get(value=0).pk


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("skip_unchanged", [True, False])
def test_stored__kept_from_pruning_in_another_spelling(skip_unchanged):
    """Pruning spares what the response has in another spelling, and nothing else."""
    refresh(labels(["A", "b", "C"]), 1, upsert=LABELS)
    upsert = Upsert(Label, ["name"], prune=Label.objects.all, skip_unchanged=skip_unchanged)
    result = refresh(labels(["a", "A", "c", "a"]), 2, upsert=upsert)
    assert (result.rows, result.pruned, result.duplicates) == (2, 1, 2)
    assert stored() == {"A": 3, "C": 2}


@pytest.mark.usefixtures("tables")
def test_stored__nothing_to_update_in_another_spelling():
    """A model of its primary key alone takes a spelling that is stored already."""
    upsert = Upsert(Caption, ["text"], prune=Caption.objects.all)
    refresh([{"text": text} for text in "AbC"], 1, upsert=upsert)
    result = refresh([{"text": text} for text in "aAc"], 2, upsert=upsert)
    assert (result.rows, result.written, result.pruned) == (2, 2, 1)
    assert set(Caption.objects.values_list("text", flat=True)) == {"A", "C"}


@pytest.mark.django_db(transaction=True)
def test_columns__each_by_its_own_rule():
    """Where the database tells spellings apart, each is a row of its own."""
    rows = [Tag(name=name) for name in ("A", "a", "b ", "b")]
    result = refresh(rows, 1, upsert=Upsert(Tag, ["name"]))
    apart = connections["default"].vendor != "mysql"
    assert (result.rows, result.duplicates) == ((4, 0) if apart else (2, 2))
    assert set(Tag.objects.values_list("name", flat=True)) == (
        {"A", "a", "b ", "b"} if apart else {"a", "b"}
    )
    assert {row.pk for row in rows} == set(Tag.objects.values_list("pk", flat=True))


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connections['default'].vendor != 'mysql'")
@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("é", "E", True),
        ("ß", "s", True),
        ("ß", "ss", False),
        ("a", "a   ", True),
        ("\N{EARTH GLOBE AMERICAS}", "\N{WATER WAVE}", True),
        ("\N{EARTH GLOBE AMERICAS}", "ы", False),
        ("ø", "o", False),
        ("и", "Й", False),
    ],
)
def test_columns__default_of_mariadb(one, other, are_same):
    """What MariaDB's default collation thinks of accents, spaces and symbols is what counts."""
    result = refresh([{"code": one}, {"code": other}], 1, upsert=Upsert(Quake, ["code"]))
    assert (result.rows, result.duplicates) == ((1, 1) if are_same else (2, 0))
    assert Quake.objects.count() == result.rows


@pytest.mark.django_db(transaction=True)
def test_questions__only_about_keys_that_look_alike():
    """A response whose keys differ in more than their spelling asks nothing."""
    rows = [{"code": code} for code in ("a:1", "a:2", "b:1", "Zürich", "Bern")]
    upsert = Upsert(Quake, ["code"])
    refresh(rows, 1, upsert=upsert)
    asked = []
    for spelling in ("bern", "chur"):
        with CaptureQueriesContext(connections["default"]) as queries:
            refresh([*rows, {"code": spelling}], len(asked) + 2, upsert=upsert)
        asked.append(sum(query["sql"].startswith("WITH") for query in queries))
    assert asked == [1, 0]


@pytest.mark.django_db
def test_questions__none_about_text_that_is_far_apart():
    """A thousand codes, names and numbers are told apart without the database."""
    codes = [(f"ci{n}",) for n in range(1000)]
    names = [("Zürich", 1), ("Genève", 1), ("Zürich", 2), ("東京", 1), ("東方", 1), ("", 1)]
    with CaptureQueriesContext(connections["default"]) as queries:
        assert latest("default", Quake, [Quake._meta.get_field("code")], codes) == {}
        fields = [Quake._meta.get_field("code"), Quake._meta.get_field("id")]
        assert latest("default", Quake, fields, names) == {}
    assert len(queries) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Straße", "STRASSE"),
        ("Straße", "strase"),
        ("Zürich", "Zurich "),
        ("Zürich", "ZUERICH"),
        ("Zürich", "zyrich"),
        ("e\u0301", "É"),
        ("æ", "ä"),
        ("Œuvre", "oeuvre"),
        ("Ångström", "AANGSTRØM"),
        ("Þór", "thor"),
        ("łódź", "Lodz"),
        ("\N{LATIN SMALL LETTER DOTLESS I}I", "iİ"),
        ("\N{FULLWIDTH LATIN SMALL LETTER A}\N{FULLWIDTH DIGIT ONE}", "A1"),
        ("カナ", "かな"),
        ("ぱっ", "はつ"),
        ("ΌΣΟΣ", "οσος"),
        ("ᾳ", "ά"),
        ("ёж", "ЕЖ"),
        ("מלך", "מלכ"),
        ("١٢", "12"),
        ("a\0b\u200dc", "abc"),
        ("\N{EARTH GLOBE AMERICAS}", "\N{WATER WAVE}"),
        ("a\N{NO-BREAK SPACE}", "a"),
    ],
)
def test_looks__same_by_the_rules_of_some_collation(one, other):
    """What any collation takes for the same looks the same, so that it is asked about."""
    assert _look(one) == _look(other)


@pytest.mark.parametrize(
    ("one", "other"), [("東京", "東方"), ("Bern", "Bonn"), ("a1", "a11"), ("да", "нет")]
)
def test_looks__differ(one, other):
    """Other text looks different, so that nobody need ask."""
    assert _look(one) != _look(other)


def test_looks__plain_text_differs_in_case_and_spaces():
    """Of printable ASCII only case and trailing spaces can mean nothing."""
    assert _plain_look("Ab ") == _plain_look("aB")
    assert _plain_look(" ab") != _plain_look("ab")


@pytest.mark.django_db
@pytest.mark.skipif("connections['default'].vendor != 'mysql'")
@pytest.mark.parametrize(
    "collation", ["general_ci", "unicode_ci", "unicode_520_ci", "swedish_ci", "german2_ci"]
)
def test_looks__same_whatever_mariadb_takes_for_the_same(collation):
    """No letters of common scripts that MariaDB takes for the same look different."""
    # Latin, Greek, Cyrillic, Armenian, Hebrew, Arabic, Vietnamese, kana, wide forms.
    blocks = [(0x20, 0x180), (0x370, 0x530), (0x530, 0x590), (0x5D0, 0x66A), (0x1E00, 0x1EFA)]
    blocks += [(0x3041, 0x30FB), (0xFF10, 0xFFA0)]
    texts = [
        chr(code)
        for start, end in blocks
        for code in range(start, end)
        if unicodedata.category(chr(code)) in {"Lu", "Ll", "Lo", "Nd"}
    ]
    texts += map("".join, product("abcdefghijklmnopqrstuvwxyz", repeat=2))
    rows = " UNION ALL ".join(["SELECT %s AS x"] * len(texts))
    with connections["default"].cursor() as cursor:
        cursor.execute(
            f"SELECT x, HEX(WEIGHT_STRING(x COLLATE utf8mb4_{collation})) FROM ({rows}) AS t", texts
        )
        same = defaultdict(list)
        for text, weight in cursor.fetchall():
            same[weight].append(text)
    assert len(same) < len(texts)
    different = [group for group in same.values() if len({_look(text) for text in group}) > 1]
    assert different == []
