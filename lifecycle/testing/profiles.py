"""Profiles: how much is tried. ``default`` at the desk, ``ci`` the same in each run, ``nightly`` far more.

    LIFECYCLE_PROFILE=nightly pytest tests/test_my_scheduler.py

The pytest plugin (:mod:`lifecycle.testing.plugin`) loads the one that ``LIFECYCLE_PROFILE`` names. To Hypothesis
they are called ``lifecycle-default``, ``lifecycle-ci`` and ``lifecycle-nightly``, since a plugin must not change
what another project means by ``ci``; ``--hypothesis-profile lifecycle-nightly`` works too. A scheduler contract
that has no settings of its own follows them (:func:`of_profile`), and so does ``lifecycle fuzz --profile``.

No profile has a deadline: a busy machine is no failure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs
from hypothesis import settings

VARIABLE = "LIFECYCLE_PROFILE"
DEFAULT, CI, NIGHTLY = "default", "ci", "nightly"


@attrs.frozen
class Profile:
    """How much is tried.

    Attributes:
        examples: of a scheduler contract.
        settings: of any other test.
        seed: of ``lifecycle fuzz``; None: another one in each run.
    """

    examples: int
    settings: settings
    seed: int | None = None


PROFILES: Mapping[str, Profile] = {
    DEFAULT: Profile(1_200, settings(deadline=None)),
    # The same examples in each run, so that a change is never blamed for an older fault.
    CI: Profile(
        1_200, settings(deadline=None, derandomize=True, database=None, print_blob=True), seed=0
    ),
    NIGHTLY: Profile(20_000, settings(deadline=None, max_examples=20_000, print_blob=True)),
}


def named(environ: Mapping[str, str] = os.environ) -> str | None:
    """The profile that the environment names; None where it names none.

    Raises:
        ValueError: there is no such profile.
    """
    name = environ.get(VARIABLE)
    if not name:
        return None
    if name not in PROFILES:
        msg = f"{VARIABLE}={name!r} is no profile; the profiles are {', '.join(PROFILES)}"
        raise ValueError(msg)
    return name


def register() -> None:
    """Make the profiles known to Hypothesis."""
    for name, profile in PROFILES.items():
        settings.register_profile(f"lifecycle-{name}", profile.settings)


def load(name: str) -> None:
    """Take a profile, for all tests that come."""
    register()
    settings.load_profile(f"lifecycle-{name}")


def of_profile(config: settings) -> settings:
    """`config` with as many examples as the profile has that the environment names; unchanged if it names none."""
    name = named()
    if name is None:
        return config
    profile = PROFILES[name]
    return settings(config, max_examples=profile.examples, derandomize=profile.seed is not None)
