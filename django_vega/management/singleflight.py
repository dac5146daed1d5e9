"""Management commands of one's own that do not overlap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, OutputWrapper

from django_vega.core.errors import Busy, CallCancelled
from django_vega.core.keys import parse_template
from django_vega.decorators import coordinated
from django_vega.options import AnyStrategy


class SingleflightCommand(BaseCommand):
    """A command whose second start finds out that the first is still running.

    By default it then says "already running on web-2:4188 for 41 s" and exits with 0, as cron
    wants. On the local backend only starts of one process meet (`call_command`); with Redis those
    of all hosts do::

        class Command(SingleflightCommand):
            vega_key = "sync:{options.region}"

            def handle(self, *args, **options): ...

    Attributes:
        vega_key: Template over ``options``, what the command line came to. Default: the module's
            name, so that the command never overlaps with itself, whatever its options.
        vega_strategy: What a second start does: ``"exhaust"`` goes away, ``"serialize"`` waits for
            its turn as long as the alias's or the policy's TIMEOUT, ``"restart"`` cancels the
            first, which notices at its next `checkpoint()`; every other strategy does too what it
            does with calls. Default: ``"exhaust"``.
        vega_using: An alias of ``DJANGO_VEGA``.
    """

    vega_key: ClassVar[str] = ""
    vega_strategy: ClassVar[AnyStrategy] = "exhaust"
    vega_using: ClassVar[str] = "default"

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run, unless the strategy has something against it.

        Raises:
            CommandError: It was cancelled, before it ran or meanwhile.
        """
        try:
            return self._run(args, SimpleNamespace(**options))
        except Busy as busy:
            out = options.get("stdout")
            stdout = self.stdout if out is None else OutputWrapper(out)
            stdout.write(f"already running on {busy.owner} for {busy.age:.0f} s")
        except CallCancelled as cancelled:
            raise CommandError(str(cancelled)) from cancelled
        return None

    def _run(self, args: tuple[Any, ...], options: SimpleNamespace) -> str | None:
        key = self.vega_key or type(self).__module__.rpartition(".")[2]
        goes_away = self.vega_strategy == "exhaust"

        def run(options: SimpleNamespace) -> str | None:
            return super(SingleflightCommand, self).execute(*args, **vars(options))

        decorate = coordinated(
            key=key,
            # Who goes away has to say why, and `exhaust` itself does not know who is there.
            strategy="dedupe" if goes_away else self.vega_strategy,
            while_busy="raise" if goes_away else "wait",
            scope=type(self).__module__,
            ignore=() if parse_template(key).fields else ("options",),
            using=self.vega_using,
        )
        return decorate(run)(options)
