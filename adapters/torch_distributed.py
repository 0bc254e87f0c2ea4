"""torch.distributed: the ranks of a scheduler agree on ids, verdicts and drains, over gloo (contract section 7).

With tensor or pipeline parallelism each rank runs the same scheduler and polls its own share of every transfer. No
rank may act on its own poll: the pages of a request go back on all ranks in the same turn or the allocators differ
from then on. So, once a turn, each rank calls :meth:`Consensus.round` with what its polls said, and acts on what
comes back, which is the same on every rank::

    round = consensus.round(rids, verdicts, drained)
    settle(driver, round)

How a round travels
    All that is reduced has one size on every rank, *whatever the queues hold*. A buffer has a head of
    :data:`HEAD` bytes and room for `capacity` requests, and is reduced once, by MIN. The head carries a digest of
    the rank's ids, and its complement: if the two minima still add up, all ranks have the same ids in the same
    order, and then the rest of the buffer, in that order, is the verdict of all (MIN) and the drain of all (AND,
    which is the MIN of 0 and 1). So where ranks agree, which is almost always, a round is *one* all_reduce.

    If the digests differ, the rest of that buffer means nothing and is thrown away. The ranks then exchange the
    lengths of their lists, then the lists, and reduce again over the ids that all of them have, in the order of
    the lowest rank. The others are in :attr:`Round.missing`, with the ranks that lack them.

    `capacity` follows from what was reduced, so it is the same everywhere. It grows to the longest queue when that
    no longer fits (one more all_reduce, once), and shrinks again slowly.

A rank that dies, or is late by more than the timeout
    gloo raises on the others, and its group is of no use afterwards. The round raises :class:`RanksLost`, and so
    does each later one. A rank that is gone can prove no drain: :func:`lose` fires ``peer_lost`` at the requests,
    which go to quarantine when the drain deadline passes. With a `store` the ranks call a roll, and the error
    names who did not answer.

Every rank calls `round` in each turn, with empty lists too; otherwise the others wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import attrs

from lifecycle import Driver, Event, LifecycleError
from lifecycle.consensus import Agreement, Verdict, agree

from .versions import load, require, warn_if_untested

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

TESTED = ("2.13.0", "2.13.0")
"""The oldest and the newest torch that this module was tested with."""

_DIGEST = 16  # bytes
HEAD = 1 + 2 * _DIGEST
"""Bytes before the requests: the wish for a capacity, the digest of the ids, the digest's complement."""

_ALL_ONES = (1 << (8 * _DIGEST)) - 1
_SMALLEST = 6  # room for 2**6 requests: below that, size does not show in the time
_SUCCEEDED = bytes(value == Verdict.SUCCEEDED for value in range(256))
_TRUE = bytes(value != 0 for value in range(256))
_VERDICTS = tuple(Verdict)
_BOOLS = (False, True)


class RanksLost(LifecycleError):
    """A rank died, or was late by more than the timeout. The group is of no use any more.

    Attributes:
        ranks: who did not answer the roll; empty where no store was given, or if all answered (one was late).
    """

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        self.ranks = tuple(ranks)
        super().__init__(message)


@attrs.frozen
class Round:
    """What all ranks agreed on; the same on each of them.

    Attributes:
        rids: the ids that every rank has, in one order.
        verdicts: for each of them the minimum over the ranks.
        drained: for each of them whether every rank's ops have ended.
        missing: the other ids, each with the ranks that lack it. They were not decided about.
    """

    rids: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    drained: tuple[bool, ...]
    missing: Mapping[str, tuple[int, ...]]


