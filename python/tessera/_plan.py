"""The routing plan: which key blocks each query block reads."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch

BLOCK_TOKENS = 64


class PlanStats(NamedTuple):
    """What a plan keeps, in pairs of 64-token blocks over all batch entries and heads."""

    kept_pairs: int  #: block pairs that are computed, dense rows included
    total_pairs: int  #: block pairs of a dense run
    min_kept: int  #: fewest key blocks of a sparse row; 0 without sparse rows
    max_kept: int  #: most key blocks of a sparse row; 0 without sparse rows
    dense_rows: int  #: query blocks (over the batch, not the heads) that read everything
    rows: int  #: query blocks over the batch

    @property
    def density(self) -> float:
        """Share of the block pairs that are computed, 0 to 1."""
        return self.kept_pairs / self.total_pairs if self.total_pairs else 0.0


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RoutePlan:
    """Key blocks that each query block attends to. Made by :func:`tessera.route`.

    A block is 64 tokens; documents of a packed call share no block, and ids count from the start
    of the row's document. All tensors lie on the device of ``q``. A plan may also be built by hand:
    its values are then checked before a kernel runs.
    """

    index: torch.Tensor  #: int32 [B, H, Gq, W]: distinct key block ids, unused slots -1
    count: torch.Tensor  #: int32 [B, H, Gq]: valid slots of each row
    dense_rows: torch.Tensor | None = None  #: uint8 [B, Gq], non-zero: reads every key block
    mass: torch.Tensor | None = None  #: float32 [B, H, Gq]: estimated kept softmax mass, 0 to 1
    key_blocks: int = 0  #: of the longest document; what W is compared with
    cu_seqlens: tuple[int, ...] | None = None  #: bounds of the packed documents it was made for
    #: set by :func:`tessera.route`: the values need no check. Not kept by dataclasses.replace.
    trusted: bool = dataclasses.field(default=False, init=False)

    def _trust(self) -> RoutePlan:
        object.__setattr__(self, "trusted", True)
        return self

    def stats(self) -> PlanStats:
        """Counts what the plan keeps. Waits for the device that holds it."""
        key_blocks = torch.tensor(self._row_key_blocks(), dtype=torch.int64)  # [Gq]
        count = self.count.to("cpu", torch.int64)
        batch, heads, rows = count.shape
        dense = torch.zeros(batch, rows, dtype=torch.bool)
        if self.dense_rows is not None:
            dense = self.dense_rows.cpu() != 0
        kept = torch.where(dense[:, None, :], key_blocks, count)
        sparse = count[~dense[:, None, :].expand_as(count)]
        return PlanStats(
            kept_pairs=int(kept.sum()),
            total_pairs=int(key_blocks.sum()) * batch * heads,
            min_kept=int(sparse.min()) if sparse.numel() else 0,
            max_kept=int(sparse.max()) if sparse.numel() else 0,
            dense_rows=int(dense.sum()),
            rows=batch * rows,
        )

    @property
    def density(self) -> float:
        """Share of the block pairs that are computed, 0 to 1. Waits for the device."""
        return self.stats().density

    def to(self, device: torch.device | str) -> RoutePlan:
        """The same plan on another device."""

        def move(t: torch.Tensor | None) -> torch.Tensor | None:
            return None if t is None else t.to(device)

        moved = dataclasses.replace(
            self,
            index=self.index.to(device),
            count=self.count.to(device),
            dense_rows=move(self.dense_rows),
            mass=move(self.mass),
        )
        return moved._trust() if self.trusted else moved

    def __str__(self) -> str:
        s = self.stats()
        if s.dense_rows == s.rows:
            return f"dense, {self.key_blocks} blocks, density {s.density:.3f}"
        kept = str(s.min_kept) if s.min_kept == s.max_kept else f"{s.min_kept}-{s.max_kept}"
        text = f"{kept}/{self.key_blocks} blocks, density {s.density:.3f}"
        return f"{text}, {s.dense_rows} of {s.rows} query blocks dense" if s.dense_rows else text

    def __repr__(self) -> str:
        b, h, g, w = self.index.shape
        return (
            f"RoutePlan(batch={b}, heads={h}, query_blocks={g}, width={w}, "
            f"key_blocks={self.key_blocks}, device={str(self.index.device)!r})"
        )

    def _row_key_blocks(self) -> list[int]:
        if self.cu_seqlens is None:
            return [self.key_blocks] * self.count.shape[2]
        rows: list[int] = []
        for start, stop in zip(self.cu_seqlens, self.cu_seqlens[1:]):
            blocks = -(-(stop - start) // BLOCK_TOKENS)
            rows += [blocks] * blocks
        return rows
