"""What can go wrong, one class a fault, written for the scheduler author at three in the morning.

Every message says what happened, to which request, in which state, who holds claims, what would have been
legal, and the last events seen. The same facts are fields, so that code can act on them. An event that
raises leaves the request as it was.
"""

from __future__ import annotations

from collections.abc import Sequence


class LifecycleError(Exception):
    """Base of every error that this library raises on purpose."""


class TableError(LifecycleError):
    """A declared table was refused; the message names the row (contract section 5)."""


class PolicyError(LifecycleError, ValueError):
    """A policy or precedence was refused; the message names the choices (contract section 6)."""


class TraceError(LifecycleError, ValueError):
    """A trace cannot be read. ``path`` and ``line`` (1-based; 0 for the file as a whole) say where."""

    def __init__(self, message: str, *, path: str = "<trace>", line: int = 0) -> None:
        self.message, self.path, self.line = message, path, line
        where = f"{path}:{line}" if line else path
        super().__init__(f"{where}: {message}")


class SnapshotError(LifecycleError, ValueError):
    """A snapshot cannot be written or restored; nothing was restored."""


class EventError(LifecycleError):
    """An event that a request could not take. The request is unchanged.

    Attributes:
        rid, incarnation, attempt: which request, which of its lives, which attempt.
        state, reason: where it stands; ``reason`` is None while undecided.
        claims: who may still touch its pages, such as ``("op:kv", "request")``.
        event: the event that was refused.
        why: the reason why, as the table gives it; empty where the message says it all.
        legal: the events that would move it or be taken in place.
        last: the last events seen, oldest first, as text; empty where no journal is kept.
    """

    def __init__(
        self,
        message: str,
        *,
        rid: str = "",
        incarnation: int = 1,
        attempt: int = 0,
        state: str | None = None,
        reason: str | None = None,
        claims: Sequence[str] = (),
        event: str = "",
        why: str = "",
        legal: Sequence[str] = (),
        last: Sequence[str] = (),
    ) -> None:
        self.rid, self.incarnation, self.attempt = rid, incarnation, attempt
        self.state, self.reason, self.event, self.why = state, reason, event, why
        self.claims, self.legal, self.last = tuple(claims), tuple(legal), tuple(last)
        self.message = message
        super().__init__(self._text())

    def _text(self) -> str:
        if self.state is None:
            return self.message
        which = f"state: {self.state}"
        if self.reason is not None:
            which += f" ({self.reason})"
        if self.attempt:
            which += f", attempt {self.attempt}"
        if self.incarnation > 1:
            which += f", life {self.incarnation} of this rid"
        lines = [
            self.message,
            which,
            "claims: " + (", ".join(self.claims) or "none"),
            "legal now: " + (", ".join(self.legal) or "nothing: it has ended"),
        ]
        if self.last:
            lines.append("last events: " + ", ".join(self.last))
        return "\n  ".join(lines)


class IllegalEvent(EventError):
    """The table declares this event illegal here: a scheduler that sends it has a bug."""


class DuplicateRequest(IllegalEvent):
    """A rid was submitted while a request of that name lives (contract section 7)."""


class LateEvent(EventError):
    """A late event under the policy ``late="strict"``; by default it is absorbed and counted."""


class UnknownRequest(EventError):
    """An event for a rid that is not in the table, under the policy ``late="strict"``."""


class BadDetail(EventError, ValueError):
    """A detail of an event has a value that no such event can have (an abort source, a page count, ...)."""
