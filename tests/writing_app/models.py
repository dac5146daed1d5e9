"""The models that the tests of writing need, one per kind of key."""

import uuid
from typing import ClassVar

from django.conf import settings
from django.contrib.contenttypes.fields import GenericForeignKey
from django.contrib.contenttypes.models import ContentType
from django.db import models
from django.db.models.functions import Lower

from django_vega.fields import GenerationField

# One that takes A and a for the same; tests create PostgreSQL's, and the tables with it.
INSENSITIVE = {
    "sqlite3": "NOCASE",
    "postgresql": "vega_insensitive",
    "mysql": "utf8mb4_general_ci",
}[settings.DATABASES["default"]["ENGINE"].rpartition(".")[2]]


class Quake(models.Model):
    """An auto key, and a natural one to recognise rows by."""

    code = models.CharField(max_length=40, unique=True)
    place = models.CharField(max_length=100, default="")
    magnitude = models.FloatField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    modified_at = models.DateTimeField(auto_now=True)


class QuakeReport(Quake):
    """The same table under another name."""

    class Meta:
        proxy = True


class Document(models.Model):
    """A key with a default, wrong for rows that exist."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    slug = models.CharField(max_length=40, unique=True)
    body = models.TextField(default="")


class Station(models.Model):
    """A natural primary key."""

    code = models.CharField(max_length=10, primary_key=True)
    name = models.CharField(max_length=100, default="")


class Reading(models.Model):
    """Recognised by a constraint over several columns, one of them a foreign key."""

    station = models.ForeignKey(Station, on_delete=models.CASCADE)
    day = models.DateField()
    value = models.DecimalField(max_digits=8, decimal_places=2, default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["station", "day"], name="reading_of_a_day")
        ]


class Tag(models.Model):
    """Nothing to update."""

    name = models.CharField(max_length=40, unique=True)


class Word(models.Model):
    """Nothing but a primary key."""

    text = models.CharField(max_length=40, primary_key=True)


class Placement(models.Model):
    """Nothing but a composite primary key, with a foreign key in it."""

    pk = models.CompositePrimaryKey("station", "position")
    station = models.ForeignKey(Station, on_delete=models.CASCADE)
    position = models.IntegerField()


class Ticket(models.Model):
    """A composite primary key of which the unique fields know a part."""

    pk = models.CompositePrimaryKey("tenant", "number")
    tenant = models.IntegerField()
    number = models.UUIDField(default=uuid.uuid4)
    code = models.CharField(max_length=40)
    title = models.CharField(max_length=100, default="")

    class Meta:
        unique_together: ClassVar = [("tenant", "code")]


class Job(models.Model):
    """Values that the database makes."""

    code = models.UUIDField(unique=True)
    priority = models.IntegerField(default=1)
    state = models.CharField(max_length=10, db_default="new")
    doubled = models.GeneratedField(
        expression=models.F("priority") * 2,
        output_field=models.IntegerField(),
        db_persist=True,
    )


class Shared(models.Model):
    """Guarded, with an auto key and every kind of column."""

    generation = GenerationField()
    code = models.CharField(max_length=40, unique=True)
    place = models.CharField(max_length=100, default="")
    number = models.IntegerField(default=0, db_column="Order by")
    created_at = models.DateTimeField(auto_now_add=True)
    modified_at = models.DateTimeField(auto_now=True)
    doubled = models.GeneratedField(
        expression=models.F("number") * 2, output_field=models.IntegerField(), db_persist=True
    )

    class Meta:
        db_table = "writing app.Shared"


class SharedDocument(models.Model):
    """Guarded, with a key that has a default."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    slug = models.CharField(max_length=40, unique=True)
    body = models.TextField(default="")
    generation = GenerationField("written by", help_text="of a refresh", db_index=True)


class SharedWord(models.Model):
    """Guarded, with nothing else to update."""

    text = models.CharField(max_length=40, primary_key=True)
    generation = GenerationField()


class SharedTicket(models.Model):
    """Guarded, with a composite primary key of which the unique fields know a part."""

    pk = models.CompositePrimaryKey("tenant", "number")
    tenant = models.IntegerField()
    number = models.UUIDField(default=uuid.uuid4)
    code = models.CharField(max_length=40)
    title = models.CharField(max_length=100, default="")
    generation = GenerationField()

    class Meta:
        unique_together: ClassVar = [("tenant", "code")]


