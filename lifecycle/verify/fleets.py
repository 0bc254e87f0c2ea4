"""Explores a fleet, and tells what it found in words and as a trace.

>>> proof = verify_fleet(requests=2, ranks=1, pages=2)
>>> proof.lost, proof.missing
((), ())
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import attrs

from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..spec import Table
from ..vocabulary import Event, Invariant
from .counterexample import SOURCE_OF, policy_line
from .explore import Told, explore
from .fleet import ALWAYS, SOMETIMES, Fleet, Move, State


@attrs.frozen
class Lost:
    """An invariant that a fleet breaks.

    Attributes:
        invariant: its name.
        story: what happened, an action a line, the fewest that lead there.
        trace: the events of it, as lines of a trace.
    """

    invariant: Invariant
    story: tuple[str, ...]
    trace: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        how = "may never hold" if self.invariant is Invariant.EVENTUALLY_DONE else "is broken"
        return f"{self.invariant} {how} after {len(self.story)} actions"


@attrs.frozen
class FleetProof:
    """What was explored, and what broke.

    Attributes:
        requests, ranks, pages: the size of the fleet.
        states, edges, seconds: distinct states up to symmetry, moves between them, and how long it took.
        proved: the invariants that hold in all of them.
        lost: those that do not.
        missing: what ought to be possible, and is not (*sometimes*); a model that lacks it proves little.
    """

    requests: int
    ranks: int
    pages: int
    states: int
    edges: int
    seconds: float
    proved: tuple[Invariant, ...]
    lost: tuple[Lost, ...]
    missing: tuple[str, ...]


def verify_fleet(
    requests: int = 3,
    ranks: int = 2,
    pages: int = 2,
    *,
    table: Table = PREFILL,
    policy: Policy = DEFAULT_POLICY,
    faults: Iterable[str] = (),
    told: Told | None = None,
) -> FleetProof:
    """Explore every fleet of this size up to symmetry; see :mod:`lifecycle.verify.fleet` for what it does.

    `told` is called with the number of states and the seconds so far, now and then.
    """
    fleet = Fleet(requests, ranks, pages, table=table, policy=policy, faults=faults)
    found = explore(fleet, told=told)
    paths = {Invariant(name): path for name, path in found.paths.items()}
    if found.stuck is not None:
        paths[Invariant.EVENTUALLY_DONE] = found.stuck
    of = (*ALWAYS, Invariant.EVENTUALLY_DONE)
    lost = tuple(
        _lost(fleet, name, cast("tuple[State, ...]", paths[name])) for name in of if name in paths
    )
    shares = requests > 1 and not fleet.answers_here
    possible = SOMETIMES if shares else SOMETIMES[:1]
    return FleetProof(
        requests=requests,
        ranks=ranks,
        pages=pages,
        states=found.states,
        edges=found.edges,
        seconds=found.seconds,
        proved=tuple(name for name in of if name not in paths),
        lost=lost,
        missing=tuple(name for name in possible if name not in found.witnesses),
    )


def _lost(fleet: Fleet, invariant: Invariant, path: tuple[State, ...]) -> Lost:
    moves = fleet.told(path)
    story = tuple(
        move.what if index < 0 else f"request r{index + 1} {move.what}" for index, move in moves
    )
    heard = sorted({index for index, _ in moves if index >= 0})
    trace = policy_line(fleet.automaton.policy)
    trace += [{"event": str(Event.SUBMIT), "rid": f"r{index + 1}"} for index in heard]
    trace += [_line(index, move) for index, move in moves if index >= 0 and move.event is not None]
    return Lost(invariant, story, tuple(trace))


def _line(index: int, move: Move) -> dict[str, Any]:
    letter = move.event
    assert letter is not None
    line: dict[str, Any] = {"event": str(letter.event), "rid": f"r{index + 1}"}
    if letter.event is Event.ADMIT:
        line["pages"] = move.takes.bit_count()
    elif letter.event is Event.ABORT and letter.offers is not None:
        line["source"] = SOURCE_OF[letter.offers]
    elif letter.event is Event.GRAMMAR_FAILED:
        line["cause"] = "rejected"
    elif letter.event is Event.COMPLETE:
        line["reason"] = str(letter.offers)
    return line
