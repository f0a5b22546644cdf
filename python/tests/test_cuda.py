"""The CUDA kernels through torch: parity, streams, graphs, and that the host never waits."""

import dataclasses

import pytest
import reference
import torch

import tessera


def usable():
    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        x = torch.zeros(1, 64, 1, 128, device="cuda", dtype=torch.bfloat16)
        tessera.attend(x, x, x)
    except NotImplementedError as error:
        return str(error)
    return None


why_not = usable()
pytestmark = pytest.mark.skipif(why_not is not None, reason=str(why_not))


def qkv(batch, sq, sk, heads, kv_heads, dtype=torch.bfloat16):
    return tuple(
        torch.randn(batch, s, h, 128).to(dtype).cuda()
        for s, h in [(sq, heads), (sk, kv_heads), (sk, kv_heads)]
    )


def cpu(*tensors):
    return tuple(t.cpu() for t in tensors)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("sparse", [False, True])
def test_matches_masked_softmax(dtype, tolerance, sparse):
    q, k, v = qkv(2, 333, 700, 4, 2, dtype)
    plan = tessera.route(q, k, keep=3) if sparse else None
    out, lse = tessera.attend(q, k, v, plan, return_lse=True)
    mask = reference.token_mask(plan.to("cpu"), 333, 700) if sparse else None
    want, want_lse = reference.attention(*cpu(q, k, v), mask)
    torch.testing.assert_close(out.cpu().double(), want, atol=tolerance, rtol=0)
    torch.testing.assert_close(lse.cpu().double(), want_lse, atol=1e-3, rtol=0)


def test_plan_is_that_of_the_cpu():
    q, k, _ = qkv(1, 1000, 2000, 2, 2)
    got, want = tessera.route(q, k, sparsity=0.5), tessera.route(*cpu(q, k), sparsity=0.5)
    same = (got.index.cpu() == want.index).all(-1).float().mean()
    assert same > 0.98, "near-ties may fall either way"
    torch.testing.assert_close(got.mass.cpu(), want.mass, atol=1e-3, rtol=0)
    assert str(got) == str(want)


def test_packed_qkv_views_and_documents():
    fused = torch.randn(700, 4, 3 * 128, device="cuda", dtype=torch.bfloat16)
    views = fused.split(128, dim=2)
    cu = [0, 400, 650]
    plan = tessera.route(*views[:2], keep=2, cu_seqlens=cu)
    out = tessera.attend(*views, plan)
    assert torch.equal(out, tessera.attend(*(t.contiguous() for t in views), plan))
    assert (out[650:] == 0).all()
    dense = tessera.attend(*views, cu_seqlens=cu)
    want, _ = reference.attention(*(t[None].cpu() for t in views), reference.document_mask(cu, 700))
    torch.testing.assert_close(dense[:650].cpu().double(), want[0, :650], atol=2e-2, rtol=0)


def test_work_goes_to_the_current_stream():
    q, k, v = qkv(1, 4096, 4096, 8, 8)
    want = tessera.attend(q, k, v, tessera.route(q, k))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s: later work must queue behind it
        out = tessera.attend(q, k, v, tessera.route(q, k))
        assert not stream.query(), "the call returned before the stream was through"
    stream.synchronize()
    assert torch.equal(out, want)


def test_calls_do_not_wait_for_the_device():
    q, k, v = qkv(1, 4096, 4096, 8, 8)
    tessera.attend(q, k, v, tessera.route(q, k))  # first call: workspaces, module loading
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with (
        torch.profiler.profile(activities=activities) as profile,
        torch.profiler.record_function("tessera_calls"),
    ):
        plan = tessera.route(q, k)
        tessera.attend(q, k, v, plan)
        tessera.attend(q, k, v)
    events = profile.events()
    span = next(e for e in events if e.name == "tessera_calls").time_range
    inside = [e.name for e in events if span.start <= e.time_range.start <= span.end]
    assert any("aunch" in name for name in inside), "the profiler saw the launches"
    waits = [n for n in inside if "ynchronize" in n or n.startswith(("cudaMemcpy", "cudaMalloc"))]
    assert not waits


def test_graph_capture_and_replay():
    q, k, v = qkv(1, 2048, 2048, 4, 4)

    def step():
        return tessera.attend(q, k, v, tessera.route(q, k, keep=4))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = step()
    for tensor in (q, k, v):
        tensor.copy_(torch.randn_like(tensor))
    # A larger eager call makes the workspaces grow; the graph must not notice.
    big = qkv(1, 8192, 8192, 4, 4)
    with torch.cuda.stream(side):
        tessera.attend(*big, tessera.route(*big[:2]))
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, step())


def test_plans_made_by_hand_are_checked():
    q, k, v = qkv(1, 640, 640, 2, 2)
    plan = tessera.route(q, k, keep=2)
    index = plan.index.clone()
    index[0, 1, 3, 1] = 10
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 10\)"):
        tessera.attend(q, k, v, dataclasses.replace(plan, index=index))


def test_tensors_and_plans_on_two_devices_are_refused():
    q, k, v = qkv(1, 128, 128, 1, 1)
    with pytest.raises(ValueError, match="one device"):
        tessera.attend(q, k.cpu(), v)
    plan = tessera.route(q, k, keep=1)
    with pytest.raises(ValueError, match="cuda:0"):
        tessera.attend(q, k, v, plan.to("cpu"))


def test_unsupported_inputs_are_not_implemented_errors():
    x = torch.zeros(1, 64, 1, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="head_dim is 64"):
        tessera.attend(x, x, x)
    x = torch.zeros(1, 64, 1, 128, device="cuda")
    with pytest.raises(NotImplementedError, match="f32"):
        tessera.attend(x, x, x)


def test_bounds_on_the_device_are_refused():
    q = torch.zeros(64, 1, 128, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="host values"):
        tessera.attend(q, q, q, cu_seqlens=torch.tensor([0, 64], device="cuda"))


def test_compile_fullgraph():
    q, k, v = qkv(1, 640, 640, 2, 2)

    def step(q, k, v):
        return tessera.attend(q, k, v, tessera.route(q, k, keep=3)) + 1.0

    assert torch.equal(torch.compile(step, fullgraph=True)(q, k, v), step(q, k, v))
