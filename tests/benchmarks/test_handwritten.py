"""The hand-written rival does the same as the library, so that measuring against it means something."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lifecycle import IllegalEvent, RequestLifecycle

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from handwritten import HandWritten

# Events that keep a request at work stand more often than those that end it: most random lives are done, and
# take every event as late, before anything has met a claim.
WORK = (
    "forward_launched",
    "forward_launched",
    "forward_finished",
    "transfer_posted",
    "transfer_succeeded",
)
ENDINGS = (
    "complete",
    "abort",
    "grammar_failed",
    "transfer_failed",
    "transfer_drained",
    "peer_lost",
    "error",
)
OTHERS = ("prefill_finished", "transfer_pending", "grammar_ready", "admit")
STEP = st.one_of(st.none(), st.integers(1, 4))
OP = st.one_of(st.none(), st.sampled_from(("kv", "chunk", "store")))
COMPLETION = st.fixed_dictionaries(
    {
        "reason": st.sampled_from(("stop", "length")),
        "position": st.one_of(st.none(), st.integers(0, 2)),
    }
)
DETAILS = {
    "forward_launched": st.fixed_dictionaries({"step": STEP}),
    "forward_finished": st.fixed_dictionaries({"step": STEP}),
    "transfer_posted": st.fixed_dictionaries({"op": OP}),
    "transfer_succeeded": st.fixed_dictionaries({"op": OP}),
    "transfer_drained": st.fixed_dictionaries({"op": OP}),
    "transfer_failed": st.fixed_dictionaries({"op": OP}),
    "abort": st.fixed_dictionaries(
        {"source": st.sampled_from(("client", "server", "timeout", "shutdown"))}
    ),
    "complete": COMPLETION,
}
EVENTS = st.sampled_from((*WORK, *WORK, *WORK, *ENDINGS, *OTHERS)).flatmap(
    lambda event: st.tuples(st.just(event), DETAILS.get(event, st.just({})))
)
# Begins with claims out, in one of the two states that work, or as nothing in particular.
BEGINNINGS = st.sampled_from(
    (
        (),
        ("admit",),
        ("admit", "forward_launched", "forward_launched", "transfer_posted"),
        ("admit", "forward_launched", "forward_launched", "prefill_finished"),
    )
).map(lambda words: [(word, {}) for word in words])


@settings(max_examples=1000)
@given(BEGINNINGS, st.lists(EVENTS, max_size=14))
def test_it_agrees_with_the_library(beginning, then):
    ours, theirs = RequestLifecycle("r"), HandWritten("r")
    for event, details in beginning + then:
        try:
            expected = [str(effect.kind) for effect in ours.fire(event, **details)]
        except IllegalEvent:
            expected = "illegal"
        try:
            got = list(theirs.fire(event, **details))
        except ValueError:
            got = "illegal"
        assert got == expected, event
        assert (theirs.state, theirs.reason, theirs.late) == (ours.state, ours.reason, ours.late)
        assert (theirs.steps, theirs.ops) == (ours.steps, ours.ops)
