"""Router and attention written again in plain torch and float64, from their formulas."""

import itertools
import math

import torch

BLOCK = 64


def pool(x, cells, factor):
    """Mean over the real tokens of each cell, times factor, rounded to bfloat16.

    x [S, D] -> ([G, cells, D] float64, [G, cells] bool: the cell has a real token)
    """
    tokens = x.shape[0]
    blocks = -(-tokens // BLOCK)
    size = BLOCK // cells
    padded = torch.zeros(blocks * BLOCK, x.shape[1], dtype=torch.float64)
    padded[:tokens] = x.double()
    sums = padded.view(blocks, cells, size, -1).sum(2)
    starts = torch.arange(blocks * cells).view(blocks, cells) * size
    real = (tokens - starts).clamp(0, size)
    means = sums / real.clamp(min=1)[..., None]
    return (means * factor).float().bfloat16().double(), real > 0


def scores(q, k, *, n_q=4, n_k=4, scale=None):
    """score(i, j) = ln sum over cells a of block i, b of block j of exp(qbar . kbar * scale)."""
    scale = scale or 1.0 / math.sqrt(q.shape[1])
    q_cells, q_real = pool(q, n_q, scale * math.log2(math.e))
    k_cells, k_real = pool(k, n_k, 1.0)
    logits = torch.einsum("iad,jbd->ijab", q_cells, k_cells) * math.log(2.0)
    real = q_real[:, None, :, None] & k_real[None, :, None, :]
    return logits.masked_fill(~real, -math.inf).flatten(2).logsumexp(2)


def kept_blocks(sparsity, key_blocks, granularity=8):
    raw = math.ceil((1.0 - sparsity) * key_blocks)
    return min(key_blocks, max(1, math.ceil(raw / granularity)) * granularity)


def token_mask(plan, sq, sk):
    """Visible (query, key) pairs of an unpacked plan: bool [B, H, Sq, Sk]."""
    batch, heads, rows, _ = plan.index.shape
    mask = torch.zeros(batch, heads, sq, sk, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for g in range(rows):
                block = mask[b, h, g * BLOCK : (g + 1) * BLOCK]
                if plan.dense_rows is not None and plan.dense_rows[b, g]:
                    block[:] = True
                for j in plan.index[b, h, g, : plan.count[b, h, g]].tolist():
                    block[:, j * BLOCK : (j + 1) * BLOCK] = True
    return mask


def document_mask(cu_seqlens, tokens):
    """Visible pairs of packed documents: bool [1, 1, T, T]."""
    mask = torch.zeros(1, 1, tokens, tokens, dtype=torch.bool)
    for start, stop in itertools.pairwise(cu_seqlens):
        mask[:, :, start:stop, start:stop] = True
    return mask


def attention(q, k, v, mask=None, scale=None):
    """[B, S, H, D] -> float64 out [B, Sq, H, D] and lse [B, H, Sq]; empty rows are 0 and -inf."""
    scale = scale or 1.0 / math.sqrt(q.shape[3])
    ratio = q.shape[2] // k.shape[2]
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(ratio, 1) for t in (k, v))
    logits = q @ k.transpose(2, 3) * scale
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    lse = logits.logsumexp(3)
    weights = (logits - lse[..., None]).exp().nan_to_num(0.0)
    return (weights @ v).transpose(1, 2), lse
