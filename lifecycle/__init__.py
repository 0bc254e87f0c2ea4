"""The life of a request in an LLM-serving scheduler: who may free the KV cache, and what the client is told.

Start with :mod:`lifecycle.prefill`, the declared table; everything else follows from it.

- One request: :class:`RequestLifecycle`. Many: :class:`RequestTable`. With effects carried out: :class:`Driver`.
- The words: :class:`State`, :class:`Event`, :class:`FinishReason`, :class:`EffectKind`.
- The knobs: :class:`Policy`, :class:`Precedence`, :data:`WIRE`.
- Tables of your own: :class:`Table`, :class:`Row`, :class:`StateSpec`, :func:`compile_table`.

Importing this package imports nothing else: each name below is imported when it is first asked for, with attrs and
the standard library behind it. Traces (:mod:`lifecycle.trace`), diagrams and the test harness
(:mod:`lifecycle.testing`) are imported by their own names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compile import Automaton, Configuration, Effect, compile_table
    from .driver import Driver, Fault
    from .errors import (
        BadDetail,
        DuplicateRequest,
        EventError,
        IllegalEvent,
        LateEvent,
        LifecycleError,
        PolicyError,
        SnapshotError,
        TableError,
        TraceError,
        UnknownRequest,
    )
    from .policy import Policy
    from .ports import (
        Hold,
        KVPool,
        PrefixCache,
        Reporter,
        TransferEngine,
    )
    from .prefill import PREFILL
    from .reasons import (
        TIERS,
        WIRE,
        Outcome,
        Precedence,
        Wire,
    )
    from .request import RequestLifecycle
    from .spec import Row, StateSpec, Table, When
    from .table import Inbox, RequestTable, Todo
    from .vocabulary import (
        KV,
        AbortSource,
        Claim,
        EffectKind,
        Event,
        FinishReason,
        GrammarCause,
        Invariant,
        Kind,
        State,
    )

__version__ = "0.1.0"

__all__ = [
    "KV",
    "PREFILL",
    "TIERS",
    "WIRE",
    "AbortSource",
    "Automaton",
    "BadDetail",
    "Claim",
    "Configuration",
    "Driver",
    "DuplicateRequest",
    "Effect",
    "EffectKind",
    "Event",
    "EventError",
    "Fault",
    "FinishReason",
    "GrammarCause",
    "Hold",
    "IllegalEvent",
    "Inbox",
    "Invariant",
    "KVPool",
    "Kind",
    "LateEvent",
    "LifecycleError",
    "Outcome",
    "Policy",
    "PolicyError",
    "Precedence",
    "PrefixCache",
    "Reporter",
    "RequestLifecycle",
    "RequestTable",
    "Row",
    "SnapshotError",
    "State",
    "StateSpec",
    "Table",
    "TableError",
    "Todo",
    "TraceError",
    "TransferEngine",
    "UnknownRequest",
    "When",
    "Wire",
    "compile_table",
]

# Where each name comes from.
_HOME = {
    "Automaton": "compile",
    "Configuration": "compile",
    "Effect": "compile",
    "compile_table": "compile",
    "Driver": "driver",
    "Fault": "driver",
    "BadDetail": "errors",
    "DuplicateRequest": "errors",
    "EventError": "errors",
    "IllegalEvent": "errors",
    "LateEvent": "errors",
    "LifecycleError": "errors",
    "PolicyError": "errors",
    "SnapshotError": "errors",
    "TableError": "errors",
    "TraceError": "errors",
    "UnknownRequest": "errors",
    "Policy": "policy",
    "Hold": "ports",
    "KVPool": "ports",
    "PrefixCache": "ports",
    "Reporter": "ports",
    "TransferEngine": "ports",
    "PREFILL": "prefill",
    "TIERS": "reasons",
    "WIRE": "reasons",
    "Outcome": "reasons",
    "Precedence": "reasons",
    "Wire": "reasons",
    "RequestLifecycle": "request",
    "Row": "spec",
    "StateSpec": "spec",
    "Table": "spec",
    "When": "spec",
    "Inbox": "table",
    "RequestTable": "table",
    "Todo": "table",
    "KV": "vocabulary",
    "AbortSource": "vocabulary",
    "Claim": "vocabulary",
    "EffectKind": "vocabulary",
    "Event": "vocabulary",
    "FinishReason": "vocabulary",
    "GrammarCause": "vocabulary",
    "Invariant": "vocabulary",
    "Kind": "vocabulary",
    "State": "vocabulary",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    home = _HOME.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value  # so that this is asked once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
