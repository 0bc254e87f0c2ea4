"""What a page holds: layers, heads, element type, tokens, and so its bytes and its shape.

A slab of ``n`` pages is one tensor, and every view below shares its memory:

- keys and values (``KVLayout(...)``): ``[layers, 2, n, page_size, kv_heads, head_dim]``, plane 0
  keys, plane 1 values;
- one latent buffer as in multi-head latent attention (``KVLayout.latent(...)``):
  ``[layers, n, page_size, latent_dim]``.

The page axis comes after layer and plane, so that ``slab[layer, 0]`` is the ``[n, page_size, heads,
dim]`` buffer that paged attention kernels take, and one layer of one page is contiguous, which is
what a layer-by-layer transfer sends.
"""

from __future__ import annotations

import attrs
import torch

from kvpool.errors import LayoutError


def _positive(_: object, attribute: attrs.Attribute[int], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        message = f"KVLayout.{attribute.name} must be an integer of at least 1, got {value!r}"
        raise LayoutError(message)


def _dtype(_: object, __: attrs.Attribute[torch.dtype], value: object) -> None:
    if not isinstance(value, torch.dtype):
        message = f"KVLayout.dtype must be a torch.dtype, got {value!r}"
        raise LayoutError(message)


@attrs.frozen(kw_only=True)
class KVLayout:
    """The shape of one page. All counts are per rank (after tensor parallel division).

    ``page_size`` is in tokens, ``head_dim`` in elements. With ``is_latent`` there is one plane and
    no head axis; use :meth:`latent` for that. Raises :class:`~kvpool.errors.LayoutError` for a
    count below 1.
    """

    layers: int = attrs.field(validator=_positive)
    kv_heads: int = attrs.field(validator=_positive)
    head_dim: int = attrs.field(validator=_positive)
    page_size: int = attrs.field(validator=_positive)
    dtype: torch.dtype = attrs.field(default=torch.bfloat16, validator=_dtype)
    is_latent: bool = False

    @classmethod
    def latent(
        cls, *, layers: int, latent_dim: int, page_size: int, dtype: torch.dtype = torch.bfloat16
    ) -> KVLayout:
        """One compressed vector of ``latent_dim`` elements a token and layer, instead of keys and
        values.
        """
        return cls(
            layers=layers,
            kv_heads=1,
            head_dim=latent_dim,
            page_size=page_size,
            dtype=dtype,
            is_latent=True,
        )

    @property
    def planes(self) -> int:
        """2 for keys and values, 1 for a latent buffer."""
        return 1 if self.is_latent else 2

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token, over all layers and planes."""
        return self.layers * self.planes * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page, over all layers and planes."""
        return self.bytes_per_token * self.page_size

    def total_bytes(self, pages: int) -> int:
        """Bytes that ``pages`` pages take on the device, known before anything is allocated."""
        return self.bytes_per_page * pages

    def pages_for(self, tokens: int) -> int:
        """The pages that ``tokens`` tokens need, rounded up."""
        return -(-tokens // self.page_size)

    def shape(self, pages: int) -> tuple[int, ...]:
        """The shape of a slab of ``pages`` pages (see the head of this module)."""
        if self.is_latent:
            return (self.layers, pages, self.page_size, self.head_dim)
        return (self.layers, 2, pages, self.page_size, self.kv_heads, self.head_dim)

    @property
    def page_axis(self) -> int:
        """The axis of a slab that counts pages."""
        return 1 if self.is_latent else 2

    def token_view(self, buffer: torch.Tensor) -> torch.Tensor:
        """The slab with its page and token axes made one: ``[layers, 2, tokens, kv_heads,
        head_dim]``.

        For a latent layout ``[layers, tokens, latent_dim]``. A view, never a copy.
        """
        return buffer.flatten(self.page_axis, self.page_axis + 1)

    def __str__(self) -> str:
        kind = (
            f"latent {self.head_dim}"
            if self.is_latent
            else f"{self.kv_heads} x {self.head_dim} K/V"
        )
        return (
            f"{self.layers} layers, {kind}, {self.dtype}, {self.page_size} tokens a page, "
            f"{self.bytes_per_page:,} bytes a page"
        )
