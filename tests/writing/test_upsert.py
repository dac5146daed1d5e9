"""Options: what they mean for the model, and what is wrong with them, as early as possible."""

import os
import pickle
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_vega.core.errors import VegaError
from django_vega.writing.upsert import Upsert
from tests.writing_app.models import (
    Child,
    Document,
    Faulty,
    Job,
    Named,
    Placement,
    Quake,
    QuakeReport,
    Reading,
    Shared,
    Station,
    Tag,
    Ticket,
    TwiceShared,
    Word,
)


async def later():
    """Be no function that returns a queryset."""


def names(fields):
    """Return the names of fields."""
    return [field.name for field in fields]


def slugs(*args, **options):
    """Return what is wrong with an `Upsert`, in short."""
    return [fault.slug for fault in Upsert(*args, **options).faults()]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": 5}, TypeError, "neither a model class nor"),
        ({"model": dict}, TypeError, "neither a model class nor"),
        ({"model": "Quake"}, ValueError, "app_label.ModelName"),
        ({"model": ".Quake"}, ValueError, "app_label.ModelName"),
        ({"unique_fields": []}, ValueError, "unique_fields is empty"),
        ({"unique_fields": "code"}, TypeError, r"\['code'\]"),
        ({"unique_fields": 7}, TypeError, "no list of field names"),
        ({"unique_fields": [Quake]}, TypeError, "names of fields, as str"),
        ({"unique_fields": ["code", "code"]}, ValueError, "'code' twice"),
        ({"update_fields": "place"}, TypeError, r"\['place'\]"),
        ({"update_fields": []}, ValueError, "leave update_fields out"),
        ({"batch_size": 0}, ValueError, "at least 1"),
        ({"batch_size": -1}, ValueError, "at least 1"),
        ({"batch_size": "9"}, TypeError, "at least 1"),
        ({"batch_size": True}, TypeError, "at least 1"),
        ({"duplicates": "first"}, ValueError, '"last"'),
        ({"prune": "page"}, TypeError, "pass a plain function"),
        ({"prune": later}, TypeError, "pass a plain function"),
        ({"prune": Quake.objects.all, "allow_empty": 1}, TypeError, "True or False"),
        ({"allow_empty": True}, ValueError, "there is no prune"),
        ({"skip_unchanged": 1}, TypeError, "True or False"),
        ({"fence": "start"}, ValueError, '"started"'),
    ],
)
def test_construction__fault_without_the_model(options, error, message):
    """An option that is wrong whatever the model raises where it is written, with the way out."""
    with pytest.raises(error, match=message):
        Upsert(**({"model": Quake, "unique_fields": ["code"]} | options))


def test_construction__before_django_is_set_up():
    """An `Upsert` in a decorator needs neither settings nor the app registry."""
    code = (
        "from django_vega.writing.refresh import write_refresh\n"
        "from django_vega.writing.upsert import Upsert\n"
        "Upsert('writing_app.Quake', ['code'], update_fields=['place'])\n"
        "from django.apps import apps\n"
        "from django.conf import settings\n"
        "assert not settings.configured and not apps.apps_ready\n"
    )
    environment = os.environ.copy()
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_options__are_fixed():
    """Lists become tuples, so that later changes of them change nothing, and equal is equal."""
    fields = ["code"]
    upsert = Upsert(Quake, fields)
    fields.append("place")
    assert upsert.unique_fields == ("code",)
    assert upsert == Upsert(Quake, ("code",))
    assert hash(upsert) == hash(Upsert(Quake, ("code",)))
    assert pickle.loads(pickle.dumps(upsert)) == upsert


@pytest.mark.parametrize(
    ("upsert", "update"),
    [
        (Upsert(Quake, ["code"]), ["place", "magnitude", "modified_at"]),
        (Upsert("writing_app.Quake", ["code"]), ["place", "magnitude", "modified_at"]),
        (Upsert(QuakeReport, ["code"]), ["place", "magnitude", "modified_at"]),
        (Upsert(Quake, ["pk"]), ["code", "place", "magnitude", "modified_at"]),
        (Upsert(Quake, ["code"], update_fields=["place"]), ["place", "modified_at"]),
        (Upsert(Document, ["slug"]), ["body"]),
        (Upsert(Station, ["code"]), ["name"]),
        (Upsert(Reading, ["station", "day"]), ["value"]),
        (Upsert(Reading, ["day", "station_id"]), ["value"]),
        (Upsert(Reading, ["id"], update_fields=["station_id"]), ["station"]),
        (Upsert(Tag, ["name"]), []),
        (Upsert(Word, ["text"]), []),
        (Upsert(Placement, ["position", "station"]), []),
        (Upsert(Placement, ["pk"]), []),
        (Upsert(Ticket, ["tenant", "code"]), ["title"]),
        (Upsert(Ticket, ["tenant", "number"]), ["code", "title"]),
        (Upsert(Job, ["code"]), ["priority", "state"]),
    ],
)
def test_update_fields__default_and_given(upsert, update):
    """All columns but those that name the row, tell its creation or are computed, by default."""
    assert upsert.faults() == []
    assert names(upsert.target.update) == update


