"""The operators under torch's tracers: schemas, shape functions, compile and export."""

import dataclasses

import pytest
import torch
from torch.library import opcheck

import tessera

OPS = torch.ops.tessera
CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def tensors(sq=200, sk=330, heads=4, kv_heads=2):
    return tuple(torch.randn(1, s, h, 64) for s, h in [(sq, heads), (sk, kv_heads), (sk, kv_heads)])


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(budget="keep", amount=2.0, dense_query_blocks=[0], protected_blocks=[1]),
        dict(budget="mass", amount=0.5, estimate_mass=False),
    ],
)
def test_route_operator(options):
    q, k, _ = tensors()
    opcheck(OPS.route.default, (q, k), options, test_utils=CHECKS)


def test_route_operator_packed():
    q, k, _ = (t[0] for t in tensors(300, 300))
    opcheck(OPS.route.default, (q, k), dict(cu_seqlens=[0, 100, 290]), test_utils=CHECKS)


@pytest.mark.parametrize("return_lse", [False, True])
def test_attention_operators(return_lse):
    q, k, v = tensors()
    opcheck(OPS.dense_attention.default, (q, k, v), dict(return_lse=return_lse), test_utils=CHECKS)
    index, count, dense_rows, _ = OPS.route(q, k, budget="keep", amount=2.0)
    for rows in (dense_rows, None):
        opcheck(
            OPS.sparse_attention.default,
            (q, k, v, index, count, rows),
            dict(return_lse=return_lse),
            test_utils=CHECKS,
        )


def test_attention_operators_on_views_and_packed():
    views = torch.randn(1, 130, 2, 3 * 64).split(64, 3)
    opcheck(OPS.dense_attention.default, views, dict(return_lse=True), test_utils=CHECKS)
    rows = tuple(t[0] for t in views)
    call = dict(cu_seqlens=[0, 70, 120], return_lse=True)
    opcheck(OPS.dense_attention.default, rows, call, test_utils=CHECKS)


def test_meta_tensors_give_shapes():
    q, k, v = (t.to("meta") for t in tensors())
    plan = tessera.route(q, k, keep=2)
    assert plan.index.shape == (1, 4, 4, 2) and plan.index.is_meta
    out, lse = tessera.attend(q, k, v, plan, return_lse=True)
    assert out.shape == q.shape and lse.shape == (1, 4, 200)
    with pytest.raises(ValueError, match="sparsity is 2"):
        tessera.route(q, k, sparsity=2)


def test_real_tensors_next_to_meta_ones_are_refused():
    q, k, v = tensors()
    plan = tessera.route(q, k, keep=2)
    for at in range(3):
        mixed = [t.to("meta") if i == at else t for i, t in enumerate((q, k, v))]
        for given in (None, plan):
            with pytest.raises(ValueError, match="move them to one device"):
                tessera.attend(*mixed, given)
    with pytest.raises(ValueError, match="move them to one device"):
        tessera.route(q, k.to("meta"))
    with pytest.raises(ValueError, match="move them to one device"):
        tessera.route(q.to("meta"), k)
    for name in ("index", "count", "dense_rows"):
        part = {name: getattr(plan, name).to("meta")}
        with pytest.raises(ValueError, match=f"{name} is .* on meta; it must be .* on cpu"):
            tessera.attend(q, k, v, dataclasses.replace(plan, **part))


def test_meta_tensors_of_wrong_shapes_are_refused():
    q, k, v = (t.to("meta") for t in tensors())
    plan = tessera.route(q, k, keep=2)
    rows = [t[0] for t in (q, k, v)]

    def index(*size, dtype=torch.int32):
        return dict(index=torch.empty(size, dtype=dtype, device="meta"))

    for call, match in [
        (lambda: tessera.attend(q, k[..., :32], v), "give v the shape of k"),
        (lambda: tessera.attend(q, k[..., :32], v[..., :32]), "head width must agree"),
        (lambda: tessera.route(q, k[..., :32]), "head width must agree"),
        (lambda: tessera.attend(q, k.half(), v), "convert them to one dtype"),
        (lambda: tessera.attend(q[:, :, :3], k, v), "multiple of the key heads"),
        (lambda: tessera.attend(q[:, :0], k, v), "at least 1"),
        (lambda: tessera.attend(*rows), "must have 4 dimensions"),
        (lambda: tessera.attend(q, k, v, cu_seqlens=[0, 200]), "must have 3 dimensions"),
        (lambda: tessera.attend(*rows, cu_seqlens=[0, 201]), "cu_seqlens ends at 201 but q is"),
        (lambda: tessera.attend(*rows, cu_seqlens=[0, 9, 3]), "bounds never fall"),
        (lambda: tessera.attend(q, k, v, softmax_scale=1e-60), "f32 cannot hold"),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    for part in (index(1, 4, 3, 2), index(1, 2, 4, 2), index(1, 4, 4, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"index is .*it must be Int \[1, 4, 4, W\]"):
            tessera.attend(q, k, v, dataclasses.replace(plan, **part))


def block(q, k, v):
    plan = tessera.route(q, k, keep=2)
    out, lse = tessera.attend(q * 1.0, k, v, plan, return_lse=True)
    return out + 1.0, lse


def test_compile_without_graph_breaks():
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for length in (200, 270):
        q, k, v = tensors(length)
        for got, want in zip(compiled(q, k, v), block(q, k, v)):
            assert torch.equal(got, want)


@pytest.mark.slow
def test_compile_to_code_with_fused_projection():
    def layer(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (4, 3 * 64)).split(64, -1)
        return block(q, k, v)

    args = torch.randn(1, 200, 32), torch.randn(32, 4 * 3 * 64) * 0.2
    for got, want in zip(torch.compile(layer, fullgraph=True)(*args), layer(*args)):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_compile_of_packed_documents():
    q, k, v = (t[0] for t in tensors(300, 300))

    def step(q, k, v):
        plan = tessera.route(q, k, keep=2, cu_seqlens=[0, 100, 290])
        return tessera.attend(q, k, v, plan) + 1.0

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), step(q, k, v))


def test_compiled_function_may_return_the_plan():
    q, k, _ = tensors()
    compiled = torch.compile(tessera.route, fullgraph=True, backend="aot_eager")
    plan = compiled(q, k, keep=2)
    assert torch.equal(plan.index, tessera.route(q, k, keep=2).index)
    assert str(plan) == str(tessera.route(q, k, keep=2))


def test_export():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return block(q, k, v)

    args = tensors()
    program = torch.export.export(Module(), args)
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"tessera.route.default", "tessera.sparse_attention.default"} <= targets
    for got, want in zip(program.module()(*args), block(*args)):
        assert torch.equal(got, want)
