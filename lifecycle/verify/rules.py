"""The invariants that one request can break, each as a judgement of one event in one situation.

A judgement compares what the automaton does with the truth about the request (:mod:`lifecycle.verify.one`) and
with the contract. It looks at no row's target and no state's name, so it does not repeat the table: it asks what
came of the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compile import (
    CLAIM_EVENTS,
    COMPLETION_EVENTS,
    LAST,
    LETTER_INDEX,
    LETTERS,
    Automaton,
    Cell,
    Letter,
    Node,
)
from ..policy import PublishAborted
from ..reasons import COMPLETIONS
from ..spec import REASONED, Does
from ..vocabulary import EffectKind, Event, FinishReason, Invariant, Kind

if TYPE_CHECKING:
    from .one import Truth

I = Invariant  # noqa: E741  # a short name for a long list

ONE = (
    I.SINGLE_RELEASE,
    I.NO_FREE_IN_FLIGHT,
    I.FREE_AFTER_ALL_OPS,
    I.DRAIN_TO_ZERO,
    I.ABORT_IS_TOTAL,
    I.NO_NEW_WORK_AFTER_DECISION,
    I.STICKY_REASON,
    I.REASON_BY_POLICY,
    I.REASON_NOT_CONTROL,
    I.REPORT_ONCE,
    I.LATE_IS_ABSORBED,
    I.PEER_TOLD,
    I.CLAIM_COUNT,
    I.NO_TAINTED_PUBLISH,
    I.EVENTUALLY_DONE,
)
"""What one request can break, in the order of the contract."""

NEW_WORK = frozenset({*CLAIM_EVENTS, Event.ADMIT, Event.PREEMPT})
FOR_THE_DEAD = frozenset(
    {*COMPLETION_EVENTS, *REASONED, Event.GRAMMAR_READY, Event.TRANSFER_PENDING}
    | {Event.DRAIN_TIMEOUT}
)
"""What may come after the end, and must be absorbed."""
GIVES_BACK = frozenset({EffectKind.RELEASE_KV, EffectKind.QUARANTINE_KV})

Complaint = tuple[Invariant, str]


class Step(NamedTuple):
    """One event in one situation: what the automaton does, and the truth before and after it."""

    automaton: Automaton
    node: Node
    letter: Letter
    cell: Cell
    before: Truth
    after: Truth

    @property
    def decided(self) -> bool:
        """Whether the request was decided before the event, or has a reason recorded."""
        state = self.automaton.table.state(self.node.state)
        return state.terminal or state.draining or self.node.reason is not None


def judge(step: Step) -> Iterator[Complaint]:
    """Each invariant that this event breaks, with a sentence that says how."""
    yield from _takes(step)
    if step.cell.to is None:
        return
    yield from _memory(step)
    yield from _reasons(step)
    yield from _told(step)
    yield from _ends(step)


def _takes(step: Step) -> Iterator[Complaint]:
    """Which events must be legal, illegal, or late."""
    event, kind, node = step.letter.event, step.cell.kind, step.node
    if event is Event.ABORT and kind is Kind.ILLEGAL:
        yield I.ABORT_IS_TOTAL, f"an abort is refused in {node.state}"
    if event in NEW_WORK and step.decided and kind is not Kind.ILLEGAL:
        yield (
            I.NO_NEW_WORK_AFTER_DECISION,
            f"{event} is taken in {node.state}, though {node.reason} is recorded",
        )
    if node.terminal and event in FOR_THE_DEAD and kind is not Kind.LATE:
        yield I.LATE_IS_ABSORBED, f"{event} after the end is not late but {kind}"
    if kind is Kind.LATE and (step.cell.to is not None or step.cell.effects):
        yield I.LATE_IS_ABSORBED, f"{event} is late in {node.state}, and does something"


def _memory(step: Step) -> Iterator[Complaint]:
    """What becomes of the pages."""
    letter, before, after, to = step.letter, step.before, step.after, step.cell.to
    assert to is not None
    claims = () if step.cell.row is None else step.cell.row.claims
    over = Does.START_OVER in claims
    # What may touch the attempt's pages once the event's own claim is dropped or taken.
    steps, ops = (before.steps, before.ops) if over else (after.steps, after.ops)
    given = [effect for effect in step.cell.effects if effect.kind in GIVES_BACK]
    held = before.pages == 1 or Does.TAKE_PAGES in claims
    for effect in given:
        if not held:
            yield I.SINGLE_RELEASE, f"{letter.event} gives back pages that are not held"
        held = False
        if effect.kind is EffectKind.RELEASE_KV and (steps or ops):
            left = " and ".join([*(["a pass"] if steps else []), *(["a transfer"] if ops else [])])
            text = f"{letter.event} releases the pages while {left} may still touch them"
            yield I.NO_FREE_IN_FLIGHT, text
            if Does.DROP_OP in claims and ops:
                yield I.FREE_AFTER_ALL_OPS, "the pages go back when one op ended, and others run"
        if effect.publish and _cut_short(step):
            text = f"the cache may keep pages of a request that ends by {to.reason}"
            yield I.NO_TAINTED_PUBLISH, text
    here = to.configuration
    if not to.terminal and (here.steps, here.ops) != (after.steps > 0, after.ops > 0):
        text = f"{after.steps} passes and {after.ops} ops run, and the automaton has it as {here}"
        yield I.CLAIM_COUNT, text
    if held and ((over and not steps and not ops) or to.terminal):
        yield I.DRAIN_TO_ZERO, f"{letter.event} loses the pages: nobody gives them back"
    state = step.automaton.table.state(to.state)
    if state.draining and not after.steps and not after.ops:
        text = f"nothing is outstanding, and {letter.event} leaves the pages held in {to.state}"
        yield I.DRAIN_TO_ZERO, text


def _cut_short(step: Step) -> bool:
    to = step.cell.to
    assert to is not None
    never = step.automaton.policy.publish_aborted is PublishAborted.NEVER
    return never and to.terminal and to.reason not in COMPLETIONS


def _reasons(step: Step) -> Iterator[Complaint]:
    """Which reason is recorded."""
    here, to, letter, cell = step.node, step.cell.to, step.letter, step.cell
    assert to is not None
    was, now = here.reason, to.reason
    frozen = here.terminal or here.configuration.reported
    if frozen and now is not was:
        yield I.STICKY_REASON, f"{letter.event} replaces {was}, which was committed, by {now}"
        return
    precedence = step.automaton.policy.precedence
    if was is not None and now is not was:
        fits = now is not None and (
            precedence.outranks(now, was) or (letter.earlier and now is letter.offers)
        )
        if not fits:
            yield I.STICKY_REASON, f"{letter.event} replaces {was} by {now}, which is no higher"
    ignored = cell.row is not None and cell.row.when.policy == ("abort_after_handoff", "ignore")
    if letter.offers is None or frozen or ignored:
        return
    due = precedence.join(was, letter.offers, earlier=letter.earlier)
    if now is not due:
        text = f"{letter.event} brings {letter.offers}, {due} is due, and {now} is recorded"
        yield I.REASON_BY_POLICY, text


def _told(step: Step) -> Iterator[Complaint]:
    """What the client and the peer hear."""
    to, after = step.cell.to, step.after
    assert to is not None
    if after.reports > 1:
        yield I.REPORT_ONCE, f"{step.letter.event} tells the client a second time"
    if to.terminal and after.reports == 0:
        yield I.REPORT_ONCE, f"{step.letter.event} ends the request, and nobody tells the client"
    state = step.automaton.table.state(to.state)
    if step.before.handoff == 2 or after.handoff == 2:
        return  # the peer has everything
    cut = state.draining or (to.terminal and to.reason not in COMPLETIONS)
    if cut and not after.cancelled:
        yield I.PEER_TOLD, f"{step.letter.event} cuts the request short, and the peer waits on"


def _ends(step: Step) -> Iterator[Complaint]:
    """A deadline, and then the end of whatever runs, ends every request."""
    node: Node | None = step.cell.to
    assert node is not None
    if node.terminal or node.configuration.reported:
        return
    steps, ops = step.after.steps, step.after.ops
    cell = node.cell(Letter(Event.ABORT, offers=FinishReason.TIMEOUT))
    if cell is not None and cell.to is not None:
        node = cell.to
    for event, count in ((Event.FORWARD_FINISHED, steps), (Event.TRANSFER_DRAINED, ops)):
        if count and not node.terminal:
            last = node.cells[_LAST[event]]
            if last is not None and last.to is not None:
                node = last.to
    if not node.terminal:
        text = "after a deadline and the end of whatever runs the request is "
        yield I.EVENTUALLY_DONE, f"{text}{node.configuration}, not done"


def across_reasons(automaton: Automaton) -> Iterator[Complaint]:
    """`reason_not_control`: configurations that differ in their reason alone free and cancel alike."""
    alike: dict[tuple[Any, ...], tuple[Node, Any]] = {}
    for node in automaton.nodes:
        here = node.configuration
        draining = automaton.table.state(here.state).draining
        state = "(draining)" if draining else here.state
        key = (state, here.reason is None, here.steps, here.ops, here.kv, here.reported)
        does = [_does(automaton, cell) for cell in node.cells]
        other, theirs = alike.setdefault(key, (node, does))
        for index, (mine, his) in enumerate(zip(does, theirs, strict=True)):
            if mine is not None and his is not None and mine != his:
                text = f"{_LETTER_NAMES[index]} does one thing in {here} and another in {other.configuration}"
                yield I.REASON_NOT_CONTROL, text


def _does(automaton: Automaton, cell: Cell | None) -> tuple[Any, ...] | None:
    """What a cell does to memory and hand-off."""
    if cell is None:
        return None
    kinds = tuple(effect.kind for effect in cell.effects if effect.kind is not EffectKind.REPORT)
    if cell.to is None:
        return (cell.kind, kinds)
    to = cell.to.configuration
    state = "(draining)" if automaton.table.state(to.state).draining else to.state
    return (state, to.steps, to.ops, to.kv, kinds)


_LAST = {
    event: LETTER_INDEX[Letter(event, after=LAST)]
    for event in (Event.FORWARD_FINISHED, Event.TRANSFER_DRAINED)
}
_LETTER_NAMES = tuple(map(str, LETTERS))
