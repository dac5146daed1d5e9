"""The table of fences and outcomes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="RefreshState",
            fields=[
                (
                    "key_hash",
                    models.CharField(
                        max_length=64,
                        primary_key=True,
                        serialize=False,
                        verbose_name="key hash",
                    ),
                ),
                ("scope", models.TextField(verbose_name="scope")),
                ("key", models.TextField(verbose_name="key")),
                ("fence", models.BigIntegerField(default=0, verbose_name="fence")),
                (
                    "generation_written",
                    models.BigIntegerField(default=0, verbose_name="generation written"),
                ),
                (
                    "written_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="written at"),
                ),
                (
                    "generation_ended",
                    models.BigIntegerField(default=0, verbose_name="generation ended"),
                ),
                (
                    "state",
                    models.CharField(
                        blank=True,
                        choices=[("ok", "ok"), ("failed", "failed")],
                        default="",
                        max_length=6,
                        verbose_name="state",
                    ),
                ),
                (
                    "started_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="started at"),
                ),
                (
                    "finished_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="finished at"),
                ),
                ("error", models.TextField(blank=True, default="", verbose_name="error")),
            ],
            options={
                "verbose_name": "refresh state",
                "verbose_name_plural": "refresh states",
            },
        ),
    ]
