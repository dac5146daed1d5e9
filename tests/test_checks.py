"""System checks: each fault by its id, with a hint; silence where all is well."""

import gc
import re
from typing import Any, ClassVar

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from django_vega import Strategy, Upsert, coordinated, debounce, singleflight_refresh
from django_vega.backends.local import LocalBackend
from tests.test_conf import ALL_FAULTS
from tests.writing_app.models import Quake


class SharedBackend(LocalBackend):
    """As if processes shared it."""

    is_shared: ClassVar = True


# Those of the setting and of functions, whatever they do.
CHECKS = {"E001", "E002", "E003", "E004", "W001", "W003", "W005"}


def found(*, deploy: bool = False, **aliases: Any) -> list[tuple[str, int, str, str]]:
    """Return id, level, message and hint of what is found, but for other tests' functions."""
    gc.collect()
    with override_settings(DJANGO_VEGA={"default": {}, **aliases}):
        messages = checks.run_checks(tags=["django_vega"], include_deployment_checks=deploy)
    return [
        (str(one.id), one.level, one.msg, str(one.hint))
        for one in messages
        if str(one.id).rpartition(".")[2] in CHECKS
        and (__name__ in one.msg or "tests." not in one.msg)
    ]


def ids(**options: Any) -> list[str]:
    """Return the ids alone."""
    return [one[0] for one in found(**options)]


def test_silence__good_settings() -> None:
    """Settings and functions that are in order are not mentioned."""

    @coordinated(key="quiet:{x}", timeout=5)
    def quiet(x: int) -> int:
        return x

    good = {"STRATEGY": "serialize", "POLICIES": {"quiet": {"LIMIT": 2}}, "TIMEOUT": 3}
    assert found(default=good, other={}) == []
    assert quiet(1) == 1


@pytest.mark.parametrize(("setting", "fault_id", "message", "hint"), ALL_FAULTS)
def test_setting__each_fault_by_its_id(
    setting: Any, fault_id: str, message: str, hint: str
) -> None:
    """Every fault of the setting is an error with its id, and a hint."""
    with override_settings(DJANGO_VEGA=setting):
        (error,) = checks.run_checks(tags=["django_vega"])
    assert (error.id, error.level) == (f"django_vega.{fault_id}", checks.ERROR)
    assert hint in str(error.hint)
    assert error.msg


@pytest.mark.django_db(databases=["default", "other"])  # where all checks run
def test_setting__all_faults_at_once() -> None:
    """The command lists every fault, and ends with an error."""
    setting = {"default": {"TIMOUT": 3, "WORKERS": 0}}
    with override_settings(DJANGO_VEGA=setting), pytest.raises(SystemCheckError) as caught:
        call_command("check")
    text = str(caught.value)
    assert "django_vega.E003" in text
    assert "django_vega.E004" in text
    assert "Did you mean 'TIMEOUT'" in text


def test_e003__unknown_alias_of_a_function() -> None:
    """A function on an alias that does not exist is an error, and so is its call."""

    @coordinated(key="stray:{x}", using="sharde")
    def stray(x: int) -> int:
        return x

    ((check_id, level, message, hint),) = found(shared={})
    assert (check_id, level) == ("django_vega.E003", checks.ERROR)
    assert f"{stray.definition.name} uses the alias 'sharde'" in message
    assert hint == "Did you mean 'shared'?"
    with (
        override_settings(DJANGO_VEGA={"default": {}, "shared": {}}),
        pytest.raises(ImproperlyConfigured, match="Did you mean 'shared'"),
    ):
        stray(1)
    assert found(sharde={}) == []


def test_e004__no_timeout_on_a_shared_alias() -> None:
    """Where processes share the work, a function without a timeout is an error."""

    @coordinated(key="forever:{x}", timeout=None, using="shared")
    def forever(x: int) -> int:
        return x

    ((check_id, level, message, hint),) = found(shared={"BACKEND": SharedBackend})
    assert (check_id, level) == ("django_vega.E004", checks.ERROR)
    assert forever.definition.name in message
    assert "Set seconds" in hint
    with (
        override_settings(DJANGO_VEGA={"default": {}, "shared": {"BACKEND": SharedBackend}}),
        pytest.raises(ImproperlyConfigured, match="timeout=None on the shared alias"),
    ):
        forever(1)
    # A policy mends it without a change of code.
    policies = {"forever": {"TIMEOUT": 60}}
    assert found(shared={"BACKEND": SharedBackend, "POLICIES": policies}) == []


def test_w001__local_backend() -> None:
    """Deployment checks name each alias that coordinates one process only; others do not."""
    ((check_id, level, message, hint),) = found(deploy=True)
    assert (check_id, level) == ("django_vega.W001", checks.WARNING)
    assert "DJANGO_VEGA['default'] is a LocalBackend" in message
    assert "silence" in hint
    assert ids() == []
    both = ids(deploy=True, second={})
    assert both == ["django_vega.W001"] * 2
    assert ids(deploy=True, default={"BACKEND": "django_vega.backends.local.LocalBackend"}) == [
        "django_vega.W001"
    ]


