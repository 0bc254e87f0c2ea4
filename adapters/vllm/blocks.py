"""A view of vLLM's block pool for a connector: it gives back what it took, once.

vLLM hands its ``BlockPool`` to the connector, which pins blocks with ``touch`` and lets go of them with
``free_blocks``. The pool believes every free. One too many takes a reference of somebody else: the count falls to
-1 and a later allocation fails elsewhere, or, if the block was given to another request meanwhile, that request's
block is given to a third.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class GuardedBlockPool:
    """A block pool that knows what its holder has pinned; all else is the pool's own.

    Args:
        pool: vLLM's ``BlockPool``.
        on_late: called with the id of a block that the holder frees and does not hold.
        passive: such a free is passed on all the same.

    Attributes:
        late: how many frees of blocks that the holder does not hold there were.
    """

    def __init__(
        self, pool: Any, *, on_late: Callable[[int], None] | None = None, passive: bool = False
    ) -> None:
        self._pool, self._on_late, self._passive = pool, on_late, passive
        self._pins: Counter[int] = Counter()
        self.late = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    @property
    def pinned(self) -> dict[int, int]:
        """For each block id that is pinned, how many times."""
        return dict(self._pins)

    def touch(self, blocks: Sequence[Any]) -> None:
        """Pin blocks."""
        self._pool.touch(blocks)
        self._pins.update(block.block_id for block in blocks if not block.is_null)

    def get_new_blocks(self, num_blocks: int, *args: Any, **kwargs: Any) -> list[Any]:
        """Allocate blocks; the holder has them."""
        blocks: list[Any] = self._pool.get_new_blocks(num_blocks, *args, **kwargs)
        self._pins.update(block.block_id for block in blocks)
        return blocks

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Let go of blocks. What is not pinned (any more) is absorbed and counted."""
        held = []
        for block in ordered_blocks:
            if block.is_null:
                continue
            if self._pins[block.block_id] > 0:
                self._pins[block.block_id] -= 1
                held.append(block)
            else:
                self.late += 1
                if self._on_late is not None:
                    self._on_late(block.block_id)
                if self._passive:
                    held.append(block)
            if not self._pins[block.block_id]:
                del self._pins[block.block_id]
        self._pool.free_blocks(held)


class ManagerView:
    """vLLM's ``KVCacheManager`` as a connector sees it: the same, with a guarded block pool."""

    def __init__(self, manager: Any, pool: GuardedBlockPool) -> None:
        self._manager = manager
        self.block_pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)
