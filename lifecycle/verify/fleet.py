"""A small fleet: several requests, ranks and pages, with a shared prefix, as a model to explore.

What a request does comes from the automaton of the table. What this module adds is everything around it, which is
also what ``specs/`` keeps by hand, in the same steps:

pages
    A finite pool. Page 0 holds the prefix that all prompts share; a request is admitted with it, and with or
    without a page of its own. Each lease counts as a reference to its pages, and so does the cache, which keeps
    page 0 once a hand-over has computed it. A page goes back to the pool with its last reference. The cache
    evicts page 0 when nobody else refers to it.
ranks
    A hand-over starts a transfer on each rank, which reads the pages until that rank has *delivered* its share or
    is *quiet* without. A rank may report failure and read on. The scheduler hears the verdict of all ranks as
    their minimum, and that they have drained when each has. Ranks may freeze: nothing says that they ever end.
attempts
    A request that is preempted while its pass runs leaves that pass to drain, and is admitted again after it.
    (What comes of two attempts at a time is a matter of one request.)
deadlines
    The only thing that must happen: whatever is not done meets a deadline at some time, undecided by
    ``abort(timeout)``, draining by ``drain_timeout``. A quarantined lease is given back when all is quiet.

Names in `faults` break one rule each (:mod:`lifecycle.verify.mutants`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import Final, NamedTuple

from ..compile import LAST, MISS, Automaton, Cell, Letter
from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..reasons import COMPLETIONS
from ..spec import TAKES, Does, Table
from ..vocabulary import ABORT_REASONS, AbortSource, EffectKind, Event, FinishReason, Invariant

IDLE, READING, OK, QUIET = 0, 1, 2, 3  # what a rank does with a request's pages
NO_LEASE, LEASED, IN_QUARANTINE = 0, 1, 2
PREFIX: Final = 1  # page 0, as a bit


class Local(NamedTuple):
    """One request in the fleet.

    `node` is its place in the automaton, `step` whether a pass of it runs, `net` what each rank does, `pages` its
    pages as bits, `lease` what it has on them, `old` the pages of a former attempt whose pass still runs.
    """

    node: int = 0
    step: bool = False
    net: tuple[int, ...] = ()
    pages: int = 0
    lease: int = NO_LEASE
    old: int = 0
    reports: int = 0
    cancelled: bool = False

    @property
    def quiet(self) -> bool:
        """Whether nothing touches the pages of its newest attempt."""
        return not self.step and READING not in self.net


class Shared(NamedTuple):
    """The pages: which are in the pool (bits), whether the cache keeps page 0, how many refer to each."""

    pool: int
    cached: bool
    refs: tuple[int, ...]


class Move(NamedTuple):
    """What one action does: `gives` are pages whose reference it drops, `takes` those it refers to anew."""

    what: str
    to: Local
    gives: int = 0
    takes: int = 0
    publishes: bool = False
    breaks: str = ""
    event: Letter | None = None


State = tuple[tuple[int, ...], int, str]
"""Numbers of the requests' local states, of the shared state, and what the last event broke."""

A, E = Invariant, Event
ALWAYS = (
    A.SINGLE_RELEASE,
    A.NO_FREE_IN_FLIGHT,
    A.DRAIN_TO_ZERO,
    A.ABORT_IS_TOTAL,
    A.NO_NEW_WORK_AFTER_DECISION,
    A.STICKY_REASON,
    A.REASON_BY_POLICY,
    A.REPORT_ONCE,
    A.LATE_IS_ABSORBED,
    A.RANK_AGREEMENT,
    A.PEER_TOLD,
    A.CLAIM_COUNT,
)
SOMETIMES = (
    "a request is done well",
    "a request is done while another uses the prefix that it used",
    "pages are in quarantine",
    "the cache is all that keeps a page",
)

CLIENT = Letter(E.ABORT, offers=FinishReason.CLIENT_ABORT)
TIMEOUT = Letter(E.ABORT, offers=ABORT_REASONS[AbortSource.TIMEOUT])
GRAMMAR = Letter(E.GRAMMAR_FAILED, offers=FinishReason.GRAMMAR_ERROR)
FAILED = Letter(E.TRANSFER_FAILED, offers=FinishReason.TRANSFER_FAILED)
LENGTH = Letter(E.COMPLETE, offers=FinishReason.LENGTH)


