"""A table of requests as plain JSON, and back, exactly.

>>> table = RequestTable()
>>> effects = table.submit("r1") + table.fire("r1", "admit", pages=4)
>>> saved = snapshot(table)
>>> snapshot(restore(saved)) == saved
True

A snapshot is a dictionary of strings, numbers, lists and dictionaries: whatever writes JSON can keep it. It holds
every life that the table keeps, with claims, older attempts, details and journals, the aborts that came early,
the counts, the policy and the deadlines. It does not hold what is posted in the inbox (drain it first), nor
pages: a pool keeps its own books, and a journal notes pages as text.

Restoring checks everything before it builds anything: a snapshot that is refused leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from .compile import Automaton, Configuration
from .errors import LifecycleError, SnapshotError
from .policy import Policy
from .prefill import PREFILL
from .reasons import NO_DETAILS, Details
from .request import Draining, RequestLifecycle
from .spec import Table
from .table import DRAINING, RequestTable
from .vocabulary import KV, FinishReason

VERSION = 1

_T = TypeVar("_T")


# One request.


def request_to_json(request: RequestLifecycle) -> dict[str, Any]:
    """Everything that one request knows, as plain JSON."""
    at = request._node.configuration
    saved: dict[str, Any] = {
        "rid": request.rid,
        "incarnation": request.incarnation,
        "attempt": request.attempt,
        "state": str(at.state),
        "reason": None if at.reason is None else str(at.reason),
        "kv": str(at.kv),
        "reported": at.reported,
        "steps": list(request._steps),
        "ops": list(request._ops),
        "last_step": request._last_step,
        "late": request.late,
        "since": request.since,
        "details": attrs.asdict(request._details),
        "draining": [
            {"attempt": old.attempt, "steps": list(old.steps), "ops": list(old.ops)}
            for old in request._older
        ],
        "journal": None,
    }
    if request._journal is not None:
        saved["journal"] = [[str(event), _plain(detail)] for event, detail in request._journal]
    return saved


def request_from_json(saved: Mapping[str, Any], automaton: Automaton) -> RequestLifecycle:
    """The request that :func:`request_to_json` saved, under the same table and policy.

    Raises:
        SnapshotError: a field is missing or of a wrong type, or the automaton has no such configuration.
    """
    rid = _get(saved, "rid", str, "a request")
    who = f"request {rid!r}"
    steps = _list(saved, "steps", int, who)
    ops = _list(saved, "ops", str, who)
    reason = _get(saved, "reason", (str, type(None)), who)
    try:
        configuration = Configuration(
            state=_get(saved, "state", str, who),
            reason=None if reason is None else FinishReason(reason),
            steps=bool(steps),
            ops=bool(ops),
            kv=KV(_get(saved, "kv", str, who)),
            reported=_get(saved, "reported", bool, who),
        )
        node = automaton.by_configuration[configuration]
    except (ValueError, KeyError) as error:
        msg = f"{who}: no request of table {automaton.table.name!r} can be so: {error}"
        raise SnapshotError(msg) from None
    journal = _get(saved, "journal", (list, type(None)), who)
    request = RequestLifecycle(
        rid, automaton, _get(saved, "incarnation", int, who), journal is not None
    )
    request.attempt = _get(saved, "attempt", int, who)
    request.late = _get(saved, "late", int, who)
    request.since = _get(saved, "since", (int, float, type(None)), who)
    request._node = node
    request._steps, request._ops = tuple(steps), tuple(ops)
    request._last_step = _get(saved, "last_step", int, who)
    request._details = _details(_get(saved, "details", dict, who), who)
    request._older = tuple(_older(old, who) for old in _list(saved, "draining", dict, who))
    if journal is not None:
        request._journal = [_entry(entry, who) for entry in journal]
    return request


def _details(saved: dict[str, Any], who: str) -> Details:
    details = Details(
        message=_get(saved, "message", (str, type(None)), who),
        status=_get(saved, "status", (int, type(None)), who),
        cause=_get(saved, "cause", (str, type(None)), who),
        position=_get(saved, "position", (int, type(None)), who),
    )
    return NO_DETAILS if details == NO_DETAILS else details


def _older(saved: dict[str, Any], who: str) -> Draining:
    return Draining(
        attempt=_get(saved, "attempt", int, who),
        steps=tuple(_list(saved, "steps", int, who)),
        ops=tuple(_list(saved, "ops", str, who)),
    )


def _entry(saved: object, who: str) -> tuple[str, object]:
    if isinstance(saved, list) and len(saved) == 2 and isinstance(saved[0], str):
        return (saved[0], saved[1])
    msg = f"{who}: a journal entry is [event, detail]; got {saved!r}"
    raise SnapshotError(msg)


def _plain(detail: object) -> object:
    """A journal's detail as JSON: pages may be any object."""
    return detail if detail is None or isinstance(detail, (str, int)) else str(detail)


# A table.


