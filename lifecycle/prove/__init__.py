"""Proofs for any number of requests, ranks and pages, with z3 (extra ``[prove]``).

>>> from lifecycle import PREFILL
>>> result = prove(PREFILL)
>>> [str(each) for each in result.failed]
[]

What :mod:`lifecycle.verify` explores for small fleets is proved here by induction: the invariant of
:meth:`lifecycle.prove.world.Fleet.invariants` holds at the start, and each action of :meth:`~.Fleet.actions` keeps
it. For each action there is a check that it can happen at all: from an impossible action everything follows.
"""

from .proof import Failed, Result, prove

__all__ = ["Failed", "Result", "prove"]
