"""Dense and sparse attention against masked softmax in float64."""

import dataclasses
import math

import pytest
import reference
import torch

import tessera

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def qkv(batch, sq, sk, heads, kv_heads, dim, dtype=torch.float32):
    return tuple(
        torch.randn(batch, s, h, dim).to(dtype)
        for s, h in [(sq, heads), (sk, kv_heads), (sk, kv_heads)]
    )


def close(got, want, tolerance):
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "shape", [(2, 100, 100, 2, 2, 64), (1, 130, 321, 4, 2, 64), (1, 257, 257, 2, 1, 128)]
)
@pytest.mark.parametrize("sparse", [False, True])
def test_matches_masked_softmax(dtype, shape, sparse):
    q, k, v = qkv(*shape, dtype)
    plan = tessera.route(q, k, keep=2) if sparse else None
    mask = reference.token_mask(plan, shape[1], shape[2]) if sparse else None
    out, lse = tessera.attend(q, k, v, plan, return_lse=True)
    want, want_lse = reference.attention(q, k, v, mask)
    assert out.dtype == dtype and lse.dtype == torch.float32
    close(out, want, TOLERANCE[dtype])
    close(lse, want_lse, 2e-5)
    assert torch.equal(tessera.attend(q, k, v, plan), out)


def test_softmax_scale():
    q, k, v = qkv(1, 100, 100, 2, 2, 64)
    close(
        tessera.attend(q, k, v, softmax_scale=0.5), reference.attention(q, k, v, scale=0.5)[0], 2e-5
    )


def test_almost_no_sparsity_equals_dense():
    q, k, v = qkv(1, 1000, 1000, 2, 2, 64)
    plan = tessera.route(q, k, sparsity=1e-6)
    assert plan.density == 1.0
    assert torch.equal(tessera.attend(q, k, v, plan), tessera.attend(q, k, v))


def test_routing_beats_random_blocks():
    # Keys of one topic lie half a sequence away from their queries.
    topics = torch.randn(16, 64) * 2
    q = (topics.repeat_interleave(64, 0) + 0.3 * torch.randn(1024, 64)).view(1, 1024, 1, 64)
    k = (topics.roll(8, 0).repeat_interleave(64, 0) + 0.3 * torch.randn(1024, 64)).view_as(q)
    v = torch.randn_like(q)
    plan = tessera.route(q, k, keep=2)
    dense = tessera.attend(q, k, v).flatten()
    random = torch.stack([torch.randperm(16)[:2].sort().values for _ in range(16)]).int()
    lottery = tessera.RoutePlan(random.view(1, 1, 16, 2), plan.count, key_blocks=16)
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(tessera.attend(q, k, v, plan).flatten(), dense, dim=0) > 0.99
    assert cosine(tessera.attend(q, k, v, lottery).flatten(), dense, dim=0) < 0.9


def test_packed_qkv_views_are_used_as_they_lie():
    fused = torch.randn(2, 300, 4, 3 * 64)
    views = fused.split(64, dim=3)
    copies = [t.contiguous() for t in views]
    assert not any(t.is_contiguous() for t in views)
    for plan in (None, tessera.route(*views[:2], keep=2)):
        out = tessera.attend(*views, plan)
        assert out.is_contiguous()
        assert torch.equal(out, tessera.attend(*copies, plan))


