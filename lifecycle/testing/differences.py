"""A request of the stack beside the same of the model: where they differ, and which invariant that breaks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..policy import LatePolicy, Policy
from ..request import RequestLifecycle
from ..vocabulary import Event, Invariant
from .oracle import Life, Oracle, Verdict

Broke = tuple[Invariant, str]


def is_refused(verdict: Verdict, policy: Policy) -> bool:
    """Whether an event that the contract answers so must raise."""
    if verdict.kind in ("late", "unknown"):
        return policy.late is LatePolicy.STRICT
    return verdict.kind == "illegal"


def difference(
    oracle: Oracle,
    life: Life,
    request: RequestLifecycle | None,
    line: dict[str, Any],
    verdict: Verdict | None,
    addressed: bool,
    about: Collection[Life | None],
) -> Broke | None:
    """Where a request differs from the model's, by the name of the invariant; None if nowhere.

    Args:
        oracle: the model, which knows how reasons rank.
        life: the model's request.
        request: the stack's.
        line: the event.
        verdict: what the contract says of it; None where several events came at once.
        addressed: whether the event was for this request.
        about: the lives that it was for.
    """
    if request is None:
        return Invariant.EVENTUALLY_DONE, f"life {life.number} of {life.rid!r} is not in the table"
    newest = life.newest
    reason = None if life.reason is None else life.reason.name
    steps: tuple[Any, ...] = ()
    ops: tuple[Any, ...] = ()
    if newest.claims:
        steps = tuple([name for kind, name in newest.claims if kind == "step"])
        ops = tuple([name for kind, name in newest.claims if kind == "op"])
    if (
        request.state == life.state
        and request.reason == reason
        and request.attempt == newest.number
        and request.steps == steps
        and request.ops == ops
        and request.kv == newest.kv
        and request.reported == life.reported
        and request.late == life.late
        and len(request.draining) == _draining(life)
    ):
        return None
    text = f"{request!r}; the contract says {life.state} ({reason}), {newest.claims}"
    if not addressed:
        return _somebody_else(life, line, about), text
    if request.late < life.late and line["event"] == Event.ABORT:
        return Invariant.ABORT_IS_TOTAL, text  # it never arrived
    if verdict is not None and verdict.kind in ("late", "illegal"):
        return Invariant.LATE_IS_ABSORBED, text
    about_older = line.get("attempt") not in (None, newest.number)
    if about_older or request.attempt != newest.number or len(request.draining) != _draining(life):
        return Invariant.ATTEMPT_SCOPED, text
    if request.reason != reason:
        said = None if request.reason is None else str(request.reason)
        if said is None and line["event"] == Event.ABORT:
            return Invariant.ABORT_IS_TOTAL, text
        if said is None or reason is None:
            return Invariant.REASON_BY_POLICY, text
        return Invariant(oracle._misreport(life, said, reason)), text
    if request.state != life.state and life.state == "done":
        return Invariant.EVENTUALLY_DONE, text
    if request.reported != life.reported:
        return Invariant.REPORT_ONCE, text
    if request.late != life.late:
        return Invariant.LATE_IS_ABSORBED, text
    return Invariant.CLAIM_COUNT, text


def _draining(life: Life) -> int:
    """How many older attempts wait for their last claim."""
    return sum([attempt.busy for attempt in life.attempts[:-1]]) if len(life.attempts) > 1 else 0


def _somebody_else(life: Life, line: dict[str, Any], about: Collection[Life | None]) -> Invariant:
    """The event was for others, and changed this request."""
    if any(each is not None and each.rid == life.rid for each in about):
        return Invariant.ATTEMPT_SCOPED
    return Invariant.EXACT_TARGET if line["event"] == Event.ABORT else Invariant.FAULT_ISOLATED
