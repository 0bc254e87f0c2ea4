"""The load: requests and everything that goes wrong with them, drawn from a seed.

Each request draws its faults independently of the others, so that they also come together: a grammar error
while a slow transfer runs, an abort of a request whose transfer has failed. Times are turns of the
scheduler's loop.
"""

from __future__ import annotations

import random

import attrs

LONGEST_PROMPT = 384
"""Tokens; the pool must hold one such prompt at least."""
QUIET, BUSY = 1.2, 4.0
"""Arrivals a turn; they come in waves of ``WAVE`` turns, so that pages run short now and then."""
WAVE = 40
MOST_DEAD_PEERS = 4
"""Peers that die for good take pages out of circulation, so a load has few of them, whatever its size."""


@attrs.frozen
class TransferPlan:
    """How the network treats the pages of one request. Pages are counted from the start of the prompt.

    ``pace`` is in pages a beat. From page ``fails_at`` on the verdict is *failed*, while the copy goes on, at
    ``late_pace``. At page ``stalls_at`` the peer stops answering: the verdict is *failed* soon after, and the
    copy goes on after ``resumes_after`` beats, or never if that is None.
    """

    pace: float = 2.0
    fails_at: int | None = None
    late_pace: float = 0.25
    stalls_at: int | None = None
    resumes_after: int | None = None


@attrs.frozen
class Spec:
    """One request: what the client wants, and what will happen to it.

    ``abort_after`` and ``deadline`` count turns from the arrival; ``grammar`` is ``"none"``, ``"good"``,
    ``"compile"`` (does not compile) or ``"rejected"`` (refuses the first token); ``breaks`` says that a
    forward pass fails on this request.
    """

    number: int
    rid: str
    prompt_tokens: int
    arrives: int
    grammar: str
    compile_turns: int
    abort_after: int | None
    deadline: int | None
    breaks: bool
    transfer: TransferPlan


def make_load(requests: int, seed: int) -> list[Spec]:
    """``requests`` requests in order of arrival. The same seed gives the same load."""
    dice = random.Random(f"prefill load {seed}")
    dead = set(dice.sample(range(requests), min(MOST_DEAD_PEERS, requests // 100)))
    at = 0.0
    load = []
    for number in range(requests):
        at += dice.expovariate(BUSY if int(at / WAVE) % 3 == 2 else QUIET)
        load.append(_draw(dice, number, int(at), dies=number in dead))
    return load


def _draw(dice: random.Random, number: int, arrives: int, *, dies: bool) -> Spec:
    tokens = dice.randint(8, LONGEST_PROMPT)
    grammar = dice.choices(("none", "good", "compile", "rejected"), (72, 14, 4, 10))[0]
    plan = _draw_transfer(dice, tokens, dies=dies)
    if dies:  # so that it gets as far as dying
        grammar = "none"
    hurried = dice.random() < 0.04
    if hurried and not dies:
        plan = attrs.evolve(plan, pace=0.2)
    return Spec(
        number=number,
        rid=f"req-{number}",
        prompt_tokens=tokens,
        arrives=arrives,
        grammar=grammar,
        compile_turns=dice.randint(1, 6),
        abort_after=dice.randint(1, 16) if dice.random() < 0.14 and not dies else None,
        deadline=dice.randint(12, 24) if hurried and not dies else None,
        breaks=dice.random() < 0.01 and not dies,
        transfer=plan,
    )


def _draw_transfer(dice: random.Random, tokens: int, *, dies: bool) -> TransferPlan:
    page = dice.randrange(-(-tokens // 16))
    kind = dice.choices(("fine", "slow", "fails", "freezes"), (85, 7, 7, 1))[0]
    if dies:
        return TransferPlan(stalls_at=page)
    if kind == "slow":
        return TransferPlan(pace=dice.choice((0.25, 0.5)))
    if kind == "fails":
        return TransferPlan(fails_at=page, late_pace=dice.choice((0.125, 0.25, 0.5)))
    if kind == "freezes":
        return TransferPlan(stalls_at=page, resumes_after=dice.randint(60, 120))
    return TransferPlan()
