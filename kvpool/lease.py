"""A lease: the right of one attempt of one request to use some pages, until it is released, once.

A lease is made by :meth:`kvpool.pool.PagePool.alloc` and its relatives, never by hand. It is a
handle and not a list of numbers on purpose: whoever has only page ids cannot free them, so an id
that was kept too long can do no harm, and a second release is seen in constant time, whatever the
number of pages.

What a lease goes through::

    held ──release──> pending ──all events reached, all ops drained──> free
      │                  │
      └──quarantine──────┴──> quarantined ──release_quarantine(proof)──> free, or pending on events

With neither streams nor ops to wait for, release goes straight to free. After the release (or
quarantine) the lease is *stale*: it still knows its owner and its page numbers for messages, but
every use raises :class:`~kvpool.errors.StaleLeaseError`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import torch

from kvpool.errors import NotProvenError, OpOpenError, StaleLeaseError, TokenRangeError
from kvpool.streams import EventLike, Fence, StreamLike

if TYPE_CHECKING:
    from kvpool.pending import Waiting
    from kvpool.pool import PagePool
    from kvpool.slabs import Pages, Slab


class LeaseState(enum.Enum):
    """Where the pages of a lease are."""

    HELD = "held"
    PENDING = "pending"
    QUARANTINED = "quarantined"
    FREE = "free"


@attrs.frozen
class EndRecord:
    """Who ended a lease, how and when.

    ``op`` is the pool's operation counter, which only grows; ``time`` is set where the pool was
    given a clock; ``site`` is the call site, with ``debug=True``.
    """

    verb: str
    by: str
    op: int
    time: float | None = None
    site: str | None = None

    def __str__(self) -> str:
        time = "" if self.time is None else f", time {self.time:.6f}"
        site = "" if self.site is None else f", at {self.site}"
        return f"{self.verb} by {self.by} (operation {self.op}{time}{site})"


class Supply(enum.Enum):
    """Whether waiting helps when pages are short."""

    COMING = "coming"
    NONE = "none"


@attrs.frozen
class Shortage:
    """Why an allocation got nothing. Falsy, so ``if lease := pool.try_alloc(n)`` reads well.

    All counts are pages. ``free`` are free now; ``evictable`` are held by the prefix cache alone;
    ``coming`` were released and wait for streams or transfers; ``quarantined`` stay out until an
    operator acts.
    """

    needed: int
    free: int
    evictable: int
    coming: int
    held: int
    quarantined: int
    total: int

    @property
    def supply(self) -> Supply:
        """``COMING`` if the pages that are only waiting will do, ``NONE`` if somebody must give up
        pages.
        """
        enough = self.free + self.evictable + self.coming >= self.needed
        return Supply.COMING if enough else Supply.NONE

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        advice = (
            "the pages that are coming will do: reclaim again after the next step, do not preempt"
            if self.supply is Supply.COMING
            else "waiting does not help: preempt or refuse"
        )
        return (
            f"{self.needed} pages asked for, {self.free} free + {self.evictable} evictable + "
            f"{self.coming} coming (held {self.held}, quarantined {self.quarantined}, "
            f"total {self.total}); {advice}"
        )


class LeaseExtra:
    """What most leases never need, kept apart so that the common lease stays small and quick."""

    __slots__ = (
        "alloc_site",
        "cached_tokens",
        "end_ops",
        "end_site",
        "end_time",
        "ops",
        "past_ops",
        "proven_tokens",
        "salt",
        "shared",
        "start_time",
        "streams",
        "tainted",
        "token_ids",
        "verb",
        "waiting",
    )

    def __init__(self) -> None:
        self.streams: list[StreamLike] = []
        # Open ops, with the operation counter at which each was opened; and those that drained.
        self.ops: dict[str, int] = {}
        self.past_ops: list[str] = []
        # Those that were open when the lease ended; from then on the Waiting counts them.
        self.end_ops: tuple[str, ...] = ()
        self.shared: set[int] = set()
        self.proven_tokens = 0
        self.cached_tokens = 0
        self.token_ids: tuple[int, ...] = ()
        self.salt = b""
        self.tainted: str | None = None
        self.waiting: Waiting | None = None
        self.verb = "released"
        self.alloc_site: str | None = None
        self.end_site: str | None = None
        self.start_time: float | None = None
        self.end_time: float | None = None


class Lease:
    """Pages of one pool, owned by one attempt of one request. See the head of this module."""

    __slots__ = (
        "_attempt",
        "_ended_at",
        "_ended_by",
        "_generation",
        "_more",
        "_pages",
        "_pool",
        "_rid",
        "_slab",
    )

    # No __init__: allocation sets these itself, in half the time (see PagePool.alloc).
    _pool: PagePool
    _pages: Pages
    # The slab that all pages lie in. If they lie in several, any of them, and `_more` is set.
    _slab: Slab
    _rid: str
    _attempt: int
    _generation: int
    _more: LeaseExtra | None
    # Set by the release.
    _ended_at: int
    _ended_by: str

    # Who and what

    @property
    def pool(self) -> PagePool:
        """The pool that the pages belong to."""
        return self._pool

    @property
    def rid(self) -> str:
        """The request that owns the pages."""
        return self._rid

    @property
    def attempt(self) -> int:
        """Which attempt of the request (a preempted request has more than one)."""
        return self._attempt

    @property
    def generation(self) -> int:
        """The pool's operation counter at the allocation: no two leases of a pool share it."""
        return self._generation

    @property
    def pages(self) -> tuple[int, ...]:
        """The page ids in token order. Kept after the release too, for messages."""
        return tuple(self._pages)

    def __len__(self) -> int:
        return len(self._pages)

    def __bool__(self) -> bool:
        return True

    @property
    def capacity_tokens(self) -> int:
        """How many tokens the pages hold."""
        return len(self._pages) * self._pool.layout.page_size

    @property
    def state(self) -> LeaseState:
        """Held, pending, quarantined or free."""
        if self in self._pool._live:
            return LeaseState.HELD
        more = self._more
        waiting = None if more is None else more.waiting
        return LeaseState.FREE if waiting is None else waiting.state

    @property
    def ended(self) -> EndRecord | None:
        """How the lease ended, or None while it is held."""
        with self._pool._lock:
            return self._end_record()

    def _end_record(self) -> EndRecord | None:
        """The same with the lock held."""
        if self in self._pool._live:
            return None
        more = self._more
        if more is None:
            return EndRecord("released", self._ended_by or self._rid, self._ended_at)
        return EndRecord(
            more.verb, self._ended_by or self._rid, self._ended_at, more.end_time, more.end_site
        )

    def __repr__(self) -> str:
        return (
            f"<lease {self._generation} of request {self._rid!r} attempt {self._attempt}: "
            f"{len(self._pages)} pages, {self.state.value}>"
        )

    def __reduce__(self) -> str:
        message = f"{self!r} cannot be copied or pickled: there is one handle, and one release"
        raise TypeError(message)

    def _extra(self) -> LeaseExtra:
        """The rarely needed part. The pool's lock is held."""
        if self._more is None:
            self._more = LeaseExtra()
        return self._more

    def _require_held(self, what: str) -> None:
        """Raise StaleLeaseError unless the lease is held. The pool's lock is held."""
        ended = self._end_record()
        if ended is not None:
            message = (
                f"cannot {what}: {self!r} is stale, it was {ended}; "
                "its pages may have another owner"
            )
            raise StaleLeaseError(
                message,
                self,
                ended,
            )

    def _check_held(self, what: str) -> None:
        """The same, without the lock."""
        with self._pool._lock:
            self._require_held(what)

    # Streams and transfers

    def use(self, stream: StreamLike) -> None:
        """Say that work on ``stream`` touches the pages. At release an event is recorded there and
        waited for.

        Say it once for every stream, before or after the launch, but before the release. Raises
        StaleLeaseError after the release.
        """
        pool = self._pool
        with pool._lock:
            self._require_held(f"use the pages on {stream!r}")
            streams = self._extra().streams
            if stream not in streams:
                streams.append(stream)

    def open_op(self, op: str = "kv", *, streams: Iterable[StreamLike] = ()) -> Fence:
        """Take the op claim before a transfer is posted (contract section 3), and get what to wait
        for first.

        The fence stands behind all work queued so far on the streams that :meth:`use` named, and on
        ``streams``: wait on it, then post. Raises OpOpenError if an op of this name is open,
        StaleLeaseError after the release.
        """
        pool = self._pool
        with pool._lock:
            self._require_held(f"open op {op!r}")
            more = self._extra()
            if op in more.ops:
                message = (
                    f"op {op!r} is open on {self!r} since operation {more.ops[op]}; "
                    f"open ops: {sorted(more.ops)}. Drain it first, or use another name"
                )
                raise OpOpenError(
                    message,
                    self,
                )
            fence = pool._fence([*more.streams, *streams])
            more.ops[op] = pool._tick()
            return fence

    def drain_op(self, op: str = "kv") -> bool:
        """Say that ``op`` will never touch the pages again. Legal at any time, from any thread.

        True if this dropped the claim; False if it was not open (a late duplicate: absorbed and
        counted in ``pool.stats().late_drains``). Pages that waited for this op alone are free when
        the call returns.
        """
        return self._pool._drain_op(self, op)

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that may still touch the pages, also after the release."""
        more = self._more
        if more is None:
            return ()
        return tuple(more.ops if more.waiting is None else more.waiting.ops)

    # Content

    def mark_proven(self, n_tokens: int, token_ids: Sequence[int] | None = None) -> None:
        """Say that the KV of the first ``n_tokens`` tokens is complete, so that it may be
        published.

        Proven means that the host has seen the pass finish that wrote them. ``token_ids`` are the
        tokens themselves, which the prefix cache needs (at least ``n_tokens`` of them; a lease that
        came from :meth:`kvpool.prefix.PrefixCache.lease` knows them already). Raises NotProvenError
        for more tokens than the pages hold, fewer than before, or a tainted lease.
        """
        with self._pool._lock:
            self._require_held("mark tokens as proven")
            more = self._extra()
            tokens = more.token_ids if token_ids is None else tuple(token_ids)
            refusal = None
            if more.tainted is not None:
                refusal = f"the lease is tainted: {more.tainted}"
            elif not more.proven_tokens <= n_tokens <= self.capacity_tokens:
                refusal = (
                    f"{n_tokens} is not between {more.proven_tokens} (proven so far) and "
                    f"{self.capacity_tokens} (what the pages hold)"
                )
            elif tokens and len(tokens) < n_tokens:
                refusal = f"{n_tokens} tokens are proven but only {len(tokens)} token ids are known"
            elif tokens[: len(more.token_ids)] != more.token_ids:
                refusal = "the token ids differ from those that the lease has already"
            if refusal is not None:
                message = f"cannot mark tokens of {self!r} as proven: {refusal}"
                raise NotProvenError(message, self)
            more.proven_tokens = n_tokens
            more.token_ids = tokens

    def taint(self, reason: str) -> None:
        """Say that the content cannot be trusted: nothing of this lease is published from now on.

        What it published before is withdrawn from the prefix cache (contract,
        ``no_tainted_publish``).
        """
        self._pool._taint(self, reason)

    @property
    def proven_tokens(self) -> int:
        """How many tokens, from the start, are known to be complete."""
        return 0 if self._more is None else self._more.proven_tokens

    @property
    def cached_tokens(self) -> int:
        """How many tokens, from the start, came from the prefix cache."""
        return 0 if self._more is None else self._more.cached_tokens

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens, as far as the pool was told."""
        return () if self._more is None else self._more.token_ids

    # Views

    def page_view(self, index: int) -> torch.Tensor:
        """The ``index``-th page of this lease: ``[layers, 2, page_size, kv_heads, head_dim]``, no
        copy.

        For a latent layout ``[layers, page_size, latent_dim]``. Raises TokenRangeError outside the
        lease.
        """
        self._check_held(f"view page {index}")
        if not 0 <= index < len(self._pages):
            message = f"page {index} is outside {self!r}: it has 0 to {len(self._pages) - 1}"
            raise TokenRangeError(message)
        return self._pool.page_view(self._pages[index])

    def token_views(self, start: int = 0, stop: int | None = None) -> list[torch.Tensor]:
        """Tokens ``start`` to ``stop`` as views in order, one for each run of adjacent pages, no
        copy.

        Each is ``[layers, 2, tokens, kv_heads, head_dim]`` (latent: ``[layers, tokens,
        latent_dim]``); the token counts add up to ``stop - start``. Writing to them writes the
        pages. Do not keep them past the release. Raises TokenRangeError for a range outside the
        lease.
        """
        self._check_held("view tokens")
        stop = self._check_range(start, stop)
        axis = self._pool.layout.page_axis
        return [
            slab.tokens.narrow(axis, first, count) for slab, first, count in self._runs(start, stop)
        ]

    def _check_range(self, start: int, stop: int | None) -> int:
        end = self.capacity_tokens if stop is None else stop
        if not 0 <= start <= end <= self.capacity_tokens:
            message = (
                f"tokens {start} to {end} are outside {self!r}: "
                f"it holds {self.capacity_tokens} tokens"
            )
            raise TokenRangeError(message)
        return end

    def _runs(self, start: int, stop: int) -> Iterator[tuple[Slab, int, int]]:
        """Runs of adjacent tokens as (slab, first token within the slab, count)."""
        pool = self._pool
        size = pool.layout.page_size
        token = start
        while token < stop:
            index = token // size
            page = self._pages[index]
            slab = pool.slab_of(page)
            first = (page - slab.first_page) * size + token % size
            last = index
            while (
                (last + 1) * size < stop
                and self._pages[last + 1] == self._pages[last] + 1
                and self._pages[last + 1] < slab.first_page + slab.pages
            ):
                last += 1
            end = min(stop, (last + 1) * size)
            yield slab, first, end - token
            token = end

    def page_ids(self, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """The page ids on the pool's device, ``[pages]``, int32 or int64. Never waits for the
        device.
        """
        self._check_held("give page ids")
        return self._pool._to_device(self._pages, dtype)

    def token_slots(
        self, start: int = 0, stop: int | None = None, dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        """``page id * page_size + offset`` of tokens ``start`` to ``stop``, ``[stop - start]``, on
        the device.

        This is the slot mapping that kernels take. Never waits for the device.
        """
        self._check_held("give token slots")
        stop = self._check_range(start, stop)
        pool = self._pool
        size = pool.layout.page_size
        first = start // size
        pages = self._pages[first : -(-stop // size)]
        begin, end = start - first * size, stop - first * size
        if isinstance(pages, range):
            base = pages.start * size
            return torch.arange(base + begin, base + end, dtype=dtype, device=pool.device)
        ids = pool._to_device(pages, dtype)
        return (ids.unsqueeze(1) * size + pool._page_offsets(dtype)).flatten()[begin:end]

    # What the pool does with a lease, for those who hold only the lease

    def extend(self, pages: int) -> None:
        """Add ``pages`` pages at the end; see :meth:`kvpool.pool.PagePool.extend`."""
        self._pool.extend(self, pages)

    def share(self, pages: int | None = None, *, rid: str, attempt: int = 0) -> Lease:
        """A claim of another holder on the first ``pages`` pages; see
        :meth:`kvpool.pool.PagePool.share`.
        """
        return self._pool.share(self, pages, rid=rid, attempt=attempt)

    def release(
        self, *, by: str = "", events: Iterable[EventLike] = (), ops: Iterable[str] = ()
    ) -> None:
        """Give the pages back; see :meth:`kvpool.pool.PagePool.release`."""
        self._pool.release(self, by=by, events=events, ops=ops)

    def quarantine(self, *, reason: str, by: str = "") -> None:
        """Take the pages out of circulation; see :meth:`kvpool.pool.PagePool.quarantine`."""
        self._pool.quarantine(self, reason=reason, by=by)