class Consensus:
    """Rounds of one group of ranks. Belongs to one thread; every rank of the group makes one.

    Args:
        group: the ranks; by default all of them, in a gloo group that is made here, by all ranks at once. A group
            of yours has its own timeout, and should be used for nothing else.
        timeout: seconds that a rank may be late before the round fails, for the group that is made here.
        store: a ``torch.distributed.Store`` that all ranks share, for the roll after a failure. Best one that no
            rank hosts (``torchrun`` has such a one).
        patience: seconds that a rank has to answer the roll: more than `timeout`, since ranks notice a failure at
            different times. By default twice the timeout.
        name: where several groups share a store.

    Attributes:
        ranks: the group's ranks, by their global numbers.
        exchanges: how many collectives were made so far; where ranks agree, one a round.

    Raises:
        MissingSystemError: torch is not installed.
        UnsupportedSystemError: this build of torch has no gloo, or lacks what this class calls.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        timeout: float = 30.0,
        store: Store | None = None,
        patience: float | None = None,
        name: str = "lifecycle",
    ) -> None:
        self._torch = load("torch", install="pip install 'request-lifecycle[torch]'")
        dist = load("torch.distributed", install="pip install 'request-lifecycle[torch]'")
        require(
            dist, ("AllreduceOptions", "ReduceOp", "ProcessGroupGloo"), system="torch.distributed"
        )
        warn_if_untested("torch", self._torch.__version__, *TESTED)
        if group is None:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        require(group, ("allreduce", "allgather", "rank", "size"), system="this process group")
        self._group: Any = group
        self.ranks = _global_ranks(dist, group)
        self.rank = self.ranks[group.rank()]
        self._store, self._name = store, name
        self._patience = timedelta(seconds=2 * timeout if patience is None else patience)
        self._minimum = dist.AllreduceOptions()
        self._minimum.reduceOp = dist.ReduceOp.MIN
        # A group that runs on a device takes tensors of that device.
        nccl = group.name() == "nccl" if hasattr(group, "name") else False
        self._device = self._torch.device("cuda" if nccl else "cpu")
        self._rids: tuple[str, ...] = ()
        self._head = _head(self._rids)
        self._lost: RanksLost | None = None
        self.exchanges = 0
        self._resize(_SMALLEST)

    @property
    def reduced(self) -> int:
        """How many bytes the next round reduces, on every rank."""
        return len(self._buffer)

    def round(self, rids: Sequence[str], verdicts: Sequence[int], drained: Sequence[bool]) -> Round:
        """What this rank's polls said goes in, what all ranks agreed on comes out. Waits until all have called it.

        Args:
            rids: the requests in flight on this rank, in queue order. (Any text that is the same on all ranks.)
            verdicts: for each what the poll said, as :class:`lifecycle.consensus.Verdict`.
            drained: for each whether this rank's ops will not touch the pages again; success says so too.

        Raises:
            RanksLost: a rank died, or did not call this within the timeout.
            LifecycleError: lists of different lengths, a rid twice, or a verdict that is none. Nothing was sent,
                so call again; the other ranks wait.
        """
        if self._lost is not None:
            raise self._lost
        said, ended = self._checked(rids, verdicts, drained)
        mine = self._rids
        agreed = self._reduce(self._head, said, ended)
        if agreed is not None:
            return _as_round(mine, *agreed, {})
        agreement = self._exchange(mine)
        place = {rid: number for number, rid in enumerate(mine)}
        chosen = [place[rid] for rid in agreement.rids]
        self._resize(_exponent(len(chosen)))  # all ranks know the length
        agreed = self._reduce(
            _head(agreement.rids),
            bytes(said[number] for number in chosen),
            bytes(ended[number] for number in chosen),
        )
        if agreed is None:
            msg = f"rank {self.rank}: the ranks exchanged their ids and still differ; do all call round alike?"
            raise LifecycleError(msg)
        return _as_round(agreement.rids, *agreed, agreement.missing)

    def _checked(
        self, rids: Sequence[str], verdicts: Sequence[int], drained: Sequence[bool]
    ) -> tuple[bytes, bytes]:
        """The verdicts and drains as bytes; the ids are noted."""
        ids = tuple(rids)
        if not len(ids) == len(verdicts) == len(drained):
            msg = f"{len(ids)} requests, {len(verdicts)} verdicts, {len(drained)} drains: give one each"
            raise LifecycleError(msg)
        try:
            said, ended = bytes(verdicts), bytes(drained).translate(_TRUE)
        except (TypeError, ValueError) as error:
            msg = f"a verdict is one of {_names()}, a drain true or false: {error}"
            raise LifecycleError(msg) from error
        if said and max(said) > Verdict.SUCCEEDED:
            wrong = next(number for number, value in enumerate(said) if value > Verdict.SUCCEEDED)
            msg = f"the verdict on request {ids[wrong]!r} is one of {_names()}, not {said[wrong]}"
            raise LifecycleError(msg)
        if ids != self._rids:
            self._head = _head(ids)
            self._rids = ids
        both = int.from_bytes(ended, "big") | int.from_bytes(said.translate(_SUCCEEDED), "big")
        return said, both.to_bytes(len(ended), "big")

    def _reduce(self, head: bytes, said: bytes, ended: bytes) -> tuple[bytes, bytes] | None:
        """One all_reduce, or two if somebody's requests do not fit. None if the ids differ."""
        count = len(said)
        wish = _exponent(count)
        while True:
            buffer, capacity = self._buffer, 1 << self._room
            buffer[0] = 255 - wish  # so that the minimum is the greatest wish
            buffer[1:HEAD] = head
            if count <= capacity:
                buffer[HEAD : HEAD + count] = said
                buffer[HEAD + capacity : HEAD + capacity + count] = ended
            self._all_reduce()
            greatest = 255 - buffer[0]
            same = _is_common(buffer)
            fits = greatest <= self._room
            if fits and same:
                verdicts = bytes(buffer[HEAD : HEAD + count])
                drains = bytes(buffer[HEAD + capacity : HEAD + capacity + count])
                self._resize(max(greatest, self._room - 1))
                return verdicts, drains
            if not same:
                return None
            self._resize(greatest)

    def _resize(self, exponent: int) -> None:
        """Room for ``2 ** exponent`` requests. Called with the same number on every rank."""
        if exponent == getattr(self, "_room", None):
            return
        self._room = exponent
        self._buffer = bytearray(HEAD + (2 << exponent))
        self._tensor: torch.Tensor = self._torch.frombuffer(
            self._buffer, dtype=self._torch.uint8
        )  # the same memory

    def _all_reduce(self) -> None:
        tensor = self._tensor
        if self._device.type == "cpu":
            self._do(lambda: self._group.allreduce([tensor], self._minimum))
        else:
            there = tensor.to(self._device)
            self._do(lambda: self._group.allreduce([there], self._minimum))
            tensor.copy_(there)

    def _exchange(self, rids: tuple[str, ...]) -> Agreement:
        """Everybody's list of ids, lengths first, and what they have in common."""
        mine = json.dumps(rids).encode()
        lengths = self._all_gather(len(mine).to_bytes(8, "big"))
        longest = max(int.from_bytes(length, "big") for length in lengths)
        lists = self._all_gather(mine.ljust(longest))
        queues = {rank: json.loads(text) for rank, text in zip(self.ranks, lists, strict=True)}
        return agree(queues, self.ranks)

    def _all_gather(self, mine: bytes) -> list[bytes]:
        """`mine` of every rank, in the group's order; as long on every rank."""
        torch = self._torch
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(self._device)
        got = [torch.empty_like(sent) for _ in self.ranks]
        self._do(lambda: self._group.allgather([got], [sent]))
        return [bytes(tensor.tolist()) for tensor in got]

    def _do(self, start: Any) -> None:
        """Start a collective and wait for it.

        Raises:
            RanksLost: it failed; and from now on, so does every round.
        """
        self.exchanges += 1
        try:
            start().wait()
        except RuntimeError as error:
            # What torch raises, whatever the reason: a closed connection, the timeout.
            self._lost = self._roll(error)
            raise self._lost from error

    def _roll(self, error: RuntimeError) -> RanksLost:
        """Who is still there? Each rank writes its name and looks for the others'."""
        reason = str(error).split("] ", 1)[-1].split(". ", 1)[0]
        what = f"rank {self.rank}: the ranks {self.ranks} cannot agree any more ({reason})"
        if self._store is None:
            return RanksLost(f"{what}; give Consensus a store to learn which rank is missing")
        silent = []
        try:
            self._store.set(self._key(self.rank), "here")
            for rank in self.ranks:
                try:
                    self._store.wait([self._key(rank)], self._patience)
                except (
                    RuntimeError
                ):  # what stores raise for a wait that was too long, and for a lost host
                    silent.append(rank)
        except RuntimeError as lost:
            return RanksLost(f"{what}; and the store is lost too ({lost})")
        if silent:
            return RanksLost(f"{what}; rank {', '.join(map(str, silent))} did not answer", silent)
        return RanksLost(f"{what}; all of them answered the roll: one was late")

    def _key(self, rank: int) -> str:
        return f"{self._name}/roll/{rank}"


