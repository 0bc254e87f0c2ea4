"""Ranks come to one answer, whatever each of them says; and a wrong way to combine them is noticed."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from lifecycle import consensus
from lifecycle.consensus import Verdict
from lifecycle.testing.strategies import rank_schedules

RANKS = (0, 1, 2)


def in_one_answer(schedule, verdict=consensus.verdict, drained=consensus.drained):
    """Each round held against what the ranks said, request by request."""
    for said in schedule:
        answers = {rank: {rid: rest for rid, *rest in queue} for rank, queue in said.items()}
        agreed = consensus.agree({rank: list(each) for rank, each in answers.items()}, RANKS)
        assert set(agreed.rids) == set.intersection(*(set(each) for each in answers.values()))
        for rid, lacking in agreed.missing.items():
            assert lacking == tuple(rank for rank in RANKS if rid not in answers[rank])
        verdicts = verdict({r: [answers[r][rid][0] for rid in agreed.rids] for r in RANKS}, RANKS)
        quiet = drained({r: [answers[r][rid][1] for rid in agreed.rids] for r in RANKS}, RANKS)
        for rid, one, stopped in zip(agreed.rids, verdicts, quiet, strict=True):
            each = [answers[rank][rid] for rank in RANKS]
            assert (one == Verdict.FAILED) == any(v == Verdict.FAILED for v, _ in each)
            assert (one == Verdict.SUCCEEDED) == all(v == Verdict.SUCCEEDED for v, _ in each)
            assert stopped == all(done for _, done in each)


@given(rank_schedules(RANKS))
def test_a_verdict_is_the_minimum_and_drained_means_every_rank(schedule):
    in_one_answer(schedule)


def _of_each(combine):
    return lambda said, _ranks: [combine(each) for each in zip(*said.values(), strict=True)]


@pytest.mark.parametrize(
    "wrong", [{"verdict": _of_each(max)}, {"drained": _of_each(any)}], ids=["max", "any"]
)
def test_a_wrong_way_to_combine_them_is_noticed(wrong):
    @settings(max_examples=500, phases=[Phase.generate], database=None)
    @given(rank_schedules(RANKS))
    def run(schedule):
        in_one_answer(schedule, **wrong)

    with pytest.raises(AssertionError):
        run()
