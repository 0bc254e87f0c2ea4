"""Columns and objects agree: on any events, under any policy and both tables, however the events are given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle import PREFILL, BadDetail, EventError, Policy, RequestLifecycle, compile_table
from lifecycle.batch import SIGNALS, RequestBatch, code, columns, shapes, signals
from lifecycle.decode import DECODE
from lifecycle.snapshot import request_to_json
from lifecycle.testing.strategies import policies
from lifecycle.vocabulary import AbortSource, Event, GrammarCause

ROWS = 4
TABLES = {"prefill": PREFILL, "decode": DECODE}
OPS = ("kv", "x", "y", *(f"c{number}" for number in range(signals.MOST_OPS)))

said = {"message": st.sampled_from(["", "because"]), "status": st.sampled_from([418, 503])}
step = st.one_of(st.integers(1, 6), st.integers(-3, 60))
optional = {
    Event.FORWARD_LAUNCHED: {"step": step},
    Event.FORWARD_FINISHED: {"step": step},
    Event.TRANSFER_POSTED: {"op": st.sampled_from(OPS)},
    Event.TRANSFER_SUCCEEDED: {"op": st.sampled_from(OPS)},
    Event.TRANSFER_DRAINED: {"op": st.sampled_from(OPS)},
    Event.TRANSFER_FAILED: {"op": st.sampled_from(OPS), **said},
    Event.COMPLETE: {"position": st.integers(0, 3)},
    Event.ABORT: {"source": st.sampled_from([str(source) for source in AbortSource]), **said},
    Event.GRAMMAR_FAILED: {
        "cause": st.sampled_from([str(cause) for cause in GrammarCause]),
        **said,
    },
    Event.PEER_LOST: said,
    Event.ERROR: said,
}
needed = {Event.COMPLETE: {"reason": st.sampled_from(["stop", "length"])}}
which_rows = st.one_of(
    st.none(), st.lists(st.integers(0, ROWS - 1), max_size=6), st.integers(0, ROWS - 1)
)
plain_signals = st.integers(0, signals.PLAIN - 1)


@st.composite
def one_event(draw):
    """An event for some rows, with details."""
    event = draw(st.sampled_from(list(Event)))
    attempt = {"attempt": st.integers(0, 3)} if draw(st.integers(0, 4)) == 0 else {}
    details = draw(
        st.fixed_dictionaries(
            needed.get(event, {}), optional={**optional.get(event, {}), **attempt}
        )
    )
    return str(event), draw(which_rows), details


@st.composite
def own_steps(draw):
    """A pass, or the end of an answer, with a number of its own for each row."""
    rows = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=6))
    event = draw(st.sampled_from(["forward_launched", "forward_finished", "complete"]))
    numbers = draw(st.lists(step, min_size=len(rows), max_size=len(rows)))
    if event == "complete":
        reason = draw(st.sampled_from(["stop", "length"]))
        return event, rows, {"reason": reason, "position": np.array(numbers)}
    return event, rows, {"step": np.array(numbers)}


@st.composite
def own_signals(draw):
    """A signal of its own for each row."""
    if draw(st.booleans()):
        return np.array(draw(st.lists(plain_signals, min_size=ROWS, max_size=ROWS))), None, {}
    pairs = draw(st.lists(st.tuples(plain_signals, st.integers(0, ROWS - 1)), max_size=8))
    return (
        np.array([signal for signal, _ in pairs], np.uint8),
        [row for _, row in pairs],
        {},
    )


# Lives that get somewhere: these come again and again.
onward = st.sampled_from(
    [
        ("admit", None, {}),
        ("forward_launched", None, {}),
        ("forward_launched", None, {"step": 30}),
        ("forward_finished", None, {}),
        ("transfer_posted", None, {"op": "x"}),
        ("transfer_posted", [0, 1], {"op": OPS[-1]}),
        ("prefill_finished", [0, 2], {}),
        ("preempt", [1, 2], {}),
        ("transfer_succeeded", [0, 3], {}),
        ("complete", [1, 3], {"reason": "length", "position": 2}),
    ]
)
tables = st.sampled_from(list(TABLES))
calls = st.lists(
    st.one_of(onward, onward, one_event(), own_steps(), own_signals()), min_size=1, max_size=25
)


def places(rows):
    if rows is None:
        return list(range(ROWS))
    return [rows] if isinstance(rows, int) else list(rows)


def told(events, details, place):
    """What an object is fired with for one place of a call."""
    if not isinstance(events, str):
        signal = SIGNALS[events[place]]
        return signal.event, dict(signal.details)
    single = {
        name: int(value[place]) if isinstance(value, np.ndarray) else value
        for name, value in details.items()
    }
    return events, single


def disagreement(policy, table, calls):
    """The first call on which a batch and objects differ, and how; None if none is."""
    automaton = compile_table(TABLES[table], policy)
    batch = RequestBatch(policy, table=TABLES[table])
    batch.add(ROWS)
    objects = [RequestLifecycle(f"row {row}", automaton, journal=False) for row in range(ROWS)]
    for number, (events, rows, details) in enumerate(calls):
        effects, errors, late = [], [], 0
        for place, row in enumerate(places(rows)):
            event, single = told(events, details, place)
            if not event:
                continue
            before = objects[row].late
            try:
                came = objects[row].fire(event, **single)
            except EventError as error:
                errors.append((row, type(error), str(error)))
            else:
                late += objects[row].late - before
                if came:
                    effects.append((row, came))
        applied = batch.apply(events, rows, **details)
        mine = list(applied), [], applied.late
        for row, error in zip(applied.errors.rows.tolist(), applied.errors, strict=True):
            mine[1].append((row, type(error), str(error)))
        if mine != (effects, errors, late):
            return number, mine, (effects, errors, late)
        for row, theirs in enumerate(objects):
            ours = batch.request(row)
            if request_to_json(ours) != request_to_json(theirs):
                return number, request_to_json(ours), request_to_json(theirs)
        if (difference := asked_in_columns(batch, objects)) is not None:
            return number, difference
    return None


def asked_in_columns(batch, objects):
    """What the columns say of each row is what its object says."""
    rows = np.arange(ROWS)
    states = [batch.shapes.states[number] for number in batch.state(rows)]
    reasons = [None if n < 0 else batch.shapes.reasons[n] for n in batch.reason(rows)]
    ours = list(zip(
        states, reasons, batch.done(rows), batch.over(rows), batch.draining(rows),
        batch.attempt(rows), batch.late_events(rows), *batch.outstanding(rows), strict=True,
    ))  # fmt: skip
    theirs = [
        (str(one.state), one.reason, one.done, one.over, one.decided and not one.over,
         one.attempt, one.late, len(one.steps), len(one.ops))
        for one in objects
    ]  # fmt: skip
    return None if ours == theirs else (ours, theirs)


@settings(max_examples=300)
@given(policies(), tables, calls)
def test_any_events(policy, table, calls):
    assert disagreement(policy, table, calls) is None


@settings(max_examples=60)
@given(tables, calls)
def test_rows_that_cannot_be_shapes(table, calls):
    """The same with hardly any room for shapes: most rows are kept as objects, and come back to columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_KNOWN", {})
        patch.setattr(shapes, "MOVED_BY_PENDING", 12)
        patch.setattr(signals, "MOST_OPS", 2)
        assert disagreement(Policy(), table, calls) is None


