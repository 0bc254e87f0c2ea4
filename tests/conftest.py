"""What all tests share: the profiles of Hypothesis, and tests for CUDA devices skipped where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lifecycle.testing import profiles

CUDA_TESTS = Path(__file__).parent / "cuda"

# The plugin takes the profile that LIFECYCLE_PROFILE names. Where none is named it is "ci" if CI is set, which
# tries the same examples in each run.
if profiles.named() is None:
    profiles.load(profiles.CI if os.environ.get("CI") else profiles.DEFAULT)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything under tests/cuda, so that no file can forget to, and skip it without a device."""
    for item in items:
        if CUDA_TESTS in item.path.parents:
            item.add_marker(pytest.mark.cuda)
    for_cuda = [item for item in items if item.get_closest_marker("cuda")]
    if for_cuda and (missing := _missing_cuda()):
        for item in for_cuda:
            item.add_marker(pytest.mark.skip(reason=missing))


def _missing_cuda() -> str | None:
    """Why tests for CUDA cannot run here, or None where they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    return None
