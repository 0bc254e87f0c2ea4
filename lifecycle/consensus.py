"""Ranks agree before any of them acts: on the ids, on the verdict, on the drain (contract section 7). Pure.

With tensor or pipeline parallelism every rank runs the same scheduler, and each polls its own share of a
transfer. If one rank ends a request that another keeps, their queues differ from then on, and the next
collective hangs or dies. So, in each round:

1. :func:`agree` on the list of request ids. Only ids that *every* rank has are polled in this round; the
   others are named, rank by rank, and wait.
2. :func:`verdict` is the minimum over the ranks: one failure fails the request, and it has succeeded when
   it has on every rank.
3. :func:`drained` is true when *every* rank has drained. A verdict says nothing about it.

What is reduced in 2 and 3 has one entry for each agreed id, in the agreed order, on every rank: never reduce
tensors whose lengths may differ. How the entries travel is an adapter's matter; here they are plain
sequences, keyed by rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import attrs

from .errors import LifecycleError


class Verdict(IntEnum):
    """What one rank's poll says, ordered so that the minimum is the verdict of all."""

    FAILED = 0
    PENDING = 1
    SUCCEEDED = 2


@attrs.frozen
class Agreement:
    """What the ranks agreed on.

    Attributes:
        rids: the ids that every rank has, in the order of the lowest rank: poll these, in this order.
        missing: for each id that some rank has and some rank lacks, the ranks that lack it.
    """

    rids: tuple[str, ...]
    missing: Mapping[str, tuple[int, ...]]


def agree(queues: Mapping[int, Sequence[str]], ranks: Iterable[int]) -> Agreement:
    """The ids that every one of `ranks` has in its queue, in one order for all.

    Args:
        queues: each rank's in-flight ids, in its own order.
        ranks: the explicit set of ranks; a rank without an entry in `queues` has not answered.

    Raises:
        LifecycleError: a rank of the set has not answered, one answered that is not of it, or an id stands
            twice in one queue.
    """
    members = _answered(queues, ranks, "queue")
    held = {}
    for rank in members:
        held[rank] = set(queues[rank])
        if len(held[rank]) != len(queues[rank]):
            twice = sorted(rid for rid in held[rank] if list(queues[rank]).count(rid) > 1)
            msg = f"rank {rank} has {', '.join(map(repr, twice))} twice in its queue"
            raise LifecycleError(msg)
    everywhere = set.intersection(*held.values())
    missing = {
        rid: tuple(rank for rank in members if rid not in held[rank])
        for rank in members
        for rid in queues[rank]
        if rid not in everywhere
    }
    return Agreement(tuple(rid for rid in queues[members[0]] if rid in everywhere), missing)


def verdict(polls: Mapping[int, Sequence[int]], ranks: Iterable[int]) -> tuple[Verdict, ...]:
    """The verdict of all ranks for each agreed id: the minimum.

    Args:
        polls: each rank's verdicts, one for each agreed id, in the agreed order.
        ranks: the explicit set of ranks.

    Raises:
        LifecycleError: a rank is missing or too many, or the sequences differ in length.
    """
    members = _answered(polls, ranks, "poll")
    columns = _columns(polls, members)
    return tuple(Verdict(min(column)) for column in columns)


def drained(drains: Mapping[int, Sequence[bool]], ranks: Iterable[int]) -> tuple[bool, ...]:
    """Whether every rank has drained, for each agreed id.

    Raises:
        LifecycleError: a rank is missing or too many, or the sequences differ in length.
    """
    members = _answered(drains, ranks, "drain")
    return tuple(all(column) for column in _columns(drains, members))


def _answered(answers: Mapping[int, object], ranks: Iterable[int], what: str) -> list[int]:
    members = sorted(set(ranks))
    if not members:
        msg = "the set of ranks is empty"
        raise LifecycleError(msg)
    silent = [rank for rank in members if rank not in answers]
    if silent:
        msg = f"no {what} of rank {', '.join(map(str, silent))}: a verdict needs every rank of {members}"
        raise LifecycleError(msg)
    strangers = sorted(set(answers) - set(members))
    if strangers:
        msg = f"a {what} of rank {', '.join(map(str, strangers))}, which is not among {members}"
        raise LifecycleError(msg)
    return members


def _columns(
    answers: Mapping[int, Sequence[int]], members: Sequence[int]
) -> Iterable[tuple[int, ...]]:
    lengths = {rank: len(answers[rank]) for rank in members}
    if len(set(lengths.values())) > 1:
        msg = f"ranks answer for different numbers of requests: {lengths}; agree on the ids first"
        raise LifecycleError(msg)
    return zip(*(answers[rank] for rank in members), strict=True)
