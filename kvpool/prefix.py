"""A small prefix cache: pages that are kept because another request may begin with the same tokens.

A page is found by the hash of *all* tokens up to its end: the hash of page ``i`` covers the hash of
page ``i - 1`` and its own tokens (SHA-256, so that two users' prefixes do not collide, with a
``salt`` for whatever else must be equal: the model, an adapter, a tenant). Only full pages are
cached.

Rules, all of the contract's sections 3, 6 and 7:

- The cache has a claim of its own on a page, like any holder. A page that has no other claim stands
  in the evictable list, least recently used first, and the ends of chains before their starts.
- To use a cached page, a request takes a claim, and that takes the page out of the evictable list
  *before* anything is evicted to make room for the rest of the request.
- Only proven pages are published: those within ``lease.mark_proven(n_tokens)``. Pages of a tainted
  or quarantined lease are not, and what it published is withdrawn. Aborted requests' pages are not,
  unless the cache was made with ``publish_aborted="proven"``.
- At least one token of a prompt is always left to compute, since the sampler needs its logits.

:class:`PrefixCache` implements the port ``lifecycle.ports.PrefixCache``: the driver calls
:meth:`PrefixCache.publish` right before it releases an attempt whose pages may be published.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from kvpool.errors import ForeignLeaseError
from kvpool.lease import Lease, Shortage
from kvpool.slabs import Pages, join_pages

if TYPE_CHECKING:
    from kvpool.pool import PagePool
    from lifecycle.ports import Hold


@attrs.define(eq=False)
class _Node:
    """One cached page: the key of its chain, its place in it, and which lease published it."""

    key: bytes
    page: int
    parent: _Node | None
    publisher: int
    children: set[_Node] = attrs.field(factory=set)


@attrs.frozen
class CacheStats:
    """Counts since the cache was made: tokens asked for and found, pages published and evicted (or
    withdrawn).
    """

    pages: int
    evictable: int
    asked_tokens: int
    hit_tokens: int
    published: int
    dropped: int


class PrefixCache:
    """The prefix cache of one pool; a pool has at most one. The head of this module tells the
    rules.
    """

    def __init__(
        self, pool: PagePool, *, publish_aborted: Literal["never", "proven"] = "never"
    ) -> None:
        if publish_aborted not in ("never", "proven"):
            message = f"publish_aborted must be 'never' or 'proven', got {publish_aborted!r}"
            raise ValueError(message)
        self._pool = pool
        self._publish_aborted = publish_aborted
        self._nodes: dict[bytes, _Node] = {}
        self._by_page: dict[int, _Node] = {}
        self._asked_tokens = self._hit_tokens = self._published = self._dropped = 0
        with pool._lock:
            if pool._cache is not None:
                message = f"{pool._cache!r} serves this pool already: one pool, one prefix cache"
                raise ValueError(message)
            pool._cache = self

    # Using it

    def match(self, token_ids: Sequence[int], *, salt: bytes = b"") -> int:
        """How many tokens, from the start, a lease would find in the cache now. Takes no claim."""
        with self._pool._lock:
            return len(self._find(token_ids, salt)) * self._pool.layout.page_size

    def lease(
        self,
        token_ids: Sequence[int],
        *,
        rid: str,
        attempt: int = 0,
        pages: int | None = None,
        salt: bytes = b"",
    ) -> Lease:
        """Lease pages for a prompt: cached ones for as long a prefix as there is, fresh ones for
        the rest.

        ``pages`` is the total (default: as many as the tokens need). ``lease.cached_tokens`` tells
        where computing has to start; these tokens count as proven. Raises what ``pool.alloc``
        raises, and then no claim was taken and nothing evicted; ValueError for fewer pages than the
        prompt needs.
        """
        pool = self._pool
        tokens = tuple(token_ids)
        least = pool.layout.pages_for(len(tokens))
        total = least if pages is None else pages
        if not tokens or total < least:
            message = (
                f"{total} pages are not enough for the {len(tokens)} tokens of request {rid!r}"
            )
            raise ValueError(message)
        with pool._lock:
            pool._tick()
            nodes = self._find(tokens, salt)
            hit = tuple(node.page for node in nodes)
            found = self._claim_and_take(hit, total - len(hit))
            if not isinstance(found, Shortage):
                lease = pool._new_lease(
                    join_pages([hit, found]) if hit and found else hit or found, rid, attempt
                )
                more = lease._extra()
                more.shared.update(hit)
                more.token_ids = tokens
                more.salt = salt
                more.cached_tokens = more.proven_tokens = len(hit) * pool.layout.page_size
                self._asked_tokens += len(tokens)
                self._hit_tokens += more.cached_tokens
                return lease
        raise pool._out_of_pages(found, f"request {rid!r} attempt {attempt}")

    def publish(self, hold: Hold) -> None:
        """The port: publish the proven pages of this attempt, before its release (contract section
        6).

        The driver calls this only where its policy allows it. Raises ForeignLeaseError if the
        hold's pages are no lease of this pool, StaleLeaseError after the release.
        """
        lease = hold.pages
        if not isinstance(lease, Lease):
            message = f"the pages of {hold!r} are no lease of a page pool"
            raise ForeignLeaseError(message, lease)
        self.publish_lease(lease, aborted=False)

    def publish_lease(self, lease: Lease, *, aborted: bool) -> int:
        """Publish the full pages within the proven tokens of ``lease``; returns how many are new in
        the cache.

        Pages whose content is cached already under another number are not published twice. Of an
        aborted request nothing is published, unless the cache was told so. Nothing can be published
        without token ids. Raises StaleLeaseError after the release.
        """
        pool = self._pool
        with pool._lock:
            pool._check_mine(lease)
            lease._require_held("publish pages")
            more = lease._more
            if (
                more is None
                or more.tainted is not None
                or (aborted and self._publish_aborted == "never")
            ):
                return 0
            pool._tick()
            size = pool.layout.page_size
            full = min(more.proven_tokens, len(more.token_ids)) // size
            new = 0
            parent: _Node | None = None
            keys = self._keys(more.token_ids, more.salt)
            for page, key in zip(lease._pages[:full], keys, strict=False):
                node = self._nodes.get(key)
                if node is None and page not in self._by_page:
                    node = _Node(key, page, parent, lease._generation)
                    if parent is not None:
                        parent.children.add(node)
                    self._nodes[key] = self._by_page[page] = node
                    pool._enter_claims(lease, page)
                    pool._change(page, cached=True)
                    new += 1
                parent = node
            self._published += new
            return new

    def clear(self) -> int:
        """Give up every claim of the cache (after new weights were loaded, say); returns how many
        pages.
        """
        with self._pool._lock:
            self._pool._tick()
            pages = list(self._pages())
            for page in pages:
                if page in self._by_page:
                    self._drop_subtree(self._by_page[page])
            return len(pages)

    def stats(self) -> CacheStats:
        """The counts."""
        with self._pool._lock:
            return CacheStats(
                pages=len(self._by_page),
                evictable=len(self._pool._evictable),
                asked_tokens=self._asked_tokens,
                hit_tokens=self._hit_tokens,
                published=self._published,
                dropped=self._dropped,
            )

    def __repr__(self) -> str:
        return f"<prefix cache of {len(self._by_page)} pages>"

    # Inside; the pool's lock is held

    def _keys(self, tokens: Sequence[int], salt: bytes) -> Iterator[bytes]:
        """The keys of the full pages of these tokens."""
        size = self._pool.layout.page_size
        key = hashlib.sha256(salt).digest()
        for start in range(0, len(tokens) - size + 1, size):
            key = hashlib.sha256(key + array("q", tokens[start : start + size]).tobytes()).digest()
            yield key

    def _find(self, tokens: Sequence[int], salt: bytes) -> list[_Node]:
        """The longest cached prefix that leaves a token to compute."""
        nodes = []
        for key in self._keys(tokens[: len(tokens) - 1], salt):
            node = self._nodes.get(key)
            if node is None:
                break
            nodes.append(node)
        return nodes

    def _claim_and_take(self, hit: Pages, fresh: int) -> Pages | Shortage:
        """Claim the cached pages ``hit``, then take ``fresh`` free ones; all or nothing."""
        pool = self._pool
        for page in hit:
            pool._change(page, holders=+1)
        found: Pages | Shortage = ()
        is_taken = False
        try:
            found = pool._take(fresh) if fresh else ()
            is_taken = not isinstance(found, Shortage)
        finally:
            if not is_taken:
                # Nothing was evicted for a shortage, and the pages go back to the recent end of the
                # list: the request that wanted them will ask again.
                for page in reversed(hit):
                    pool._change(page, holders=-1)
        return found

    def _pages(self) -> Iterator[int]:
        """The pages that the cache has a claim on."""
        return iter(self._by_page)

    def _forget(self, page: int) -> list[int]:
        """Take ``page`` and all pages that continue its chain out of the index; returns their
        numbers, ends first.
        """
        pages: list[int] = []
        todo = [self._by_page[page]]
        if todo[0].parent is not None:
            todo[0].parent.children.discard(todo[0])
        while todo:
            node = todo.pop()
            todo.extend(node.children)
            del self._nodes[node.key], self._by_page[node.page]
            pages.append(node.page)
        self._dropped += len(pages)
        return pages[::-1]

    def _drop_subtree(self, node: _Node) -> None:
        for page in self._forget(node.page):
            self._pool._change(page, cached=False)

    def _withdraw(self, lease: Lease) -> list[int]:
        """Take out of the index what ``lease`` published, and what continues it; returns the page
        numbers.
        """
        pages: list[int] = []
        for page in lease._pages:
            node = self._by_page.get(page)
            if node is not None and node.publisher == lease._generation:
                pages += self._forget(page)
        return pages