class Fleet:
    """The model; see :class:`lifecycle.verify.explore.Model`.

    Args:
        requests, ranks, pages: how many; page 0 holds the shared prefix.
        table, policy: what the requests follow.
        faults: rules to break, by name.
        symmetry: whether requests, ranks, and pages but the first are interchangeable.
        aborts: whether clients abort, besides deadlines; without, there are fewer states.
    """

    def __init__(
        self,
        requests: int = 3,
        ranks: int = 2,
        pages: int = 2,
        *,
        table: Table = PREFILL,
        policy: Policy = DEFAULT_POLICY,
        faults: Iterable[str] = (),
        symmetry: bool = True,
        aborts: bool = False,
    ) -> None:
        self.requests, self.ranks, self.pages = requests, ranks, pages
        self.automaton = Automaton(table, policy)
        self.faults = frozenset(faults)
        self.symmetry, self.aborts = symmetry, aborts
        self._idle = (IDLE,) * ranks
        self._locals: list[Local] = []
        self._local_number: dict[Local, int] = {}
        self._shared: list[Shared] = []
        self._shared_number: dict[Shared, int] = {}
        #: Of each local state: its moves, where each leads, and what the pages are after it.
        self._moves: dict[int, list[tuple[Move, int, dict[int, int | None]]]] = {}
        self._bits = [1 << page for page in range(pages)]
        self.answers_here = not any(
            cell.to is not None
            for node in self.automaton.nodes
            for _, cell in node.letters(E.PREFILL_FINISHED)
        )
        self._renamings = _renamings(pages) if symmetry else []

    # The model.

    def initial(self) -> State:
        """Everything is queued, and every page is in the pool."""
        local = self._number(Local(net=self._idle))
        shared = Shared((1 << self.pages) - 1, False, (0,) * self.pages)
        return ((local,) * self.requests, self._number_of(shared), "")

    def successors(self, state: State) -> Iterator[State]:
        """Where it can go."""
        for _, _, to in self.steps(state):
            yield self.canonical(to)

    def steps(self, state: State) -> Iterator[tuple[int, Move, State]]:
        """Each action: of which request (-1 for the cache), what it is, and where it leads, not yet canonical."""
        who, pages, _ = state
        tried: set[int] = set()
        for index, local in enumerate(who):
            if self.symmetry and local in tried:
                continue
            tried.add(local)
            moves = self._moves.get(local)
            if moves is None:
                moves = self._moves[local] = [
                    (move, self._number(move.to), {}) for move in self._of(self._locals[local])
                ]
            before, behind = who[:index], who[index + 1 :]
            for move, number, known in moves:
                after = known.get(pages, -1)
                if after == -1:
                    after = known[pages] = self._apply(self._shared[pages], move)
                if after is not None:
                    yield index, move, ((*before, number, *behind), after, move.breaks)
        shared = self._shared[pages]
        if shared.cached and (shared.refs[0] == 1 or "evicts_held" in self.faults):
            refs = (shared.refs[0] - 1, *shared.refs[1:])
            evicted = Shared(shared.pool | PREFIX, False, refs)
            yield -1, Move("the cache evicts page 0", Local()), (who, self._number_of(evicted), "")

    def canonical(self, state: State) -> State:
        """The state that stands for all that differ by names alone."""
        if not self.symmetry:
            return state
        who, pages, bad = state
        best = (tuple(sorted(who)), pages, bad)
        for renaming in self._renamings:
            locals_ = [self._locals[number] for number in who]
            renamed = sorted(
                self._number(local._replace(pages=renaming[local.pages], old=renaming[local.old]))
                for local in locals_
            )
            shared = self._shared[pages]
            order = [renaming[bit].bit_length() - 1 for bit in self._bits]
            refs = [0] * self.pages
            for page, to in enumerate(order):
                refs[to] = shared.refs[page]
            other = Shared(renaming[shared.pool], shared.cached, tuple(refs))
            best = min(best, (tuple(renamed), self._number_of(other), bad))
        return best

    def broken(self, state: State) -> Iterator[str]:
        """The invariants that a state breaks."""
        who, pages, bad = state
        if bad:
            yield bad
        shared = self._shared[pages]
        locals_ = [self._locals[number] for number in who]
        touched, refs = 0, [0] * self.pages
        idle = True
        for local in locals_:
            quiet = local.quiet
            touched |= local.old | (0 if quiet else local.pages)
            idle = idle and quiet and not local.old and self.automaton.nodes[local.node].terminal
            leased = local.pages if local.lease else 0
            for page, bit in enumerate(self._bits):
                refs[page] += bool(leased & bit) + bool(local.old & bit)
        if touched & shared.pool:
            yield A.NO_FREE_IN_FLIGHT
        refs[0] += shared.cached
        unused = sum(bit for page, bit in enumerate(self._bits) if not refs[page])
        if tuple(refs) != shared.refs or unused != shared.pool:
            yield A.CLAIM_COUNT
        if idle:
            kept = PREFIX if shared.cached else 0
            for local in locals_:
                kept |= local.pages if local.lease == IN_QUARANTINE else 0
            if shared.pool | kept != (1 << self.pages) - 1:
                yield A.DRAIN_TO_ZERO
        for number in set(who):
            yield from self._broken_by(self._locals[number])

    def _broken_by(self, local: Local) -> Iterator[str]:
        node = self.automaton.nodes[local.node]
        if local.reports > 1 or (node.terminal and not local.reports):
            yield A.REPORT_ONCE
        draining = self.automaton.table.state(node.state).draining
        cut = draining or (node.terminal and node.reason not in COMPLETIONS)
        if cut and not local.cancelled and not self.answers_here:
            yield A.PEER_TOLD

    def witnessed(self, state: State) -> Iterator[str]:
        """What a state is a witness of."""
        locals_ = [self._locals[number] for number in state[0]]
        shared = self._shared[state[1]]
        well = any(self.automaton.nodes[local.node].reason in COMPLETIONS for local in locals_)
        if well:
            yield SOMETIMES[0]
        uses = sum(bool(local.pages & PREFIX and local.lease == LEASED) for local in locals_)
        if uses and any(self.automaton.nodes[local.node].terminal for local in locals_):
            yield SOMETIMES[1]
        if any(local.lease == IN_QUARANTINE for local in locals_):
            yield SOMETIMES[2]
        if shared.cached and shared.refs[0] == 1:
            yield SOMETIMES[3]

    def there(self, state: State) -> bool:
        """Whether every request is done."""
        nodes = self.automaton.nodes
        return all(nodes[self._locals[number].node].terminal for number in state[0])

    def deadlines(self, state: State) -> Iterator[State | None]:
        """Where the deadline of each request leads that is not done."""
        nodes = self.automaton.nodes
        for index, number in enumerate(state[0]):
            if nodes[self._locals[number].node].terminal:
                continue
            if "unfair_deadlines" in self.faults:
                yield None
                continue
            for who, move, to in self.steps(state):
                if self.symmetry:
                    same = who >= 0 and state[0][who] == number
                else:
                    same = who == index
                if same and move.what.startswith("deadline"):
                    yield self.canonical(to)
                    break
            else:
                yield None

    def told(self, path: Sequence[State]) -> list[tuple[int, Move]]:
        """A path of canonical states as what happened: of which request (-1: the cache), and what.

        The requests keep their numbers along the way, which canonical states do not.
        """
        here, found = path[0], []
        for wanted in path[1:]:
            index, move, here = next(
                step for step in self.steps(here) if self.canonical(step[2]) == wanted
            )
            found.append((index, move))
        return found

    # What a request can do by itself.

    def _of(self, local: Local) -> Iterator[Move]:
        node = self.automaton.nodes[local.node]
        state = self.automaton.table.state(node.state)
        fire = self._fire
        if node.index == 0 and not local.old:
            own = [bit for bit in self._bits if bit != PREFIX]
            for pages in (PREFIX, *(PREFIX | bit for bit in own)):
                yield from fire(local._replace(pages=pages), "is admitted", Letter(E.ADMIT))
        busy = local.step or local.old
        if not busy and (state.pages.is_held and not state.draining):
            yield from fire(local, "starts a pass", Letter(E.FORWARD_LAUNCHED))
            yield from fire(local, "hands its KV cache over", Letter(E.PREFILL_FINISHED))
            if self.answers_here:
                yield from fire(local, "completes", LENGTH)
        if "works_on_decided" in self.faults and state.draining and not busy:
            broken = A.NO_NEW_WORK_AFTER_DECISION.value
            yield Move("starts a pass", local._replace(step=True), breaks=broken)
        if not node.terminal or local.step:
            yield from self._passes(local)
        if state.pages.is_held and not state.draining and not local.old:
            yield from fire(local, "is preempted", Letter(E.PREEMPT))
        yield from self._net(local)
        yield from fire(local, "has a grammar error", GRAMMAR)
        if self.aborts:
            yield from fire(local, "is aborted by its client", CLIENT)
        if state.draining:
            yield from fire(local, "deadline: drains for too long", Letter(E.DRAIN_TIMEOUT))
        else:
            yield from fire(local, "deadline: takes too long", TIMEOUT)
        if local.lease == IN_QUARANTINE and (local.quiet or "quarantine_early" in self.faults):
            to = self._tidy(local._replace(lease=NO_LEASE))
            yield Move("leaves quarantine: all is quiet", to, gives=local.pages)

    def _passes(self, local: Local) -> Iterator[Move]:
        if local.old:
            to = local._replace(old=0)
            letter = Letter(E.FORWARD_FINISHED, after=LAST)
            yield Move("ends the pass of its old attempt", to, gives=local.old, event=letter)
        elif local.step:
            known = self.automaton.nodes[local.node].configuration.steps
            letter = Letter(E.FORWARD_FINISHED, after=LAST if known else MISS)
            yield from self._fire(local._replace(step=False), "ends its pass", letter)

    def _net(self, local: Local) -> Iterator[Move]:
        tried = set()
        for rank, does in enumerate(local.net):
            if does != READING or (self.symmetry and does in tried):
                continue
            tried.add(does)
            yield from self._fire(local, f"rank {rank} reports failure", FAILED)
            for end, word in ((OK, "delivers"), (QUIET, "goes quiet")):
                net = [*local.net]
                net[rank] = end
                if self.symmetry:
                    net.sort()
                to = local._replace(net=tuple(net))
                letter = self._heard(to)
                what = f"rank {rank} {word}"
                if letter is None:
                    yield Move(what, self._tidy(to))
                    continue
                for move in self._fire(to, what, letter):
                    short = letter.event is E.TRANSFER_SUCCEEDED and READING in to.net
                    yield move._replace(breaks=A.RANK_AGREEMENT.value) if short else move

    def _heard(self, local: Local) -> Letter | None:
        """What the scheduler hears when a rank has ended: the minimum of the verdicts, the drain of all."""
        ended = READING not in local.net
        after = LAST if self.automaton.nodes[local.node].configuration.ops else MISS
        if all(does == OK for does in local.net):
            return Letter(E.TRANSFER_SUCCEEDED, after=after)
        if "first_rank_wins" in self.faults and OK in local.net and after is LAST:
            return Letter(E.TRANSFER_SUCCEEDED, after=after)
        if ended or ("min_consensus" in self.faults and QUIET in local.net):
            return Letter(E.TRANSFER_DRAINED, after=after)
        return None

    def _fire(self, local: Local, what: str, letter: Letter) -> Iterator[Move]:
        """What an event does to a request: nothing where it is illegal, by the rows of the table elsewhere."""
        node = self.automaton.nodes[local.node]
        cell = node.cell(letter)
        if cell is None or cell.to is None:
            if cell is not None and cell.kind == "illegal":
                if letter.event is E.ABORT:
                    yield Move(what, local, breaks=A.ABORT_IS_TOTAL.value, event=letter)
                return
            polled = letter.event in (E.TRANSFER_SUCCEEDED, E.TRANSFER_DRAINED)
            if "late_poll_frees" in self.faults and polled and local.lease != LEASED:
                yield Move(what, local, breaks=A.SINGLE_RELEASE.value, event=letter)
                return
            yield Move(what, self._tidy(local), event=letter)
            return
        yield self._follow(local, what, letter, cell)._replace(event=letter)

    def _follow(self, local: Local, what: str, letter: Letter, cell: Cell) -> Move:
        node, after = self.automaton.nodes[local.node], cell.to
        assert after is not None
        claims = () if cell.row is None else cell.row.claims
        pages, lease, net, step, old = local.pages, local.lease, local.net, local.step, local.old
        takes = gives = 0
        breaks = self._misjudged(letter, cell, local)
        if Does.TAKE_PAGES in claims:
            takes, lease = pages, LEASED
        step = step or Does.TAKE_STEP in claims
        if Does.TAKE_OP_UNLESS_OPEN in claims and not node.configuration.ops:
            net = (READING,) * self.ranks
        if Does.START_OVER in claims and step:
            # The old attempt keeps its reference until its pass ends.
            gives = pages if "preempt_frees" in self.faults else 0
            old, pages, lease, step = pages, 0, NO_LEASE, False
        reports, cancelled = local.reports, local.cancelled
        for effect in cell.effects:
            if effect.kind is EffectKind.RELEASE_KV:
                forgets = "drain_not_released" in self.faults and letter.event is E.TRANSFER_DRAINED
                if lease != LEASED:
                    breaks = breaks or A.SINGLE_RELEASE.value
                elif not forgets:
                    gives, lease = pages, NO_LEASE
            elif effect.kind is EffectKind.QUARANTINE_KV:
                lease = IN_QUARANTINE
            elif effect.kind is EffectKind.REPORT:
                reports += 1
            else:
                cancelled = True
        table = self.automaton.table
        decides = table.state(after.state).draining and not table.state(node.state).draining
        reports += decides and "reports_twice" in self.faults
        if Does.START_OVER in claims:
            cancelled = False
        to = Local(after.index, step, net, pages, lease, old, min(reports, 2), cancelled)
        publishes = letter.event is E.PREFILL_FINISHED and bool(pages & PREFIX)
        return Move(what, self._tidy(to), gives, takes, publishes, breaks)

    def _misjudged(self, letter: Letter, cell: Cell, local: Local) -> str:
        """What an event breaks about reasons and new work; empty where it breaks nothing."""
        node = self.automaton.nodes[local.node]
        assert cell.to is not None
        was, now = node.reason, cell.to.reason
        precedence = self.automaton.policy.precedence
        if node.terminal:
            return A.LATE_IS_ABSORBED.value
        if (
            was is not None
            and now is not was
            and (now is None or not precedence.outranks(now, was))
        ):
            return A.STICKY_REASON.value
        if letter.offers is not None and now is not precedence.join(was, letter.offers):
            return A.REASON_BY_POLICY.value
        draining = self.automaton.table.state(node.state).draining
        if draining and cell.row is not None and TAKES.intersection(cell.row.claims):
            return A.NO_NEW_WORK_AFTER_DECISION.value
        return ""

    def _tidy(self, local: Local) -> Local:
        """Forget what nobody touches any more and nothing refers to."""
        if local.lease == LEASED or not local.quiet:
            return local
        return local._replace(net=self._idle, pages=local.pages if local.lease else 0)

    # The pages.

    def _apply(self, shared: Shared, move: Move) -> int | None:
        """The pages after a move; None where the pages that it needs are not to be had."""
        pool, cached, refs = shared.pool, shared.cached, [*shared.refs]
        for page, bit in enumerate(self._bits):
            if move.takes & bit:
                if not pool & bit and not (bit == PREFIX and cached):
                    return None
                refs[page] += 1
                pool &= ~bit
            if move.gives & bit:
                refs[page] -= 1
                if not refs[page] or "sharers_ignored" in self.faults:
                    pool |= bit
        if move.publishes and not cached:
            cached = True
            refs[0] += 1
        return self._number_of(Shared(pool, cached, tuple(refs)))

    # Numbers for what is hashed a million times.

    def _number(self, local: Local) -> int:
        number = self._local_number.get(local)
        if number is None:
            number = self._local_number[local] = len(self._locals)
            self._locals.append(local)
        return number

    def _number_of(self, shared: Shared) -> int:
        number = self._shared_number.get(shared)
        if number is None:
            number = self._shared_number[shared] = len(self._shared)
            self._shared.append(shared)
        return number


def _renamings(pages: int) -> list[list[int]]:
    """For each renaming of the pages but the first: what each set of pages becomes, as bits."""
    found = []
    for order in permutations(range(1, pages)):
        names = (0, *order)
        if names == tuple(range(pages)):
            continue
        found.append(
            [
                sum(1 << names[page] for page in range(pages) if bits & (1 << page))
                for bits in range(1 << pages)
            ]
        )
    return found
