"""Traces: one event a line, as JSON (contract section 9). Reading checks every line; writing gives the same back.

>>> import io
>>> for event in read(io.BytesIO(b'{"event": "submit", "rid": "r1"}'), "example"):
...     print(event.line, event.event, event.rid)
1 submit r1

A line is an object with ``event`` and ``rid``; besides, where they are wanted, ``pages`` (a count, or a list of
page names), ``step``, ``op``, ``source``, ``cause``, ``reason``, ``position``, ``attempt``, ``incarnation``,
``message``, ``status`` and ``t`` (seconds). The first line may be ``{"policy": {...}}`` instead. Every event may
carry any of these (contract section 4); what an event does not take is checked, and otherwise left alone.

What is refused, with file and line: bytes that are no UTF-8, a line that is no JSON object, a key that stands
twice, an unknown field or event, a value of a wrong type or out of range, a policy line that is not the first, a
blank line before the end, a file without a line. Reading is lazy, a line at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import attrs

from .errors import PolicyError, TraceError
from .policy import Policy
from .vocabulary import AbortSource, Event, GrammarCause

MAX_LINE = 16 * 1024 * 1024
"""The longest line that is read, in bytes; a longer one is refused instead of filling the memory."""


@attrs.frozen
class TraceEvent:
    """One checked line: `details` are the fields that :meth:`lifecycle.RequestTable.fire` takes."""

    line: int
    event: Event
    rid: str
    incarnation: int | None = None
    t: float | None = None
    details: Mapping[str, Any] = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The line's object again."""
        fields: dict[str, Any] = {"event": str(self.event), "rid": self.rid}
        if self.incarnation is not None:
            fields["incarnation"] = self.incarnation
        fields.update(self.details)
        if self.t is not None:
            fields["t"] = self.t
        return fields


@attrs.frozen
class TracePolicy:
    """A checked policy line."""

    line: int
    policy: Policy


def read(stream: IO[bytes], path: str = "<trace>") -> Iterator[TraceEvent | TracePolicy]:
    """The lines of a trace, checked one by one as they are asked for.

    Args:
        stream: bytes, as ``open(path, "rb")`` gives them.
        path: what error messages call it.

    Raises:
        TraceError: while iterating, at the first line that is not well formed.
    """
    blank = number = 0
    while raw := stream.readline(MAX_LINE + 1):
        number += 1
        if len(raw) > MAX_LINE:
            msg = f"the line is longer than {MAX_LINE:,} bytes"
            raise TraceError(msg, path=path, line=number)
        if not raw.strip():
            blank = blank or number
            continue
        if blank:
            msg = "a blank line in the middle of a trace; every line is one JSON object"
            raise TraceError(msg, path=path, line=blank)
        try:
            yield parse(raw, number)
        except TraceError as error:
            raise TraceError(error.message, path=path, line=number) from None
    if number == 0 or blank == 1:
        msg = "the trace is empty; it needs at least one line"
        raise TraceError(msg, path=path)


def parse(raw: bytes | str, number: int = 1) -> TraceEvent | TracePolicy:
    """One line, checked. `number` is its place in the file, from 1.

    Raises:
        TraceError: it is not well formed.
    """
    fields = _load(raw)
    if "policy" in fields:
        return _policy_line(fields, number)
    for required in ("event", "rid"):
        if required not in fields:
            msg = f"the field {required!r} is missing"
            raise TraceError(msg)
    for name, value in fields.items():
        check = _FIELDS.get(name)
        if check is None:
            msg = f"unknown field {name!r}; the fields are {', '.join(_FIELDS)}"
            raise TraceError(msg)
        complaint = check(value)
        if complaint:
            msg = f"{name!r} must be {complaint}; got {_shown(value)}"
            raise TraceError(msg)
    event = Event(fields.pop("event"))
    rid = fields.pop("rid")
    incarnation = fields.pop("incarnation", None)
    t = fields.pop("t", None)
    _check_details(event, fields)
    return TraceEvent(number, event, rid, incarnation, t, fields)


