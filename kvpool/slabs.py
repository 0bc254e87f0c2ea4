"""Slabs: the real tensors that a pool is made of, each of which can be given back to the driver.

Pages of one tensor can only be returned to the device together: ``torch.cuda.empty_cache`` gives
nothing back while any part of a segment is alive. So a pool that wants to shrink has to be made of
several tensors, and must take care that some of them become empty (see :mod:`kvpool.pool` on
compaction).

- On CUDA each slab is allocated from a ``torch.cuda.MemPool`` of its own, so that no other tensor
  can share its segments. To drop it: synchronize the device (unmapping memory that a kernel still
  uses is a known fault of other allocators), drop the tensor and its MemPool, ``empty_cache()``.
- On CPU each slab is an anonymous memory map, so that the resident set falls at once when it is
  dropped, whatever the C library's allocator thinks; nothing is resident before it is written.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

import attrs
import torch

from kvpool.errors import DeviceMemoryError, PageOutOfRangeError
from kvpool.layout import KVLayout

Pages = Sequence[int]
"""Page ids that do not change: a ``range`` while they are adjacent, else a tuple. Both slice
quickly.
"""


def join_pages(parts: list[Pages]) -> Pages:
    """The ids of ``parts`` in this order, as one range if they are adjacent."""
    if len(parts) == 1:
        return parts[0]
    end = parts[0][0]
    for part in parts:
        if not isinstance(part, range) or part.start != end:
            return tuple(chain.from_iterable(parts))
        end = part.stop
    return range(parts[0][0], end)


class Slab:
    """A run of pages in one tensor.

    ``chunks`` is the stack of its free pages, in chunks as they were released, and ``free_count``
    says how many pages that are; only the pool touches them. A release puts the pages of its lease
    back as they are, and an allocation of as many pages takes them as they are: neither looks at
    single pages.
    """

    __slots__ = (
        "_buffer",
        "_memory_pool",
        "_tokens",
        "chunks",
        "first_page",
        "free_count",
        "index",
        "layout",
        "pages",
    )

    def __init__(
        self,
        layout: KVLayout,
        index: int,
        pages: int,
        buffer: torch.Tensor,
        memory_pool: object = None,
    ) -> None:
        self.layout = layout
        self.index = index
        self.pages = pages
        self.first_page = index * pages
        self._buffer: torch.Tensor | None = buffer
        self._tokens: torch.Tensor | None = layout.token_view(buffer)
        self.chunks: list[Pages] = (
            [range(self.first_page, self.first_page + pages)] if pages else []
        )
        self.free_count = pages
        self._memory_pool = memory_pool

    @property
    def buffer(self) -> torch.Tensor:
        """The whole slab; its shape is told at the head of :mod:`kvpool.layout`."""
        if self._buffer is None:
            message = f"{self!r} was trimmed: it has no memory any more"
            raise PageOutOfRangeError(message)
        return self._buffer

    @property
    def tokens(self) -> torch.Tensor:
        """The whole slab with pages and their tokens on one axis."""
        if self._tokens is None:
            message = f"{self!r} was trimmed: it has no memory any more"
            raise PageOutOfRangeError(message)
        return self._tokens

    def free_pages(self) -> list[int]:
        """The ids of the free pages, in the order of the stack."""
        return list(chain.from_iterable(self.chunks))

    def drop(self) -> None:
        """Let go of the memory. Stale leases may keep this object, so it cannot wait for the last
        reference.
        """
        self._buffer = self._tokens = self._memory_pool = None

    def page_view(self, page: int) -> torch.Tensor:
        """Page ``page`` (an id of the pool) of this slab, without a copy."""
        return self.buffer.select(self.layout.page_axis, page - self.first_page)

    def keys(self, layer: int) -> torch.Tensor:
        """The keys of one layer, ``[pages, page_size, kv_heads, head_dim]`` (latent: the latent
        buffer).
        """
        return self.buffer[layer] if self.layout.is_latent else self.buffer[layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """The values of one layer, ``[pages, page_size, kv_heads, head_dim]`` (latent: the latent
        buffer).
        """
        return self.buffer[layer] if self.layout.is_latent else self.buffer[layer, 1]

    @property
    def nbytes(self) -> int:
        """Bytes of the slab."""
        return self.layout.total_bytes(self.pages)

    def __repr__(self) -> str:
        return (
            f"<slab {self.index}: pages {self.first_page} to {self.first_page + self.pages - 1}, "
            f"{self.free_count} free>"
        )


class SlabListener(Protocol):
    """Told about slabs that come and go: a transfer engine has to register memory, and to
    unregister it first.
    """

    def slab_added(self, slab: Slab) -> None:
        """The slab exists and none of its pages was given out yet."""

    def slab_dropping(self, slab: Slab) -> None:
        """The slab is about to be dropped; every page is free. An error here keeps the slab."""


@attrs.frozen
class TrimReport:
    """What :meth:`kvpool.pool.PagePool.trim` gave back.

    ``free_before`` and ``free_after`` are what the device says it has free, in bytes, or None where
    it does not say (on CPU: the resident set of this process, negated, so that the difference reads
    the same way).
    """

    slabs: int
    pages: int
    nbytes: int
    free_before: int | None
    free_after: int | None

    @property
    def observed_bytes(self) -> int | None:
        """The bytes by which the device's free memory was seen to grow."""
        if self.free_before is None or self.free_after is None:
            return None
        return self.free_after - self.free_before


