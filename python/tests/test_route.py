"""Routing against the router's formula in float64."""

import pytest
import reference
import torch

import tessera


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "batch, sq, sk, heads, kv_heads, dim, n_q, n_k",
    [
        (1, 2048, 2048, 2, 2, 64, 4, 4),
        (2, 700, 1500, 4, 2, 64, 4, 4),
        (1, 641, 1217, 2, 1, 128, 2, 8),
    ],
)
def test_route_keeps_the_best_blocks(dtype, batch, sq, sk, heads, kv_heads, dim, n_q, n_k):
    # Low-frequency content, so that the pooled scores differ enough to have an order.
    drift = torch.randn(batch, -(-sk // 64), kv_heads, dim).repeat_interleave(64, 1)[:, :sk]
    q = normal(batch, sq, heads, dim, dtype=dtype)
    k = (normal(batch, sk, kv_heads, dim) + drift).to(dtype)
    plan = tessera.route(q, k, sparsity=0.6, query_cells=n_q, key_cells=n_k)

    keep = reference.kept_blocks(0.6, -(-sk // 64))
    assert plan.index.shape == (batch, heads, -(-sq // 64), keep)
    assert plan.index.dtype == plan.count.dtype == torch.int32
    assert (plan.count == keep).all()
    assert (plan.index.diff(dim=-1) > 0).all(), "ids ascend"
    assert not plan.dense_rows.any()

    undecided = rows = 0
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            score = reference.scores(q[b, :, h], k[b, :, kv], n_q=n_q, n_k=n_k)
            order = score.sort(dim=1, descending=True, stable=True)
            for g in range(score.shape[0]):
                rows += 1
                got = set(plan.index[b, h, g].tolist())
                mass = score[g].softmax(0)[plan.index[b, h, g].long()].sum()
                assert abs(plan.mass[b, h, g] - mass) < 1e-4
                # fp32 cannot order what differs by less than this.
                if order.values[g, keep - 1] - order.values[g, keep] < 1e-4:
                    undecided += 1
                else:
                    assert got == set(order.indices[g, :keep].tolist()), (b, h, g)
    assert undecided <= 0.05 * rows


def test_ties_go_to_the_lower_block():
    q = k = torch.zeros(1, 1024, 1, 64)
    assert tessera.route(q, k, keep=3).index[0, 0].unique(dim=0).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    "sparsity, blocks, keep", [(0.75, 590, 152), (0.9, 590, 64), (0.7, 80, 32)]
)
def test_sparsity_rounds_up_to_groups_of_eight(sparsity, blocks, keep):
    q, k = normal(1, 64, 1, 64), normal(1, blocks * 64, 1, 64)
    plan = tessera.route(q, k, sparsity=sparsity)
    assert plan.index.shape[3] == keep
    assert str(plan) == f"{keep}/{blocks} blocks, density {keep / blocks:.3f}"


def test_sparsity_is_the_default_budget():
    q, k = normal(1, 64, 1, 64), normal(1, 4096, 1, 64)
    assert torch.equal(tessera.route(q, k).index, tessera.route(q, k, sparsity=0.75).index)


def test_exact_rounding_and_granularity():
    q, k = normal(1, 64, 1, 64), normal(1, 80 * 64, 1, 64)
    assert tessera.route(q, k, sparsity=0.7, exact_rounding=True).index.shape[3] == 24
    assert tessera.route(q, k, sparsity=0.7, granularity=1).index.shape[3] == 25


def test_mass_budget_reaches_its_target_with_the_fewest_blocks():
    q, k = normal(1, 256, 2, 64) * 4, normal(1, 2048, 2, 64) * 4
    plan = tessera.route(q, k, mass=0.5, min_keep=2, max_keep=20)
    assert plan.count.min() >= 2 and plan.count.max() <= 20
    assert plan.count.unique().numel() > 1, "rows differ"
    assert (plan.mass[plan.count < 20] >= 0.5 - 1e-4).all()
    assert (plan.index[..., -1] == -1).any(), "short rows end in -1"
    assert tessera.route(q, k, mass=0.5, estimate_mass=False).mass is None


def test_protected_and_dense_blocks():
    q, k = normal(2, 500, 2, 64), normal(2, 2048, 2, 64)
    plan = tessera.route(q, k, keep=4, protected_blocks=[0, 31], dense_query_blocks=[1, 7])
    rows = torch.tensor([0, 1, 0, 0, 0, 0, 0, 1], dtype=torch.uint8)
    assert torch.equal(plan.dense_rows, rows.expand(2, 8))
    sparse = plan.index[:, :, rows == 0]
    assert ((sparse == 0).any(-1) & (sparse == 31).any(-1)).all()
    stats = plan.stats()
    assert stats.dense_rows == 4 and stats.rows == 16
    assert stats.kept_pairs == 2 * 2 * (6 * 4 + 2 * 32)
    assert stats.density == plan.density == stats.kept_pairs / (2 * 2 * 8 * 32)
    assert str(plan) == "4/32 blocks, density 0.344, 4 of 16 query blocks dense"


def test_packed_documents_equal_separate_calls():
    q, k = normal(900, 2, 64), normal(900, 2, 64)
    cu = [0, 400, 400, 860]
    plan = tessera.route(q, k, keep=2, cu_seqlens=cu, max_seqlen=460)
    assert plan.index.shape == (1, 2, 7 + 8, 2)
    parts = [tessera.route(q[None, a:b], k[None, a:b], keep=2) for a, b in [(0, 400), (400, 860)]]
    assert torch.equal(plan.index, torch.cat([p.index for p in parts], 2))
    assert torch.equal(plan.mass, torch.cat([p.mass for p in parts], 2))
    assert plan.cu_seqlens == tuple(cu) and plan.key_blocks == 8
    assert plan.stats().total_pairs == 2 * (7 * 7 + 8 * 8)
    on_tensor = tessera.route(q, k, keep=2, cu_seqlens=torch.tensor(cu, dtype=torch.int32))
    assert torch.equal(on_tensor.index, plan.index)


def test_short_documents_are_dense():
    q = k = normal(700, 1, 64)
    plan = tessera.route(q, k, keep=1, min_seq_len=512, cu_seqlens=[0, 600, 700])
    assert plan.dense_rows.tolist() == [[0] * 10 + [1] * 2]
    plan = tessera.route(q, k, keep=1, min_seq_len=1024, cu_seqlens=[0, 600, 700])
    assert str(plan) == "dense, 10 blocks, density 1.000"


def test_strides_do_not_matter():
    fused = normal(1, 640, 2, 3 * 64)
    q, k = fused[..., :64], fused[..., 64:128]
    assert not q.is_contiguous()
    got, want = tessera.route(q, k, keep=3), tessera.route(q.contiguous(), k.contiguous(), keep=3)
    assert torch.equal(got.index, want.index) and torch.equal(got.mass, want.mass)


@pytest.mark.parametrize(
    "call, text",
    [
        (dict(sparsity=1.0), "sparsity is 1"),
        (dict(sparsity=-0.1), "sparsity is -0.1"),
        (dict(sparsity=float("nan")), "sparsity is"),
        (dict(keep=0), "keep is 0"),
        (dict(keep=2.5), "whole number"),
        (dict(keep=1e20), "whole number"),
        (dict(keep=float("nan")), "whole number"),
        (dict(mass=1.5), "mass is 1.5"),
        (dict(mass=0.5, min_keep=9, max_keep=3), "min_keep is 9"),
        (dict(sparsity=0.5, mass=0.5), "sparsity and mass are given"),
        (dict(query_cells=3), "n_q is 3"),
        (dict(softmax_scale=0.0), "softmax_scale is 0.0"),
        (dict(softmax_scale=float("inf")), "softmax_scale is inf"),
        (dict(protected_blocks=[10]), "protected block 10"),
        (dict(protected_blocks=[2**40]), "32 bits"),
        (dict(dense_query_blocks=[10]), "dense query block 10"),
        (dict(max_seqlen=5), "without cu_seqlens"),
        (dict(cu_seqlens=[0, 640]), "3 dimensions"),
    ],
)
def test_bad_options_are_value_errors(call, text):
    q = k = normal(1, 640, 2, 64)
    with pytest.raises(ValueError, match=text):
        tessera.route(q, k, **call)


def test_unsupported_head_width():
    q = k = normal(1, 64, 1, 96)
    with pytest.raises(NotImplementedError, match="head_dim is 96"):
        tessera.route(q, k)


@pytest.mark.parametrize(
    "bounds, match",
    [
        (torch.tensor([0.0, 100.7, 640.0]), "float32 of 1 dimensions"),
        (torch.tensor([False, True]), "torch.bool"),
        (torch.tensor([[0, 640]]), "2 dimensions"),
        ([0, 100.7, 640], "holds 100.7 .float.; bounds are integers"),
        ([0, 100.0, 640], "bounds are integers"),
        ([False, True], "bounds are integers"),
        (["0", "640"], "bounds are integers"),
    ],
)
def test_bounds_that_are_no_integers_are_refused(bounds, match):
    q = k = v = normal(640, 2, 64)
    with pytest.raises(ValueError, match=match):
        tessera.route(q, k, keep=1, cu_seqlens=bounds)
    with pytest.raises(ValueError, match=match):
        tessera.attend(q, k, v, cu_seqlens=bounds)


def test_bounds_may_be_any_integers():
    q = k = normal(640, 2, 64)
    for bounds in (torch.tensor([0, 100, 640]), torch.tensor([0, 100, 640]).int()):
        assert tessera.route(q, k, keep=1, cu_seqlens=bounds).cu_seqlens == (0, 100, 640)
    elements = list(torch.tensor([0, 100, 640]).numpy())
    assert tessera.route(q, k, keep=1, cu_seqlens=elements).cu_seqlens == (0, 100, 640)


@pytest.mark.parametrize(
    "options, match",
    [
        (dict(sparsity=0.9, min_keep=8), "min_keep is 8, which does nothing with sparsity"),
        (dict(max_keep=1), "max_keep is 1"),
        (dict(keep=2, granularity=4), "granularity is 4, which does nothing with keep"),
        (dict(mass=0.5, exact_rounding=True), "exact_rounding is True"),
        (dict(softmax_scale=1e-60), "softmax_scale is 1e-60; f32 cannot hold"),
    ],
)
def test_options_without_effect_are_refused(options, match):
    q = k = normal(1, 640, 2, 64)
    with pytest.raises(ValueError, match=match):
        tessera.route(q, k, **options)


@pytest.mark.parametrize("options", [dict(sparsity="0.8"), dict(keep=True), dict(mass="1")])
def test_budgets_of_another_type_are_refused(options):
    q = k = normal(1, 640, 2, 64)
    with pytest.raises(TypeError, match="it must be a number"):
        tessera.route(q, k, **options)
