"""Shadow mode: changes nothing in vLLM, and says what the contract says went wrong.

The observer follows the same table as the governor, beside vLLM instead of in front of it. Reports of the workers
reach the scheduler as they are, blocks are freed when vLLM frees them, and what would kill the engine does; but it
has been written down first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from lifecycle import Invariant
from lifecycle.ports import Hold

from .governor import RECV, SEND, Governor

log = logging.getLogger("adapters.vllm")


@attrs.frozen
class Finding:
    """Something that the contract forbids (section 8), of which request, and what happened."""

    invariant: Invariant
    rid: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: request {self.rid!r}: {self.what}"


class Observer(Governor):
    """A governor without power.

    Args:
        on_finding: called with each finding, when it is made.
        options: as :class:`~adapters.vllm.Governor` takes them.

    Attributes:
        findings: what was found, oldest first.
    """

    passive = True

    def __init__(
        self, *, on_finding: Callable[[Finding], None] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.on_finding = on_finding
        self.findings: list[Finding] = []

    def find(self, invariant: Invariant, rid: str, what: str) -> None:
        """Write something down."""
        finding = Finding(invariant, rid, what)
        self.findings.append(finding)
        log.warning("%s", finding)
        if self.on_finding is not None:
            self.on_finding(finding)

    # Where the governor decides, the observer looks on.

    def name(self, rid: str) -> str:
        """Lives of one id share it, as in vLLM."""
        if self.scheduler is not None and rid in self.scheduler.requests:
            self.find(
                Invariant.ATTEMPT_SCOPED, rid, "a request of this id came while vLLM has another"
            )
        return rid

    def engine_id(self, rid: str) -> str:
        """Lives of one id share it."""
        return rid

    def finished(self, request: Any, reads_on: bool) -> bool:
        """Follows the request, and hands the connector's answer on."""
        super().finished(request, reads_on)
        return reads_on

    def aborted(self, engine_id: str) -> None:
        """An abort that vLLM ignores."""
        self.find(
            Invariant.ABORT_IS_TOTAL, engine_id, "an abort after the finish was ignored; the blocks stay lent"
        )  # fmt: skip
        super().aborted(engine_id)

    def preempted(self, request: Any) -> None:
        """VLLM frees the blocks, whatever is lent of them."""
        life = self.life(request.request_id)
        if life is not None and life.lent:
            self._freed_in_flight(life.rid, life.lent, "was preempted")

    def freed(self, request: Any) -> None:
        """VLLM frees the blocks of a finished request."""
        life = self.life(request.request_id)
        if life is not None and life.request is request and life.lent:
            self._freed_in_flight(life.rid, life.lent, "was freed")

    def reported(self, output: Any) -> Callable[[], None]:
        """Follows the report, and leaves it as it is."""
        both = set(output.finished_recving or ()) & set(output.finished_sending or ())
        for engine_id in sorted(both):
            self.find(Invariant.SINGLE_RELEASE, engine_id, "two owners are done in one report")
        for reported, op, name in (
            (output.finished_recving, RECV, "finished_recving"),
            (output.finished_sending, SEND, "finished_sending"),
        ):
            self._look(reported, op, name)
        return lambda: None

    def mispinned(self, block_id: int) -> None:
        """A free of a block that the connector has not pinned; it was passed on."""
        what = f"the connector freed block {block_id}, which it has not pinned"
        self.find(Invariant.CLAIM_COUNT, "", what)

    def free_now(self) -> None:
        """VLLM frees when it frees."""
        self._take_freeable()

    def quarantine(self, hold: Hold) -> None:
        """What the governor would take out of circulation."""
        self.find(
            Invariant.EVENTUALLY_DONE, hold.rid, "its transfers are not over, and a deadline passed"
        )

    def release(self, hold: Hold) -> None:
        """The governor would free now."""

    # How it looks.

    def _look(self, reported: Iterable[str] | None, op: str, name: str) -> None:
        for engine_id in sorted(reported or ()):
            if not self.completed(engine_id, op):
                self.absorbed[name] += 1
                self.find(Invariant.LATE_IS_ABSORBED, engine_id, f"{name}, and no such op is out")

    def _freed_in_flight(self, rid: str, ops: Iterable[str], how: str) -> None:
        out = ", ".join(sorted(ops))
        self.find(Invariant.FREE_AFTER_ALL_OPS, rid, f"it {how}, and its blocks are lent to: {out}")
