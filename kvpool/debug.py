"""Debug mode: call sites, and poison that shows who wrote to a page that was free.

A free page is filled with the byte 0xFF, which every floating point type reads as not-a-number, so
a reader of stale pages is noticed too. When the page is given out again the poison is looked at: if
it changed, somebody wrote after the page was free (a late kernel, or a network card that was not
proven to have drained) and the pool can name the last owner and its ops. This costs time and, on
CUDA, synchronisations: it is for tests and for hunting.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import torch

from kvpool.lease import Lease
from kvpool.slabs import Slab

POISON = 0xFF
_HERE = str(Path(__file__).parent)


def call_site() -> str:
    """The nearest caller outside this package: ``file:line in function (thread name)``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    code = frame.f_code
    thread = threading.current_thread().name
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name} ({thread})"


def _bytes_of(slab: Slab, page: int) -> torch.Tensor:
    return slab.page_view(page).view(torch.uint8)


def _settle_device(slab: Slab) -> None:
    """The poison has to be in place before anybody on another stream gets the page."""
    if slab.buffer.is_cuda:
        torch.cuda.current_stream(slab.buffer.device).synchronize()


class DebugLog:
    """The last owner of each page, and the poison in the free ones."""

    def __init__(self) -> None:
        self.last_owner: dict[int, Lease] = {}

    def note_end(self, lease: Lease) -> None:
        """``lease`` ended: it is the last owner of its pages, until another is."""
        for page in lease._pages:
            self.last_owner[page] = lease

    def poison(self, slab: Slab, pages: Iterable[int]) -> None:
        """Fill pages that became free."""
        for page in pages:
            _bytes_of(slab, page).fill_(POISON)
        _settle_device(slab)

    def spoilt(self, slab: Slab, pages: Iterable[int]) -> list[int]:
        """Those of these free pages whose poison has changed."""
        return [page for page in pages if bool((_bytes_of(slab, page) != POISON).any())]

    def describe(self, page: int) -> str:
        """The last owner of ``page`` and its ops, in words."""
        lease = self.last_owner.get(page)
        if lease is None:
            return f"page {page}: never owned by anybody"
        more = lease._more
        drained = [] if more is None else more.past_ops
        open_ops = () if more is None else more.end_ops
        site = (
            "" if more is None or more.alloc_site is None else f", allocated at {more.alloc_site}"
        )
        return (
            f"page {page}: last owner request {lease.rid!r} attempt {lease.attempt} (lease "
            f"{lease.generation}{site}), {lease._end_record()}; ops drained: {list(drained)}, "
            f"ops open at the end: {list(open_ops)}"
        )
