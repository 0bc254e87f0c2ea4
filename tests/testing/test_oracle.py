"""The independent model of the contract agrees with the public cases and the readings, and its tests can fail."""

from __future__ import annotations

import ast
import importlib.util
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.testing import oracle as the_oracle

TESTS = Path(__file__).parents[1]
CASES = sorted((TESTS / "cases").glob("*.jsonl"))
RULINGS = runpy.run_path(str(TESTS / "ruling_traces.py"))["RULINGS"]


def test_the_oracle_shares_no_code_with_the_library():
    tree = ast.parse(Path(the_oracle.__file__).read_text())
    imported = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    imported |= {
        a.name for each in ast.walk(tree) if isinstance(each, ast.Import) for a in each.names
    }
    assert imported == {"__future__", "collections.abc", "typing", "attrs"}


def differences(oracle, lines, expected):
    """Where the oracle's result differs from what is expected of it: every key that is given."""
    result = oracle.replay(lines).result()
    found = []
    for rid, keys in expected["requests"].items():
        got = result["requests"].get(rid, {})
        found += [
            (rid, key, got.get(key), want) for key, want in keys.items() if got.get(key) != want
        ]
    illegal = [[each["line"], each["event"]] for each in result["illegal"]]
    for key, got in (
        ("illegal", illegal),
        ("unknown", result["unknown"]),
        ("violations", result["violations"]),
    ):
        want = expected.get(key, got if key == "unknown" else [])
        if got != want:
            found.append((key, got, want))
    return found


def case(path):
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return lines, json.loads(path.with_name(path.stem + ".expect.json").read_text())


def test_there_are_cases_and_a_trace_for_each_reading():
    assert len(CASES) >= 35
    assert {int(name[1:].split("-")[0]) for name, _, _ in RULINGS} == set(range(1, 23))
    assert len({name for name, _, _ in RULINGS}) == len(RULINGS)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_public_cases(path):
    assert differences(the_oracle, *case(path)) == []


@pytest.mark.parametrize(("name", "lines", "expected"), RULINGS, ids=[r[0] for r in RULINGS])
def test_readings(name, lines, expected):
    assert differences(the_oracle, lines, expected) == []


# Checks by hand of what a replay does not show. Each takes the module, so that it can be tried on mutants. -----


def e(event, rid="r", **fields):
    return {"event": event, "rid": rid, **fields}


ADMITTED = [e("submit"), e("admit", pages=4)]
TRANSFERRING = [*ADMITTED, e("prefill_finished")]
ABORT = e("abort", source="client")


def run(oracle, lines, **policy):
    model = oracle.Oracle(policy)
    return model, [model.apply(line) for line in lines]


def check_the_kinds(oracle):
    lines = [*TRANSFERRING, e("transfer_pending"), ABORT, e("submit"), e("transfer_succeeded")]
    _, verdicts = run(oracle, [e("error", rid="x"), *lines, e("abort", source="server")])
    kinds = [verdict.kind for verdict in verdicts]
    assert kinds == [
        "unknown",
        "move",
        "move",
        "move",
        "stay",
        "move",
        "illegal",
        "move",
        "late",
    ]
    assert [v.state for v in verdicts[-4:]] == ["aborted", "aborted", "done", "done"]
    assert verdicts[0].state is None
    assert [v.reason for v in verdicts[-4:]] == ["client_abort"] * 4
    assert verdicts[1].reason is None
    assert verdicts[-1].why == "the request, or this attempt of it, is over"
    assert all(bool(v.why) == (v.kind in ("late", "illegal", "unknown")) for v in verdicts)


def check_effects_name_their_attempt(oracle):
    lines = [*ADMITTED, e("forward_launched"), e("preempt"), e("admit", pages=4)]
    _, verdicts = run(oracle, [*lines, e("forward_finished"), ABORT])
    assert [(x.name, x.attempt) for x in verdicts[-2].effects] == [("release_kv", 0)]
    assert [(x.name, x.attempt) for x in verdicts[-1].effects] == [
        ("cancel_transfer", 1),
        ("release_kv", 1),
        ("report", 1),
    ]


