"""The words of the library, as enums: states, events, claims, effects, reasons, kinds.

Every word is a ``str``, so it compares, hashes and serialises as its value: ``State.DONE == "done"``.
An API that takes an :class:`Event` takes ``"abort"`` just as well.

The meaning of each word is the contract's (sections 2 to 6). What a word *does* in a given state stands
in the declared table (:mod:`lifecycle.prefill`), not here.
"""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """A string with a fixed set of values."""

    # Enum hashes by name in Python code; these words are dictionary keys on the hot path.
    __hash__ = str.__hash__

    def __str__(self) -> str:
        return str(self.value)


class State(Word):
    """The six states of both legs (contract section 2). A state never says who owns memory: claims do."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    TRANSFERRING = "transferring"
    GRAMMAR_FAILED = "grammar_failed"
    ABORTED = "aborted"
    DONE = "done"


class Event(Word):
    """What can happen to a request (contract section 4)."""

    SUBMIT = "submit"
    GRAMMAR_READY = "grammar_ready"
    GRAMMAR_FAILED = "grammar_failed"
    ADMIT = "admit"
    FORWARD_LAUNCHED = "forward_launched"
    FORWARD_FINISHED = "forward_finished"
    TRANSFER_POSTED = "transfer_posted"
    PREFILL_FINISHED = "prefill_finished"
    TRANSFER_PENDING = "transfer_pending"
    TRANSFER_SUCCEEDED = "transfer_succeeded"
    TRANSFER_FAILED = "transfer_failed"
    TRANSFER_DRAINED = "transfer_drained"
    COMPLETE = "complete"
    ABORT = "abort"
    PEER_LOST = "peer_lost"
    ERROR = "error"
    PREEMPT = "preempt"
    DRAIN_TIMEOUT = "drain_timeout"


class FinishReason(Word):
    """Why a request ended (contract section 6)."""

    CLIENT_ABORT = "client_abort"
    SERVER_ABORT = "server_abort"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    GRAMMAR_ERROR = "grammar_error"
    TRANSFER_FAILED = "transfer_failed"
    PEER_LOST = "peer_lost"
    INTERNAL_ERROR = "internal_error"
    STOP = "stop"
    LENGTH = "length"


class AbortSource(Word):
    """Who asked for an abort. Each source has a finish reason of its own."""

    CLIENT = "client"
    SERVER = "server"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


class GrammarCause(Word):
    """How a grammar failed: it did not compile, compiling took too long, a token was refused, a dead end."""

    COMPILE = "compile"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    DEAD_END = "dead_end"


class Claim(Word):
    """Who may still touch the pages (contract section 3)."""

    REQUEST = "request"
    STEP = "step"
    OP = "op"
    CACHE = "cache"
    QUARANTINE = "quarantine"


class EffectKind(Word):
    """What the caller must carry out. The core only names it."""

    CANCEL_TRANSFER = "cancel_transfer"
    RELEASE_KV = "release_kv"
    QUARANTINE_KV = "quarantine_kv"
    REPORT = "report"


class Kind(Word):
    """What an event was to a request: every (configuration, event) pair is exactly one of these."""

    MOVE = "move"
    STAY = "stay"
    LATE = "late"
    ILLEGAL = "illegal"


class KV(Word):
    """Where the pages of an attempt are."""

    NONE = "none"
    HELD = "held"
    RELEASED = "released"
    QUARANTINED = "quarantined"


class Invariant(Word):
    """What must always hold (contract section 8): one name in code, tests, specs and docs."""

    SINGLE_RELEASE = "single_release"
    NO_FREE_IN_FLIGHT = "no_free_in_flight"
    FREE_AFTER_ALL_OPS = "free_after_all_ops"
    STREAM_ORDER = "stream_order"
    DRAIN_TO_ZERO = "drain_to_zero"
    ABORT_IS_TOTAL = "abort_is_total"
    NO_NEW_WORK_AFTER_DECISION = "no_new_work_after_decision"
    STICKY_REASON = "sticky_reason"
    REASON_BY_POLICY = "reason_by_policy"
    REASON_NOT_CONTROL = "reason_not_control"
    REPORT_ONCE = "report_once"
    LATE_IS_ABSORBED = "late_is_absorbed"
    ATTEMPT_SCOPED = "attempt_scoped"
    EXACT_TARGET = "exact_target"
    RANK_AGREEMENT = "rank_agreement"
    PEER_TOLD = "peer_told"
    CLAIM_COUNT = "claim_count"
    NO_TAINTED_PUBLISH = "no_tainted_publish"
    FAULT_ISOLATED = "fault_isolated"
    EVENTUALLY_DONE = "eventually_done"


ABORT_REASONS = {
    AbortSource.CLIENT: FinishReason.CLIENT_ABORT,
    AbortSource.SERVER: FinishReason.SERVER_ABORT,
    AbortSource.TIMEOUT: FinishReason.TIMEOUT,
    AbortSource.SHUTDOWN: FinishReason.SHUTDOWN,
}
"""The reason that an abort from each source brings."""

DEFAULT_OP = "kv"
"""The op that hands the KV cache over, where a backend does not name its ops."""
