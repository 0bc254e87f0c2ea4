"""The hand-written rival does the same as the library, so that measuring against it means something."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given

from lifecycle import IllegalEvent, Policy, RequestLifecycle
from lifecycle.testing.strategies import traces

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from handwritten import HandWritten

KNOWN = ("step", "op", "pages", "source", "reason", "position")
LEFT_OUT = ("submit", "preempt", "drain_timeout")


@given(traces(rids=("r",)))
def test_it_agrees_with_the_library(trace):
    ours, theirs = RequestLifecycle("r"), HandWritten("r")
    assert Policy() == ours.automaton.policy
    for line in trace[1:]:
        if line["event"] in LEFT_OUT:
            continue
        details = {name: line[name] for name in KNOWN if name in line}
        try:
            expected = [str(effect.kind) for effect in ours.fire(line["event"], **details)]
        except IllegalEvent:
            expected = "illegal"
        try:
            got = list(theirs.fire(line["event"], **details))
        except ValueError:
            got = "illegal"
        assert got == expected, line
        assert (theirs.state, theirs.reason, theirs.late) == (ours.state, ours.reason, ours.late)
