"""The rules of the prefill leg by hand: one class, one method, if and elif, as a scheduler would have them.

It is what the library is measured against, so it does the same work: steps and ops claimed by number and name,
reasons by tier, cancel, release and report as a tuple of effects, late events counted, illegal ones refused. It
leaves out what the benchmarks do not touch: older attempts, policies, incarnations, details of a report.
``tests/benchmarks`` compares it with the library on random events.
"""

# ruff: noqa: PLR1714, SIM102  # `x == a or x == b` is quicker than `x in (a, b)` here, and this file is about speed.

from __future__ import annotations

DECISIONS = {
    "client": "client_abort",
    "server": "server_abort",
    "timeout": "timeout",
    "shutdown": "shutdown",
}
DECIDED = frozenset({*DECISIONS.values(), "grammar_error"})
FAULTS = {
    "transfer_failed": "transfer_failed",
    "peer_lost": "peer_lost",
    "error": "internal_error",
}
NOTHING: tuple[str, ...] = ()
CANCEL = ("cancel_transfer",)
ENDED = ("release_kv", "report")
JOURNAL = 16


# The tier of each reason; 0 is that of none.
RANK: dict[str | None, int] = {None: 0, "stop": 1, "length": 1}
RANK.update(dict.fromkeys(FAULTS.values(), 2))
RANK.update(dict.fromkeys(DECIDED, 3))


class HandWritten:
    """A request. `fire` returns the effects by name; ValueError for an illegal event."""

    __slots__ = (
        "journal",
        "last_step",
        "late",
        "ops",
        "position",
        "reason",
        "rid",
        "state",
        "steps",
    )

    def __init__(self, rid: str, *, journal: bool = False) -> None:
        self.rid = rid
        self.state = "queued"
        self.reason: str | None = None
        self.position: int | None = None
        self.steps: tuple[int, ...] = ()
        self.ops: tuple[str, ...] = ()
        self.last_step = 0
        self.late = 0
        self.journal: list[tuple[str, object]] | None = [] if journal else None

    def fire(
        self,
        event: str,
        step: int | None = None,
        op: str | None = None,
        pages: object = None,
        source: str = "client",
        reason: str | None = None,
        position: int | None = None,
    ) -> tuple[str, ...]:
        """Take an event."""
        state = self.state
        effects = NOTHING
        detail: object = None
        if event == "forward_launched":
            if state != "prefilling" or self.reason is not None:
                raise ValueError(event)
            if step is None:
                step = self.last_step = self.last_step + 1
            elif step in self.steps:
                raise ValueError(event)
            elif step > self.last_step:
                self.last_step = step
            self.steps += (step,)
            detail = step
        elif event == "forward_finished":
            steps = self.steps
            if step is None and steps:
                step = steps[0]
            if step not in steps:
                self.late += 1
                return NOTHING
            self.steps = () if len(steps) == 1 else tuple([each for each in steps if each != step])
            effects = self._end_if_quiet()
            detail = step
        elif event == "transfer_pending" or event == "grammar_ready":
            if state == "done":
                self.late += 1
                return NOTHING
        elif event == "transfer_posted":
            if state != "prefilling" or self.reason is not None:
                raise ValueError(event)
            if op is None:
                op = "kv"
            if op in self.ops:
                raise ValueError(event)
            self.ops += (op,)
            detail = op
        elif event == "transfer_succeeded" or event == "transfer_drained":
            ops = self.ops
            if op is None and ops:
                self.ops = ()
            elif op in ops:
                self.ops = () if len(ops) == 1 else tuple([each for each in ops if each != op])
            else:
                self.late += 1
                return NOTHING
            if event == "transfer_drained" and (
                state == "transferring" or (state == "prefilling" and self.reason is None)
            ):
                effects = self._decide("transfer_failed", True)
            else:
                if state == "transferring" and not self.ops and self.reason is None:
                    self.reason = "length"
                effects = self._end_if_quiet()
            detail = op
        elif event == "prefill_finished":
            if state == "prefilling":
                self.state = "transferring"
                if not self.ops:
                    self.ops = ("kv",)
            elif state != "aborted" and state != "grammar_failed":
                raise ValueError(event)
        elif event == "admit":
            if state != "queued":
                raise ValueError(event)
            self.state = "prefilling"
            detail = pages if isinstance(pages, int) else None
        elif event == "complete":
            if state == "queued":
                raise ValueError(event)
            if state == "done":
                self.late += 1
                return NOTHING
            self._complete(reason, position)
            if state == "prefilling":
                effects = self._end_if_quiet()
            detail = reason
        elif event == "preempt" or event == "drain_timeout" or event == "submit":
            raise ValueError(event)
        elif state == "done":
            self.late += 1
            return NOTHING
        else:
            delivered = state == "transferring" and not self.ops
            if event == "abort":
                effects = self._decide(DECISIONS[source], not delivered)
                detail = source
            elif event == "grammar_failed":
                effects = self._decide("grammar_error", not delivered)
            else:
                if event == "transfer_failed":
                    if (op is not None and op not in self.ops) or (op is None and delivered):
                        self.late += 1
                        return NOTHING
                effects = self._decide(FAULTS[event], not delivered)
                detail = op
        journal = self.journal
        if journal is not None:
            journal.append((event, detail))
            if len(journal) > 2 * JOURNAL:
                del journal[:-JOURNAL]
        return effects

    def _decide(self, reason: str, cancel: bool) -> tuple[str, ...]:
        state, held = self.state, self.state != "queued"
        if RANK[reason] > RANK[self.reason]:
            self.reason, self.position = reason, None
        if state == "aborted" or state == "grammar_failed":
            self.state = "grammar_failed" if self.reason == "grammar_error" else "aborted"
            return NOTHING
        first = CANCEL if cancel else NOTHING
        if self.steps or self.ops:
            self.state = "grammar_failed" if self.reason == "grammar_error" else "aborted"
            return first
        self.state = "done"
        return first + ENDED if held else (*first, "report")

    def _complete(self, reason: str | None, position: int | None) -> None:
        if self.reason is None:
            self.reason, self.position = reason, position
        elif RANK[self.reason] == 1:
            ours = (self.position is None, self.position or 0, self.reason != "stop")
            theirs = (position is None, position or 0, reason != "stop")
            if theirs < ours:
                self.reason, self.position = reason, position

    def _end_if_quiet(self) -> tuple[str, ...]:
        if self.reason is None or self.steps or self.ops or self.state == "done":
            return NOTHING
        self.state = "done"
        return ENDED
