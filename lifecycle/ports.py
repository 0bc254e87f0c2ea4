"""What a driver calls: four protocols that a scheduler author implements over their own engine.

The core returns effects as data; :class:`lifecycle.Driver` carries them out through these ports. One rule
holds for all four: *a port that raises says that it did not do it.* The driver keeps the effect and tries it
again when asked to (:meth:`lifecycle.Driver.retry`).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import attrs

from .reasons import Outcome


@attrs.frozen
class Hold:
    """One attempt's pages: whose they are, and what ``admit`` was given for them (a lease, a list of ids)."""

    rid: str
    incarnation: int
    attempt: int
    pages: object = None

    def __str__(self) -> str:
        text = f"{self.rid!r}"
        if self.incarnation > 1:
            text += f" life {self.incarnation}"
        return f"{text} attempt {self.attempt}"


@runtime_checkable
class KVPool(Protocol):
    """Who gives pages back. Called once for each attempt that was admitted."""

    def release(self, hold: Hold) -> None:
        """Give the pages back: no step and no op touches them any more."""

    def quarantine(self, hold: Hold) -> None:
        """Take the pages out of circulation: nobody has proved that the hardware is quiet."""

    def holds(self, hold: Hold) -> bool:
        """Whether the pages are still out, neither released nor quarantined.

        Asked before a release is tried again: if the first try raised after it had freed, a second free would
        hand the pages to two owners.
        """


@runtime_checkable
class TransferEngine(Protocol):
    """Who is told that a hand-off is off."""

    def cancel(self, hold: Hold) -> None:
        """Tell the sender, and through it the other leg. At most once an attempt; it proves no drain."""


@runtime_checkable
class Reporter(Protocol):
    """Who tells the client."""

    def report(self, outcome: Outcome) -> None:
        """Send the one report of a request."""


@runtime_checkable
class PrefixCache(Protocol):
    """Who may keep pages for other requests with the same prefix."""

    def publish(self, hold: Hold) -> None:
        """Keep what is proven complete of these pages. Called right before their release."""