def test_unique_fields__order():
    """However they are listed, writers take the rows in the same order: that of the model."""
    assert names(Upsert(Reading, ["day", "station"]).target.unique) == ["station", "day"]


@pytest.mark.parametrize(
    ("upsert", "unknown"),
    [
        (Upsert(Quake, ["code"]), ["id"]),
        (Upsert(Quake, ["id"]), []),
        (Upsert(Ticket, ["tenant", "code"]), ["number"]),
        (Upsert(Placement, ["pk"]), []),
    ],
)
def test_primary_key__what_the_unique_fields_leave_open(upsert, unknown):
    """Only those parts of a primary key have to be told by the database."""
    assert names(upsert.target.unknown) == unknown


@pytest.mark.parametrize(
    ("args", "options", "slug", "text"),
    [
        (("nope.Quake", ["code"]), {}, "unknown-model", "nope"),
        (("writing_app.Nope", ["code"]), {}, "unknown-model", "Nope"),
        ((Named, ["name"]), {}, "abstract-model", "no table"),
        ((Child, ["name"]), {}, "multi-table-child", "writing_app.Parent"),
        ((Quake, ["cod"]), {}, "unknown-field", "Did you mean 'code'?"),
        ((Quake, ["xyz123"]), {}, "unknown-field", "magnitude"),
        ((Quake, ["code"]), {"update_fields": ["plce"]}, "unknown-field", "'place'"),
        ((Faulty, ["tags"]), {}, "not-a-column", "'tags'"),
        ((Faulty, ["id"]), {"update_fields": ["tags"]}, "not-a-column", "'tags'"),
        ((Faulty, ["id"]), {"update_fields": ["subject"]}, "not-a-column", "'subject'"),
        ((Quake, ["place"]), {}, "no-unique-constraint", "(code), (id)"),
        ((Quake, ["code", "place"]), {}, "no-unique-constraint", "(code, place)"),
        ((Reading, ["station"]), {}, "no-unique-constraint", "(day, station)"),
        ((Ticket, ["number"]), {}, "no-unique-constraint", "(number, tenant)"),
        ((Faulty, ["conditional"]), {}, "no-unique-constraint", "condition"),
        ((Faulty, ["deferrable"]), {}, "no-unique-constraint", "deferrable"),
        ((Faulty, ["lowered"]), {}, "no-unique-constraint", "expressions"),
        ((Faulty, ["nullable"]), {}, "nullable-unique-field", "NOT NULL"),
        ((Quake, ["code"]), {"update_fields": ["id"]}, "primary-key-updated", "'id'"),
        ((Quake, ["code"]), {"update_fields": ["pk"]}, "primary-key-updated", "'id'"),
        ((Quake, ["code"]), {"update_fields": ["code"]}, "unique-field-updated", "'code'"),
        ((Faulty, ["id"]), {"update_fields": ["made"]}, "generated-field-updated", "'made'"),
        ((TwiceShared, ["code"]), {}, "several-generations", "(generation, other)"),
        ((Shared, ["code"]), {"update_fields": ["generation"]}, "generation-updated", "own"),
        (
            (Shared, ["code"]),
            {"skip_unchanged": True},
            "skip-unchanged-with-generation",
            "'generation'",
        ),
        (
            (Quake, ["code"]),
            {"update_fields": ["created_at"]},
            "auto-now-add-updated",
            "'created_at'",
        ),
    ],
)
def test_faults__of_the_model(args, options, slug, text):
    """Each fault has a name for the checks and says what to do; the first call raises it."""
    upsert = Upsert(*args, **options)
    (fault,) = upsert.faults()
    assert fault.slug == slug
    assert text in f"{fault.message} {fault.hint}"
    with pytest.raises(ImproperlyConfigured, match="Upsert") as caught:
        upsert.database()
    assert isinstance(caught.value, VegaError)
    assert fault.message in str(caught.value)
    assert fault.hint in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).faults == (fault,)


def test_faults__several():
    """All of them are reported at once."""
    assert slugs(Quake, ["place"], update_fields=["xx", "tags"]) == [
        "no-unique-constraint",
        "unknown-field",
        "unknown-field",
    ]
    assert slugs(Shared, ["generation"]) == [
        "no-unique-constraint",
        "generation-in-unique-fields",
    ]
    assert slugs(Quake, ["code"], update_fields=["id", "created_at"]) == [
        "primary-key-updated",
        "auto-now-add-updated",
    ]


def test_faults__swapped_model(settings):
    """A model that another one stands in for is no table."""
    from django.contrib.auth.models import User

    settings.AUTH_USER_MODEL = "writing_app.Quake"
    assert slugs(User, ["username"]) == ["swapped-model"]


def test_database__of_the_router(settings):
    """Rows go where the router writes the model."""
    settings.DATABASE_ROUTERS = ["tests.writing.test_upsert.Elsewhere"]
    assert Upsert(Quake, ["code"]).database() == "other"


class Elsewhere:
    def db_for_write(self, model, **hints):
        return "other"