class Page(models.Model):
    """A row of one page of a list, and a tree with its parent."""

    code = models.CharField(max_length=40, unique=True)
    page = models.IntegerField(default=0)
    parent = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="children")


class Note(models.Model):
    """Goes with its page, or keeps it."""

    page = models.ForeignKey(Page, on_delete=models.CASCADE, related_name="notes")
    kept_by = models.ForeignKey(Page, on_delete=models.PROTECT, null=True, related_name="keeping")


class Sample(models.Model):
    """One column for each kind of value that can be told apart in more than one way."""

    code = models.CharField(max_length=40, unique=True)
    text = models.CharField(max_length=40, null=True)  # noqa: DJ001
    count = models.IntegerField(default=0)
    flag = models.BooleanField(default=False)
    amount = models.DecimalField(max_digits=8, decimal_places=2, default=0)
    ratio = models.FloatField(default=0.0)
    seen_at = models.DateTimeField(null=True)
    day = models.DateField(null=True)
    uid = models.UUIDField(null=True)
    data = models.JSONField(default=dict)
    raw = models.BinaryField(default=b"")
    wait = models.DurationField(null=True)
    station = models.ForeignKey(Station, on_delete=models.CASCADE, null=True)
    modified_at = models.DateTimeField(auto_now=True)


class Account(models.Model):
    """Two natural keys beside the primary key."""

    email = models.CharField(max_length=40, unique=True)
    number = models.IntegerField(unique=True)
    name = models.CharField(max_length=40, default="")


class Label(models.Model):
    """Recognised by text in which case means nothing."""

    name = models.CharField(max_length=40, unique=True, db_collation=INSENSITIVE)
    value = models.IntegerField(default=0)

    class Meta:
        managed = False


class SharedLabel(models.Model):
    """The same, guarded, with a key that has a default."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=40, unique=True, db_collation=INSENSITIVE)
    value = models.IntegerField(default=0)
    generation = GenerationField()

    class Meta:
        managed = False


class Caption(models.Model):
    """Nothing but such text."""

    text = models.CharField(max_length=40, primary_key=True, db_collation=INSENSITIVE)

    class Meta:
        managed = False


class Placard(models.Model):
    """Recognised by such text and a number, and by a caption."""

    day = models.DateField()
    caption = models.ForeignKey(Caption, on_delete=models.CASCADE)
    name = models.CharField(max_length=40, db_collation=INSENSITIVE)
    value = models.IntegerField(default=0)

    class Meta:
        managed = False
        unique_together: ClassVar = [("day", "caption", "name")]


class Blob(models.Model):
    """A key that is no text and no number."""

    digest = models.BinaryField(max_length=32, unique=True)
    name = models.CharField(max_length=40, default="")

    class Meta:
        # MariaDB indexes no column without a length.
        managed = False


class TwiceShared(models.Model):
    """Two generations, and no way to know which one counts."""

    code = models.CharField(max_length=40, unique=True)
    generation = GenerationField()
    other = GenerationField()

    class Meta:
        managed = False


class Named(models.Model):
    """No table."""

    name = models.CharField(max_length=40, unique=True)

    class Meta:
        abstract = True


class Parent(models.Model):
    """The first half of a `Child`."""

    name = models.CharField(max_length=40, unique=True)

    class Meta:
        managed = False


class Child(Parent):
    """Two tables."""

    extra = models.CharField(max_length=40, default="")

    class Meta:
        managed = False


class Faulty(models.Model):
    """Every column that recognises no row."""

    nullable = models.CharField(max_length=40, unique=True, null=True)  # noqa: DJ001
    plain = models.CharField(max_length=40, default="")
    conditional = models.CharField(max_length=40)
    deferrable = models.CharField(max_length=40)
    lowered = models.CharField(max_length=40)
    made = models.GeneratedField(
        expression=Lower("plain"), output_field=models.CharField(max_length=40), db_persist=True
    )
    created_at = models.DateTimeField(auto_now_add=True)
    tags = models.ManyToManyField(Parent)
    content_type = models.ForeignKey(ContentType, on_delete=models.DO_NOTHING)
    object_id = models.IntegerField()
    subject = GenericForeignKey()

    class Meta:
        managed = False
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["conditional"], condition=models.Q(plain=""), name="faulty_conditional"
            ),
            models.UniqueConstraint(
                fields=["deferrable"],
                deferrable=models.Deferrable.DEFERRED,
                name="faulty_deferrable",
            ),
            models.UniqueConstraint(Lower("lowered"), name="faulty_lowered"),
        ]