def settle(
    driver: Driver,
    round: Round,  # noqa: A002  # the word of this module
    *,
    now: float | None = None,
) -> tuple[LifecycleError, ...]:
    """Fire what a round decided at the newest life of each request, in the agreed order.

    Success of all ranks is ``transfer_succeeded``; a failure of one is ``transfer_failed``, unless the request is
    decided already; the drain of all is ``transfer_drained``. Ids in ``round.missing`` are left alone.

    Returns:
        The errors of requests that could not take their event; the others have taken theirs.
    """
    errors: list[LifecycleError] = []
    table = driver.table
    for rid, said, ended in zip(round.rids, round.verdicts, round.drained, strict=True):
        events: list[Event] = []
        if said is Verdict.SUCCEEDED:
            events.append(Event.TRANSFER_SUCCEEDED)
        else:
            if said is Verdict.FAILED and not (rid in table and table[rid].decided):
                events.append(Event.TRANSFER_FAILED)
            if ended:
                events.append(Event.TRANSFER_DRAINED)
        try:
            for event in events:
                driver.fire(rid, event, now=now)
        except LifecycleError as error:
            errors.append(error)
    return tuple(errors)


def lose(driver: Driver, rids: Iterable[str], *, now: float | None = None) -> None:
    """Fire ``peer_lost`` at the requests that were in flight when ranks were lost (after :class:`RanksLost`).

    Their pages wait for the drain deadline, and go to quarantine: a rank that is gone proves nothing.
    """
    for rid in rids:
        driver.fire(rid, Event.PEER_LOST, now=now)


