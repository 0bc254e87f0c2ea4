"""Verification: every situation of one request, and small fleets, against what must always hold.

:func:`verify_one` and :func:`verify_fleet` are what ``lifecycle verify`` runs. docs/verification.md says what is
proved, and how.
"""

from .fleets import FleetProof, Lost, verify_fleet
from .one import Broken, Proof, safe_policies, verify_one

__all__ = ["Broken", "FleetProof", "Lost", "Proof", "safe_policies", "verify_fleet", "verify_one"]