def write(
    lines: Iterable[TraceEvent | Mapping[str, Any]], stream: IO[str], policy: Policy | None = None
) -> int:
    """Write events as a trace; a `policy` becomes the first line. Returns how many lines were written.

    Dictionaries are checked as lines that are read are.

    Raises:
        TraceError: an event is not well formed; what stood before it has been written.
    """
    written = 0
    if policy is not None:
        stream.write(json.dumps({"policy": policy.to_mapping()}) + "\n")
        written += 1
    for line in lines:
        fields = line.to_json() if isinstance(line, TraceEvent) else dict(line)
        text = json.dumps(fields)
        parse(text, written + 1)
        stream.write(text + "\n")
        written += 1
    return written


def _load(raw: bytes | str) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
    except UnicodeDecodeError as error:
        msg = f"not UTF-8: byte {error.start + 1} of the line"
        raise TraceError(msg) from None
    try:
        fields = json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        msg = f"not JSON: {error.msg} at column {error.colno}"
        raise TraceError(msg) from None
    except RecursionError:
        msg = "not a trace line: nested too deeply"
        raise TraceError(msg) from None
    except TraceError:
        raise
    except ValueError as error:  # a number with too many digits
        msg = f"not JSON that can be read: {error}"
        raise TraceError(msg) from None
    if not isinstance(fields, dict):
        msg = f"a line must be a JSON object; got {_shown(fields)}"
        raise TraceError(msg)
    return fields


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"the key {twice!r} stands twice"
        raise TraceError(msg)
    return fields


def _no_constant(word: str) -> float:
    msg = f"not JSON: {word} is no number"
    raise TraceError(msg)


def _policy_line(fields: dict[str, Any], number: int) -> TracePolicy:
    if number != 1:
        msg = "a policy line may only be the first line of a trace"
        raise TraceError(msg)
    if len(fields) > 1:
        other = next(name for name in fields if name != "policy")
        msg = f"a policy line has no other field; got {other!r}"
        raise TraceError(msg)
    choices = fields["policy"]
    if not isinstance(choices, dict):
        msg = f"'policy' must be an object of policy names and choices; got {_shown(choices)}"
        raise TraceError(msg)
    try:
        return TracePolicy(number, Policy.from_mapping(choices))
    except PolicyError as error:
        raise TraceError(str(error)) from None


def _check_details(event: Event, fields: dict[str, Any]) -> None:
    if event is Event.COMPLETE:
        if "reason" not in fields:
            msg = "complete needs a 'reason': 'stop' or 'length'"
            raise TraceError(msg)
        if fields["reason"] not in ("stop", "length"):
            msg = f"'reason' of complete must be 'stop' or 'length'; got {_shown(fields['reason'])}"
            raise TraceError(msg)
    if event is Event.GRAMMAR_FAILED and "cause" in fields and fields["cause"] not in _CAUSES:
        msg = f"'cause' of grammar_failed must be one of {', '.join(GrammarCause)}; got {_shown(fields['cause'])}"
        raise TraceError(msg)


_CAUSES = frozenset(GrammarCause)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# One check a field. Each returns what the value must be, or nothing if it is that.


def _word(value: object) -> str | None:
    return None if isinstance(value, str) else "a string"


def _event(value: object) -> str | None:
    if isinstance(value, str) and value in Event._value2member_map_:
        return None
    return f"one of {', '.join(Event)}"


def _source(value: object) -> str | None:
    if isinstance(value, str) and value in AbortSource._value2member_map_:
        return None
    return f"one of {', '.join(AbortSource)}"


def _whole(lowest: int, highest: float = math.inf) -> Callable[[object], str | None]:
    said = f"a whole number from {lowest}" + ("" if highest == math.inf else f" to {highest}")

    def check(value: object) -> str | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return None if whole and lowest <= value <= highest else said  # type: ignore[operator]

    return check


def _pages(value: object) -> str | None:
    if isinstance(value, list):
        names_ok = all(isinstance(name, str) for name in value)
        return (
            None if names_ok and len(set(value)) == len(value) else "a list of different page names"
        )
    return None if _whole(0)(value) is None else "a count of pages, or a list of page names"


def _seconds(value: object) -> str | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return None if number and -math.inf < value < math.inf else "a number of seconds"  # type: ignore[operator]


_FIELDS: dict[str, Callable[[object], str | None]] = {
    "event": _event,
    "rid": _word,
    "pages": _pages,
    "step": _whole(0),
    "op": _word,
    "source": _source,
    "cause": _word,
    "reason": _word,
    "position": _whole(0),
    "attempt": _whole(0),
    "incarnation": _whole(1),
    "message": _word,
    "status": _whole(100, 599),
    "t": _seconds,
}
