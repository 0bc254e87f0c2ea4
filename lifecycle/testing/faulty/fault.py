"""A faulty scheduler is right but for a few lines, and says what they break and where that was seen."""

from __future__ import annotations

from typing import ClassVar

from ...vocabulary import Invariant
from ..careful import Careful


class Faulty(Careful):
    """A scheduler with one fault.

    Attributes:
        breaks: the invariant that the harness must name.
        seen_in: the public report, or the reports' kind.
        needs: capabilities without which the fault cannot show.
    """

    breaks: ClassVar[Invariant]
    seen_in: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
