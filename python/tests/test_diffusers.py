"""The diffusers adapter on a tiny random MiniMax-H3."""

import pytest
import torch

diffusers = pytest.importorskip("diffusers", minversion="0.42.1")

import tessera.diffusers

import tessera

TEXT, AUDIO, KEYFRAME, VIDEO = 20, 13, 31, 640
ROWS = TEXT + KEYFRAME + AUDIO + VIDEO


@pytest.fixture
def model():
    return diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=2,
        attention_head_dim=128,
        hidden_size=64,
        num_layers=3,
        num_refiner_layers=1,
        ffn_dim=64,
        in_channels=4,
        audio_in_channels=8,
        text_dim=32,
        freq_dim=32,
        time_embed_hidden_dim=32,
        time_embed_dim=32,
    ).eval()


@pytest.fixture
def inputs():
    text = torch.arange(TEXT)
    keyframe = torch.arange(TEXT, TEXT + KEYFRAME)
    audio = torch.arange(TEXT + KEYFRAME, TEXT + KEYFRAME + AUDIO)
    video = torch.arange(TEXT + KEYFRAME + AUDIO, ROWS)
    tags = torch.full((ROWS,), 0)
    tags[text], tags[audio] = 1, 2
    timesteps = torch.zeros(ROWS, dtype=torch.long)
    timesteps[torch.cat([audio, video])] = 1
    return dict(
        hidden_states=torch.randn(1, KEYFRAME + VIDEO, 16),
        audio_hidden_states=torch.randn(1, AUDIO, 8),
        encoder_hidden_states=torch.randn(1, TEXT, 32),
        timestep=torch.tensor([0.0, 0.7]),
        timestep_indices=timesteps,
        token_tags=tags,
        position_ids=torch.stack(
            [torch.arange(ROWS) // 64, torch.arange(ROWS) // 8 % 8, torch.arange(ROWS) % 8], 1
        ),
        video_indices=torch.cat([keyframe, video]),
        audio_indices=audio,
        text_indices=text,
        return_dict=False,
    )


def run(model, inputs):
    with torch.no_grad():
        return torch.cat([t.flatten() for t in model(**inputs)])


def options(**changes):
    return dict(sparsity=0.5, skip_first_steps=0, min_seq_len=0) | changes


def test_full_budget_equals_diffusers(model, inputs):
    want = run(model, inputs)
    with tessera.diffusers.enable(model, **options(sparsity=1e-9)) as adapter:
        got = run(model, inputs)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    report = adapter.report()
    assert report.sparse_calls == 3 and not report.dense_calls
    assert all(layer.density == 1.0 for layer in report.layers)
    assert all(abs(layer.kept_mass - 1.0) < 1e-4 for layer in report.layers)


def test_sparse_attention_changes_the_output_and_is_reported(model, inputs):
    want = run(model, inputs)
    adapter = tessera.diffusers.enable(model, **options())
    got = run(model, inputs)
    assert not torch.equal(got, want)
    assert torch.nn.functional.cosine_similarity(got, want, dim=0) > 0.9
    # 11 blocks: the first holds text, key frame and audio rows and is dense, the others keep 8.
    assert ROWS == 11 * 64
    for layer in adapter.report().layers:
        assert layer.sparse_calls == 1 and not layer.dense_calls
        assert layer.density == pytest.approx((11 + 10 * 8) / 121)
        assert 8 / 11 < layer.kept_mass < 1.0
    assert str(adapter.report()).startswith(
        "transformer_blocks.0 ... transformer_blocks.2 (3 layers): 1 sparse (density 0.752, "
    )


def test_disable_restores_everything(model, inputs):
    want = run(model, inputs)
    before = [block.attn.processor for block in model.transformer_blocks]
    adapter = tessera.diffusers.enable(model, **options())
    assert all(b.attn.processor is not p for b, p in zip(model.transformer_blocks, before))
    run(model, inputs)
    adapter.disable()
    adapter.disable()
    assert all(b.attn.processor is p for b, p in zip(model.transformer_blocks, before))
    assert not model._forward_pre_hooks
    assert torch.equal(run(model, inputs), want)
    assert adapter.report().sparse_calls == 3


def test_skipped_steps_and_layers_are_diffusers_own_bits(model, inputs):
    want = run(model, inputs)
    with tessera.diffusers.enable(model, steps_per_run=3, **options(skip_first_steps=2)) as adapter:
        outs = [run(model, inputs) for _ in range(6)]
    assert [torch.equal(out, want) for out in outs] == [True, True, False] * 2
    assert adapter.report().dense_calls == {"leading step": 4 * 3}
    assert adapter.report().sparse_calls == 2 * 3

    with tessera.diffusers.enable(model, **options(skip_first_layers=2)) as adapter:
        run(model, inputs)
    layers = adapter.report().layers
    assert [layer.sparse_calls for layer in layers] == [0, 0, 1]
    assert layers[0].dense_calls == {"leading layer": 1} and layers[0].density is None


@pytest.mark.parametrize(
    "change, reason",
    [(dict(sparsity=0.0), "sparsity 0"), (dict(min_seq_len=ROWS + 1), "short sequence")],
)
def test_other_reasons_for_dense(model, inputs, change, reason):
    want = run(model, inputs)
    with tessera.diffusers.enable(model, **options(**change)) as adapter:
        assert torch.equal(run(model, inputs), want)
    assert adapter.report().dense_calls == {reason: 3}


def test_key_frame_rows_stay_dense(model, inputs):
    # Move the key frame between video blocks: its block must become dense as well.
    order = torch.arange(ROWS)
    state = tessera.diffusers._ModelState(tessera.diffusers.Schedule(), None)
    state.begin_forward(None, (), inputs)
    assert state.dense_blocks() == [0]
    timesteps = inputs["timestep_indices"].clone()
    timesteps[200] = 0
    state.begin_forward(None, (), inputs | dict(timestep_indices=timesteps, video_indices=order))
    assert state.dense_blocks() == [0, 3]


def test_heads_are_split_when_a_plan_would_be_too_large(model, inputs, monkeypatch):
    with tessera.diffusers.enable(model, **options()) as whole:
        want = run(model, inputs)
    monkeypatch.setattr(tessera.diffusers, "_MAX_PLAN_PAIRS", 1)
    with tessera.diffusers.enable(model, **options()) as split:
        assert torch.equal(run(model, inputs), want)
    assert [l.density for l in split.report().layers] == [l.density for l in whole.report().layers]


def test_fused_projections(model, inputs):
    with tessera.diffusers.enable(model, **options()):
        want = run(model, inputs)
    for block in model.transformer_blocks:
        block.attn.fuse_projections()
    with tessera.diffusers.enable(model, **options()):
        torch.testing.assert_close(run(model, inputs), want, atol=1e-5, rtol=1e-4)


def test_pipeline_tells_where_a_generation_begins(model, inputs):
    pipe = diffusers.MiniMaxH3ModularPipeline()
    pipe.update_components(transformer=model, scheduler=diffusers.MiniMaxH3Scheduler())
    adapter = tessera.diffusers.enable(pipe, **options(skip_first_steps=1))
    for _ in range(2):
        pipe.scheduler.set_timesteps(5, device="cpu")
        run(model, inputs)
        run(model, inputs)
    assert len(pipe.scheduler.timesteps) > 0, "the scheduler's own method ran"
    assert adapter.report().dense_calls == {"leading step": 2 * 3}
    assert adapter.report().sparse_calls == 2 * 3
    assert adapter.report().layers[0].name == "transformer.transformer_blocks.0"
    adapter.disable()
    assert "set_timesteps" not in vars(pipe.scheduler)


def test_a_scheduler_that_comes_later_is_followed(model, inputs):
    pipe = diffusers.MiniMaxH3ModularPipeline()
    first, second = diffusers.MiniMaxH3Scheduler(), diffusers.MiniMaxH3Scheduler()
    pipe.update_components(transformer=model, scheduler=first)
    adapter = tessera.diffusers.enable(pipe, **options(skip_first_steps=1))
    for scheduler in (first, second, second):
        pipe.update_components(scheduler=scheduler)
        scheduler.set_timesteps(5, device="cpu")
        run(model, inputs)
        run(model, inputs)
    assert adapter.report().dense_calls == {"leading step": 3 * 3}
    assert adapter.report().sparse_calls == 3 * 3
    assert "set_timesteps" not in vars(first)
    pipe.scheduler = object()
    with pytest.raises(ValueError, match="scheduler is now a object.*give steps_per_run"):
        run(model, inputs)
    pipe.update_components(scheduler=second)
    adapter.disable()
    assert "set_timesteps" not in vars(second)


def test_other_dtypes_than_bf16_run_dense(model):
    # The published schedule: sparse iff q is bfloat16. float32 on the CPU is the tests' exact form.
    state = tessera.diffusers._ModelState(tessera.diffusers.Schedule(skip_first_steps=0), None)
    state.step = 0
    attn = model.transformer_blocks[0].attn
    processor = tessera.diffusers._Processor(attn.processor, state, "block", 0)
    for dtype, device, reason in [
        (torch.bfloat16, "cpu", None),
        (torch.float32, "cpu", None),
        (torch.float16, "cpu", "dtype float16"),
        (torch.bfloat16, "meta", None),
        (torch.float32, "meta", "dtype float32"),
        (torch.float16, "meta", "dtype float16"),
    ]:
        x = torch.empty(1, 4096, 64, dtype=dtype, device=device)
        assert processor._reason_for_dense(attn, x, None) == reason


@pytest.mark.parametrize(
    "field, value",
    [
        ("sparsity", "0.85"),
        ("sparsity", True),
        ("n_k", True),
        ("n_k", 4.0),
        ("n_q", "4"),
        ("skip_first_steps", 1.5),
        ("skip_first_layers", False),
        ("min_seq_len", 4096.0),
        ("steps_per_run", 5.0),
        ("steps_per_run", True),
    ],
)
def test_values_of_another_type_are_refused(model, field, value):
    with pytest.raises(TypeError, match=f"{field} is {value!r}; it must be"):
        tessera.diffusers.enable(model, **options() | {field: value})


def test_backend_choice_reaches_the_dense_path(model):
    with tessera.diffusers.enable(model, **options()):
        model.set_attention_backend("native")
        inner = model.transformer_blocks[0].attn.processor.inner
        assert inner._attention_backend is not None
    assert model.transformer_blocks[0].attn.processor is inner


def test_wrong_use_is_refused(model, inputs):
    enable = tessera.diffusers.enable
    with pytest.raises(TypeError, match="Linear holds no MiniMaxH3Transformer3DModel"):
        enable(torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match="unknown option sparsty; known are min_seq_len"):
        enable(model, sparsty=0.5)
    with pytest.raises(ValueError, match="sparsity is 1.5"):
        enable(model, sparsity=1.5)
    with pytest.raises(ValueError, match="n_q is 3"):
        enable(model, n_q=3)
    with pytest.raises(ValueError, match="skip_first_layers is -1"):
        enable(model, skip_first_layers=-1)
    with pytest.raises(ValueError, match="give steps_per_run"):
        enable(model)
    with pytest.raises(ValueError, match="steps_per_run is 0"):
        enable(model, steps_per_run=0)
    with tessera.diffusers.enable(model, **options()):
        with pytest.raises(ValueError, match="already on"):
            enable(model, **options())
        with pytest.raises(ValueError, match="keyword arguments"):
            model(*inputs.values())