def test_transposed_heads_first_tensors():
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv(1, 200, 200, 4, 4, 64))
    assert q.stride(2) > q.stride(1)
    close(tessera.attend(q, k, v), reference.attention(q, k, v)[0], 2e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_packed_documents(sparse):
    q, k, v = (t[0] for t in qkv(1, 500, 500, 4, 2, 64))
    cu = [0, 200, 200, 450]
    plan = tessera.route(q, k, keep=2, cu_seqlens=cu) if sparse else None
    out, lse = tessera.attend(q, k, v, plan, cu_seqlens=cu, return_lse=True)
    assert out.shape == (500, 4, 64) and lse.shape == (4, 500)
    for a, b in [(0, 200), (200, 450)]:
        part = tuple(t[None, a:b] for t in (q, k, v))
        own = tessera.route(*part[:2], keep=2) if sparse else None
        mask = reference.token_mask(own, b - a, b - a) if sparse else None
        want, want_lse = reference.attention(*part, mask)
        close(out[a:b], want[0], 2e-5)
        close(lse[:, a:b], want_lse[0], 2e-5)
    assert (out[450:] == 0).all() and (lse[:, 450:] == -math.inf).all()
    if sparse:
        assert torch.equal(tessera.attend(q, k, v, plan), out), "the plan knows its documents"
        with pytest.raises(ValueError, match="the plan was made for"):
            tessera.attend(q, k, v, plan, cu_seqlens=[0, 450])


def test_kernels_by_name():
    q, k, v = qkv(1, 200, 200, 2, 2, 64)
    close(tessera.attend(q, k, v, kernel="cpu_reference"), tessera.attend(q, k, v), 1e-5)
    with pytest.raises(ValueError, match='no kernel named "warp9"; known are'):
        tessera.attend(q, k, v, kernel="warp9")


def test_wrong_tensors_are_value_errors():
    q, k, v = qkv(1, 128, 128, 4, 2, 64)
    for bad, text in [
        ((q.transpose(1, 3), k, v), "last stride"),
        ((q, k.half(), v), "convert them to one dtype"),
        ((q, k, v[:, :64]), "give v the shape of k"),
        ((q[:, :, :3], k, v), "multiple of the key heads"),
        ((q[0], k, v), "4 dimensions"),
        ((q[:, :0], k, v), "at least 1"),
        ((q.long(), k.long(), v.long()), "accepted are bf16, f16 and f32"),
    ]:
        with pytest.raises(ValueError, match=text):
            tessera.attend(*bad)
    with pytest.raises(NotImplementedError, match="head_dim is 32"):
        tessera.attend(q[..., :32], k[..., :32], v[..., :32])


def test_wrong_plans_are_value_errors():
    q, k, v = qkv(1, 640, 640, 2, 2, 64)
    plan = tessera.route(q, k, keep=2)
    index = plan.index.clone()
    index[0, 1, 3, 1] = 10
    for bad, text in [
        (dataclasses.replace(plan, index=index), r"ids must lie in \[0, 10\)"),
        (dataclasses.replace(plan, count=plan.count + 1), "count"),
        (dataclasses.replace(plan, index=plan.index.long()), "i64"),
        (dataclasses.replace(plan, index=plan.index[:, :1]), "2"),
        (dataclasses.replace(plan, count=plan.count[0]), "3 dimensions"),
    ]:
        with pytest.raises(ValueError, match=text):
            tessera.attend(q, k, v, bad)
    with pytest.raises(ValueError):
        tessera.attend(q[:, :320], k, v, plan)


def test_backward_says_that_there_is_none():
    q, k, v = (t.requires_grad_() for t in qkv(1, 64, 64, 1, 1, 64))
    plan = tessera.route(q, k, keep=1)
    assert not plan.mass.requires_grad
    for out in (tessera.attend(q, k, v), tessera.attend(q, k, v, plan)):
        with pytest.raises(RuntimeError, match="derivative for tessera::.*is not implemented"):
            out.sum().backward()


def test_only_an_unchanged_plan_for_these_lengths_is_trusted(monkeypatch):
    q = k = v = torch.randn(1, 640, 2, 64)
    plan = tessera.route(q, k, keep=2)
    assert plan.trusted and plan.to("cpu").trusted
    assert not dataclasses.replace(plan, index=plan.index.clone()).trusted
    with pytest.raises(TypeError, match="trusted"):
        tessera.RoutePlan(plan.index, plan.count, trusted=True)

    checked = []
    operator = torch.ops.tessera.sparse_attention

    def recorded(*args, check_plan, **call):
        checked.append(check_plan)
        return operator(*args, check_plan=check_plan, **call)

    monkeypatch.setattr(torch.ops.tessera, "sparse_attention", recorded)
    tessera.attend(q, k, v, plan)
    tessera.attend(q, k, v, dataclasses.replace(plan))
    with pytest.raises(ValueError):
        tessera.attend(q, k[:, :320], v[:, :320], plan)
    with pytest.raises(ValueError):
        tessera.attend(q[0], k[0], v[0], plan, cu_seqlens=[0, 320, 640])
    assert checked == [False, True, True, True]


def test_a_plan_of_another_type_is_refused():
    q = torch.randn(1, 64, 1, 64)
    with pytest.raises(TypeError, match="plan is a str; it must be a RoutePlan"):
        tessera.attend(q, q, q, "x")