def report_of(oracle, *events, **policy):
    """What goes to the client, and how often."""
    _, verdicts = run(oracle, [*ADMITTED, *events], **policy)
    (report,) = [x for v in verdicts for x in v.effects if x.name == "report"]
    return report.wire, report.status, report.message


def check_the_wire(oracle):
    """Section 6, the default mapping; R18: the status and message of the event that won."""
    by_source = {"client": 499, "server": 503, "timeout": 503, "shutdown": 503}
    for source, status in by_source.items():
        assert report_of(oracle, e("abort", source=source)) == ("abort", status, None)
    by_cause = {"compile": 400, "rejected": 400, "timeout": 503, "dead_end": 500}
    for cause, status in by_cause.items():
        assert report_of(oracle, e("grammar_failed", cause=cause)) == ("error", status, None)
    assert report_of(oracle, e("transfer_failed")) == ("error", 502, None)
    assert report_of(oracle, e("peer_lost")) == ("error", 502, None)
    assert report_of(oracle, e("error", cause="timeout")) == ("error", 500, None)
    assert report_of(oracle, e("complete", reason="stop")) == ("stop", 200, None)
    assert report_of(oracle, e("complete", reason="length")) == ("length", 200, None)


def check_details_of_the_winner(oracle):
    first = e("error", status=507, message="full")
    drained = e("transfer_drained")
    handed_over = e("prefill_finished")
    won = e("abort", source="server", status=418, message="tea")
    assert report_of(oracle, handed_over, first, won, drained) == ("abort", 418, "tea")
    assert report_of(oracle, handed_over, won, first, drained) == ("abort", 418, "tea")
    told = report_of(oracle, e("grammar_failed", cause="timeout", status=400, message="slow"))
    assert told == ("error", 400, "slow")


def check_refusals_change_nothing(oracle):
    model, _ = run(oracle, [*TRANSFERRING, ABORT])
    before = model.result()
    assert model.apply(e("admit", pages=1)).kind == "illegal"
    after = model.result()
    assert after["requests"] == before["requests"]
    assert after["illegal"] == [{"line": 5, "rid": "r", "event": "admit", "state": "aborted"}]


def check_strict_lists_the_unknown(oracle):
    model, _ = run(oracle, [e("error"), *ADMITTED], late="strict")
    assert model.result()["illegal"] == [{"line": 1, "rid": "r", "event": "error", "state": None}]


def check_early_aborts_by_precedence(oracle):
    order = ["server_abort", "client_abort", "timeout", "shutdown", "grammar_error"]
    order += ["transfer_failed", "peer_lost", "internal_error", "stop", "length"]
    lines = [ABORT, e("abort", source="server"), e("submit")]
    model, _ = run(oracle, lines, precedence=order)
    assert model.result()["requests"]["r"]["reason"] == "server_abort"


def check_bad_policies(oracle):
    for bad in (
        {"report": "never"},
        {"reports": "at_done"},
        {"precedence": ["stop", "length"]},
        {"precedence": [["stop"], *the_oracle.TIERS]},
    ):
        with pytest.raises(ValueError):
            oracle.Oracle(bad)


def release(**fields):
    return {"effect": "release_kv", **fields}


def report(reason, **fields):
    return {"effect": "report", "reason": reason, **fields}


CANCEL, QUARANTINE, PUBLISH = (
    {"effect": name} for name in ("cancel_transfer", "quarantine_kv", "publish")
)
IDLE = {"idle": {}}
SUCCEEDED, DRAINED = e("transfer_succeeded"), e("transfer_drained")
TWO_OPS = [*ADMITTED, e("transfer_posted", op="a"), e("transfer_posted", op="b")]
AGAIN = [
    *ADMITTED,
    e("transfer_posted"),
    e("preempt"),
    e("admit", pages=4),
    e("forward_launched"),
]
EARLY = {"policy": {"report": "at_decision"}}

