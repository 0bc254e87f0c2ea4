"""The page table that attention kernels read: one row of page ids a request, on the device.

The table is ``[max_requests, max_pages]`` int32 on the pool's device, with ``lengths``
``[max_requests]`` beside it. Rows are changed on the host as requests come, grow and go;
:meth:`PageTable.commit` then sends all changed rows at once, from pinned memory, without waiting
for the device: one copy and two scatters a step, however many rows changed. The addresses never
change, so a captured CUDA graph can read them.

A row belongs to a lease, and :meth:`PageTable.commit` refuses to go on with a row whose lease was
released: the kernel would read or write pages that another request has by now.
"""

from __future__ import annotations

import torch

from kvpool.errors import ForeignLeaseError, TokenRangeError
from kvpool.lease import Lease
from kvpool.pool import PagePool


class PageTable:
    """Page ids of up to ``max_requests`` requests of up to ``max_pages`` pages each.

    Unused entries are ``fill`` (0 by default, since kernels may load an id before they look at the
    length). Not for several threads: it belongs to the scheduler's loop.
    """

    def __init__(self, pool: PagePool, max_requests: int, max_pages: int, *, fill: int = 0) -> None:
        self.pool = pool
        self.fill = fill
        shape = (max_requests, max_pages)
        self.table = torch.full(shape, fill, dtype=torch.int32, device=pool.device)
        self.lengths = torch.zeros(max_requests, dtype=torch.int32, device=pool.device)
        # One column more than the table: a row's length travels with its ids.
        self._host = torch.full((max_requests, max_pages + 1), fill, dtype=torch.int32)
        self._host[:, -1] = 0
        self._leases: dict[int, Lease] = {}
        self._free_rows = list(range(max_requests))[::-1]
        self._dirty: set[int] = set()

    def add(self, lease: Lease) -> int:
        """Give ``lease`` a row; returns its number. Raises TokenRangeError if no row is left."""
        if not self._free_rows:
            message = f"all {self.table.shape[0]} rows of the page table are in use"
            raise TokenRangeError(message)
        row = self._free_rows[-1]
        self._write(row, lease)
        self._free_rows.pop()
        return row

    def update(self, row: int) -> None:
        """Take over pages that the lease of ``row`` was extended by."""
        self._write(row, self._lease_of(row))

    def remove(self, row: int) -> None:
        """The request of ``row`` is gone. Do this before or right after its release, before the
        next commit.
        """
        self._lease_of(row)
        del self._leases[row]
        self._host[row] = self.fill
        self._host[row, -1] = 0
        self._free_rows.append(row)
        self._dirty.add(row)

    def commit(self) -> int:
        """Send the changed rows to the device, in the current stream's order; returns how many they
        were.

        Raises StaleLeaseError if a row's lease was released and the row not removed; then nothing
        is sent.
        """
        for row, lease in self._leases.items():
            lease._check_held(f"commit row {row} of the page table")
        rows = sorted(self._dirty)
        if not rows:
            return 0
        on_cuda = self.pool.device.type == "cuda"
        index = torch.tensor(rows, dtype=torch.int64, pin_memory=on_cuda)
        staged = torch.empty(
            (len(rows), self._host.shape[1]), dtype=torch.int32, pin_memory=on_cuda
        )
        torch.index_select(self._host, 0, torch.tensor(rows, dtype=torch.int64), out=staged)
        # torch keeps the pinned memory until the copies are over, so the host may go on at once.
        device_rows = index.to(self.pool.device, non_blocking=True)
        device_values = staged.to(self.pool.device, non_blocking=True)
        self.table.index_copy_(0, device_rows, device_values[:, :-1])
        self.lengths.index_copy_(0, device_rows, device_values[:, -1])
        self._dirty.clear()
        return len(rows)

    def _lease_of(self, row: int) -> Lease:
        lease = self._leases.get(row)
        if lease is None:
            message = f"row {row} of the page table belongs to nobody; used: {sorted(self._leases)}"
            raise TokenRangeError(message)
        return lease

    def _write(self, row: int, lease: Lease) -> None:
        if lease.pool is not self.pool:
            message = f"{lease!r} is of another pool than this page table"
            raise ForeignLeaseError(message, lease)
        lease._check_held("enter it in the page table")
        pages = lease.pages
        if len(pages) > self.table.shape[1]:
            message = (
                f"{lease!r} does not fit in a page table of {self.table.shape[1]} pages a request"
            )
            raise TokenRangeError(message)
        self._host[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self._host[row, -1] = len(pages)
        self._leases[row] = lease
        self._dirty.add(row)