def snapshot(table: RequestTable) -> dict[str, Any]:
    """Everything that `table` knows, as plain JSON. It must be taken by the table's own thread.

    Raises:
        SnapshotError: something is posted in the inbox; drain it first, so that nothing is lost.
    """
    if len(table.inbox):
        msg = f"{len(table.inbox)} events wait in the inbox: drain it before you take a snapshot"
        raise SnapshotError(msg)
    return {
        "version": VERSION,
        "table": table.table.name,
        "policy": table.policy.to_mapping(),
        "deadlines": dict(table.deadlines),
        "keep_done": table.keep_done,
        "keep_aborts": table.keep_aborts,
        "abort_memory": table.abort_memory,
        "journal": table.keep_journal,
        "late": _counts(table.late),
        "illegal": _counts(table.illegal),
        "unknown": _counts(table.unknown),
        "requests": [request_to_json(request) for request in table.lives()],
        "ended": [[request.rid, request.incarnation] for request in table._ended],
        "early_aborts": [
            [rid, incarnation, at, details]
            for (rid, incarnation), (at, details) in table._early.items()
        ],
        "old_attempts_since": [
            [entered, request.rid, request.incarnation, attempt]
            for entered, request, attempt in table._watch.get(DRAINING, ())
            if attempt is not None and table._still_there(DRAINING, entered, request, attempt)
        ],
    }


def restore(saved: Mapping[str, Any], table: Table = PREFILL) -> RequestTable:
    """The table of requests that :func:`snapshot` saved; `table` is the declared table it followed.

    Raises:
        SnapshotError: it is no snapshot of this version, of another declared table, or not consistent.
    """
    what = "the snapshot"
    version = _get(saved, "version", int, what)
    if version != VERSION:
        msg = f"the snapshot is of version {version}; this library reads version {VERSION}"
        raise SnapshotError(msg)
    name = _get(saved, "table", str, what)
    if name != table.name:
        msg = f"the snapshot follows the table {name!r}, not {table.name!r}"
        raise SnapshotError(msg)
    try:
        made = RequestTable(
            Policy.from_mapping(_get(saved, "policy", dict, what)),
            table=table,
            deadlines=_get(saved, "deadlines", dict, what),
            keep_done=_get(saved, "keep_done", (int, type(None)), what),
            keep_aborts=_get(saved, "keep_aborts", int, what),
            abort_memory=_get(saved, "abort_memory", (int, float, type(None)), what),
            journal=_get(saved, "journal", bool, what),
        )
    except SnapshotError:
        raise
    except LifecycleError as error:
        msg = f"the snapshot cannot be restored: {error}"
        raise SnapshotError(msg) from None
    for field, counts in (
        ("late", made.late),
        ("illegal", made.illegal),
        ("unknown", made.unknown),
    ):
        counts.update(_get(saved, field, dict, what))
    requests = [
        request_from_json(request, made.automaton)
        for request in _list(saved, "requests", dict, what)
    ]
    newest: dict[str, int] = {}
    for request in requests:
        newest[request.rid] = max(request.incarnation, newest.get(request.rid, 0))
    for request in requests:
        adopt(made, request, former=request.incarnation < newest[request.rid])
    for rid, incarnation in _list(saved, "ended", list, what):
        made._ended.append(_life(made, rid, incarnation))
    for rid, incarnation, at, details in _list(saved, "early_aborts", list, what):
        made._early[rid, incarnation] = (at, dict(details))
    _restore_watch(made, _list(saved, "old_attempts_since", list, what))
    return made


def adopt(table: RequestTable, request: RequestLifecycle, *, former: bool = False) -> None:
    """Put a request that was saved back into a table of the same automaton.

    With `former` a later life of its rid is still to come: so lives keep the order in which they were superseded.

    Raises:
        SnapshotError: the table has that life already.
    """
    rid, newest = request.rid, table._newest.get(request.rid)
    if table.life(rid, request.incarnation) is not None:
        msg = f"request {rid!r}: life {request.incarnation} stands twice"
        raise SnapshotError(msg)
    if former or (newest is not None and newest.incarnation > request.incarnation):
        table._former[rid, request.incarnation] = request
    else:
        if newest is not None:
            table._former[rid, newest.incarnation] = table._newest.pop(rid)
        table._newest[rid] = request
    table._over += request.over


def _restore_watch(table: RequestTable, older: list[list[Any]]) -> None:
    entries: dict[str, list[tuple[float, RequestLifecycle, int | None]]]
    entries = {name: [] for name in table._watch}
    for request in table.lives():
        name = table._deadline_of[request.state]
        if name in entries and request.since is not None:
            entries[name].append((request.since, request, None))
    for entered, rid, incarnation, attempt in older:
        if DRAINING in entries:
            entries[DRAINING].append((entered, _life(table, rid, incarnation), attempt))
    for name, found in entries.items():
        table._watch[name].extend(sorted(found, key=lambda entry: entry[0]))


def _life(table: RequestTable, rid: str, incarnation: int) -> RequestLifecycle:
    request = table.life(rid, incarnation)
    if request is None:
        msg = f"the snapshot speaks of request {rid!r} life {incarnation}, which it does not hold"
        raise SnapshotError(msg)
    return request


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {str(event): count for event, count in counts.items()}


def _get(saved: Mapping[str, Any], field: str, kind: Any, who: str) -> Any:
    if field not in saved:
        msg = f"{who}: {field!r} is missing"
        raise SnapshotError(msg)
    value = saved[field]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
        msg = f"{who}: {field!r} has a wrong type: {value!r}"
        raise SnapshotError(msg)
    return value


def _list(saved: Mapping[str, Any], field: str, kind: type[_T], who: str) -> list[_T]:
    values: list[_T] = _get(saved, field, list, who)
    for value in values:
        if not isinstance(value, kind):
            msg = f"{who}: {field!r} holds {value!r}, which has a wrong type"
            raise SnapshotError(msg)
    return values