# What a scheduler was told and did, and the invariants of section 8 that it broke, in order.
WATCHED = [
    ("a healthy life", [*TRANSFERRING, SUCCEEDED, release(), report("length"), IDLE], []),
    (
        "an abort, drained",
        [*TRANSFERRING, ABORT, CANCEL, DRAINED, release(), report("client_abort"), IDLE],
        [],
    ),
    (
        "quarantine",
        [
            *TRANSFERRING,
            ABORT,
            CANCEL,
            e("drain_timeout"),
            QUARANTINE,
            report("client_abort"),
            {"idle": {"free": 6, "total": 10}},
        ],
        [],
    ),
    (
        "quarantined pages proven quiet go back",
        [*TRANSFERRING, ABORT, CANCEL, e("drain_timeout"), QUARANTINE, DRAINED, release()],
        [],
    ),
    (
        "quarantine forgotten",
        [*TRANSFERRING, ABORT, CANCEL, e("drain_timeout"), release()],
        ["no_free_in_flight"],
    ),
    (
        "quarantined twice, then unasked",
        [
            *TRANSFERRING,
            ABORT,
            e("drain_timeout"),
            QUARANTINE,
            QUARANTINE,
            *[e("submit")],
            QUARANTINE,
        ],
        ["claim_count", "claim_count"],
    ),
    (
        "quarantined after the release",
        [*TRANSFERRING, SUCCEEDED, release(), QUARANTINE],
        ["single_release"],
    ),
    ("free on abort", [*TRANSFERRING, ABORT, CANCEL, release()], ["no_free_in_flight"]),
    (
        "failed taken as drained",
        [*TRANSFERRING, e("transfer_failed"), CANCEL, release()],
        ["no_free_in_flight"],
    ),
    (
        "free while a pass runs",
        [*ADMITTED, e("forward_launched"), ABORT, release()],
        ["no_free_in_flight"],
    ),
    (
        "free at the first of two completions",
        [*TWO_OPS, ABORT, e("transfer_succeeded", op="a"), release()],
        ["no_free_in_flight", "free_after_all_ops"],
    ),
    ("freed twice", [*TRANSFERRING, SUCCEEDED, release(), release()], ["single_release"]),
    (
        "the seed: freed by the grammar error, again by the poll",
        [*TRANSFERRING, e("grammar_failed", cause="rejected"), release(), SUCCEEDED, release()],
        ["no_free_in_flight", "single_release"],
    ),
    (
        "a late end of the transfer frees again",
        [*TRANSFERRING, ABORT, DRAINED, release(), SUCCEEDED, release()],
        ["single_release"],
    ),
    ("freed while it computes", [*ADMITTED, release()], ["claim_count"]),
    ("freed before it had pages", [e("submit"), release()], ["claim_count"]),
    (
        "a stale attempt frees the new one",
        [*AGAIN, DRAINED, release(attempt=1)],
        ["no_free_in_flight", "attempt_scoped"],
    ),
    (
        "a stale life frees the new one",
        [*TRANSFERRING, SUCCEEDED, *ADMITTED, release(incarnation=2)],
        ["claim_count", "attempt_scoped"],
    ),
    ("an older attempt is freed when it drained", [*AGAIN, DRAINED, release()], []),
    (
        "both attempts are freed in their turn",
        [*AGAIN, DRAINED, release(), ABORT, CANCEL, e("forward_finished"), release()],
        [],
    ),
    ("a cancel is of the newest attempt", [*AGAIN, DRAINED, ABORT, CANCEL], []),
    (
        "pages by name are counted too",
        [
            e("submit"),
            e("admit", pages=["p1", "p2"]),
            e("prefill_finished"),
            ABORT,
            CANCEL,
            e("drain_timeout"),
            QUARANTINE,
            report("client_abort"),
            {"idle": {"free": 8, "total": 10}},
        ],
        [],
    ),
    ("never freed", [*ADMITTED, ABORT, CANCEL, report("client_abort"), IDLE], ["drain_to_zero"]),
    (
        "pages lost by the pool",
        [
            *ADMITTED,
            ABORT,
            CANCEL,
            release(),
            report("client_abort"),
            {"idle": {"free": 3, "total": 4}},
        ],
        ["drain_to_zero"],
    ),
    (
        "cached pages are not lost",
        [
            *ADMITTED,
            ABORT,
            CANCEL,
            release(),
            report("client_abort"),
            {"idle": {"free": 3, "cached": 1, "total": 4}},
        ],
        [],
    ),
    ("idle with a live request", [*ADMITTED, IDLE], ["eventually_done"]),
    (
        "idle with an older attempt that drains",
        [*AGAIN[:4], ABORT, CANCEL, report("client_abort"), IDLE],
        ["eventually_done"],
    ),
    (
        "the peer is never told",
        [*ADMITTED, ABORT, release(), report("client_abort"), IDLE],
        ["peer_told"],
    ),
    ("the peer is told twice", [*TRANSFERRING, ABORT, CANCEL, CANCEL], ["peer_told"]),
    ("the peer of a healthy request is told", [*TRANSFERRING, CANCEL], ["peer_told"]),
    (
        "told twice",
        [*ADMITTED, ABORT, report("client_abort"), report("client_abort")],
        ["report_once"],
    ),
    ("never told", [*ADMITTED, ABORT, CANCEL, release(), IDLE], ["report_once"]),
    (
        "a lost abort: length overwrites it",
        [*TRANSFERRING, ABORT, CANCEL, SUCCEEDED, release(), report("length")],
        ["sticky_reason"],
    ),
    (
        "the failure after our own cancel is reported",
        [*TRANSFERRING, ABORT, e("transfer_failed"), DRAINED, report("transfer_failed")],
        ["sticky_reason"],
    ),
    (
        "an abort does not upgrade a fault",
        [*TRANSFERRING, e("transfer_failed"), ABORT, DRAINED, report("transfer_failed")],
        ["reason_by_policy"],
    ),
    (
        "an abort that the policy ignores is reported",
        [
            {"policy": {"abort_after_handoff": "ignore"}},
            *ADMITTED,
            e("forward_launched"),
            e("prefill_finished"),
            SUCCEEDED,
            ABORT,
            e("forward_finished"),
            report("client_abort"),
        ],
        ["reason_by_policy"],
    ),
    ("told too early", [*TRANSFERRING, ABORT, report("client_abort")], ["reason_by_policy"]),
    ("told at the decision", [EARLY, *TRANSFERRING, ABORT, report("client_abort")], []),
    ("told without words too early", [*ADMITTED, {"effect": "report"}], ["reason_by_policy"]),
    (
        "what only drained is reported as failed",
        [*TRANSFERRING, ABORT, DRAINED, report("transfer_failed")],
        ["sticky_reason"],
    ),
    ("told without words", [*ADMITTED, ABORT, {"effect": "report"}], []),
    (
        "abort by prefix",
        [
            *ADMITTED,
            e("submit", rid="r1"),
            e("abort", rid="r1", source="client"),
            report("client_abort"),
        ],
        ["exact_target"],
    ),
    ("a fault of another request", [*ADMITTED, report("internal_error")], ["fault_isolated"]),
    ("an effect for nobody", [release()], ["exact_target"]),
    ("an effect for an attempt that never was", [*ADMITTED, release(attempt=3)], ["exact_target"]),
    (
        "a chunk is launched after the abort",
        [*ADMITTED, e("forward_launched"), ABORT, e("forward_launched")],
        ["no_new_work_after_decision"],
    ),
    (
        "preempt of a finished request",
        [*TRANSFERRING, SUCCEEDED, e("preempt")],
        ["no_new_work_after_decision"],
    ),
    (
        "an illegal event that is no new work",
        [*TRANSFERRING, e("preempt"), SUCCEEDED, e("prefill_finished")],
        [],
    ),
    ("aborted pages published", [*ADMITTED, ABORT, PUBLISH], ["no_tainted_publish"]),
    ("pages of a live request published", [*ADMITTED, PUBLISH], []),
    ("finished pages published", [*TRANSFERRING, SUCCEEDED, PUBLISH], []),
    (
        "proven pages published",
        [{"policy": {"publish_aborted": "proven"}}, *TRANSFERRING, ABORT, PUBLISH],
        [],
    ),
    (
        "unproven pages published",
        [
            {"policy": {"publish_aborted": "proven"}},
            *ADMITTED,
            e("forward_launched"),
            ABORT,
            PUBLISH,
        ],
        ["no_tainted_publish"],
    ),
]


