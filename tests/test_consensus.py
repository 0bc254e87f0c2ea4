"""Ranks: the verdict is the minimum, drained is every rank's, and nothing of unequal length is reduced."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import LifecycleError
from lifecycle.consensus import Verdict, agree, drained, verdict

QUEUES = st.dictionaries(
    st.integers(0, 4), st.lists(st.sampled_from("abcdef"), unique=True), min_size=1
)


@given(QUEUES)
def test_every_rank_has_what_was_agreed_and_every_other_id_is_named(queues):
    agreement = agree(queues, queues)
    for queue in queues.values():
        assert set(agreement.rids) <= set(queue)
        assert set(queue) <= set(agreement.rids) | set(agreement.missing)
    for rid, ranks in agreement.missing.items():
        assert ranks
        assert all(rid not in queues[rank] for rank in ranks)


@given(QUEUES)
def test_the_order_is_the_same_whoever_asks(queues):
    backwards = dict(reversed(queues.items()))
    assert agree(queues, queues) == agree(backwards, backwards)


@pytest.mark.parametrize("pair", list(product(Verdict, repeat=2)), ids=str)
def test_one_failure_fails_and_success_needs_all(pair):
    (joined,) = verdict({0: [pair[0]], 1: [pair[1]]}, {0, 1})
    if Verdict.FAILED in pair:
        assert joined is Verdict.FAILED
    elif pair == (Verdict.SUCCEEDED, Verdict.SUCCEEDED):
        assert joined is Verdict.SUCCEEDED
    else:
        assert joined is Verdict.PENDING


def test_drained_is_every_rank_and_not_the_verdict():
    assert drained({0: [True, True], 1: [True, False]}, {0, 1}) == (True, False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: verdict({0: [1]}, {0, 1}), "no poll of rank 1"),
        (lambda: verdict({0: [1], 7: [1]}, {0}), "rank 7, which is not among"),
        (lambda: verdict({0: [1], 1: [1, 2]}, {0, 1}), "agree on the ids first"),
        (lambda: drained({0: [True], 1: []}, {0, 1}), "agree on the ids first"),
        (lambda: agree({0: ["a", "a"]}, {0}), "'a' twice"),
        (lambda: agree({}, set()), "set of ranks is empty"),
    ],
)
def test_what_cannot_be_agreed_is_an_error(call, message):
    with pytest.raises(LifecycleError, match=message):
        call()
