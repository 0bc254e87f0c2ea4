"""Verification: every situation of one request, and small fleets, against what must always hold.

:func:`verify_one` is ``lifecycle verify`` for one request. docs/verification.md says what is proved, and how.
"""

from .one import Broken, Proof, safe_policies, verify_one

__all__ = ["Broken", "Proof", "safe_policies", "verify_one"]
