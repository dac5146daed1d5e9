"""What survives a restart: per key the fence of its writes and the outcome of its last refresh."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class RefreshState(models.Model):
    """The fence and the last outcome of one key, in the database that its rows are written to.

    Only ``django_vega.writing.fence`` writes these rows, each field where its comment says.
    """

    class Outcome(models.TextChoices):
        """How the last refresh that finished has ended."""

        OK = "ok", _("ok")
        FAILED = "failed", _("failed")

    # create_row, once: sha256 over prefix, scope and key.
    key_hash = models.CharField(_("key hash"), max_length=64, primary_key=True)
    # create_row, once.
    scope = models.TextField(_("scope"))
    # create_row, once: the key as people may see it.
    key = models.TextField(_("key"))
    # pass_fence: the newest generation that was let through. move_fence: the newest that is void.
    # It only grows.
    fence = models.BigIntegerField(_("fence"), default=0)
    # pass_fence: the newest generation whose rows were written. At most the fence.
    generation_written = models.BigIntegerField(_("generation written"), default=0)
    # pass_fence: when those rows were written (as its transaction began to).
    written_at = models.DateTimeField(_("written at"), null=True, blank=True)
    # pass_fence and record_failure: the newest generation that has ended, which state, times and
    # error tell about.
    generation_ended = models.BigIntegerField(_("generation ended"), default=0)
    # pass_fence: ok. record_failure: failed. Blank until one of them has been here.
    state = models.CharField(
        _("state"), max_length=6, choices=Outcome.choices, blank=True, default=""
    )
    # pass_fence and record_failure, together with the state: when that refresh started.
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    # pass_fence (as its transaction begins to write) and record_failure, together with the state.
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    # record_failure: type and message. pass_fence: blank.
    error = models.TextField(_("error"), blank=True, default="")

    class Meta:
        verbose_name = _("refresh state")
        verbose_name_plural = _("refresh states")

    def __str__(self) -> str:
        return self.key or self.key_hash
