"""Mooncake's transfer engine: writes to a peer whose failure is a verdict and never a drain.

Measured on the real engine (0.3.13.post1, TCP on loopback): it has no cancel, and after it reported -1 for a
frozen peer, nearly all of the transfer still went out when the peer resumed, with bytes written to the source
*after* the verdict. So a failure here yields ``transfer_failed`` alone. The pages stay claimed until the drain
deadline, and go to quarantine.

The engine frees the id of a transfer when it reports 1 or -1, and may give it to another one. :class:`Transfers`
forgets an id with its first terminal status and never polls it again.
"""

from __future__ import annotations

from typing import Any

import attrs

from lifecycle import Driver, Event, Hold, LifecycleError, RequestLifecycle

from .versions import installed, require, warn_if_untested

TESTED = "0.3.13.post1"
_NAMES = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
_NEEDED = ("transfer_submit_write", "transfer_check_status")


class TransferRefused(LifecycleError):
    """The engine did not take a transfer. Whether it touched the pages is not known: treat the op as failed."""


@attrs.frozen
class Op:
    """One write that was posted: of which attempt of which life, and the op's name."""

    rid: str
    incarnation: int
    attempt: int
    name: str


class Transfers:
    """The writes of one engine; as a port, ``lifecycle.ports.TransferEngine``.

    Args:
        engine: an initialised ``mooncake.engine.TransferEngine``, its memory registered.

    Raises:
        UnsupportedSystemError: the engine lacks a method that is called here.
    """

    def __init__(self, engine: Any) -> None:
        require(engine, _NEEDED, system="Mooncake")
        warn_if_untested("Mooncake", installed(_NAMES), TESTED, TESTED)
        self._engine = engine
        self._running: dict[int, Op] = {}

    @property
    def running(self) -> tuple[Op, ...]:
        """What has no terminal status yet."""
        return tuple(self._running.values())

    def post(
        self, request: RequestLifecycle, name: str, peer: str, source: int, target: int, size: int
    ) -> None:
        """Post a write, after the event that takes its claim (``transfer_posted`` or ``prefill_finished``).

        Args:
            request: whose newest attempt it belongs to.
            name: the op, as the claim names it.
            peer: the other engine, ``host:port``.
            source: address of the first byte here, in registered memory.
            target: address at the peer.
            size: bytes.

        Raises:
            TransferRefused: the engine did not take it. Fire ``transfer_failed``; the claim stays.
        """
        number = self._engine.transfer_submit_write(peer, source, target, size)
        if number <= 0:
            msg = f"Mooncake refused op {name!r} of request {request.rid!r} to {peer} ({number})"
            raise TransferRefused(msg)
        self._running[number] = Op(request.rid, request.incarnation, request.attempt, name)

    def cancel(self, hold: Hold) -> None:
        """Nothing: the engine cannot cancel. What is posted runs on, so its claim stays until it ends."""

    def poll(self, driver: Driver, *, now: float | None = None) -> tuple[LifecycleError, ...]:
        """Ask about every running write once, and fire what came of it. Returns what requests could not take."""
        errors: list[LifecycleError] = []
        for number, op in list(self._running.items()):
            status = self._engine.transfer_check_status(number)
            if status == 0:
                continue
            del self._running[number]  # the engine has freed it
            event = Event.TRANSFER_SUCCEEDED if status == 1 else Event.TRANSFER_FAILED
            try:
                driver.fire(
                    op.rid,
                    event,
                    incarnation=op.incarnation,
                    attempt=op.attempt,
                    op=op.name,
                    now=now,
                )
            except LifecycleError as error:
                errors.append(error)
        return tuple(errors)