def device_free_bytes(device: torch.device) -> int | None:
    """Bytes that the device has free: ``mem_get_info`` on CUDA, ``MemAvailable`` on Linux, else
    None.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _observed_free(device: torch.device) -> int | None:
    """A figure that grows by what is given back: see :class:`TrimReport`."""
    if device.type == "cuda":
        return device_free_bytes(device)
    try:
        resident = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return -int(resident) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def require_memory(layout: KVLayout, pages: int, device: torch.device, what: str) -> None:
    """Raise DeviceMemoryError if ``device`` has less free memory than ``pages`` pages need."""
    needed = layout.total_bytes(pages)
    free = device_free_bytes(device)
    if free is not None and needed > free:
        fits = free // layout.bytes_per_page
        message = (
            f"{what} needs {needed:,} bytes ({pages:,} pages; {layout}) but {device} has "
            f"{free:,} bytes free, enough for {fits:,} pages. Nothing was allocated"
        )
        raise DeviceMemoryError(
            message,
            device=str(device),
            needed=needed,
            free=free,
        )


def _private_map(nbytes: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, nbytes)


def make_slab(layout: KVLayout, index: int, pages: int, device: torch.device) -> Slab:
    """Allocate one slab. Raises DeviceMemoryError if the device refuses."""
    nbytes = layout.total_bytes(pages)
    memory_pool: object = None
    try:
        if device.type == "cuda":
            memory_pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(memory_pool, device=device):
                buffer = torch.empty(layout.shape(pages), dtype=layout.dtype, device=device)
        elif device.type == "cpu":
            # The tensor keeps the map alive; the last view to go unmaps it.
            raw = torch.frombuffer(_private_map(nbytes), dtype=torch.uint8)
            buffer = raw.view(layout.dtype).view(layout.shape(pages))
        else:
            buffer = torch.empty(layout.shape(pages), dtype=layout.dtype, device=device)
    except (torch.cuda.OutOfMemoryError, OSError) as error:
        message = f"{device} refused a slab of {nbytes:,} bytes: {error}"
        raise DeviceMemoryError(
            message,
            device=str(device),
            needed=nbytes,
            free=device_free_bytes(device),
        ) from error
    return Slab(layout, index, pages, buffer, memory_pool)


def drop_slabs(slabs: list[Slab], device: torch.device) -> TrimReport:
    """Give the memory of ``slabs`` back to the device. No page of them may be in use."""
    count, pages = len(slabs), sum(slab.pages for slab in slabs)
    nbytes = sum(slab.nbytes for slab in slabs)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    before = _observed_free(device)
    for slab in slabs:
        slab.drop()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return TrimReport(count, pages, nbytes, before, _observed_free(device))
