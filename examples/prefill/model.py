"""The model: forward passes that write KV into pages, in a device thread of their own.

What it writes is a function of request, position, layer and K or V, so that whoever reads a page later can
tell whose it is. Like a kernel it is given page numbers and asks nobody whether they are still right.

Passes run one after another in the order of their launch, as on a CUDA stream, and the host sees a result
when it asks for it. So a pass may be running while its request is aborted.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import attrs
import torch

from kvpool import KVLayout, PagePool

from .load import LONGEST_PROMPT

EXACT = 1 << 24
"""Whole numbers below this are exact in float32."""


def kv_values(layout: KVLayout, number: int, start: int, stop: int) -> torch.Tensor:
    """The KV of tokens ``start`` to ``stop`` of request ``number``: ``[layers, 2, stop - start, 1, 1]``, float32.

    Two requests never share a value, up to 2**24 / (prompt length * planes) requests.
    """
    planes = torch.arange(layout.layers * 2).view(layout.layers, 2, 1, 1, 1)
    tokens = torch.arange(start, stop).view(1, 1, -1, 1, 1) + number * LONGEST_PROMPT
    return ((tokens * layout.layers * 2 + planes) % EXACT).to(layout.dtype)


@attrs.frozen(eq=False)
class Chunk:
    """Tokens ``start`` to ``stop`` of one request in a pass; ``pages`` are all its page numbers so far."""

    attempt: int
    number: int
    pages: tuple[int, ...]
    start: int
    stop: int


@attrs.frozen(eq=False)
class Pass:
    """A forward pass that was launched."""

    _written: Future[None]

    def wait(self) -> None:
        """Until the device is through with it."""
        self._written.result()


class Model:
    """Runs passes over the pages of ``pool``."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._device = ThreadPoolExecutor(1, thread_name_prefix="device")

    def launch(self, chunks: Sequence[Chunk]) -> Pass:
        """Queue a pass and return at once."""
        return Pass(self._device.submit(self._forward, tuple(chunks)))

    def close(self) -> None:
        """End the device thread."""
        self._device.shutdown()

    def _forward(self, chunks: tuple[Chunk, ...]) -> None:
        size = self._pool.layout.page_size
        for chunk in chunks:
            kv = kv_values(self._pool.layout, chunk.number, chunk.start, chunk.stop)
            for token in range(chunk.start - chunk.start % size, chunk.stop, size):
                first, last = max(token, chunk.start), min(token + size, chunk.stop)
                page = self._pool.page_view(chunk.pages[token // size])
                page[:, :, first - token : last - token] = kv[
                    :, :, first - chunk.start : last - chunk.start
                ]
