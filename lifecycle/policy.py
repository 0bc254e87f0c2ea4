"""The knobs of the contract, where engines disagree (section 6), and their defaults.

>>> Policy().on_undrained
<OnUndrained.QUARANTINE: 'quarantine'>
>>> Policy(report="at_decision").report == "at_decision"
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import attrs

from .errors import PolicyError
from .reasons import TIERS, Precedence, as_precedence
from .vocabulary import Word


class AbortAfterHandoff(Word):
    """An abort after the hand-off succeeded, before the commit."""

    RECORD = "record"  # the abort is reported
    IGNORE = "ignore"  # the reader may use the pages: `length` is reported


class OnUndrained(Word):
    """What happens to pages whose drain was not proven when the deadline passed."""

    HOLD = "hold"  # wait on
    QUARANTINE = "quarantine"  # out of circulation, until someone proves that the engine is quiet
    RELEASE = "release"  # unsafe: the pages may still be read or written


class ReportAt(Word):
    """When the client is told."""

    DONE = "at_done"
    DECISION = "at_decision"  # at once; reasons that come later are late


class PublishAborted(Word):
    """Whether the prefix cache may keep pages of a request that was cut short."""

    NEVER = "never"
    PROVEN = "proven"  # only tokens whose KV is known complete


class LatePolicy(Word):
    """What late events, and events of unknown rids, do."""

    ABSORB = "absorb"  # they are counted
    STRICT = "strict"  # they raise


_W = TypeVar("_W", bound=Word)


def _choice(field: str, words: type[_W], value: object) -> _W:
    if isinstance(value, str):
        for word in words:
            if word == value:
                return word
    choices = ", ".join(repr(word.value) for word in words)
    msg = f"policy {field} is one of {choices}; got {value!r}"
    raise PolicyError(msg)


# attrs wants converters with names.


def _abort_after_handoff(value: object) -> AbortAfterHandoff:
    return _choice("abort_after_handoff", AbortAfterHandoff, value)


def _on_undrained(value: object) -> OnUndrained:
    return _choice("on_undrained", OnUndrained, value)


def _report(value: object) -> ReportAt:
    return _choice("report", ReportAt, value)


def _publish_aborted(value: object) -> PublishAborted:
    return _choice("publish_aborted", PublishAborted, value)


def _late(value: object) -> LatePolicy:
    return _choice("late", LatePolicy, value)


@attrs.frozen
class Policy:
    """How a scheduler wants the contract's open choices decided. Frozen; equal policies share an automaton.

    Every field takes the word of contract section 6 (``"quarantine"``) or the enum member. ``precedence``
    takes ``"tiers"``, a list of all ten reasons from the highest to the lowest (a strict total order), or a
    list of such lists (tiers).

    Raises:
        PolicyError: a choice that does not exist; the message names those that do.
    """

    precedence: Precedence = attrs.field(default=TIERS, converter=as_precedence)
    abort_after_handoff: AbortAfterHandoff = attrs.field(
        default=AbortAfterHandoff.RECORD, converter=_abort_after_handoff
    )
    on_undrained: OnUndrained = attrs.field(default=OnUndrained.QUARANTINE, converter=_on_undrained)
    report: ReportAt = attrs.field(default=ReportAt.DONE, converter=_report)
    publish_aborted: PublishAborted = attrs.field(
        default=PublishAborted.NEVER, converter=_publish_aborted
    )
    late: LatePolicy = attrs.field(default=LatePolicy.ABSORB, converter=_late)

    @classmethod
    def from_mapping(cls, choices: Mapping[str, object]) -> Policy:
        """A policy from names and choices, as the first line of a trace gives them.

        Raises:
            PolicyError: an unknown name or choice.
        """
        known = [field.name for field in attrs.fields(cls)]
        for name in choices:
            if name not in known:
                msg = f"unknown policy {name!r}; the policies are {', '.join(known)}"
                raise PolicyError(msg)
        return cls(**choices)

    def to_mapping(self) -> dict[str, object]:
        """The choices by name, as plain JSON: what :meth:`from_mapping` takes."""
        choices: dict[str, object] = {
            field.name: str(getattr(self, field.name))
            for field in attrs.fields(type(self))
            if field.name != "precedence"
        }
        return {"precedence": self.precedence.to_json(), **choices}


DEFAULT_POLICY = Policy()
