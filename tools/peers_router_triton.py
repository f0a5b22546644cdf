"""The published sub-block router in Triton, written from its definition, as a peer for benchmarks.

Three steps like the original: pooled cells in bf16, a product with a segmented log-sum-exp, and a
selection by searching a threshold. `route(q, k, keep)` takes bf16 [B, S, H, D] tensors on one device
and returns ids i32 [B, H, Gq, keep], ascending, and scores f32 [B, H, Gq, Gk]; four cells of 16
tokens per 64-token block. The threshold search is inexact for very peaked rows, as published.
"""
import math

import torch
import triton
import triton.language as tl

BLOCK, CELLS = 64, 4
CELL_TOKENS = BLOCK // CELLS
TILE = 128  # cells of either side per score tile
PADDING = tl.constexpr(-1e30)  # finite, so that no difference of two paddings is NaN


@triton.jit
def _pool_kernel(x, out, tokens, heads, stride_b, stride_s, stride_h, cells, scale,
                 D: tl.constexpr, ROWS: tl.constexpr):
    cell, l = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = cell.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, D)
    base = x + (l // heads) * stride_b + (l % heads) * stride_h
    values = tl.load(base + rows[:, None] * stride_s + columns[None, :],
                     mask=rows[:, None] < tokens, other=0.0).to(tl.float32)
    real = tl.minimum(tl.maximum(tokens - cell * ROWS, 1), ROWS)
    mean = tl.sum(values, 0) / real * scale
    tl.store(out + (l * cells + cell) * D + columns, mean.to(tl.bfloat16))


@triton.jit
def _score_kernel(q, k, out, q_cells, k_cells, q_valid, k_valid, q_blocks, k_blocks,
                  D: tl.constexpr, N: tl.constexpr, T: tl.constexpr):
    l = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * T + tl.arange(0, T)
    columns = tl.program_id(1) * T + tl.arange(0, T)
    channels = tl.arange(0, D)
    a = tl.load(q + (l * q_cells + rows[:, None]) * D + channels[None, :],
                mask=rows[:, None] < q_cells, other=0.0)
    b = tl.load(k + (l * k_cells + columns[None, :]) * D + channels[:, None],
                mask=columns[None, :] < k_cells, other=0.0)
    x = tl.dot(a, b)  # already in units of log2
    x = tl.where((rows[:, None] < q_valid) & (columns[None, :] < k_valid), x, PADDING)
    x = tl.reshape(x, (T, T // N, N))
    high = tl.max(x, 2)
    total = tl.sum(tl.exp2(x - high[:, :, None]), 2)
    x = tl.where(high > PADDING / 2, high + tl.log2(total), PADDING)
    x = tl.reshape(x, (T // N, N, T // N))
    high = tl.max(x, 1)
    total = tl.sum(tl.exp2(x - high[:, None, :]), 1)
    x = tl.where(high > PADDING / 2, high + tl.log2(total), PADDING)
    i = tl.program_id(0) * (T // N) + tl.arange(0, T // N)
    j = tl.program_id(1) * (T // N) + tl.arange(0, T // N)
    tl.store(out + (l * q_blocks + i[:, None]) * k_blocks + j[None, :], x * 0.6931471805599453,
             mask=(i[:, None] < q_blocks) & (j[None, :] < k_blocks))


@triton.jit
def _select_kernel(scores, ids, k_blocks, keep, STEPS: tl.constexpr, W: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, W)
    inside = columns < k_blocks
    s = tl.load(scores + row * k_blocks + columns, mask=inside, other=-float("inf"))
    low = tl.min(tl.where(inside, s, float("inf")), 0)
    high = tl.max(s, 0) + 1.0
    above_low, above_high = k_blocks * 1.0, 0.0
    for _ in range(STEPS):  # interpolates the count between both ends, never closer than 5 % to one
        span = above_low - above_high
        t = (above_low - keep) / tl.where(span > 0.5, span, 1.0)
        middle = low + (high - low) * tl.minimum(tl.maximum(t, 0.05), 0.95)
        above = tl.sum(tl.where(s >= middle, 1.0, 0.0), 0)
        enough = above >= keep
        low, above_low = tl.where(enough, middle, low), tl.where(enough, above, above_low)
        high, above_high = tl.where(enough, high, middle), tl.where(enough, above_high, above)
    chosen = (s >= low) & inside
    slot = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(ids + row * keep + slot, columns, mask=chosen & (slot < keep))


class Router:
    """Buffers for one shape, so that a timed call only launches kernels."""

    def __init__(self, q, k, keep):
        self.q, self.k, self.keep = q, k, keep
        self.batch, self.heads, self.width = q.shape[0], q.shape[2], q.shape[3]
        lists = self.batch * self.heads
        self.blocks = [triton.cdiv(t.shape[1], BLOCK) for t in (q, k)]
        new = lambda shape, dtype: torch.empty(shape, dtype=dtype, device=q.device)
        self.pooled = [new((lists, g * CELLS, self.width), torch.bfloat16) for g in self.blocks]
        self.scores = new((self.batch, self.heads, *self.blocks), torch.float32)
        self.ids = new((self.batch, self.heads, self.blocks[0], keep), torch.int32)
        depth = math.log2(self.blocks[1] / keep)
        self.steps = 16 if depth <= 2.5 else 24 if depth <= 3.5 else 32

    def __call__(self):
        lists = self.batch * self.heads
        scale = self.width ** -0.5 * math.log2(math.e)
        for x, out, factor in ((self.q, self.pooled[0], scale), (self.k, self.pooled[1], 1.0)):
            cells = out.shape[1]
            _pool_kernel[(cells, lists)](x, out, x.shape[1], self.heads, *x.stride()[:3], cells,
                                         factor, D=self.width, ROWS=CELL_TOKENS, num_warps=1)
        q_cells, k_cells = (p.shape[1] for p in self.pooled)
        _score_kernel[(triton.cdiv(q_cells, TILE), triton.cdiv(k_cells, TILE), lists)](
            *self.pooled, self.scores, q_cells, k_cells,
            triton.cdiv(self.q.shape[1], CELL_TOKENS), triton.cdiv(self.k.shape[1], CELL_TOKENS),
            *self.blocks, D=self.width, N=CELLS, T=TILE, num_warps=4)
        _select_kernel[(lists * self.blocks[0],)](
            self.scores, self.ids, self.blocks[1], self.keep, STEPS=self.steps,
            W=triton.next_power_of_2(self.blocks[1]), num_warps=4 if self.blocks[1] >= 1024 else 2)
        return self.ids


def route(q, k, keep):
    router = Router(q, k, keep)
    return router(), router.scores
