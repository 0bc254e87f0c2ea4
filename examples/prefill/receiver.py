"""The decode worker: gives pages to write to, and checks every byte that arrives.

It looks at a page when the op that brought it has ended, and compares all of it with what that request's
prompt must give. It believes nobody: a transfer that "succeeded" with another request's KV is found here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvpool import KVLayout, Lease, PagePool

from .model import kv_values

if TYPE_CHECKING:
    from .engine import Op

SLAB = 512


class Receiver:
    """A pool of its own, as large as it has to be: shortage on this side is another story.

    Attributes:
        right_bytes: arrived, handed over as good, and equal to what the prompt gives.
        wrong_bytes: arrived and different, by whatever transfer.
        spoilt: attempts (rid, number) of which a transfer reported success with wrong bytes.
    """

    def __init__(self, layout: KVLayout) -> None:
        self.pool = PagePool(layout, SLAB, slab_pages=SLAB)
        self.right_bytes = 0
        self.wrong_bytes = 0
        self.spoilt: set[tuple[str, int]] = set()

    def expect(self, pages: int, rid: str, attempt: int) -> Lease:
        """Pages for one op to write to."""
        lease = self.pool.try_alloc(pages, rid=rid, attempt=attempt)
        while not isinstance(lease, Lease):
            self.pool.grow()
            lease = self.pool.try_alloc(pages, rid=rid, attempt=attempt)
        return lease

    def ended(self, op: Op) -> None:
        """The op writes no more. Check what it wrote; the pages are free again. Runs in the transfer thread."""
        layout = self.pool.layout
        for index in range(op.copied):
            start = (op.first_page + index) * layout.page_size
            stop = min(start + layout.page_size, op.prompt_tokens)
            arrived = op.target.page_view(index)[:, :, : stop - start]
            due = kv_values(layout, op.number, start, stop).expand_as(arrived)
            nbytes = arrived.numel() * layout.dtype.itemsize
            if torch.equal(arrived, due):
                self.right_bytes += nbytes if op.succeeded else 0
            else:
                self.wrong_bytes += int((arrived != due).sum()) * layout.dtype.itemsize
                if op.succeeded:
                    self.spoilt.add((op.rid, op.attempt))
        op.target.release(by="decode worker")
