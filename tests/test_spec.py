"""A table is refused, naming the row or state, for everything that the checks claim to refuse."""

from __future__ import annotations

import attrs
import pytest

from lifecycle import (
    PREFILL,
    EffectKind,
    Event,
    IllegalEvent,
    Policy,
    RequestLifecycle,
    RequestTable,
    Row,
    StateSpec,
    Table,
    TableError,
    When,
    compile_table,
)
from lifecycle.decode import DECODE
from lifecycle.diagrams.machine import machine
from lifecycle.diagrams.mermaid import mermaid
from lifecycle.spec import DRAIN, FINISH, ILLEGAL, LATE, STAY, Does, Offers, Pages

RELEASE, REPORT = EffectKind.RELEASE_KV, EffectKind.REPORT
CANCEL = EffectKind.CANCEL_TRANSFER


def find(state, event, **wanted):
    """The place of a row among PREFILL's."""
    for number, row in enumerate(PREFILL.rows):
        here = state in row.states and event in row.events
        if here and all(getattr(row, name) == value for name, value in wanted.items()):
            return number
    raise LookupError(state, event)


def with_row(number, **changes):
    rows = list(PREFILL.rows)
    rows[number] = attrs.evolve(rows[number], **changes)
    return rows


def without_event(number, event):
    events = tuple(each for each in PREFILL.rows[number].events if each != event)
    return with_row(number, events=events)


def with_state(name, **changes):
    return tuple(
        attrs.evolve(state, **changes) if state.name == name else state for state in PREFILL.states
    )


ROW = {
    "admit": find("queued", "admit"),
    "queued pending": find("queued", "transfer_pending"),
    "queued late": find("queued", "forward_finished"),
    "launch": find("prefilling", "forward_launched", to=STAY),
    "finish": find("prefilling", "forward_finished"),
    "complete": find("prefilling", "complete"),
    "preempt": find("prefilling", "preempt", to="queued"),
    "abort": find("prefilling", "abort"),
    "handed": find("transferring", "transfer_succeeded", to=FINISH),
    "abort after": find("transferring", "abort", to=STAY),
    "draining": find("aborted", "abort"),
    "drained": find("aborted", "forward_finished"),
    "pending": find("aborted", "transfer_pending"),
    "late done": find("done", "abort"),
    "prefill": find("prefilling", "prefill_finished"),
}

