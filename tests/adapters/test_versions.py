"""adapters.versions: what is missing, moved or untested is said before the first request."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from adapters.versions import (
    MissingSystemError,
    UnsupportedSystemError,
    UntestedVersionWarning,
    installed,
    load,
    require,
    warn_if_untested,
)


def test_what_is_not_installed_says_how_to_install_it():
    with pytest.raises(MissingSystemError, match=r"no_such_engine cannot be .*pip install engine"):
        load("no_such_engine", install="pip install engine")
    assert load("json", install="").loads("1") == 1


def test_missing_methods_are_refused_by_name():
    require(SimpleNamespace(poll=1, post=2), ("poll", "post"), system="engine 2")
    with pytest.raises(
        UnsupportedSystemError, match=r"engine 2 cannot be governed: .* has no abort, poll"
    ):
        require(SimpleNamespace(post=2), ("poll", "abort", "post"), system="engine 2")


@pytest.mark.parametrize("found", ["2.6", "2.6.0", "2.10.1+cpu", "2.13.0", "2.13"])
def test_a_tested_version_is_not_warned_of(found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested("torch", found, "2.6", "2.13.0")


@pytest.mark.parametrize("found", ["2.5.1", "2.13.1", "3.0", None, "unknown"])
def test_another_version_is_a_warning_with_the_tested_range(found):
    with pytest.warns(UntestedVersionWarning, match=r"torch .* tested: 2\.6 to 2\.13\.0"):
        warn_if_untested("torch", found, "2.6", "2.13.0")


def test_the_first_distribution_that_is_installed_counts():
    assert installed(["no-such-distribution", "pytest"]) == pytest.__version__
    assert installed(["no-such-distribution"]) is None