def test_w003__no_timeout() -> None:
    """A function without a timeout is warned about, wherever that comes from."""

    @coordinated(key="patient:{x}", timeout=None)
    def patient(x: int) -> int:
        return x

    @singleflight_refresh(key="patient-refresh:{x}", upsert=Upsert(Quake, ["code"]))
    def refresh(x: int) -> list[Any]:
        return []

    ((check_id, level, message, hint),) = found()
    assert (check_id, level) == ("django_vega.W003", checks.WARNING)
    assert f"{patient.definition.name} has timeout=None" in message
    assert "p99" in hint
    assert found(default={"POLICIES": {"patient": {"TIMEOUT": 5}}}) == []
    by_policy = found(
        default={"POLICIES": {"patient": {"TIMEOUT": 5}, "patient-refresh": {"TIMEOUT": None}}}
    )
    assert [(one[0], refresh.definition.name in one[2]) for one in by_policy] == [
        ("django_vega.W003", True)
    ]


def closures(**options: Any) -> list[Any]:
    """Make two functions of one name; the second is warned about at once."""

    def make(label: str) -> Any:
        @coordinated(key="twin:{x}", **options)
        def twin(x: int) -> str:
            return label

        return twin

    return [make("one"), make("other")]


def test_w005__same_scope_and_key() -> None:
    """Two functions that would answer each other's calls are named."""
    with pytest.warns(RuntimeWarning, match="two live functions"):
        twins = closures()
    ((check_id, level, message, hint),) = found()
    assert (check_id, level) == ("django_vega.W005", checks.WARNING)
    assert twins[0].definition.name in message
    assert "'twin:{x}'" in message
    assert "scope=" in hint


def test_w005__shared_scope() -> None:
    """Functions that name one scope themselves are not warned about."""
    shared = closures(scope="twins")
    assert len(shared) == 2
    assert found() == []


def test_functions__silent_where_the_setting_is_wrong() -> None:
    """A faulty setting is reported alone: what functions make of it cannot be known."""

    @coordinated(key="impatient:{x}", timeout=None)
    def impatient(x: int) -> int:
        return x

    with override_settings(DJANGO_VEGA={"default": {"WORKERS": 0}}):
        assert [one.id for one in checks.run_checks(tags=["django_vega"])] == ["django_vega.E004"]
    assert impatient.definition.name


@pytest.mark.django_db(databases=["default", "other"])  # where all checks run
def test_checks__belong_to_the_app() -> None:
    """They run with all others, not only by their tag; a strategy object needs no registration."""
    with override_settings(
        DJANGO_VEGA={"default": {"STRATEGY": Strategy(limit=2)}, "other": {"WORKERS": 0}}
    ):
        assert "django_vega.E004" in {one.id for one in checks.run_checks()}


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"while_busy": "raise", "strategy": "restart"},
            "while_busy='raise' under the strategy restart, whose calls never wait",
            "use a strategy that reuses or queues",
        ),
        (
            {"shaper": debounce(1, 60)},
            "debounce waits up to max_wait=60 s, timeout=30 s",
            "Raise the timeout",
        ),
    ],
)
def test_e004__options_of_a_function_that_do_not_fit(
    options: dict[str, Any], message: str, hint: str
) -> None:
    """The check reports what the first call refuses, in the same words."""

    @coordinated(key="misfit:{x}", **options)
    def misfit(x: int) -> int:
        return x

    ((check_id, level, said, advice),) = found()
    assert (check_id, level) == ("django_vega.E004", checks.ERROR)
    assert said.endswith(f"misfit: {message}")
    assert hint in advice
    with pytest.raises(ImproperlyConfigured, match=re.escape(message)):
        misfit(1)


def test_e004__a_policy_of_the_settings_makes_the_misfit() -> None:
    """What is effective counts, so a strategy in the settings can clash with a decorator."""

    @coordinated(key="clash:{x}", while_busy="raise")
    def clash(x: int) -> int:
        return x

    policies = {"clash": {"STRATEGY": "exhaust"}}
    assert found() == []
    assert ids(default={"POLICIES": policies}) == ["django_vega.E004"]


def test_e004__stale_without_a_function() -> None:
    """While nothing is registered there is nothing to answer with."""

    @singleflight_refresh(key="unanswered:{x}", upsert=Upsert(Quake, ["code"]), while_busy="stale")
    def unanswered(x: int) -> Any:
        return []

    ((check_id, _, said, advice),) = found()
    assert check_id == "django_vega.E004"
    assert said.endswith('while_busy="stale" without anything to answer with')
    assert "@refresh.stale" in advice
    unanswered.stale(lambda x: x)
    assert found() == []
