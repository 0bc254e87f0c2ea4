"""The public names: each can be had, is listed once, and comes from where mypy is told that it comes from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lifecycle

SOURCE = ast.parse(Path(lifecycle.__file__).read_text(encoding="utf-8"))


def told_to_type_checkers() -> dict[str, str]:
    return {
        alias.name: str(node.module)
        for block in SOURCE.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_and_the_interpreter_are_told_the_same():
    assert told_to_type_checkers() == lifecycle._HOME
    assert sorted(lifecycle.__all__) == sorted(lifecycle._HOME)


@pytest.mark.parametrize("name", lifecycle.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(lifecycle, name) is not None
    assert name in dir(lifecycle)


def test_any_other_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = lifecycle.nonsense