def _as_round(
    rids: tuple[str, ...], said: bytes, ended: bytes, missing: Mapping[str, tuple[int, ...]]
) -> Round:
    verdicts = tuple(map(_VERDICTS.__getitem__, said))
    return Round(rids, verdicts, tuple(map(_BOOLS.__getitem__, ended)), missing)


def _head(rids: tuple[str, ...]) -> bytes:
    """The digest of the ids in their order, and its complement.

    Raises:
        LifecycleError: a rid twice, or one that is no text.
    """
    given: tuple[object, ...] = rids  # whatever the scheduler's queue held
    foreign = [rid for rid in given if not isinstance(rid, str)]
    if foreign:
        msg = f"a rid is a text, not {foreign[0]!r}"
        raise LifecycleError(msg)
    if len(set(rids)) != len(rids):
        twice = sorted({rid for rid in rids if rids.count(rid) > 1})
        msg = f"{', '.join(map(repr, twice))} stands twice in this rank's queue"
        raise LifecycleError(msg)
    digest = blake2b(json.dumps(rids).encode(), digest_size=_DIGEST).digest()
    return digest + bytes(255 - byte for byte in digest)


def _is_common(buffer: bytearray) -> bool:
    """Whether every rank's digest was the same: only then are both minima one rank's."""
    digest, complement = buffer[1 : 1 + _DIGEST], buffer[1 + _DIGEST : HEAD]
    # No sum of two bytes is more than 255, so the numbers add up only if all bytes do.
    return int.from_bytes(digest, "big") + int.from_bytes(complement, "big") == _ALL_ONES


def _exponent(count: int) -> int:
    """The least capacity, as a power of two, that holds `count` requests."""
    return max(_SMALLEST, (count - 1).bit_length() if count else 0)


def _names() -> str:
    return ", ".join(f"{verdict.value} ({verdict.name})" for verdict in Verdict)


def _global_ranks(dist: Any, group: Any) -> tuple[int, ...]:
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (
        KeyError,
        RuntimeError,
        ValueError,
    ):  # a group that torch did not register: its own numbers
        return tuple(range(group.size()))
