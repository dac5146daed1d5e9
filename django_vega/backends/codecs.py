"""How outcomes travel between processes: values by a codec, errors and records always as JSON.

What a follower in another process gets is what the leader returned, or an error that says why not:
a codec refuses a value that would come back as something else.
"""

from __future__ import annotations

import difflib
import json
import pickle
from dataclasses import asdict, replace
from typing import Any, Final, Protocol

from django_vega.backends.protocol import Outcome
from django_vega.core.errors import RemoteCallError, VegaError
from django_vega.core.outcome import Refresh, message_of, name_of


class UnfitValueError(VegaError, TypeError):
    """A value cannot travel to another process by the codec of its alias.

    The leader has its own object all the same; its remote followers learn of this instead. Return
    what the codec carries, or choose another ``CODEC``.
    """

    def __init__(self, path: str, reason: str, codec: str) -> None:
        super().__init__(path, reason, codec)
        self.path = path
        self.reason = reason
        self.codec = codec

    def __str__(self) -> str:
        return (
            f"{self.path} {self.reason}, so it cannot travel by the codec {self.codec!r}. "
            f"{_WAY_OUT.get(self.codec, 'Return something else, or choose another CODEC')}"
        )


_WAY_OUT: Final = {
    "json": "Return None, bool, int, float, str, and lists and dicts with str keys of these, or "
    'choose CODEC = "pickle" where only trusted processes write to this Redis',
    "pickle": "Return what can be pickled",
}


class Codec(Protocol):
    """Turns values into bytes and back. Whoever writes one promises both attributes below."""

    #: Written beside each value: nobody reads what another codec wrote.
    name: str
    #: Whether reading runs no code, whoever wrote.
    is_safe: bool

    def encode(self, value: Any) -> bytes:
        """Return bytes from which `decode` makes an equal value of the same types.

        Raises:
            UnfitValueError: There are none.
        """

    def decode(self, payload: bytes) -> Any:
        """Return the value."""


class JsonCodec:
    """JSON, for values that come back from it unchanged, in every depth."""

    name = "json"
    is_safe = True

    def encode(self, value: Any) -> bytes:
        """Return the value as JSON.

        Raises:
            UnfitValueError: It, or something in it, would not come back, or not as what it is:
                tuples, keys that are no str, NaN, subclasses, and all that JSON has no word for.
        """
        try:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"))
            if _same(value, json.loads(text)):
                return text.encode()
        except (TypeError, ValueError, RecursionError):
            pass  # `_fault` says what it was, and where
        try:
            path, reason = _fault(value, "the value") or ("the value", "does not come back equal")
        except RecursionError:
            path, reason = "the value", "contains itself, or is nested too deeply"
        raise UnfitValueError(path, reason, self.name)

    def decode(self, payload: bytes) -> Any:
        """Return the value."""
        return json.loads(payload)


class PickleCodec:
    """Pickle, for whatever can be pickled.

    Whoever can write to the Redis can run code in each process that reads. A check names every
    alias that uses it.
    """

    name = "pickle"
    is_safe = False

    def encode(self, value: Any) -> bytes:
        """Return the value, pickled.

        Raises:
            UnfitValueError: It cannot be pickled.
        """
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:
            reason = f"cannot be pickled ({type(error).__name__}: {error})"
            raise UnfitValueError("the value", reason, self.name) from error

    def decode(self, payload: bytes) -> Any:
        """Return the value."""
        return pickle.loads(payload)  # noqa: S301 - opted into, see the class


def codec_named(name: str) -> Codec:
    """Return the codec of a name.

    Raises:
        ValueError: There is no such codec; the message says which one was probably meant.
    """
    if name in _CODECS:
        return _CODECS[name]
    close = difflib.get_close_matches(str(name), _CODECS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown codec {name!r}: {hint}Use one of {', '.join(_CODECS)}")


_CODECS: Final[dict[str, Codec]] = {"json": JsonCodec(), "pickle": PickleCodec()}


# Outcomes


def value_outcome(value: Any, codec: Codec) -> Outcome:
    """Return the outcome of a flight that succeeded.

    Of a `Refresh` only what ``write`` returned goes through the codec.

    Raises:
        UnfitValueError: The codec refuses it. `error_outcome` of that is what followers get.
    """
    header: dict[str, Any] = {"codec": codec.name}
    if type(value) is Refresh:
        header["refresh"] = asdict(replace(value, value=None))
        value = value.value
    header["none"] = value is None
    body = b"" if value is None else codec.encode(value)
    return Outcome("value", json.dumps(header).encode() + b"\n" + body)


def error_outcome(error: BaseException, process: str) -> Outcome:
    """Return the outcome of a flight that failed: type and message, and who says so."""
    told = {"type": name_of(type(error)), "message": message_of(error), "process": process}
    return Outcome("error", json.dumps(told).encode())


def cancelled_outcome(reason: str) -> Outcome:
    """Return the outcome of a flight that was cancelled."""
    return Outcome("cancelled", reason.encode())


def value_of(outcome: Outcome, codec: Codec) -> Any:
    """Return the value of an outcome of kind ``value``.

    Raises:
        UnfitValueError: The leader wrote it with another codec: its settings differ from these.
    """
    head, _, body = outcome.payload.partition(b"\n")
    header = json.loads(head)
    if header["codec"] != codec.name:
        reason = f"was written by a leader whose codec is {header['codec']!r}"
        raise UnfitValueError("the value", reason, codec.name)
    value = None if header["none"] else codec.decode(body)
    return Refresh(**{**header["refresh"], "value": value}) if "refresh" in header else value


def error_of(outcome: Outcome) -> RemoteCallError:
    """Return the error of an outcome of kind ``error``, to be raised by one follower."""
    told = json.loads(outcome.payload)
    return RemoteCallError(told["type"], told["message"], told["process"])


def reason_of(outcome: Outcome) -> str:
    """Return the reason of an outcome of kind ``cancelled``."""
    return outcome.payload.decode()


def _same(value: Any, back: Any) -> bool:
    """Whether both are equal and of the same types, in every depth; ``back`` comes from JSON."""
    kind = type(value)
    if kind is not type(back):
        return False
    if kind is list:
        return len(value) == len(back) and all(map(_same, value, back))
    if kind is dict:
        return (
            len(value) == len(back)
            and all(map(_same, value, back))
            and all(map(_same, value.values(), back.values()))
        )
    return bool(value == back)


def _fault(value: Any, path: str) -> tuple[str, str] | None:
    """Return where a value holds what JSON does not carry, and why not; None when nowhere."""
    kind = type(value)
    if kind is list:
        parts = ((item, f"{path}[{place}]") for place, item in enumerate(value))
    elif kind is dict:
        for key in value:
            if type(key) is not str:
                return path, f"has the key {key!r} of type {name_of(type(key))}"
            if fault := _fault_of_leaf(key, f"the key {key!r} of {path}"):
                return fault
        parts = ((item, f"{path}[{key!r}]") for key, item in value.items())
    elif kind in {type(None), bool, int, float, str}:
        return _fault_of_leaf(value, path)
    else:
        return path, f"is of type {name_of(kind)}"
    return next(filter(None, (_fault(item, inner) for item, inner in parts)), None)


def _fault_of_leaf(value: Any, path: str) -> tuple[str, str] | None:
    try:
        if json.loads(json.dumps(value, allow_nan=False)) == value:
            return None
    except ValueError as error:
        return path, f"is no number for JSON ({error})"
    return path, "is a text with surrogates, which JSON joins"
