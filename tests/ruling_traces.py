"""Where the contract leaves room: for each reading (docs/readings.md) short traces and what must come of them.

Data only, for whatever replays a trace: each entry of `RULINGS` is (name, trace lines, expected), where `expected`
is a part of the object of contract section 9: of each request the keys that matter, `illegal` as [line, event]
pairs (lines count from 1, a line of policies too), and `unknown` and `violations` where they are not 0 and [].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Line = Mapping[str, Any]
Ruling = tuple[str, list[Line], dict[str, Any]]


def _e(event: str, rid: str = "r", **fields: Any) -> Line:
    return {"event": event, "rid": rid, **fields}


def _policy(**choices: Any) -> Line:
    return {"policy": choices}


def _expect(
    illegal: list[list[Any]] | None = None,
    unknown: int = 0,
    violations: list[str] | None = None,
    others: dict[str, dict[str, Any]] | None = None,
    **of_r: Any,
) -> dict[str, Any]:
    """What must come of a trace; keywords not named here are keys of request `r`."""
    return {
        "requests": {**({"r": of_r} if of_r else {}), **(others or {})},
        "illegal": illegal or [],
        "unknown": unknown,
        "violations": violations or [],
    }


SUBMIT = _e("submit")
ADMIT = _e("admit", pages=4)
LAUNCH = _e("forward_launched")
FINISH = _e("forward_finished")
HAND_OVER = _e("prefill_finished")
SUCCEEDED = _e("transfer_succeeded")
FAILED = _e("transfer_failed")
DRAINED = _e("transfer_drained")
ABORT = _e("abort", source="client")
BAD_GRAMMAR = _e("grammar_failed", cause="rejected")
PREEMPT = _e("preempt")
TIMEOUT = _e("drain_timeout")
STOP = _e("complete", reason="stop", position=3)
LENGTH = _e("complete", reason="length", position=9)

PREFILLING = [SUBMIT, ADMIT]
COMPUTING = [*PREFILLING, LAUNCH]  # Step 1 is out.
TRANSFERRING = [*PREFILLING, HAND_OVER]  # Op kv is out.
HANDED_OFF = [*COMPUTING, HAND_OVER, SUCCEEDED]  # Step 1 is still out.
# Attempt 0 drains its step 1, attempt 1 waits in the queue.
PREEMPTED = [*COMPUTING, PREEMPT]
# Attempt 0 drains its op kv, attempt 1 computes.
OLD_OP = [*PREFILLING, _e("transfer_posted"), PREEMPT, ADMIT]
AT_DECISION = _policy(report="at_decision")
UNSAFE = _policy(on_undrained="release")

ENDED = {"state": "done", "kv": "released", "releases": 1, "reports": 1, "claims": []}
RELEASE, CANCEL, REPORT, QUARANTINE = "release_kv", "cancel_transfer", "report", "quarantine_kv"
COMPLETIONS_FIRST = [
    ["stop", "length"],
    ["client_abort", "server_abort", "timeout", "shutdown", "grammar_error"],
    ["transfer_failed", "peer_lost", "internal_error"],
]
MIXED = [
    ["client_abort", "stop", "length", "timeout"],
    ["server_abort", "shutdown", "grammar_error", "transfer_failed", "peer_lost", "internal_error"],
]
SERVER_FIRST = [
    "server_abort",
    "client_abort",
    "timeout",
    "shutdown",
    "peer_lost",
    "grammar_error",
    "transfer_failed",
    "internal_error",
    "length",
    "stop",
]

RULINGS: list[Ruling] = [
    (
        "R1-request-is-listed-until-the-release",
        [*TRANSFERRING, ABORT],
        _expect(state="aborted", kv="held", claims=["op:kv", "request"]),
    ),
    (
        "R1-quarantine-is-the-claim-that-is-left",
        [*TRANSFERRING, ABORT, TIMEOUT],
        _expect(state="done", kv="quarantined", claims=["quarantine"], releases=0, reports=1),
    ),
    ("R1-nothing-after-the-release", [*TRANSFERRING, SUCCEEDED], _expect(**ENDED)),
    (
        "R1-claims-are-of-the-newest-attempt",
        PREEMPTED,
        _expect(state="queued", kv="none", claims=[], releases=0, attempt=1),
    ),
    (
        "R1-steps-ops-and-request",
        [*COMPUTING, _e("transfer_posted", op="c0")],
        _expect(state="prefilling", kv="held", claims=["op:c0", "request", "step:1"]),
    ),
    (
        "R2-a-step-ends-while-the-op-is-out",
        [*COMPUTING, HAND_OVER, FINISH],
        _expect(state="transferring", reason=None, late=0, claims=["op:kv", "request"]),
    ),
    (
        "R2-the-last-step-ends-a-hand-off",
        [*HANDED_OFF, FINISH],
        _expect(**ENDED, reason="length", late=0),
    ),
    (
        "R2-two-steps-after-the-hand-off",
        [*COMPUTING, LAUNCH, HAND_OVER, SUCCEEDED, _e("forward_finished", step=2)],
        _expect(state="transferring", reason="length", reports=0, claims=["request", "step:1"]),
    ),
    (
        "R2-no-new-work-while-transferring",
        [*TRANSFERRING, LAUNCH, _e("transfer_posted", op="b"), ADMIT, HAND_OVER, PREEMPT, TIMEOUT],
        _expect(
            state="transferring",
            claims=["op:kv", "request"],
            illegal=[
                [4, "forward_launched"],
                [5, "transfer_posted"],
                [6, "admit"],
                [7, "prefill_finished"],
                [8, "preempt"],
                [9, "drain_timeout"],
            ],
        ),
    ),
    (
        "R2-drain-timeout-while-nothing-drains",
        [SUBMIT, TIMEOUT, ADMIT, TIMEOUT],
        _expect(state="prefilling", illegal=[[2, "drain_timeout"], [4, "drain_timeout"]]),
    ),
    (
        "R2-drain-timeout-while-an-older-attempt-drains",
        [*PREEMPTED, ADMIT, TIMEOUT],
        _expect(state="prefilling", kv="held", effects=[QUARANTINE], releases=0, reports=0),
    ),
    (
        "R3-length-is-recorded-by-the-success",
        HANDED_OFF,
        _expect(state="transferring", reason="length", reports=0, claims=["request", "step:1"]),
    ),
    (
        "R3-what-complete-recorded-is-not-replaced",
        [_policy(precedence=SERVER_FIRST), *TRANSFERRING, STOP, SUCCEEDED],
        _expect(**ENDED, reason="stop"),
    ),
    (
        "R3-the-transfer-is-over",
        [*HANDED_OFF, FAILED, SUCCEEDED, DRAINED],
        _expect(state="transferring", reason="length", late=3, effects=[]),
    ),
    (
        "R3-abort-is-recorded-without-cancel",
        [*HANDED_OFF, ABORT],
        _expect(state="aborted", reason="client_abort", kv="held", late=0, effects=[]),
    ),
    (
        "R3-abort-is-recorded-and-reported",
        [*HANDED_OFF, ABORT, FINISH],
        _expect(**ENDED, reason="client_abort", effects=[RELEASE, REPORT]),
    ),
    (
        "R3-abort-is-ignored",
        [_policy(abort_after_handoff="ignore"), *HANDED_OFF, ABORT],
        _expect(state="transferring", reason="length", late=0, effects=[]),
    ),
    (
        "R3-abort-is-ignored-only-after-the-hand-off",
        [_policy(abort_after_handoff="ignore"), *TRANSFERRING, ABORT],
        _expect(state="aborted", reason="client_abort", effects=[CANCEL]),
    ),
    (
        "R3-faults-decide-without-cancel",
        [*HANDED_OFF, _e("peer_lost"), FINISH],
        _expect(**ENDED, reason="peer_lost", effects=[RELEASE, REPORT]),
    ),
    (
        "R3-a-grammar-error-decides-without-cancel",
        [*HANDED_OFF, BAD_GRAMMAR],
        _expect(state="grammar_failed", reason="grammar_error", kv="held", effects=[]),
    ),
    (
        "R3-an-abort-of-what-drains-is-recorded-after-the-hand-off-too",
        [_policy(abort_after_handoff="ignore"), *HANDED_OFF, _e("error"), ABORT],
        _expect(state="aborted", reason="client_abort", effects=[], late=0),
    ),
    (
        "R3-a-failure-of-what-drains-is-not-late-after-the-hand-off",
        [*HANDED_OFF, ABORT, FAILED],
        _expect(state="aborted", reason="client_abort", effects=[], late=0),
    ),
    (
        "R4-no-new-work-after-a-completion",
        [*COMPUTING, STOP, LAUNCH, _e("transfer_posted"), PREEMPT],
        _expect(
            state="prefilling",
            reason="stop",
            reports=0,
            claims=["request", "step:1"],
            illegal=[[5, "forward_launched"], [6, "transfer_posted"], [7, "preempt"]],
        ),
    ),
    (
        "R4-the-last-step-ends-it",
        [*COMPUTING, STOP, FINISH],
        _expect(**ENDED, reason="stop", effects=[RELEASE, REPORT]),
    ),
    (
        "R4-the-last-op-ends-it",
        [*COMPUTING, _e("transfer_posted"), STOP, FINISH, SUCCEEDED],
        _expect(**ENDED, reason="stop", effects=[RELEASE, REPORT]),
    ),
    (
        "R4-an-op-that-only-drained-ends-it-too",
        [*PREFILLING, _e("transfer_posted"), STOP, DRAINED],
        _expect(**ENDED, reason="stop", effects=[RELEASE, REPORT]),
    ),
    (
        "R4-handed-over-all-the-same",
        [*COMPUTING, STOP, HAND_OVER, FINISH],
        _expect(state="transferring", reason="stop", claims=["op:kv", "request"], reports=0),
    ),
    (
        "R4-handed-over-and-delivered",
        [*COMPUTING, STOP, HAND_OVER, FINISH, SUCCEEDED],
        _expect(**ENDED, reason="stop"),
    ),
    (
        "R4-an-abort-outranks-the-completion",
        [*COMPUTING, STOP, ABORT, FINISH],
        _expect(**ENDED, reason="client_abort", effects=[CANCEL, RELEASE, REPORT]),
    ),
    (
        "R5-a-completion-does-not-decide-a-hand-off",
        [*TRANSFERRING, STOP, DRAINED],
        _expect(**ENDED, reason="transfer_failed", effects=[CANCEL, RELEASE, REPORT]),
    ),
    (
        "R6-nothing-completes-in-the-queue",
        [SUBMIT, STOP],
        _expect(state="queued", reason=None, late=0, illegal=[[2, "complete"]]),
    ),
    (
        "R6-a-completion-while-draining-stays",
        [*TRANSFERRING, ABORT, STOP],
        _expect(state="aborted", reason="client_abort", late=0),
    ),
    ("R6-a-completion-after-done", [*PREFILLING, LENGTH, STOP], _expect(reason="length", late=1)),
    (
        "R6-the-earlier-position-wins",
        [*COMPUTING, STOP, _e("complete", reason="length", position=2)],
        _expect(reason="length"),
    ),
    (
        "R6-position-zero-is-a-position",
        [*COMPUTING, STOP, _e("complete", reason="length", position=0)],
        _expect(reason="length"),
    ),
    (
        "R6-at-the-same-position-stop",
        [*COMPUTING, LENGTH, _e("complete", reason="stop", position=9), LENGTH],
        _expect(reason="stop"),
    ),
    (
        "R6-an-unknown-position-is-later",
        [*COMPUTING, _e("complete", reason="stop"), LENGTH],
        _expect(reason="length"),
    ),
    (
        "R6-both-unknown-stop",
        [*COMPUTING, _e("complete", reason="length"), _e("complete", reason="stop")],
        _expect(reason="stop"),
    ),
    ("R6-the-length-of-a-hand-off-has-no-position", [*HANDED_OFF, STOP], _expect(reason="stop")),
    (
        "R7-submit-of-a-live-rid",
        [*PREFILLING, SUBMIT],
        _expect(state="prefilling", illegal=[[3, "submit"]]),
    ),
    (
        "R7-submit-after-done",
        [*TRANSFERRING, SUCCEEDED, SUBMIT, SUBMIT],
        _expect(
            state="queued",
            reason=None,
            effects=[],
            illegal=[[6, "submit"]],
            others={"r#1": {"state": "done", "reason": "length"}},
        ),
    ),
    (
        "R7-submit-of-what-drains-unreported",
        [*TRANSFERRING, ABORT, SUBMIT],
        _expect(state="aborted", illegal=[[5, "submit"]]),
    ),
    (
        "R7-submit-of-what-was-not-reported-yet",
        [AT_DECISION, *TRANSFERRING, STOP, SUBMIT],
        _expect(state="transferring", illegal=[[6, "submit"]]),
    ),
    (
        "R7-submit-of-what-was-reported",
        [AT_DECISION, *TRANSFERRING, ABORT, SUBMIT, _e("transfer_drained", incarnation=1)],
        _expect(state="queued", late=0, others={"r#1": ENDED}),
    ),
    (
        "R8-unknown-rid",
        [FAILED, SUBMIT, _e("abort", rid="r1"), _e("error", incarnation=2)],
        _expect(state="queued", reports=0, unknown=3),
    ),
    (
        "R8-an-early-abort-is-applied-at-its-submit",
        [ABORT, SUBMIT],
        _expect(state="done", reason="client_abort", late=0, effects=[CANCEL, REPORT], unknown=1),
    ),
    (
        "R8-the-first-of-two-early-aborts",
        [_e("abort", source="server"), ABORT, SUBMIT],
        _expect(state="done", reason="server_abort", reports=1, late=0, unknown=2),
    ),
    (
        "R8-a-late-abort-does-not-reach-the-next-life",
        [*TRANSFERRING, SUCCEEDED, ABORT, SUBMIT],
        _expect(state="queued", reason=None, others={"r#1": {"reason": "length", "late": 1}}),
    ),
    (
        "R8-only-aborts-are-remembered",
        [_e("grammar_failed"), SUBMIT],
        _expect(state="queued", reason=None, unknown=1),
    ),
    (
        "R9-told-when-it-begins-to-drain",
        [AT_DECISION, *TRANSFERRING, BAD_GRAMMAR, DRAINED],
        _expect(**ENDED, reason="grammar_error", effects=[CANCEL, REPORT, RELEASE]),
    ),
    (
        "R9-told-in-the-queue",
        [AT_DECISION, SUBMIT, ABORT],
        _expect(state="done", effects=[CANCEL, REPORT]),
    ),
    (
        "R9-told-with-a-completion",
        [AT_DECISION, *COMPUTING, STOP],
        _expect(state="prefilling", reason="stop", effects=[REPORT], kv="held"),
    ),
    (
        "R9-told-with-a-completion-at-rest",
        [AT_DECISION, *PREFILLING, STOP],
        _expect(**ENDED, effects=[RELEASE, REPORT]),
    ),
    (
        "R9-told-with-the-success",
        [AT_DECISION, *HANDED_OFF],
        _expect(state="transferring", reason="length", effects=[REPORT], kv="held"),
    ),
    (
        "R9-not-told-of-what-is-only-recorded",
        [AT_DECISION, *TRANSFERRING, STOP],
        _expect(state="transferring", reason="stop", reports=0),
    ),
    (
        "R9-frozen-while-draining",
        [
            AT_DECISION,
            *TRANSFERRING,
            _e("error"),
            ABORT,
            BAD_GRAMMAR,
            FAILED,
            _e("transfer_failed", op="kv"),
            _e("peer_lost"),
            STOP,
        ],
        _expect(state="aborted", reason="internal_error", reports=1, late=6),
    ),
    (
        "R9-what-brings-no-reason-is-not-late",
        [AT_DECISION, *TRANSFERRING, ABORT, _e("transfer_pending"), HAND_OVER],
        _expect(state="aborted", late=0),
    ),
    (
        "R9-a-second-completion-is-late",
        [AT_DECISION, *COMPUTING, LENGTH, STOP],
        _expect(state="prefilling", reason="length", late=1, reports=1),
    ),
    (
        "R9-memory-must-end-although-the-answer-is-out",
        [AT_DECISION, *COMPUTING, STOP, BAD_GRAMMAR, ABORT],
        _expect(state="aborted", reason="stop", effects=[REPORT, CANCEL], late=1, reports=1),
    ),
    (
        "R9-after-the-hand-off-without-cancel",
        [AT_DECISION, *HANDED_OFF, ABORT, FINISH],
        _expect(**ENDED, reason="length", effects=[REPORT, RELEASE], late=0),
    ),
    (
        "R9-reported-handed-over-and-not-delivered",
        [AT_DECISION, *COMPUTING, STOP, HAND_OVER, FINISH, DRAINED],
        _expect(**ENDED, reason="stop", effects=[REPORT, CANCEL, RELEASE], late=0),
    ),
    (
        "R10-an-older-attempt-drains-on-its-own",
        [*PREEMPTED, ADMIT, LAUNCH, _e("forward_finished", step=1)],
        _expect(
            state="prefilling",
            attempt=1,
            kv="held",
            claims=["request", "step:2"],
            effects=[RELEASE],
            late=0,
        ),
    ),
    (
        "R10-an-older-attempt-is-released-with-its-last-claim",
        [*COMPUTING, _e("transfer_posted"), PREEMPT, FINISH],
        _expect(state="queued", releases=0, late=0),
    ),
    (
        "R10-an-unnamed-step-is-the-oldest-of-all-attempts",
        [*PREEMPTED, ADMIT, LAUNCH, FINISH],
        _expect(claims=["request", "step:2"], releases=1),
    ),
    (
        "R10-the-oldest-is-the-first-launched",
        [*PREFILLING, _e("forward_launched", step=7), _e("forward_launched", step=3), FINISH],
        _expect(claims=["request", "step:3"]),
    ),
    (
        "R10-unnamed-steps-are-numbered-after-the-largest",
        [
            *PREFILLING,
            _e("forward_launched", step=7),
            _e("forward_launched", step=3),
            PREEMPT,
            ADMIT,
            LAUNCH,
        ],
        _expect(claims=["request", "step:8"]),
    ),
    (
        "R10-an-op-of-both-attempts-is-the-newest's",
        [*OLD_OP, _e("transfer_posted"), _e("transfer_succeeded", op="kv")],
        _expect(state="prefilling", claims=["request"], releases=0, late=0),
    ),
    (
        "R10-no-op-means-all-of-the-first-attempt-that-has-some",
        [
            *PREFILLING,
            _e("transfer_posted", op="a"),
            _e("transfer_posted", op="b"),
            PREEMPT,
            ADMIT,
            SUCCEEDED,
            SUCCEEDED,
        ],
        _expect(state="prefilling", claims=["request"], releases=1, late=1),
    ),
    (
        "R10-a-failure-of-an-older-op-changes-nothing",
        [*OLD_OP, _e("transfer_failed", op="kv")],
        _expect(state="prefilling", reason=None, late=0, effects=[]),
    ),
    (
        "R10-a-failure-of-an-older-op-is-not-late-after-done",
        [*OLD_OP, ABORT, _e("transfer_failed", op="kv"), FAILED],
        _expect(state="done", reason="client_abort", late=1),
    ),
    (
        "R10-no-op-means-the-newest-attempt-first",
        [*OLD_OP, _e("transfer_posted", op="a"), SUCCEEDED],
        _expect(state="prefilling", claims=["request"], releases=0, late=0),
    ),
    (
        "R10-a-drained-older-op-fails-nothing",
        [*OLD_OP, DRAINED],
        _expect(state="prefilling", reason=None, late=0, effects=[RELEASE]),
    ),
    (
        "R10-done-while-an-older-attempt-drains",
        [*PREEMPTED, ABORT, _e("forward_finished", step=1), FINISH],
        _expect(
            state="done",
            kv="none",
            releases=1,
            late=1,
            attempt=1,
            effects=[CANCEL, REPORT, RELEASE],
        ),
    ),
    (
        "R11-everything-that-drains-oldest-first",
        [*PREEMPTED, ADMIT, LAUNCH, ABORT, TIMEOUT],
        _expect(
            state="done",
            kv="quarantined",
            effects=[CANCEL, QUARANTINE, QUARANTINE, REPORT],
            releases=0,
        ),
    ),
    (
        "R11-hold",
        [_policy(on_undrained="hold"), *TRANSFERRING, ABORT, TIMEOUT],
        _expect(state="aborted", kv="held", effects=[CANCEL], late=0),
    ),
    (
        "R11-nothing-drains-any-more",
        [*TRANSFERRING, ABORT, TIMEOUT, TIMEOUT, DRAINED],
        _expect(state="done", kv="quarantined", late=2, claims=["quarantine"]),
    ),
    (
        "R11-done-while-an-older-attempt-is-undrained",
        [*PREEMPTED, ABORT, TIMEOUT, FINISH],
        _expect(state="done", kv="none", effects=[CANCEL, REPORT, QUARANTINE], late=1),
    ),
    (
        "R12-completions-look-in-the-named-attempt-only",
        [*OLD_OP, _e("transfer_posted"), _e("transfer_succeeded", op="kv", attempt=0)],
        _expect(state="prefilling", claims=["op:kv", "request"], releases=1, late=0),
    ),
    (
        "R12-a-named-attempt-without-the-claim",
        [*PREFILLING, PREEMPT, ADMIT, LAUNCH, _e("forward_finished", attempt=0)],
        _expect(claims=["request", "step:1"], late=1),
    ),
    (
        "R12-drain-timeout-of-one-attempt",
        [*PREEMPTED, ADMIT, LAUNCH, ABORT, _e("drain_timeout", attempt=0)],
        _expect(state="aborted", kv="held", effects=[CANCEL, QUARANTINE]),
    ),
    (
        "R12-drain-timeout-of-the-newest-attempt",
        [
            *OLD_OP,
            _e("transfer_posted"),
            ABORT,
            _e("drain_timeout", attempt=1),
            _e("transfer_succeeded", op="kv"),
        ],
        _expect(
            state="done",
            kv="quarantined",
            effects=[CANCEL, QUARANTINE, REPORT, RELEASE],
            late=0,
        ),
    ),
    (
        "R12-drain-timeout-of-an-attempt-that-does-not-drain",
        [*PREFILLING, PREEMPT, ADMIT, _e("drain_timeout", attempt=0)],
        _expect(state="prefilling", late=1),
    ),
    (
        "R12-a-failure-of-an-op-of-the-named-attempt",
        [*OLD_OP, _e("transfer_posted"), _e("transfer_failed", op="kv", attempt=0)],
        _expect(state="prefilling", reason=None, late=0, effects=[]),
    ),
    (
        "R12-abort-takes-no-notice-of-attempts",
        [*PREFILLING, PREEMPT, _e("abort", source="client", attempt=0)],
        _expect(state="done", reason="client_abort", late=0),
    ),
    (
        "R12-to-an-attempt-that-is-over-all-else-is-as-in-done",
        [
            *PREFILLING,
            PREEMPT,
            _e("admit", pages=4, attempt=0),
            _e("error", attempt=0),
            _e("transfer_failed", attempt=0),
            _e("transfer_pending", attempt=0),
        ],
        _expect(state="queued", reason=None, late=3, illegal=[[4, "admit"]]),
    ),
    (
        "R13-cancel-release-report",
        [*PREFILLING, ABORT],
        _expect(**ENDED, effects=[CANCEL, RELEASE, REPORT]),
    ),
    (
        "R13-cancel-quarantine-report",
        [*TRANSFERRING, ABORT, TIMEOUT],
        _expect(effects=[CANCEL, QUARANTINE, REPORT]),
    ),
    ("R13-complete-cancels-nothing", [*PREFILLING, STOP], _expect(effects=[RELEASE, REPORT])),
    (
        "R13-preempt-cancels-nothing",
        [*PREFILLING, PREEMPT],
        _expect(state="queued", attempt=1, kv="none", effects=[RELEASE]),
    ),
    (
        "R13-what-drained-undelivered-is-cancelled",
        [*TRANSFERRING, DRAINED],
        _expect(**ENDED, reason="transfer_failed", effects=[CANCEL, RELEASE, REPORT]),
    ),
    (
        "R13-one-of-two-drained-undelivered",
        [
            *PREFILLING,
            _e("transfer_posted", op="a"),
            _e("transfer_posted", op="b"),
            _e("transfer_drained", op="a"),
        ],
        _expect(
            state="aborted",
            reason="transfer_failed",
            claims=["op:b", "request"],
            effects=[CANCEL],
        ),
    ),
    (
        "R14-a-strict-order",
        [_policy(precedence=SERVER_FIRST), *TRANSFERRING, ABORT, _e("abort", source="server")],
        _expect(state="aborted", reason="server_abort"),
    ),
    (
        "R14-a-strict-order-the-other-way-round",
        [_policy(precedence=SERVER_FIRST), *TRANSFERRING, _e("abort", source="server"), ABORT],
        _expect(state="aborted", reason="server_abort"),
    ),
    (
        "R14-a-strict-order-looks-at-no-position",
        [_policy(precedence=SERVER_FIRST), *COMPUTING, STOP, LENGTH],
        _expect(reason="length"),
    ),
    (
        "R14-the-state-follows-the-reason-out-of-grammar-failed",
        [_policy(precedence=SERVER_FIRST), *TRANSFERRING, BAD_GRAMMAR, _e("peer_lost")],
        _expect(state="aborted", reason="peer_lost", effects=[CANCEL]),
    ),
    (
        "R14-the-state-follows-the-reason-into-grammar-failed",
        [*TRANSFERRING, FAILED, BAD_GRAMMAR],
        _expect(state="grammar_failed", reason="grammar_error", effects=[CANCEL]),
    ),
    (
        "R14-declared-tiers",
        [_policy(precedence=COMPLETIONS_FIRST), *COMPUTING, LENGTH, STOP, ABORT, FINISH],
        _expect(**ENDED, reason="stop", effects=[CANCEL, RELEASE, REPORT]),
    ),
    (
        "R14-in-a-mixed-tier-the-first-stays",
        [_policy(precedence=MIXED), *COMPUTING, ABORT, STOP],
        _expect(state="aborted", reason="client_abort", late=0),
    ),
    (
        "R14-in-a-mixed-tier-the-first-completion-stays",
        [_policy(precedence=MIXED), *COMPUTING, STOP, ABORT],
        _expect(state="aborted", reason="stop", late=0),
    ),
    (
        "R14-in-a-mixed-tier-positions-order-completions",
        [_policy(precedence=MIXED), *COMPUTING, LENGTH, STOP],
        _expect(state="prefilling", reason="stop"),
    ),
    (
        "R14-a-completion-may-rename-the-draining-state",
        [_policy(precedence=COMPLETIONS_FIRST), *TRANSFERRING, BAD_GRAMMAR, STOP],
        _expect(state="aborted", reason="stop", late=0),
    ),
    (
        "R15-late-after-done",
        [
            *TRANSFERRING,
            SUCCEEDED,
            FINISH,
            SUCCEEDED,
            FAILED,
            _e("transfer_failed", op="kv"),
            DRAINED,
            _e("transfer_pending"),
            STOP,
            ABORT,
            BAD_GRAMMAR,
            _e("grammar_ready"),
            _e("peer_lost"),
            _e("error"),
            TIMEOUT,
        ],
        _expect(**ENDED, reason="length", late=13, effects=[RELEASE, REPORT]),
    ),
    (
        "R15-illegal-after-done",
        [*TRANSFERRING, SUCCEEDED, ADMIT, LAUNCH, _e("transfer_posted"), HAND_OVER, PREEMPT],
        _expect(
            **ENDED,
            late=0,
            illegal=[
                [5, "admit"],
                [6, "forward_launched"],
                [7, "transfer_posted"],
                [8, "prefill_finished"],
                [9, "preempt"],
            ],
        ),
    ),
    (
        "R16-strict-lists-the-late",
        [_policy(late="strict"), *TRANSFERRING, SUCCEEDED, ABORT],
        _expect(**ENDED, reason="length", late=0, illegal=[[6, "abort"]]),
    ),
    (
        "R17-an-unsafe-release-is-a-violation",
        [UNSAFE, *TRANSFERRING, ABORT, TIMEOUT],
        _expect(
            **ENDED, effects=[CANCEL, RELEASE, REPORT], late=0, violations=["no_free_in_flight"]
        ),
    ),
    (
        "R17-after-one-of-two-ops-ended",
        [
            UNSAFE,
            *PREFILLING,
            _e("transfer_posted", op="a"),
            _e("transfer_posted", op="b"),
            ABORT,
            _e("transfer_succeeded", op="a"),
            TIMEOUT,
        ],
        _expect(**ENDED, late=0, violations=["no_free_in_flight"]),
    ),
    (
        "R17-what-ends-after-it-is-late",
        [UNSAFE, *TRANSFERRING, ABORT, TIMEOUT, SUCCEEDED],
        _expect(**ENDED, late=1, violations=["no_free_in_flight"]),
    ),
    (
        "R17-the-policy-alone-breaks-nothing",
        [UNSAFE, *TRANSFERRING, ABORT, DRAINED],
        _expect(**ENDED, effects=[CANCEL, RELEASE, REPORT]),
    ),
    (
        "R18-the-wire",
        [
            *PREFILLING,
            BAD_GRAMMAR,
            _e("submit", rid="a"),
            _e("abort", rid="a", source="server", status=418, message="tea"),
            _e("submit", rid="b"),
            _e("peer_lost", rid="b"),
        ],
        _expect(wire="error", others={"a": {"wire": "abort"}, "b": {"wire": "error"}}),
    ),
    (
        "R19-outstanding-in-the-newest-attempt",
        [
            *PREFILLING,
            _e("forward_launched", step=1),
            _e("forward_launched", step=1),
            _e("transfer_posted", op="a"),
            _e("transfer_posted", op="a"),
        ],
        _expect(
            claims=["op:a", "request", "step:1"],
            illegal=[[4, "forward_launched"], [6, "transfer_posted"]],
        ),
    ),
    (
        "R19-outstanding-in-an-older-attempt-only",
        [*OLD_OP, _e("transfer_posted")],
        _expect(claims=["op:kv", "request"], releases=0),
    ),
    (
        "R19-a-step-is-one-pass",
        [*PREEMPTED, ADMIT, _e("forward_launched", step=1)],
        _expect(claims=["request"], illegal=[[6, "forward_launched"]]),
    ),
    (
        "R19-ended-is-not-outstanding",
        [
            *COMPUTING,
            FINISH,
            _e("forward_launched", step=1),
            _e("transfer_posted"),
            SUCCEEDED,
            _e("transfer_posted"),
        ],
        _expect(claims=["op:kv", "request", "step:1"]),
    ),
    (
        "R20-completions-in-the-queue-are-late",
        [SUBMIT, FINISH, SUCCEEDED, DRAINED, _e("transfer_failed", op="kv")],
        _expect(state="queued", reason=None, late=4),
    ),
    (
        "R20-the-hand-shake-failed",
        [SUBMIT, FAILED],
        _expect(state="done", reason="transfer_failed", kv="none", effects=[CANCEL, REPORT]),
    ),
    (
        "R20-unless-an-older-attempt-has-the-claim",
        [*PREEMPTED, FINISH],
        _expect(state="queued", late=0, effects=[RELEASE]),
    ),
    (
        "R21-a-failure-as-a-whole-needs-no-op",
        [*PREFILLING, FAILED],
        _expect(**ENDED, reason="transfer_failed", effects=[CANCEL, RELEASE, REPORT]),
    ),
    (
        "R21-a-failure-as-a-whole-while-a-step-runs",
        [*COMPUTING, FAILED],
        _expect(state="aborted", reason="transfer_failed", kv="held"),
    ),
    (
        "R21-a-failure-of-an-op-that-is-not-out",
        [*PREFILLING, _e("transfer_failed", op="kv")],
        _expect(state="prefilling", reason=None, late=1),
    ),
    (
        "R22-no-new-work-while-draining",
        [*TRANSFERRING, ABORT, _e("transfer_posted", op="b"), LAUNCH, ADMIT, PREEMPT],
        _expect(
            state="aborted",
            claims=["op:kv", "request"],
            illegal=[
                [5, "transfer_posted"],
                [6, "forward_launched"],
                [7, "admit"],
                [8, "preempt"],
            ],
        ),
    ),
    (
        "R22-the-last-chunk-comes-after-the-abort",
        [*COMPUTING, ABORT, HAND_OVER],
        _expect(state="aborted", claims=["request", "step:1"], late=0),
    ),
]
