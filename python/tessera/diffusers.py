"""Block-sparse self-attention for MiniMax-H3 in Hugging Face diffusers.

    adapter = tessera.diffusers.enable(pipe, sparsity=0.75)
    pipe(...)
    print(adapter.report())
    adapter.disable()

The processors of the DiT blocks are replaced; weights, configuration and the token refiner stay as
they are. Where the schedule asks for dense attention, the replaced processor runs, bit for bit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from diffusers import MiniMaxH3Transformer3DModel
from diffusers.models.transformers.transformer_minimax_h3 import _apply_rotary_emb
from typing_extensions import Self

from tessera._ops import attend, route
from tessera._plan import BLOCK_TOKENS, RoutePlan

_HEAD_DIM = 128
# Larger plans are made and used for a few heads at a time; the bits stay the same.
_MAX_PLAN_PAIRS = 2**29


def _check_int(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be an int")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Where attention is sparse, and how much. Names and defaults of SubBlock sparse attention."""

    sparsity: float = 0.75  #: largest share of key blocks that may be dropped, [0, 1); 0: dense
    n_k: int = 4  #: pooled cells per key block: 1, 2, 4 or 8
    n_q: int = 4  #: pooled cells per query block: 1, 2, 4 or 8
    skip_first_steps: int = 10  #: leading denoise steps of a generation that stay dense
    skip_first_layers: int = 0  #: leading DiT blocks that stay dense
    min_seq_len: int = 4096  #: shorter sequences stay dense, in tokens

    def __post_init__(self) -> None:
        if isinstance(self.sparsity, bool) or not isinstance(self.sparsity, (int, float)):
            raise TypeError(f"sparsity is {self.sparsity!r}; it must be a number")
        for name in ("n_k", "n_q", "skip_first_steps", "skip_first_layers", "min_seq_len"):
            _check_int(name, getattr(self, name))
        if not 0.0 <= self.sparsity < 1.0:
            raise ValueError(f"sparsity is {self.sparsity}; it must lie in [0, 1)")
        for name in ("n_k", "n_q"):
            if getattr(self, name) not in (1, 2, 4, 8):
                raise ValueError(f"{name} is {getattr(self, name)}; accepted are 1, 2, 4 and 8")
        for name in ("skip_first_steps", "skip_first_layers", "min_seq_len"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")


@dataclasses.dataclass
class LayerReport:
    """What one attention layer did."""

    name: str
    sparse_calls: int
    dense_calls: dict[str, int]  #: calls by the reason for which they were dense
    density: float | None  #: computed share of the block pairs in sparse calls; None without one
    kept_mass: float | None  #: mean estimated softmax mass that sparse query blocks kept


@dataclasses.dataclass
class Report:
    """What ran, layer by layer. Printing it groups layers that did the same."""

    layers: list[LayerReport]

    @property
    def sparse_calls(self) -> int:
        """Sparse calls of all layers."""
        return sum(layer.sparse_calls for layer in self.layers)

    @property
    def dense_calls(self) -> Counter[str]:
        """Dense calls of all layers, by reason."""
        total: Counter[str] = Counter()
        for layer in self.layers:
            total.update(layer.dense_calls)
        return total

    def __str__(self) -> str:
        groups: dict[tuple[Any, ...], list[LayerReport]] = {}
        for layer in self.layers:
            key = (layer.sparse_calls, tuple(sorted(layer.dense_calls.items())))
            groups.setdefault(key, []).append(layer)
        lines = []
        for (sparse, dense), layers in groups.items():
            first, last = layers[0].name, layers[-1].name
            name = first if len(layers) == 1 else f"{first} ... {last} ({len(layers)} layers)"
            parts = [f"{sparse} sparse"]
            densities = [x.density for x in layers if x.density is not None]
            if densities:
                parts[0] += f" (density {sum(densities) / len(densities):.3f}"
                masses = [x.kept_mass for x in layers if x.kept_mass is not None]
                if masses:
                    parts[0] += f", estimated kept mass {sum(masses) / len(masses):.3f}"
                parts[0] += ")"
            parts += [f"{count} dense: {reason}" for reason, count in dense]
            lines.append(f"{name}: {', '.join(parts)}")
        return "\n".join(lines)


class _ModelState:
    """What all layers of one model share during a forward."""

    def __init__(self, schedule: Schedule, steps_per_run: int | None) -> None:
        self.schedule = schedule
        self.steps_per_run = steps_per_run
        self.step = -1
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None
        self._dense_blocks: list[int] | None = None

    def start_run(self) -> None:
        self.step = -1
        self._dense_blocks = None

    def begin_forward(self, _model: object, _args: object, kwargs: dict[str, Any]) -> None:
        self.step += 1
        if self.steps_per_run is not None and self.step >= self.steps_per_run:
            self.start_run()
            self.step = 0
        video, timestep = kwargs.get("video_indices"), kwargs.get("timestep_indices")
        if video is None or timestep is None:
            raise ValueError(
                "video_indices and timestep_indices must reach the model as keyword arguments: the "
                "sparse schedule reads from them which rows are video"
            )
        if self._rows is None or self._rows[0] is not video:
            self._dense_blocks = None
        self._rows = video, timestep

    def dense_blocks(self) -> list[int]:
        """Query blocks with a row that is not video being generated; those stay dense.

        Text, audio and conditioning rows (key frames, references) carry other timesteps than the
        generated video, whose rows come last. Read once per generation: reading waits for the
        device.
        """
        if self._dense_blocks is None:
            assert self._rows is not None
            video, timestep = self._rows[0].cpu(), self._rows[1].cpu()
            generated = torch.zeros(timestep.shape[0], dtype=torch.bool)
            generated[video] = timestep[video] == timestep[video[-1]]
            padding = -timestep.shape[0] % BLOCK_TOKENS
            rows = torch.nn.functional.pad(generated, (0, padding), value=True)
            sparse = rows.view(-1, BLOCK_TOKENS).all(1)
            self._dense_blocks = torch.nonzero(~sparse).flatten().tolist()
        return self._dense_blocks


class _Processor:
    """Stands in for a block's attention processor."""

    def __init__(self, inner: Any, state: _ModelState, name: str, layer: int) -> None:
        self.inner = inner
        self._state = state
        self._layer = layer
        self.name = name
        self.sparse_calls = 0
        self.dense_calls: Counter[str] = Counter()
        self._pairs = 0
        # Summed on the device, so that counting never waits for it.
        self._kept: torch.Tensor | int = 0
        self._mass: torch.Tensor | float = 0.0
        self._mass_rows = 0

    # diffusers sets these two on processors; the dense path has to see them.
    @property
    def _attention_backend(self) -> Any:
        return self.inner._attention_backend

    @_attention_backend.setter
    def _attention_backend(self, value: Any) -> None:
        self.inner._attention_backend = value

    @property
    def _parallel_config(self) -> Any:
        return self.inner._parallel_config

    @_parallel_config.setter
    def _parallel_config(self, value: Any) -> None:
        self.inner._parallel_config = value

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        reason = self._reason_for_dense(attn, hidden_states, attention_mask)
        if reason is not None:
            self.dense_calls[reason] += 1
            dense: torch.Tensor = self.inner(attn, hidden_states, rotary_emb, attention_mask)
            return dense
        self.sparse_calls += 1
        q, k, v = self._project(attn, hidden_states, rotary_emb)
        out = self._attend(q, k, v).flatten(2)
        for module in attn.to_out:
            out = module(out)
        return out

    def _reason_for_dense(
        self, attn: Any, x: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> str | None:
        s = self._state.schedule
        if s.sparsity == 0.0:
            return "sparsity 0"
        if self._layer < s.skip_first_layers:
            return "leading layer"
        if attn.head_dim != _HEAD_DIM:
            return f"head width {attn.head_dim}"
        if self._state.step < s.skip_first_steps:
            return "leading step"
        if x.shape[1] < s.min_seq_len:
            return "short sequence"
        if attention_mask is not None:
            return "attention mask"
        if self._parallel_config is not None:
            return "context parallelism"
        # The published schedule knows bfloat16 only. float32 is sparse on the CPU, where it serves
        # as the exact form of the same computation.
        if x.dtype != torch.bfloat16 and (x.dtype, x.device.type) != (torch.float32, "cpu"):
            return f"dtype {str(x.dtype).removeprefix('torch.')}"
        return None

    @staticmethod
    def _project(
        attn: Any, x: torch.Tensor, rotary_emb: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if attn.fused_projections:
            parts = attn.to_qkv(x).chunk(3, dim=-1)
        else:
            parts = (attn.to_q(x), attn.to_k(x), attn.to_v(x))
        q, k, v = (part.unflatten(-1, (attn.heads, attn.head_dim)) for part in parts)
        q, k = attn.norm_q(q), attn.norm_k(k)
        if rotary_emb is not None:
            q, k = _apply_rotary_emb(q, *rotary_emb), _apply_rotary_emb(k, *rotary_emb)
        return q, k, v

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = self._state.schedule
        dense_blocks = self._state.dense_blocks()
        pairs = (-(-q.shape[1] // BLOCK_TOKENS)) * (-(-k.shape[1] // BLOCK_TOKENS))
        heads = max(1, _MAX_PLAN_PAIRS // pairs)
        outs = []
        for first in range(0, q.shape[2], heads):
            part = slice(first, first + heads)
            plan = route(
                q[:, :, part],
                k[:, :, part],
                sparsity=s.sparsity,
                key_cells=s.n_k,
                query_cells=s.n_q,
                dense_query_blocks=dense_blocks,
            )
            self._count(plan, len(dense_blocks))
            outs.append(attend(q[:, :, part], k[:, :, part], v[:, :, part], plan))
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    def _count(self, plan: RoutePlan, dense_blocks: int) -> None:
        batch, heads, rows = plan.count.shape
        assert plan.mass is not None
        self._pairs += batch * heads * rows * plan.key_blocks
        self._kept = self._kept + plan.count.sum() + batch * heads * dense_blocks * plan.key_blocks
        # Dense rows report a mass of 1.
        self._mass = self._mass + plan.mass.sum() - batch * heads * dense_blocks
        self._mass_rows += batch * heads * (rows - dense_blocks)

    def report(self) -> LayerReport:
        return LayerReport(
            self.name,
            self.sparse_calls,
            dict(self.dense_calls),
            float(self._kept) / self._pairs if self._pairs else None,
            float(self._mass) / self._mass_rows if self._mass_rows else None,
        )


class Adapter:
    """Sparse attention that is switched on. Made by :func:`enable`; also a context manager."""

    def __init__(self) -> None:
        self._processors: list[tuple[Any, _Processor]] = []
        self._states: list[_ModelState] = []
        self._undo: list[Callable[[], Any]] = []
        self._pipeline: Any = None
        self._scheduler: Any = None  # the one that is watched

    def start_run(self) -> None:
        """The next forward is the first denoise step of a generation."""
        for state in self._states:
            state.start_run()

    def report(self) -> Report:
        """What ran since :func:`enable`. Waits for the device."""
        return Report([processor.report() for _, processor in self._processors])

    def disable(self) -> None:
        """Puts everything back as it was. The report stays readable."""
        self._unwatch_scheduler()
        self._pipeline = None
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.disable()

    def _adopt_model(self, model: Any, prefix: str, state: _ModelState) -> None:
        self._states.append(state)
        for layer, block in enumerate(model.transformer_blocks):
            inner = block.attn.processor
            name = f"{prefix}transformer_blocks.{layer}"
            processor = _Processor(inner, state, name, layer)
            block.attn.set_processor(processor)
            self._processors.append((block.attn, processor))
            self._undo.append(functools.partial(block.attn.set_processor, inner))

        def begin_forward(called: Any, args: Any, kwargs: dict[str, Any]) -> None:
            self._follow_scheduler()
            state.begin_forward(called, args, kwargs)

        hook = model.register_forward_pre_hook(begin_forward, with_kwargs=True)
        self._undo.append(hook.remove)

    def _watch_scheduler(self, pipeline: Any) -> None:
        """Every generation begins with the set_timesteps of the pipeline's scheduler."""
        self._unwatch_scheduler()
        scheduler = pipeline.scheduler
        original = scheduler.set_timesteps

        def set_timesteps(*args: Any, **kwargs: Any) -> Any:
            self.start_run()
            return original(*args, **kwargs)

        scheduler.set_timesteps = set_timesteps
        self._pipeline, self._scheduler = pipeline, scheduler

    def _unwatch_scheduler(self) -> None:
        # The instance attribute hides the class's method; without it the method shows again.
        if self._scheduler is not None:
            self._scheduler.__dict__.pop("set_timesteps", None)
        self._scheduler = None

    def _follow_scheduler(self) -> None:
        """A scheduler that came after enable has begun its generation before it is watched."""
        current = getattr(self._pipeline, "scheduler", None)
        if current is None or current is self._scheduler:
            return
        if not hasattr(current, "set_timesteps"):
            raise ValueError(
                f"the pipeline's scheduler is now a {type(current).__name__}, which has no "
                "set_timesteps to tell where a generation begins; give steps_per_run to enable()"
            )
        self._watch_scheduler(self._pipeline)
        self.start_run()


def enable(model_or_pipeline: Any, *, steps_per_run: int | None = None, **schedule: Any) -> Adapter:
    """Makes the DiT self-attention of MiniMax-H3 block-sparse, by a schedule.

    Args:
        model_or_pipeline: a ``MiniMaxH3Transformer3DModel``, or a pipeline with one as
            ``transformer`` or ``transformer_ref``.
        steps_per_run: forwards per generation, after which the step count starts anew. A pipeline
            needs none (its scheduler tells); a bare model needs it when leading steps are skipped.
        **schedule: fields of :class:`Schedule`: ``sparsity`` (0.75), ``n_k`` and ``n_q`` (4),
            ``skip_first_steps`` (10), ``skip_first_layers`` (0), ``min_seq_len`` (4096).

    Only query blocks made of generated video rows alone are sparse; blocks with text, audio, key
    frame or reference rows read every key. The published schedule also counts the rows of a
    reference video as video; a model call does not tell them from key frames and reference images,
    so that here they stay dense: never less accurate, slower with a long reference video. Calls in
    another dtype than bfloat16 (on the CPU also float32) are dense.

    Raises:
        TypeError: no such model; an unknown schedule field; a value of another type.
        ValueError: a value out of range; sparse attention is on already; steps unknown.
    """
    known = {field.name for field in dataclasses.fields(Schedule)}
    if unknown := sorted(set(schedule) - known):
        raise TypeError(
            f"unknown option {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    plan = Schedule(**schedule)
    if steps_per_run is not None:
        _check_int("steps_per_run", steps_per_run)
    if steps_per_run is not None and steps_per_run < 1:
        raise ValueError(f"steps_per_run is {steps_per_run}; it must be at least 1")

    scheduler = None
    if isinstance(model_or_pipeline, MiniMaxH3Transformer3DModel):
        models = {"": model_or_pipeline}
    else:
        found = {
            f"{name}.": getattr(model_or_pipeline, name, None)
            for name in ("transformer", "transformer_ref")
        }
        models = {n: m for n, m in found.items() if isinstance(m, MiniMaxH3Transformer3DModel)}
        scheduler = getattr(model_or_pipeline, "scheduler", None)
    if not models:
        raise TypeError(
            f"{type(model_or_pipeline).__name__} holds no MiniMaxH3Transformer3DModel; give the "
            "model, or a pipeline with one as `transformer` or `transformer_ref`"
        )
    model: Any
    for prefix, model in models.items():
        if any(isinstance(b.attn.processor, _Processor) for b in model.transformer_blocks):
            raise ValueError(
                f"sparse attention is already on for {prefix.rstrip('.') or 'the model'}; call "
                "disable() of the adapter that switched it on"
            )
    watch = scheduler is not None and hasattr(scheduler, "set_timesteps")
    if plan.skip_first_steps > 0 and steps_per_run is None and not watch:
        raise ValueError(
            f"skip_first_steps is {plan.skip_first_steps}, but nothing tells where a generation "
            "begins; give steps_per_run, a pipeline with its scheduler, or skip_first_steps=0"
        )
    adapter = Adapter()
    for prefix, model in models.items():
        adapter._adopt_model(model, prefix, _ModelState(plan, steps_per_run))
    if watch:
        adapter._watch_scheduler(model_or_pipeline)
    return adapter


__all__ = ["Adapter", "LayerReport", "Report", "Schedule", "enable"]
