"""vLLM: a KV connector and a scheduler under the declared table.

vLLM's scheduler asks its KV connector two things. When a request finishes: do you still need its blocks
(``request_finished`` returns True)? And after each step: whose transfers are finished (``finished_sending``,
``finished_recving``)? It takes the answers at their word. A completion that comes twice, that belongs to nobody or
to a request that still runs is an assertion, and an assertion ends the engine with every request in it. One that
never comes holds the blocks for ever, and two owners of the same blocks are one boolean.

Here those answers become events of the contract: a load and a send are op claims on the request's blocks, the
table decides when the last one is gone, and vLLM's own ``_free_blocks`` is then called, once. vLLM's code is not
replaced. A subclass of its scheduler and of the connector stand in front of it::

    vllm serve MODEL --scheduler-cls adapters.vllm.GovernedAsyncScheduler --kv-transfer-config '{...}'

:class:`GovernedAsyncScheduler`
    vLLM's ``AsyncScheduler``, governed, whichever connector is configured. ``GovernedScheduler`` is the one
    without asynchronous scheduling.
:func:`govern`
    The same for a scheduler that exists already.
``Governed`` + the name of a connector
    ``kv_connector="GovernedNixlConnector", kv_connector_module_path="adapters.vllm"``: only the connector is
    governed. :mod:`adapters.vllm.connector` says what that cannot see.
:func:`observe`
    Changes nothing, and says what the contract says went wrong (shadow mode).
:func:`governed`
    A governed subclass of a connector or scheduler class of your own.

What vLLM does not have
    A cancel call. ``cancel_transfer`` goes to the `on_cancel` of the :class:`Governor`, and proves nothing.
    A deadline for transfers. The governor has them, and looks at the clock whenever the engine schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .blocks import GuardedBlockPool
from .engine import TESTED, UnsupportedEngine
from .governor import Governor, Quarantined
from .install import govern, governed, observe
from .observer import Finding, Observer

if TYPE_CHECKING:
    GovernedScheduler: Any
    GovernedAsyncScheduler: Any

__all__ = [
    "TESTED",
    "Finding",
    "GovernedAsyncScheduler",
    "GovernedScheduler",
    "Governor",
    "GuardedBlockPool",
    "Observer",
    "Quarantined",
    "UnsupportedEngine",
    "govern",
    "governed",
    "observe",
]


def __getattr__(name: str) -> Any:
    """``GovernedX`` for a scheduler or a registered connector X of vLLM, made when it is asked for."""
    from .install import by_name

    return by_name(name, __name__)
