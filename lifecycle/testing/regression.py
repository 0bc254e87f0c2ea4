"""A finding as a pytest file of its own, which plays the same script to the scheduler again.

    text = regression(broken, "my_scheduler:Mine", Capabilities(), seed=3)

The file needs nothing but this library and the scheduler. It fails for as long as the scheduler is wrong. After
the script everything comes to its end, so a scheduler that was mended must also end well.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ..vocabulary import AbortSource, Event, GrammarCause
from .player import Action, Capabilities, ContractBroken, MakeScheduler, Player

# Which argument of an action is a word of which vocabulary. A scheduler may compare them by identity.
_WORDS: dict[str, tuple[int, Callable[[str], Any]]] = {
    "abort": (2, AbortSource),
    "grammar": (2, GrammarCause),
    "again": (1, Event),
    "trouble": (2, Event),
}


def plain(script: Sequence[Action]) -> list[Action]:
    """A script as plain words and numbers, as it stands in a file."""
    return [tuple(str(x) if isinstance(x, str) else x for x in action) for action in script]


def play(
    make_scheduler: MakeScheduler, capabilities: Capabilities, script: Sequence[Action]
) -> None:
    """Play a script to a scheduler, and then let everything come to its end.

    Args:
        make_scheduler: builds the scheduler on a world.
        capabilities: what it can do.
        script: actions as :attr:`~lifecycle.testing.player.ContractBroken.script` has them, or as plain words.

    Raises:
        ContractBroken: an invariant broke.
    """
    player = Player(make_scheduler, capabilities)
    for action in script:
        player.play(*_meant(action))
    if not script or script[-1][0] != "settle":
        player.play("settle")


def _meant(action: Action) -> Action:
    place, word = _WORDS.get(action[0], (0, str))
    if not place or action[place] is None:
        return action
    return (*action[:place], word(action[place]), *action[place + 1 :])


def regression(
    broken: ContractBroken, spec: str, capabilities: Capabilities, *, seed: int | None = None
) -> str:
    """The text of a pytest file.

    Args:
        broken: what was found.
        spec: ``package.module:factory``, where the scheduler is made.
        capabilities: what it can do.
        seed: with which it was found.
    """
    module, _, factory = spec.partition(":")
    claimed = [
        f"{field.name}={getattr(capabilities, field.name)}"
        for field in attrs.fields(Capabilities)
        if getattr(capabilities, field.name) != field.default
    ]
    seeded = "" if seed is None else f" --seed {seed}"
    lines = [
        json.dumps(str(broken.violation)),  # a docstring; JSON escapes what Python would not take
        "",
        f"# Found by `lifecycle fuzz {spec}{seeded}`. Run it where {module} can be imported:",
        "# python -m pytest THIS_FILE",
        "#",
        "# What happened:",
        *(f"#     {json.dumps(line)}" for line in broken.trace),
        "",
        "from lifecycle.testing.contract import Capabilities",
        "from lifecycle.testing.regression import play",
        f"from {module} import {factory.partition('.')[0]}",
        "",
        f"CAPABILITIES = Capabilities({', '.join(claimed)})",
        "SCRIPT = [",
        *(f"    {action!r}," for action in plain(broken.script)),
        "]",
        "",
        "",
        f"def test_{broken.violation.invariant}():",
        f"    play({factory}, CAPABILITIES, SCRIPT)",
        "",
    ]
    return "\n".join(lines)


def importable(spec: str) -> bool:
    """Whether `spec` is ``module:factory``, of names that an import statement takes."""
    module, colon, factory = spec.partition(":")
    return bool(colon) and all(
        part.isidentifier() and not keyword.iskeyword(part)
        for part in (*module.split("."), *factory.split("."))
    )
