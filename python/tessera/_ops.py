"""Typed front of the operators ``torch.ops.tessera.*``."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch

from tessera._plan import BLOCK_TOKENS, RoutePlan

_LIBRARY = pathlib.Path(__file__).with_name("_tessera_torch.so")
if not _LIBRARY.is_file():
    raise ImportError(
        f"{_LIBRARY} is missing: the package is not built. "
        "Run `pip install --no-build-isolation .` in the repository"
    )
torch.ops.load_library(str(_LIBRARY))  # type: ignore[no-untyped-call]


def _host_bounds(cu_seqlens: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    if cu_seqlens is None:
        return None
    if isinstance(cu_seqlens, torch.Tensor):
        if cu_seqlens.device.type != "cpu":
            raise ValueError(
                f"cu_seqlens lies on {cu_seqlens.device}; give host values (a list of ints), "
                "because reading them from the device would wait for it"
            )
        if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.dim() != 1:
            raise ValueError(
                f"cu_seqlens is {cu_seqlens.dtype} of {cu_seqlens.dim()} dimensions; it must be "
                "int32 or int64 of one dimension"
            )
        return [int(x) for x in cu_seqlens.tolist()]
    bounds = []
    for x in cu_seqlens:
        # Cutting a fraction off would move a document's end without a word.
        if isinstance(x, bool) or not hasattr(x, "__index__"):
            raise ValueError(f"cu_seqlens holds {x!r} ({type(x).__name__}); bounds are integers")
        bounds.append(int(x))
    return bounds


def _scale(softmax_scale: float | None) -> float:
    if softmax_scale is None:
        return 0.0
    if not softmax_scale > 0.0:
        raise ValueError(
            f"softmax_scale is {softmax_scale}; it must be positive, or None for 1/sqrt(D)"
        )
    return float(softmax_scale)


def _budget(sparsity: float | None, keep: int | None, mass: float | None) -> tuple[str, float]:
    given = {"sparsity": sparsity, "keep": keep, "mass": mass}
    named = [(name, value) for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ValueError(
            f"{' and '.join(name for name, _ in named)} are given; choose one budget: "
            "sparsity, keep or mass"
        )
    if not named:
        return "sparsity", 0.75
    name, value = named[0]
    if isinstance(value, (bool, str)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it must be a number")
    return name, float(value)


def _refuse_unused(budget: str, options: dict[str, tuple[Any, Any, str]]) -> None:
    """Options of another budget would do nothing. Each is (value, default, its budget)."""
    for name, (value, default, belongs_to) in options.items():
        if belongs_to != budget and value != default:
            raise ValueError(
                f"{name} is {value}, which does nothing with {budget}; it belongs to {belongs_to}"
            )


def route(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    sparsity: float | None = None,
    keep: int | None = None,
    mass: float | None = None,
    min_keep: int = 1,
    max_keep: int = 0,
    granularity: int = 8,
    exact_rounding: bool = False,
    query_cells: int = 4,
    key_cells: int = 4,
    weight_partial_cells: bool = False,
    softmax_scale: float | None = None,
    min_seq_len: int = 0,
    protected_blocks: Sequence[int] = (),
    dense_query_blocks: Sequence[int] = (),
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    max_seqlen: int = 0,
    estimate_mass: bool = True,
) -> RoutePlan:
    """Chooses the key blocks that each query block attends to.

    Estimates the softmax mass of every pair of 64-token blocks from pooled queries and keys, and
    keeps the best key blocks of each query block: exactly, ties to the lower id. Nothing is
    trained; ``q`` and ``k`` are only read. On CUDA the work is enqueued on the current stream.

    Args:
        q: ``[B, Sq, H, D]``, or ``[T, H, D]`` with ``cu_seqlens``. bfloat16, float16 or (CPU)
            float32; D 64 or 128 (CUDA: 128). Last stride 1, other strides free.
        k: ``[B, Sk, Hkv, D]`` or ``[T, Hkv, D]``, like ``q``; H a multiple of Hkv.
        sparsity: largest share of key blocks that may be dropped, in [0, 1). Default 0.75.
        keep: instead of sparsity: key blocks per query block, at least 1.
        mass: instead of sparsity: the fewest best blocks whose estimated mass reaches this, (0, 1].
        min_keep: with mass, blocks that a row keeps at least.
        max_keep: with mass, blocks that a row keeps at most; 0 for no limit.
        granularity: with sparsity, the kept count is rounded up to a multiple of this.
        exact_rounding: with sparsity, round as in exact arithmetic: (1 - 0.7) * 80 is 24, not 25.
        query_cells: pooled cells per query block: 1, 2, 4 or 8.
        key_cells: pooled cells per key block: 1, 2, 4 or 8.
        weight_partial_cells: weight a cell at the end of a document by its share of real tokens.
        softmax_scale: factor of the scores; None for ``1 / sqrt(D)``.
        min_seq_len: documents with fewer tokens are dense.
        protected_blocks: key block ids that every sparse row keeps, inside its budget.
        dense_query_blocks: query block ids that read every key block.
        cu_seqlens: host bounds ``[n + 1]`` of packed documents, starting with 0.
        max_seqlen: tokens of the longest document, as a check; 0 for none.
        estimate_mass: also give the estimated kept mass of every row.

    Raises:
        ValueError: a shape, dtype, stride, bound or budget outside the above; an option of another
            budget; tensors on different devices.
        TypeError: a budget that is no number.
        NotImplementedError: a head width or device that no kernel of this build runs.
    """
    kind, amount = _budget(sparsity, keep, mass)
    _refuse_unused(
        kind,
        {
            "min_keep": (min_keep, 1, "mass"),
            "max_keep": (max_keep, 0, "mass"),
            "granularity": (granularity, 8, "sparsity"),
            "exact_rounding": (exact_rounding, False, "sparsity"),
        },
    )
    bounds = _host_bounds(cu_seqlens)
    index, count, dense_rows, kept_mass = torch.ops.tessera.route(
        q.detach(),
        k.detach(),
        budget=kind,
        amount=amount,
        min_keep=min_keep,
        max_keep=max_keep,
        granularity=granularity,
        exact_rounding=exact_rounding,
        n_q=query_cells,
        n_k=key_cells,
        weight_partial_cells=weight_partial_cells,
        softmax_scale=_scale(softmax_scale),
        min_seq_len=min_seq_len,
        protected_blocks=list(protected_blocks),
        dense_query_blocks=list(dense_query_blocks),
        estimate_mass=estimate_mass,
        cu_seqlens=bounds,
        max_seqlen=max_seqlen,
    )
    longest = k.shape[1]
    if bounds is not None:
        longest = max([0] + [b - a for a, b in itertools.pairwise(bounds)])
    return RoutePlan(
        index=index,
        count=count,
        dense_rows=dense_rows,
        mass=kept_mass if estimate_mass else None,
        key_blocks=(longest + BLOCK_TOKENS - 1) // BLOCK_TOKENS,
        cu_seqlens=None if bounds is None else tuple(bounds),
    )._trust()


@overload
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RoutePlan | None = None,
    *,
    return_lse: Literal[False] = False,
    softmax_scale: float | None = None,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    max_seqlen: int = 0,
    kernel: str = "",
) -> torch.Tensor: ...


@overload
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RoutePlan | None = None,
    *,
    return_lse: Literal[True],
    softmax_scale: float | None = None,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    max_seqlen: int = 0,
    kernel: str = "",
) -> tuple[torch.Tensor, torch.Tensor]: ...


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RoutePlan | None = None,
    *,
    return_lse: bool = False,
    softmax_scale: float | None = None,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    max_seqlen: int = 0,
    kernel: str = "",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``softmax(q k^T * scale) v``, over the blocks of ``plan`` or over everything. Non-causal.

    Args:
        q: ``[B, Sq, H, D]``, or ``[T, H, D]`` for packed documents. bfloat16, float16 or (CPU)
            float32; D 64 or 128 (CUDA: 128). Last stride 1, other strides free.
        k: ``[B, Sk, Hkv, D]`` or ``[T, Hkv, D]``, like ``q``; H a multiple of Hkv.
        v: shape and dtype of ``k``.
        plan: from :func:`route`; None for dense attention. A plan made by hand is checked first,
            which on CUDA waits for the stream.
        return_lse: also give the log-sum-exp of each row's scaled scores (natural logarithm).
        softmax_scale: factor of the scores; None for ``1 / sqrt(D)``. Should be that of `route`.
        cu_seqlens: host bounds ``[n + 1]`` of packed documents; may be left out with a plan, which
            knows them.
        max_seqlen: tokens of the longest document, as a check; 0 for none.
        kernel: name of a kernel (``sm90_union``, ``cpu_reference``, ...); empty for the best.

    Returns:
        A new contiguous tensor of q's shape and dtype; with ``return_lse`` also float32
        ``[B, H, Sq]`` or ``[H, T]``. Rows outside all documents are 0 with log-sum-exp -inf.

    Raises:
        ValueError: a shape, dtype, stride, bound or plan value outside the above.
        NotImplementedError: a head width or device that no kernel of this build runs.
        TypeError: ``plan`` is no :class:`RoutePlan`.
        RuntimeError: from ``backward``, which does not exist.
    """
    if plan is not None and not isinstance(plan, RoutePlan):
        raise TypeError(f"plan is a {type(plan).__name__}; it must be a RoutePlan or None")
    bounds = _host_bounds(cu_seqlens)
    if plan is not None and plan.cu_seqlens is not None:
        if bounds is not None and tuple(bounds) != plan.cu_seqlens:
            raise ValueError(
                f"cu_seqlens is {tuple(bounds)} but the plan was made for {plan.cu_seqlens}; "
                "route again for other documents"
            )
        bounds = list(plan.cu_seqlens)
    call = {
        "softmax_scale": _scale(softmax_scale),
        "return_lse": return_lse,
        "cu_seqlens": bounds,
        "max_seqlen": max_seqlen,
        "kernel_name": kernel,
    }
    if plan is None:
        out, lse = torch.ops.tessera.dense_attention(q, k, v, **call)
    else:
        # A router's plan still has to be one for these lengths.
        same_keys = bounds == (None if plan.cu_seqlens is None else list(plan.cu_seqlens)) and (
            bounds is not None or -(-k.shape[1] // BLOCK_TOKENS) == plan.key_blocks
        )
        out, lse = torch.ops.tessera.sparse_attention(
            q,
            k,
            v,
            plan.index,
            plan.count,
            plan.dense_rows,
            check_plan=not (plan.trusted and same_keys),
            **call,
        )
    return (out, lse) if return_lse else out