def watched(oracle, script):
    policy = script[0].get("policy", {})
    judge = oracle.Oracle(policy, watching=True)
    for item in script:
        if "event" in item:
            judge.apply(item)
        elif "effect" in item:
            seen = len(judge.violations)
            assert judge.observe("r", item) == judge.violations[seen:]
        elif "idle" in item:
            judge.at_idle(**item["idle"])
    return [violation.invariant for violation in judge.violations]


def check_an_effect_may_be_a_bare_name(oracle):
    judge = oracle.Oracle(watching=True)
    assert [each.invariant for each in judge.observe("r", "release_kv")] == ["exact_target"]


# One request that was told at its decision: attempt 0 drains its op, attempt 1 its step.
DRAINS_TWICE = [
    *ADMITTED,
    e("transfer_posted"),
    e("preempt"),
    e("admit", pages=4),
    e("forward_launched"),
    ABORT,
]


def refuse(oracle, kind):
    raise oracle._Refused(kind, kind)


def end_without_report(_, life):
    life.state, life.newest.kv = "done", "released"
    life.newest.claims.clear()
    life.effects.clear()


# What a wrong row would do to that request, and the invariant that the oracle then names itself.
DAMAGE = [
    ("claim_count", "error", lambda _, life: life.newest.claims.append(("op", "b"))),
    ("no_free_in_flight", "error", lambda _, life: setattr(life.newest, "kv", "released")),
    ("drain_to_zero", "error", lambda _, life: life.attempts[0].claims.clear()),
    ("drain_to_zero", "error", lambda _, life: setattr(life, "state", "done")),
    ("eventually_done", "error", lambda _, life: life.newest.claims.clear()),
    ("report_once", "error", lambda _, life: life.effects.append(life.effects[-1])),
    ("sticky_reason", "error", lambda _, life: setattr(life, "reason", None)),
    ("report_once", "error", end_without_report),
    (
        "no_new_work_after_decision",
        "forward_launched",
        lambda _, life: [
            book.append(("step", 9)) for book in (life.newest.claims, life.newest.in_use)
        ],
    ),
    ("abort_is_total", "abort", lambda oracle, _: refuse(oracle, "illegal")),
    (
        "late_is_absorbed",
        "error",
        lambda oracle, life: (life.effects.append(life.effects[0]), refuse(oracle, "late")),
    ),
    (
        "late_is_absorbed",
        "error",
        lambda oracle, life: (life.effects.append(life.effects[0]), refuse(oracle, "illegal")),
    ),
]