BROKEN = {
    "a cell without a row": (
        {"rows": without_event(ROW["queued pending"], "transfer_pending")},
        "queued x transfer_pending is not specified by any row",
    ),
    "a cell with two rows": (
        {"rows": [*PREFILL.rows, Row("queued", Event.ADMIT, ILLEGAL, why="twice")]},
        "queued x admit is specified twice when .* by (.*queued x admit -> prefilling.*)",
    ),
    "a condition that leaves a gap": (
        {"rows": with_row(ROW["finish"], when=When(recorded=True))},
        "prefilling x forward_finished is not specified",
    ),
    "a policy that leaves a gap": (
        {"rows": [row for n, row in enumerate(PREFILL.rows) if n != ROW["abort after"]]},
        "transferring x abort is not specified when",
    ),
    "a policy of no name": (
        {"rows": with_row(ROW["abort after"], when=When(policy=("mood", "good")))},
        "no policy 'mood' has the choice 'good'",
    ),
    "an event of no name": (
        {"rows": [*PREFILL.rows, Row("queued", "explode", ILLEGAL, why="")]},
        r"row \d+ \(queued x explode.*no event is named 'explode'",
    ),
    "a row in no state": (
        {"rows": [*PREFILL.rows, Row("nowhere", Event.ADMIT, ILLEGAL, why="")]},
        "no state is named 'nowhere'",
    ),
    "a row to no state": (
        {"rows": with_row(ROW["prefill"], to="nowhere")},
        "leads to 'nowhere', which is no state",
    ),
    "a state twice": (
        {"states": (*PREFILL.states, PREFILL.states[0])},
        "state 'queued' is declared twice",
    ),
    "a state that is called like an outcome": (
        {"states": (*PREFILL.states, StateSpec("(late)", "", pages=Pages.NONE))},
        "has the name of a row's outcome",
    ),
    "no end": ({"states": with_state("done", terminal=False)}, "exactly one terminal state"),
    "an end with pages": ({"states": with_state("done", pages=Pages.OWNED)}, "still has pages"),
    "a beginning with pages": (
        {"states": with_state("queued", pages=Pages.OWNED)},
        "pages that nobody admitted",
    ),
    "drains without lending": (
        {"states": with_state("prefilling", drains=("grammar_error",))},
        "lists reasons to drain for, but lends no pages",
    ),
    "nowhere to drain": (
        {"states": with_state("aborted", drains=("timeout",))},
        "exactly one draining state that lists no reasons",
    ),
    "two places to drain": (
        {
            "states": (
                *PREFILL.states,
                StateSpec("other", "", pages=Pages.LENT, drains=("grammar_error",)),
            )
        },
        "two draining states are for grammar_error",
    ),
    "a state out of reach": (
        {
            "states": (*PREFILL.states, StateSpec("island", "", pages=Pages.NONE)),
            "rows": [*PREFILL.rows, Row("island", tuple(Event), ILLEGAL, why="")],
        },
        "state 'island' cannot be reached from 'queued'",
    ),
    "a way out of the end": (
        {"rows": [*without_event(ROW["late done"], "abort"), Row("done", "abort", STAY, why="")]},
        "leads out of the terminal state 'done'",
    ),
    "effects in a wrong order": (
        {"rows": with_row(ROW["abort"], effects=(RELEASE, CANCEL, REPORT))},
        "cannot be carried out in the order release_kv, cancel_transfer, report",
    ),
    "a release twice": (
        {"rows": with_row(ROW["abort"], effects=(CANCEL, RELEASE, RELEASE, REPORT))},
        "cannot be carried out in the order",
    ),
    "pages that are lost": (
        {"rows": with_row(ROW["drained"], effects=(REPORT,))},
        "loses the pages that 'grammar_failed' holds",
    ),
    "pages that are lost at a preempt": (
        {"rows": with_row(ROW["preempt"], effects=())},
        "loses the pages that 'prefilling' holds",
    ),
    "a release of nothing": (
        {"rows": with_row(find("queued", "abort"), effects=(CANCEL, RELEASE, REPORT))},
        "gives pages back in 'queued', where the request has none",
    ),
    "a release that keeps them": (
        {"rows": with_row(ROW["pending"], effects=(RELEASE,))},
        "gives pages back although the request keeps them",
    ),
    "an end that nobody reports": (
        {"rows": with_row(ROW["drained"], effects=(RELEASE,))},
        "can end the request without a report",
    ),
    "a report of nothing": (
        {"rows": with_row(ROW["launch"], effects=(REPORT,))},
        "reports a request that it does not end",
    ),
    "a late event that does something": (
        {"rows": with_row(ROW["late done"], effects=(REPORT,))},
        "a late or illegal event changes nothing",
    ),
    "a completion that loses its claim": (
        {"rows": with_row(ROW["finish"], to=LATE, claims=(), effects=())},
        "would lose a claim for ever",
    ),
    "a completion that drops nothing": (
        {"rows": with_row(ROW["finish"], claims=())},
        "forward_finished drops a step claim, and nothing else",
    ),
    "a claim from nowhere": (
        {"rows": with_row(ROW["complete"], claims=(Does.TAKE_STEP,))},
        "complete is about no single step or op",
    ),
    "new work while draining": (
        {"rows": with_row(ROW["draining"], claims=(Does.TAKE_OP_UNLESS_OPEN,))},
        "no new work for a decided request",
    ),
    "claims without pages": (
        {"rows": with_row(ROW["queued pending"], claims=(Does.TAKE_OP_UNLESS_OPEN,))},
        "where the request has no pages",
    ),
    "pages twice": (
        {"rows": with_row(ROW["prefill"], claims=(Does.TAKE_PAGES,))},
        "where the request has some already",
    ),
    "pages from nowhere": (
        {"rows": with_row(ROW["admit"], claims=())},
        "moves to 'prefilling', which owns pages, without taking any",
    ),
    "a reason that the event does not have": (
        {"rows": with_row(ROW["pending"], offers=Offers.ITS_OWN)},
        "offers the event's own reason, but such an event has none",
    ),
    "a decision without a reason": (
        {"rows": with_row(ROW["abort"], offers=Offers.NOTHING)},
        "decides the request, but offers no reason",
    ),
    "a draining state by name": (
        {"rows": with_row(ROW["prefill"], to="aborted")},
        "DRAIN picks it by the reason that wins",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_table_is_refused(name):
    changes, message = BROKEN[name]
    parts = {"name": "broken", "states": PREFILL.states, "rows": PREFILL.rows, **changes}
    with pytest.raises(TableError, match=message) as refused:
        Table(**parts)
    assert "table 'broken'" in str(refused.value)


def test_the_shipped_tables_pass():
    for table in (PREFILL, DECODE):
        assert Table(table.name, table.states, table.rows) == table


# A table of a user's own: a leg that only encodes, with a state more that cools down before the pages go back.

EVERYTHING_ELSE = (
    Event.SUBMIT,
    Event.PREFILL_FINISHED,
    Event.TRANSFER_POSTED,
    Event.DRAIN_TIMEOUT,
)
NEWS = (Event.GRAMMAR_READY, Event.TRANSFER_PENDING)
COMPLETIONS = (Event.FORWARD_FINISHED, Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED)
FAULTS = (
    Event.ABORT,
    Event.ERROR,
    Event.PEER_LOST,
    Event.GRAMMAR_FAILED,
    Event.TRANSFER_FAILED,
)
ENCODE = Table(
    name="encode",
    states=(
        StateSpec("waiting", "for pages", pages=Pages.NONE),
        StateSpec("encoding", "passes run", pages=Pages.OWNED),
        StateSpec("cut short", "pages are lent out", pages=Pages.LENT),
        StateSpec("over", "the end", pages=Pages.NONE, terminal=True),
    ),
    rows=(
        Row("waiting", Event.ADMIT, "encoding", claims=(Does.TAKE_PAGES,), why="pages came"),
        Row("waiting", FAULTS, DRAIN, offers=Offers.ITS_OWN, effects=(REPORT,), why="no pages"),
        Row("waiting", COMPLETIONS, LATE, why="nothing is out"),
        Row("waiting", NEWS, STAY, why="news"),
        Row(
            "waiting",
            (*EVERYTHING_ELSE, Event.COMPLETE, Event.PREEMPT, Event.FORWARD_LAUNCHED),
            ILLEGAL,
            why="no pages to work on",
        ),
        Row("encoding", Event.FORWARD_LAUNCHED, STAY, when=When(recorded=False),
            claims=(Does.TAKE_STEP,), why="a pass"),
        Row("encoding", Event.FORWARD_LAUNCHED, ILLEGAL, when=When(recorded=True), why="it ended"),
        Row("encoding", Event.FORWARD_FINISHED, FINISH, claims=(Does.DROP_STEP,),
            effects=(RELEASE, REPORT), why="a pass ended"),
        Row("encoding", Event.COMPLETE, FINISH, offers=Offers.ITS_OWN, effects=(RELEASE, REPORT),
            why="encoded"),
        Row("encoding", (Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED), STAY,
            claims=(Does.DROP_OP,), why="never out"),
        Row("encoding", FAULTS, DRAIN, offers=Offers.ITS_OWN, effects=(RELEASE, REPORT), why="cut"),
        Row("encoding", NEWS, STAY, why="news"),
        Row("encoding", (*EVERYTHING_ELSE, Event.ADMIT, Event.PREEMPT), ILLEGAL, why="it runs"),
        Row("cut short", Event.FORWARD_FINISHED, FINISH, claims=(Does.DROP_STEP,),
            effects=(RELEASE, REPORT), why="the last pass"),
        Row("cut short", (Event.TRANSFER_SUCCEEDED, Event.TRANSFER_DRAINED), FINISH,
            claims=(Does.DROP_OP,), effects=(RELEASE, REPORT), why="never out"),
        Row("cut short", (*FAULTS, Event.COMPLETE), STAY, offers=Offers.ITS_OWN, why="decided"),
        Row("cut short", NEWS, STAY, why="news"),
        Row("cut short", (*EVERYTHING_ELSE, Event.ADMIT, Event.PREEMPT, Event.FORWARD_LAUNCHED),
            ILLEGAL, why="decided"),
        Row("over", (*COMPLETIONS, *FAULTS, *NEWS, Event.COMPLETE, Event.DRAIN_TIMEOUT), LATE,
            why="over"),
        Row("over", (Event.SUBMIT, Event.PREFILL_FINISHED, Event.TRANSFER_POSTED, Event.ADMIT,
                     Event.PREEMPT, Event.FORWARD_LAUNCHED), ILLEGAL, why="over"),
    ),
)  # fmt: skip


def test_a_table_of_ones_own_runs_one_request():
    request = RequestLifecycle("e", compile_table(ENCODE, Policy()))
    request.admit(2)
    request.launch_forward()
    assert request.abort() == ()
    assert (request.state, request.claims) == ("cut short", ("request", "step:1"))
    assert [str(effect.kind) for effect in request.finish_forward()] == ["release_kv", "report"]
    with pytest.raises(IllegalEvent, match="admit is illegal for request 'e': over"):
        request.admit(1)


def test_a_table_of_ones_own_runs_many_requests_and_is_drawn():
    table = RequestTable(table=ENCODE, deadlines={"encoding": 5.0, "draining": 1.0})
    table.submit("e", now=0.0)
    table.fire("e", "admit", now=0.0)
    table.fire("e", "forward_launched", now=0.0)
    (todo,) = table.expire(6.0) or [None]
    assert todo is None or todo.request.state == "cut short"
    assert table["e"].reason == "timeout"
    assert 'n1 -->|"complete"| n3' in mermaid(ENCODE)  # encoding, over
    model = machine(ENCODE).model
    model.admit()
    model.complete(reason="stop", position=1)
    assert (model.state, model.effects) == ("over", ["release_kv", "report"])
