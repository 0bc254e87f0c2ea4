"""Many requests at once, in columns: for a scheduler with thousands in flight, and for fleets that are simulated.

>>> batch = RequestBatch()
>>> rows = batch.add(3)
>>> for event in ("admit", "prefill_finished"):
...     applied = batch.apply(event, rows)
>>> applied = batch.poll([1, 2, 0], rows)  # pending, succeeded, failed
>>> [(row, [str(effect) for effect in effects]) for row, effects in applied]
[(1, ['release_kv', 'report']), (2, ['cancel_transfer'])]
>>> batch.by_state()
{'transferring': 1, 'aborted': 1, 'done': 1}
>>> applied = batch.apply("preempt", rows)
>>> print(applied.errors[2])
preempt is illegal for request 'row 2': no new work for a decided request
  state: aborted (transfer_failed)
  claims: op:kv, request
  legal now: grammar_ready, grammar_failed, prefill_finished, transfer_pending, transfer_succeeded, \
transfer_failed, transfer_drained, complete, abort, peer_lost, error, drain_timeout

A row is a request: the same states, claims, effects, errors as a :class:`~lifecycle.RequestLifecycle`, under
the same tables and policies, with steps, ops and attempts counted in the same way. Only the journal is left
out. A loop of Python costs some 100 ns a request; here a pending poll costs about 1 ns a request, any other
event a few.

:meth:`RequestBatch.apply` takes one event for all rows, one for each, or pairs of signals and rows, and gives
back the few rows that ask for something. :meth:`RequestBatch.poll` takes the polls of a whole in-flight queue;
a :class:`Queue` (:meth:`RequestBatch.queue`) does so again and again for the same rows. :meth:`~Rows.add` and
:meth:`~Rows.remove` are how requests come and go; :meth:`~Rows.request` and :meth:`~Rows.put` turn a row into
an object and back.

This package needs numpy: ``pip install "request-lifecycle[batch]"``.
"""

from __future__ import annotations

try:
    import numpy as np  # noqa: F401  # every module here needs it
except ImportError as error:  # pragma: no cover  # a test runs this in a process of its own
    msg = 'lifecycle.batch needs numpy; install it with: pip install "request-lifecycle[batch]"'
    raise ImportError(msg) from error

from .applied import Applied, Errors
from .batch import RequestBatch
from .columns import ROW_BYTES
from .queue import Queue
from .shapes import Shapes, shapes_of
from .signals import SIGNALS, code

__all__ = [
    "ROW_BYTES",
    "SIGNALS",
    "Applied",
    "Errors",
    "Queue",
    "RequestBatch",
    "Shapes",
    "code",
    "shapes_of",
]
