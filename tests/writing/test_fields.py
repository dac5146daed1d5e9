"""The field of the row guard: what it is, and what it does not let anybody make of it."""

import pytest
from django.db import models
from django.db.migrations.writer import MigrationWriter

from django_vega.fields import GenerationField
from tests.writing_app.models import Shared, SharedDocument


def test_generation__fixed():
    """It is NOT NULL, 0 by default, and nothing that a form shows."""
    field = Shared._meta.get_field("generation")
    assert (field.null, field.default, field.editable) == (False, 0, False)
    assert field in Shared._meta.db_returning_fields
    assert field.get_internal_type() == "BigIntegerField"
    assert Shared().generation == 0


@pytest.mark.parametrize(
    "option",
    ["null", "default", "db_default", "editable", "primary_key", "unique", "choices"],
)
def test_generation__option_that_would_change_it(option):
    """What would let rows lack a generation, or people set one, is refused by name."""
    with pytest.raises(TypeError, match=f"takes no {option}=False"):
        GenerationField(**{option: False})


def test_generation__migrations():
    """A migration names the field and the options that were given, and makes the same again."""
    plain = Shared._meta.get_field("generation").deconstruct()
    assert plain == ("generation", "django_vega.fields.GenerationField", [], {})
    name, path, args, options = SharedDocument._meta.get_field("generation").deconstruct()
    assert options == {
        "verbose_name": "written by",
        "help_text": "of a refresh",
        "db_index": True,
    }
    again = GenerationField(*args, **options)
    assert (name, path, args, options) == ("generation", *again.deconstruct()[1:])
    written, imports = MigrationWriter.serialize(GenerationField())
    assert written == "django_vega.fields.GenerationField()"
    assert imports == {"import django_vega.fields"}


def test_generation__abstract_model():
    """It can come from an abstract model."""

    class Guarded(models.Model):
        generation = GenerationField()

        class Meta:
            abstract = True
            app_label = "writing_app"

    assert isinstance(Guarded._meta.get_field("generation").clone(), GenerationField)


@pytest.mark.django_db
def test_generation__rows_of_others():
    """Rows that no refresh wrote have generation 0, and saving keeps what is there."""
    row = Shared.objects.create(code="a")
    assert row.pk is not None
    assert Shared.objects.values_list("generation", flat=True).get() == 0
    Shared.objects.update(generation=7)
    row.refresh_from_db()
    row.place = "x"
    row.save()
    assert Shared.objects.values_list("generation", "place").get() == (7, "x")
