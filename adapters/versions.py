"""What an adapter may assume of the package that it governs: that it is there, has its methods, and was tested.

Each is said once and clearly: how to install what is missing, a warning with the tested range for another version,
and a refusal that names the methods which the adapter needs and does not find. A system whose parts have moved is
refused before the first request, not in the middle of one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from lifecycle import LifecycleError


class MissingSystemError(LifecycleError, ImportError):
    """The package that an adapter governs is not installed, or cannot be loaded."""


class UnsupportedSystemError(LifecycleError):
    """The package lacks what the adapter needs: it is of a version that the adapter cannot govern."""


class UntestedVersionWarning(UserWarning):
    """The package has what the adapter needs, but is of a version that the adapter was not tested with."""


def load(module: str, *, install: str) -> ModuleType:
    """Import `module`.

    Raises:
        MissingSystemError: it cannot be imported; the message says why, and `install` how to install it.
    """
    try:
        return import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library that is missing
        msg = f"{module} cannot be imported ({error}); install it with: {install}"
        raise MissingSystemError(msg) from error


def require(owner: object, names: Iterable[str], *, system: str) -> None:
    """Check that `owner` has the attributes `names`.

    Raises:
        UnsupportedSystemError: it lacks some; the message names them.
    """
    missing = sorted(name for name in names if not hasattr(owner, name))
    if missing:
        what = getattr(owner, "__name__", type(owner).__name__)
        msg = f"{system} cannot be governed: {what} has no {', '.join(missing)}"
        raise UnsupportedSystemError(msg)


def installed(distributions: Iterable[str]) -> str | None:
    """The version of the first of `distributions` that is installed; None if none is."""
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def warn_if_untested(
    system: str, found: str | None, oldest: str, newest: str, *, stacklevel: int = 3
) -> None:
    """Warn if version `found` is not between `oldest` and `newest`, both included.

    Versions are compared by the numbers of their release: ``2.13.0+cpu`` is 2.13.0.
    """
    if found is not None and _release(oldest) <= _release(found) <= _release(newest):
        return
    tested = oldest if oldest == newest else f"{oldest} to {newest}"
    text = f"{system} {found or 'of unknown version'} was not tested with this adapter; tested: {tested}"
    warnings.warn(text, UntestedVersionWarning, stacklevel=stacklevel)


def _release(text: str) -> tuple[int, ...]:
    """The release numbers, without trailing zeros, so that 2.6 and 2.6.0 are the same."""
    match = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