def check_the_oracle_watches_itself(oracle):
    for invariant, event, damage in DAMAGE:
        model, _ = run(oracle, DRAINS_TWICE, report="at_decision")
        assert model.violations == []
        model._rows[event] = lambda life, _event, damage=damage: damage(oracle, life)
        model.apply(e(event))
        assert {violation.invariant for violation in model.violations} == {invariant}


def check_watching_performs_nothing(oracle):
    judge = oracle.Oracle(watching=True)
    for line in [*TRANSFERRING, SUCCEEDED]:
        judge.apply(line)
    broken = [violation.invariant for violation in judge.at_idle()]
    assert broken == ["drain_to_zero", "report_once"]
    assert {violation.rid for violation in judge.violations} == {"r"}
    assert {violation.line for violation in judge.violations} == {4}


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_by_hand(check):
    check(the_oracle)


@pytest.mark.parametrize(("name", "script", "broken"), WATCHED, ids=[w[0] for w in WATCHED])
def test_watching_a_scheduler(name, script, broken):
    assert watched(the_oracle, script) == broken


# Any events in any order: the model keeps its own invariants. ----------------------------------------------------

NAMES = sorted(set(the_oracle.Oracle()._rows) | {"submit"})
HAPPY = ["submit", "admit", "forward_launched", "transfer_posted", "prefill_finished"]


@st.composite
def any_event(draw):
    line = e(draw(st.sampled_from([*NAMES, *HAPPY])), draw(st.sampled_from(["r", "r1"])))
    if line["event"] == "complete":
        line["reason"] = draw(st.sampled_from(["stop", "length"]))
        line["position"] = draw(st.integers(0, 2))
    details = {
        "op": st.sampled_from(["kv", "a"]),
        "step": st.integers(1, 3),
        "attempt": st.integers(0, 2),
        "incarnation": st.integers(0, 2),
    }
    for field, values in details.items():
        if draw(st.integers(0, 4)) == 0:
            line[field] = draw(values)
    return line