def forgets(flag):
    """A cell of the table without one of its marks."""
    learn = shapes.Shapes._learn
    return lambda self, code, signal: learn(self, code, signal) & ~flag


_op_signals = shapes.Shapes.op_signals
_shape_of = shapes.Shapes.shape_of
launched = [("admit", None, {}), ("forward_launched", None, {})]
preempted = [*launched, ("preempt", None, {}), ("forward_finished", None, {})]
completed = [
    ("admit", None, {}),
    ("prefill_finished", None, {}),
    ("complete", None, {"reason": "stop", "position": 3}),
    ("complete", None, {"reason": "length", "position": 2}),
]
two_ops = [("transfer_posted", None, {"op": op}) for op in ("x", "y")]

MUTANTS = {
    "a launch is not counted": (shapes.Shapes, "_learn", forgets(shapes.LAUNCHED), launched),
    "a late event is not counted": (
        shapes.Shapes, "_learn", forgets(shapes.LATE), [("forward_finished", None, {})],
    ),
    "a refused event is a move": (
        shapes.Shapes, "_learn", forgets(shapes.REFUSED), [("preempt", None, {})],
    ),
    "a winner's details are dropped": (
        shapes.Shapes, "_learn", forgets(shapes.WINS), [("abort", None, {"message": "because"})],
    ),
    "a new attempt is not counted": (shapes.Shapes, "_learn", forgets(shapes.AGAIN), preempted),
    "effects are lost": (
        shapes.Shapes, "_learn", forgets(1 << shapes.EFFECTS), [("abort", None, {})],
    ),
    "a named op is any op": (
        shapes.Shapes, "op_signals", lambda self, _: _op_signals(self, "kv"),
        [("admit", None, {}), *two_ops],
    ),
    "a named step is the oldest": (
        signals, "FINISH_BACK", code("forward_finished"),
        [*launched, *launched[1:], ("forward_finished", None, {"step": 2})],
    ),
    "token positions are not looked at": (
        signals, "COMPLETIONS", code("complete", reason="stop"), completed,
    ),
    "a row that stands twice is moved once": (
        RequestBatch, "_turns", lambda *_: iter([None]),
        [("admit", None, {}), (np.array([6, 6], np.uint8), [1, 1], {})],
    ),
    "older attempts are no part of a shape": (
        shapes.Shapes, "shape_of",
        lambda self, request: (one := _shape_of(self, request)) and one._replace(older=()),
        preempted,
    ),
    "what an object did is not written down": (
        columns.Rows, "_write", lambda *_: None, [("admit", None, {"attempt": 0})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_batch_is_noticed(mutant, monkeypatch):
    """The comparison can fail: each part that is taken out makes some events come out otherwise."""
    target, name, value, witness = MUTANTS[mutant]
    monkeypatch.setattr(shapes, "_KNOWN", {})
    assert disagreement(Policy(), "prefill", witness) is None
    monkeypatch.setattr(shapes, "_KNOWN", {})
    monkeypatch.setattr(target, name, value)
    assert disagreement(Policy(), "prefill", witness) is not None


def test_an_object_s_numbers_are_seen_in_columns():
    """Passes so far apart that no shape has room for them: the row is an object, and counts on."""
    apart = ("forward_launched", [0, 0], {"step": np.array([1, 17])})
    trace = [("admit", None, {}), apart, ("forward_finished", 0, {"step": 2}), ("preempt", 0, {})]
    assert disagreement(Policy(), "prefill", trace) is None


def test_many_chunks():
    """Rows in two chunks, pairs in any order with rows that stand twice; and all rows at once."""
    count = columns.CHUNK + 3000
    rng = np.random.default_rng(7)
    batch = RequestBatch()
    rows = batch.add(count)
    objects = [
        RequestLifecycle(f"row {row}", batch.automaton, journal=False) for row in range(count)
    ]
    order = rng.permutation(rows)
    rounds = [
        ("admit", None),
        ("forward_launched", rows[::3]),
        ("prefill_finished", order[: count // 2]),
    ]
    for _ in range(2):
        pairs = rng.integers(0, count, count // 2)
        rounds.append((rng.integers(0, signals.PLAIN, len(pairs)).astype(np.uint8), pairs))
    rounds.append((rng.integers(0, signals.PLAIN, count), None))
    for events, chosen in rounds:
        effects, errors = [], []
        for place, row in enumerate((rows if chosen is None else chosen).tolist()):
            event, details = told(events, {}, place)
            if event:
                try:
                    if came := objects[row].fire(event, **details):
                        effects.append((row, came))
                except EventError:
                    errors.append(row)
        applied = batch.apply(events, chosen)
        assert list(applied) == effects
        assert applied.errors.rows.tolist() == errors
    assert [repr(batch.request(row)) for row in range(count)] == [repr(one) for one in objects]


def test_bad_input_changes_nothing():
    batch = RequestBatch()
    batch.add(3)
    batch.apply("admit")
    before = [repr(batch.request(row)) for row in range(3)]
    for events, rows, details in [
        ("nonsense", None, {}),
        ("abort", [0, 3], {}),
        ("abort", [-1], {}),
        ("abort", [0.5], {}),
        ("abort", None, {"source": "nobody"}),
        ("complete", None, {}),
        ("complete", None, {"reason": "stop", "position": [1, 2]}),
        ("complete", None, {"reason": "stop", "position": 1 << 70}),
        ("grammar_failed", None, {"cause": "odd"}),
        ("forward_launched", None, {"step": "one"}),
        ([1, 2], None, {}),
        ([1, 2, signals.PLAIN], None, {}),
        ([1, 2, -1], None, {}),
        ([1.5, 2, 3], None, {}),
        ([code("abort")] * 3, None, {"message": "a word"}),
        ("abort", [0, 1], {"generation": [0]}),
    ]:
        with pytest.raises(BadDetail):
            batch.apply(events, rows, **details)
    for polls, rows in [([1, 1], None), ([3], [0]), ([-1], [0]), ([1.0], [0]), ([1], [9])]:
        with pytest.raises(BadDetail):
            batch.poll(polls, rows)
    with pytest.raises(BadDetail):
        batch.add(-1)
    assert [repr(batch.request(row)) for row in range(3)] == before
