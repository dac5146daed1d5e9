"""The models of the system checks. None has a table: checks look at what is declared."""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models.functions import Lower

from django_vega import GenerationField


class Article(models.Model):
    """Sound where it is recognised by its slug; the rest is what a refresh may name by mistake."""

    slug = models.CharField(max_length=40, unique=True)
    title = models.CharField(max_length=100, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    lowered = models.GeneratedField(
        expression=Lower("title"), output_field=models.CharField(max_length=100), db_persist=True
    )
    related = models.ManyToManyField("self")

    class Meta:
        managed = False


class Nickname(models.Model):
    """Recognised by what it may lack."""

    text = models.CharField(max_length=40, unique=True, null=True)  # noqa: DJ001

    class Meta:
        managed = False


class ArticleListing(Article):
    """The same table under another name."""

    class Meta:
        proxy = True


class Feature(Article):
    """Two tables."""

    teaser = models.CharField(max_length=100, default="")

    class Meta:
        managed = False


class GuardedArticle(models.Model):
    """Each row knows which generation wrote it."""

    slug = models.CharField(max_length=40, unique=True)
    title = models.CharField(max_length=100, default="")
    generation = GenerationField()

    class Meta:
        managed = False


class Crowded(models.Model):
    """Unique in every way that there is."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    slug = models.CharField(max_length=40, unique=True)
    number = models.IntegerField(unique=True)
    shelf = models.IntegerField()
    place = models.IntegerField()
    generation = GenerationField()

    class Meta:
        managed = False
        unique_together: ClassVar = [("shelf", "place")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["place", "number"], name="crowded_place"),
            models.UniqueConstraint(Lower("slug"), name="crowded_lowered"),
            models.UniqueConstraint(
                fields=["shelf"], condition=models.Q(place=0), name="crowded_first"
            ),
            models.UniqueConstraint(
                fields=["place"],
                deferrable=models.Deferrable.DEFERRED,
                name="crowded_deferrable",
            ),
            models.CheckConstraint(condition=models.Q(place__gte=0), name="crowded_positive"),
        ]


class Code(models.Model):
    """A primary key that somebody else gives."""

    code = models.CharField(max_length=10, primary_key=True)
    name = models.CharField(max_length=40, unique=True)

    class Meta:
        managed = False