def any_policy():
    choices = {name: st.sampled_from(each) for name, each in the_oracle.POLICIES.items()}
    order = st.permutations(sorted(the_oracle.WIRE))
    return st.fixed_dictionaries({**choices, "precedence": st.one_of(st.just("tiers"), order)})


@given(any_policy(), st.lists(any_event(), max_size=40))
def test_the_model_keeps_its_own_invariants(policy, lines):
    model = the_oracle.Oracle(policy)
    for line in lines:
        verdict = model.apply(line)
        assert verdict.kind in ("move", "stay", "late", "illegal", "unknown")
    unsafe = policy["on_undrained"] == "release"
    assert {v.invariant for v in model.violations} <= ({"no_free_in_flight"} if unsafe else set())


# The tests above can fail: each of these faults, put into the oracle, is found by one of them. ------------------

MUTANTS = [
    # (what is wrong now, the source, what stands there instead)
    (
        "a verdict is taken as drained",
        '"transfer_failed": self._transfer_failed',
        '"transfer_failed": self._completion',
    ),
    (
        "a failed op drops its claim",
        "if found[0] is not life.newest:  # R10",
        "if found[0].claims.remove(found[1][0]) or found[0] is not life.newest:",
    ),
    (
        "a busy request ends at once",
        "if not life.newest.busy:\n            self._end",
        "if True:\n            self._end",
    ),
    ("only ops keep pages", "return bool(self.claims)", "return bool(self.ops)"),
    (
        "the hand-off succeeds with its first op",
        "and not attempt.ops:",
        ":",
    ),
    (
        "a new op beside an open one",
        "if not life.newest.ops:\n            self._take",
        "if True:\n            self._take",
    ),
    (
        "prefill_finished after the decision takes a claim",
        "# R22\n            return",
        "# R22\n            return self._take(life.newest, ('op', 'kv'))",
    ),
    (
        "new work after a completion",
        'if life.state != "prefilling" or life.decided:\n            _illegal("new work',
        'if life.state != "prefilling":\n            _illegal("new work',
    ),
    (
        "preempt of a completed request",
        'if life.state != "prefilling" or life.decided:\n            _illegal("preempt',
        'if life.state != "prefilling":\n            _illegal("preempt',
    ),
    (
        "an op is posted twice",
        "if any(claim in attempt.claims for attempt in others):",
        "if False:",
    ),
    (
        "a step id is reused by another attempt",
        '("step", step), life.attempts)',
        '("step", step), [life.newest])',
    ),
    (
        "op names are unique in a request",
        'event.get("op", "kv")), [life.newest])',
        'event.get("op", "kv")), life.attempts)',
    ),
    (
        "unnamed steps are numbered by attempt",
        "life.largest_step = max(life.largest_step, step)",
        "life.largest_step = len(life.newest.claims)",
    ),
    ("the newest step is finished first", "claims = claims[:1]", "claims = claims[-1:]"),
    (
        "unnamed steps are looked up in the newest attempt first",
        'if kind not in event and kind == "step":',
        "if False:",
    ),
    (
        "completions are looked up in the oldest attempt first",
        "attempts = life.attempts[::-1]",
        "attempts = life.attempts",
    ),
    (
        "the named attempt is not looked at",
        'if "attempt" in event:\n            attempts =',
        "if False:\n            attempts =",
    ),
    (
        "an older attempt is never freed",
        "if not attempt.busy:\n                self._give_back",
        "if False:\n                self._give_back",
    ),
    (
        "an older attempt is freed with its first claim",
        "if not attempt.busy:\n                self._give_back",
        "if True:\n                self._give_back",
    ),
    (
        "a failed op of an older attempt decides",
        "if found[0] is not life.newest:  # R10\n                return",
        "if False:\n                return",
    ),
    ("preempt frees a busy attempt", "if not old.busy:", "if True:"),
    ("preempt frees nothing", "if not old.busy:", "if False:"),
    (
        "drained is as good as delivered",
        'if event["event"] == "transfer_drained" and undecided:',
        "if False:",
    ),
    (
        "drained fails a completed request",
        'if event["event"] == "transfer_drained" and undecided:',
        'if event["event"] == "transfer_drained":',
    ),
    (
        "a completion decides a hand-off",
        'if self.state == "transferring":\n            return self.handed_off\n        return',
        "return",
    ),
    (
        "length replaces what was recorded",
        "if life.reason is None:  # Reason `length`",
        "if True:  # Reason `length`",
    ),
    (
        "a failure after the hand-off decides",
        'elif life.state == "transferring" and life.handed_off:  # R3',
        "elif False:  # R3",
    ),
    (
        "the abort is ignored before the hand-off too",
        'after_handoff = life.state == "transferring" and life.handed_off',
        'after_handoff = life.state == "transferring"',
    ),
    (
        "the abort after the hand-off is always recorded",
        'if after_handoff and self.policy["abort_after_handoff"] == "ignore":',
        "if False:",
    ),
    (
        "completions in the queue",
        'if life.state == "queued":\n            _illegal',
        "if False:\n            _illegal",
    ),
    (
        "a second completion after the report",
        'if life.reported:\n            _late("the answer',
        'if False:\n            _late("the answer',
    ),
    ("an abort after the report is no longer late", "if draining and life.reported:", "if False:"),
    (
        "memory does not end once the answer is out",
        "if draining and life.reported:",
        "if life.reported:",
    ),
    (
        "the reported reason changes",
        "if not life.reported:\n            self._record",
        "if True:\n            self._record",
    ),
    ("cancel after the hand-off", "if not draining and not life.handed_off:", "if not draining:"),
    (
        "cancel at each decision",
        "if not draining and not life.handed_off:",
        "if not life.handed_off:",
    ),
    ("the peer is never told", "if not draining and not life.handed_off:", "if False:"),
    (
        "the draining state is always aborted",
        'life.state = "grammar_failed" if life.reason.name == "grammar_error" else "aborted"',
        'life.state = "aborted"',
    ),
    ("report only at done", 'elif self.policy["report"] == "at_decision":  # R9', "elif False:"),
    (
        "report always at the decision",
        'elif self.policy["report"] == "at_decision":  # R9',
        "else:",
    ),
    (
        "report before release",
        '        if life.newest.kv == "held":',
        '        self._report(life)\n        if life.newest.kv == "held":',
    ),
    (
        "two reports",
        "if not life.reported:\n            life.reported = True",
        "if True:\n            life.reported = True",
    ),
    (
        "quarantine is a release",
        '"release_kv" if how == "released" else "quarantine_kv"',
        '"release_kv"',
    ),
    ("the deadline always quarantines", 'if self.policy["on_undrained"] == "hold":', "if False:"),
    (
        "unsafe release is quarantine",
        'how = "quarantined" if self.policy["on_undrained"] == "quarantine" else "released"',
        'how = "quarantined"',
    ),
    (
        "the deadline forgets older attempts",
        "draining = [a for a in life.attempts[:-1] if a.busy]",
        "draining = []",
    ),
    ("the deadline looks at no attempt", "if named is not None:", "if False:"),
    (
        "the deadline is late where nothing drains",
        "refuse = _late if over else _illegal",
        "refuse = _late",
    ),
    (
        "the deadline is illegal after done",
        "refuse = _late if over else _illegal",
        "refuse = _illegal",
    ),
    (
        "new work after done is late",
        'refuse = _illegal if event["event"] in ILLEGAL_WHEN_DONE else _late',
        "refuse = _late",
    ),
    ("abort heeds the attempt", 'name in ("drain_timeout", "abort")', 'name == "drain_timeout"'),
    (
        "events of an older attempt hit the newest",
        "if over and not finds_its_attempt:",
        "if False:",
    ),
    (
        "the first reason always stays",
        "return self._rank(new.name) < self._rank(old.name)",
        "return False",
    ),
    (
        "the last reason of a tier wins",
        "        return False\n\n    # Section 8",
        "        return True\n\n    # Section 8",
    ),
    (
        "the later position wins",
        "return _token_order(new) < _token_order(old)",
        "return _token_order(new) > _token_order(old)",
    ),
    (
        "an unknown position is the first",
        "return reason.position is None, reason.position or 0",
        "return reason.position is not None, reason.position or 0",
    ),
    ("length at the same position", 'reason.name != "stop"\n', 'reason.name == "stop"\n'),
    ("precedence is always the tiers", 'if declared == "tiers":', "if True:"),
    ("early aborts are forgotten", "self._early_aborts[rid, number] = reason", "pass"),
    (
        "the last early abort wins",
        "if self._wins(reason, self._early_aborts.get((rid, number))):",
        "if True:",
    ),
    ("a live rid is submitted again", 'if lives and lives[-1].state != "done":', "if False:"),
    (
        "a reported rid is not free",
        'if not (self.policy["report"] == "at_decision" and live.reported):',
        "if True:",
    ),
    (
        "every life is the newest",
        "life = lives[number - 1]\n        if (brought",
        "life = lives[-1]\n        if (brought",
    ),
    ("late events are not counted", "life.late += 1", "pass"),
    (
        "strict is absorb",
        'if kind == "late" and self.policy["late"] == "absorb":',
        'if kind == "late":',
    ),
    ("strict counts the unknown", 'if self.policy["late"] == "strict":  # R16', "if False:"),
    (
        "the cause of a grammar error is not looked at",
        'if name == "grammar_error" and status is None:',
        "if False:",
    ),
    (
        "the status of the event is not used",
        "status if reason.status is None else reason.status",
        "status",
    ),
    ("claims are not dropped after the release", "attempt.claims.clear()", "pass"),
    ("request is no claim", 'claims.add("request")', "pass"),
    (
        "nothing breaks an invariant",
        "self.violations.append(Violation(invariant, life.rid",
        "(lambda _: None)(Violation(invariant, life.rid",
    ),
    (
        "a late proof of quiet counts for nothing",
        "found = found or self._find",
        "found = found and self._find",
    ),
    (
        "the judge knows no second release",
        'went back"\n        if attempt.freed:',
        'went back"\n        if False:',
    ),
    ("the judge knows no release in flight", "elif attempt.in_use:", "elif False:"),
    ("the judge counts no ops", 'attempt.ops_ended += claim[0] == "op"', "pass"),
    ("the judge knows no attempts", 'if attempt.kv == "held" and any(', "if False and any("),
    ("the judge knows no second report", "if life.told:\n", "if False:\n"),
    (
        "the judge reads no reasons",
        "elif expected is None or reason not in (None, expected):",
        "elif expected is None:",
    ),
    ("the judge lets the peer be told twice", "if attempt.cancels:", "if False:"),
    ("the judge lets the peer wait", "if attempt.cancelled and not attempt.cancels:", "if False:"),
    ("the judge counts no pages", "if total is not None and", "if False and"),
    ("the judge publishes all", "if ended_badly and", "if False and"),
    ("the judge lets new work begin", 'if self.watching and kind == "illegal"', "if False"),
    ("watching performs the effects itself", "if not self.watching:", "if True:"),
]


def mutant(old, new):
    path = Path(the_oracle.__file__)
    source = path.read_text()
    assert source.count(old) == 1, "a mutation must find its place once"
    spec = importlib.util.spec_from_loader("oracle_mutant", loader=None)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # For attrs, which looks its module up.
    exec(compile(source.replace(old, new), f"<mutant of {path.name}>", "exec"), module.__dict__)
    return module


def first_complaint(oracle: ModuleType):
    """The first test above that this oracle fails, or None."""
    traces = [(path.stem, *case(path)) for path in CASES] + RULINGS
    for name, lines, expected in traces:
        if found := differences(oracle, lines, expected):
            return name, found
    for name, script, broken in WATCHED:
        if watched(oracle, script) != broken:
            return name, broken
    for check in CHECKS:
        try:
            check(oracle)
        except (AssertionError, ValueError):
            return check.__name__, None
    return None


def test_the_oracle_itself_gives_no_complaint():
    assert first_complaint(the_oracle) is None


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=[m[0] for m in MUTANTS])
def test_mutants_are_found(name, old, new):
    assert first_complaint(mutant(old, new)) is not None
