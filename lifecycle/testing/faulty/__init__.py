"""Schedulers that are wrong, each in one way that a public report describes. The harness must find every one.

Each class overrides a few lines of a scheduler that is right (:class:`~lifecycle.testing.careful.Careful`, or
:class:`~lifecycle.testing.careful_cache.CarefulWithCache`), says where the fault was seen, and names in `breaks`
the invariant of contract section 8 that it breaks. Together they show what the harness can see: a gallery for
readers, and the measure of the harness in the tests.
"""

from __future__ import annotations

from .answers import (
    FailureReplacesAbort,
    FaultOutranksAbort,
    NeverReportsTheQueued,
    PeerNeverTold,
    PeerToldTwice,
    ReportsTooEarly,
    ReportsTwice,
    SeedAfter,
    SuccessReplacesGrammarError,
    TellsTheBetterReasonToo,
)
from .cache import (
    DropsItsClaimOnAbort,
    DropsItsClaimTwice,
    EvictsTheClaimed,
    EvictsThenClaims,
    FreesTheShared,
    NeverDropsItsClaim,
    PublishesBeforeItIsComputed,
)
from .fault import Faulty
from .pages import (
    DeadlineFrees,
    FailedIsDrained,
    FenceAtTheOldestPass,
    FirstRankSpeaksForAll,
    FreesAtTheFirstOfTwo,
    FreesOnAbort,
    FreesUnderThePass,
    LeaksOnAbort,
    PreemptsTheFinished,
    PublishesAborted,
    QuarantineForgotten,
    SeedBefore,
)
from .scope import (
    AbortOfTheUnknownRaises,
    AbortsByPrefix,
    AdmitsTheRejected,
    FormerLifeEndsTheNew,
    LateCompletionCrashes,
    LaunchesAfterAbort,
    OneFaultEndsAll,
    SendsAfterAbort,
    StaleAttemptFreesTheNew,
)

GALLERY: tuple[type[Faulty], ...] = (
    SeedBefore,
    SeedAfter,
    FreesOnAbort,
    FreesUnderThePass,
    FenceAtTheOldestPass,
    FreesAtTheFirstOfTwo,
    FailedIsDrained,
    FirstRankSpeaksForAll,
    PreemptsTheFinished,
    DeadlineFrees,
    QuarantineForgotten,
    LeaksOnAbort,
    PublishesAborted,
    EvictsTheClaimed,
    EvictsThenClaims,
    FreesTheShared,
    DropsItsClaimOnAbort,
    DropsItsClaimTwice,
    NeverDropsItsClaim,
    PublishesBeforeItIsComputed,
    FailureReplacesAbort,
    SuccessReplacesGrammarError,
    FaultOutranksAbort,
    TellsTheBetterReasonToo,
    ReportsTwice,
    ReportsTooEarly,
    NeverReportsTheQueued,
    PeerNeverTold,
    PeerToldTwice,
    AbortsByPrefix,
    AbortOfTheUnknownRaises,
    OneFaultEndsAll,
    LateCompletionCrashes,
    StaleAttemptFreesTheNew,
    FormerLifeEndsTheNew,
    LaunchesAfterAbort,
    SendsAfterAbort,
    AdmitsTheRejected,
)
"""Every faulty scheduler: the seed before and after its fix, then pages, the prefix cache, answers, and scope."""

__all__ = ["GALLERY", "Faulty"]
__all__ += [faulty.__name__ for faulty in GALLERY]
