"""Public attention kernels for Hopper as functions of q, k, v [1, S, H, 128] and lists.

Each loader imports one package and returns {name: make}; make(q, k, v[, lists]) prepares layouts and
returns the function to time, whose result is [1, S, H, 128]. Packages are looked for in the folder
PEERS_SITE; import this module first, it extends the search path.
"""
import ctypes
import glob
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

SITE = os.environ.get("PEERS_SITE")
if SITE:
    sys.path[:0] = [SITE, os.path.join(SITE, "nvidia_cutlass_dsl", "dsl_packages")]

import torch  # noqa: E402  (after the search path)
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

BLOCK, WIDTH = 64, 128
SCALE = WIDTH ** -0.5
GROUP, NOISE = 8, 0.15  # of the lists that neighbours share


class Lists:
    """The same lists in the forms that the engines take."""

    def __init__(self, heads, blocks, keep, kind):
        rows = []
        for _ in range(heads):
            if kind == "random":
                scores = torch.rand(blocks, blocks, device="cuda")
            else:
                common = torch.rand(-(-blocks // GROUP), blocks, device="cuda")
                scores = common.repeat_interleave(GROUP, 0)[:blocks]
                scores = scores + NOISE * torch.rand(blocks, blocks, device="cuda")
            rows.append(scores.topk(keep, -1).indices.sort(-1).values.to(torch.int32))
        self.index = torch.stack(rows)[None].contiguous()
        self.count = torch.full(self.index.shape[:-1], keep, dtype=torch.int32, device="cuda")
        self.keep, self.blocks = keep, blocks

    def bitmap(self):
        words = -(-self.blocks // 32)
        bits = torch.zeros(*self.index.shape[:3], words * 32, dtype=torch.int64, device="cuda")
        bits.scatter_(-1, self.index.long(), 1)
        powers = 2 ** torch.arange(32, dtype=torch.int64, device="cuda")
        packed = (bits.view(*bits.shape[:3], words, 32) * powers).sum(-1)
        return torch.where(packed >= 2 ** 31, packed - 2 ** 32, packed).to(torch.int32).contiguous()


def heads_first(*tensors):
    return [t.transpose(1, 2).contiguous() for t in tensors]


def sglang_cute():
    base = "sglang.kernels.ops.attention.flash_attn.cute."
    attend = importlib.import_module(base + "interface").flash_attn_func
    sparsity = importlib.import_module(base + "block_sparsity").BlockSparseTensorsTorch

    def make(q, k, v, lists):
        blocks = sparsity(mask_block_cnt=lists.count, mask_block_idx=lists.index,
                          full_block_cnt=None, full_block_idx=None, block_size=(BLOCK, BLOCK))
        return lambda: attend(q, k, v, softmax_scale=SCALE, causal=False, num_splits=1,
                              block_sparse_tensors=blocks)[0]
    return {"sglang-cute64": make}


def cudnn_sparse():
    api = importlib.import_module("cudnn.block_sparse_attention.api")

    def maker(function):
        def make(q, k, v, lists):
            qh, kh, vh = heads_first(q, k, v)
            return lambda: function(qh, kh, vh, lists.index, lists.keep, softmax_scale=SCALE,
                                    sparse_block_size=BLOCK)["o_tensor"].transpose(1, 2)
        return make
    return {"cudnn-bsa64": maker(api.block_sparse_attention_forward),
            "cudnn-bsa64-fp8": maker(api.block_sparse_attention_fp8_forward)}


def prepare_vsa():
    """The wheel of this peer wants a newer NCCL and mangled library names that its kernel never
    uses; the loader reads such settings at start only, so the process starts itself anew once."""
    nvidia = list(importlib.import_module("nvidia").__path__)[0]
    folder = tempfile.mkdtemp()
    stub = os.path.join(folder, "stub.so")
    source = os.path.join(folder, "stub.c")
    pathlib.Path(source).write_text("int ncclCommQueryProperties(void) { return 1; }\n")
    subprocess.check_call(["gcc", "-shared", "-fPIC", "-o", stub, source])
    runtime = glob.glob(nvidia + "/**/libcudart.so.13", recursive=True)[0]
    driver = next(p for p in glob.glob("/usr/lib/x86_64-linux-gnu/libcuda.so.1") +
                  glob.glob("/usr/local/nvidia/lib64/libcuda.so.1"))
    os.symlink(runtime, os.path.join(folder, "libcudart-96c42e41.so.13.0.96"))
    os.symlink(driver, os.path.join(folder, "libcuda-dcdf334a.so.580.178.04"))
    settings = dict(os.environ, PEERS_VSA_LIBS=stub, LD_PRELOAD=stub,
                    LD_LIBRARY_PATH=folder + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
    os.execve(sys.executable, [sys.executable] + sys.argv, settings)


def vsa():
    nvidia = list(importlib.import_module("nvidia").__path__)[0]
    ctypes.CDLL(glob.glob(nvidia + "/**/libnccl.so.2", recursive=True)[0], mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.environ["PEERS_VSA_LIBS"], mode=ctypes.RTLD_GLOBAL)
    operations = importlib.import_module("fastvideo_kernel._C.fastvideo_kernel_ops")

    def make(q, k, v, lists):
        qh, kh, vh = heads_first(q, k, v)
        sizes = torch.full((lists.blocks,), BLOCK, dtype=torch.int32, device="cuda")
        padded = torch.zeros(*lists.index.shape[:3], lists.blocks, dtype=torch.int32, device="cuda")
        padded[..., :lists.keep] = lists.index
        return lambda: operations.block_sparse_fwd(qh, kh, vh, padded, lists.count,
                                                   sizes)[0].transpose(1, 2)
    return {"vsa-tk64": make}


def sdpa(backend):
    def make(q, k, v):
        qh, kh, vh = (t.transpose(1, 2) for t in (q, k, v))

        def run():
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(qh, kh, vh)
            return out.transpose(1, 2)
        return run
    return make


def fa4():
    attend = importlib.import_module("flash_attn.cute.interface").flash_attn_func

    def make(q, k, v):
        def run():
            out = attend(q, k, v, softmax_scale=SCALE, causal=False)
            return out[0] if isinstance(out, tuple) else out
        return run
    return {"flash-attn-4": make}


def collect(loaders, wanted, left_out):
    found = {}
    for label, load in loaders:
        if not wanted.search(label):
            continue
        try:
            found.update(load())
        except BaseException as error:  # a peer may fail in any way, also by leaving
            if isinstance(error, KeyboardInterrupt):
                raise
            left_out[label] = repr(error)[:200]
            print(f"left out {label}: {left_out[label]}", flush=True)
    return found


def attention_peers(wanted, left_out):
    """(sparse, dense): {name: make} of everything that loads; `left_out` gets the reasons."""
    if SITE is None:
        print("PEERS_SITE is not set: torch's own kernels and Triton are the only peers", flush=True)
    sparse, dense = [], [
        ("torch-cudnn", lambda: {"torch-cudnn": sdpa(SDPBackend.CUDNN_ATTENTION)}),
        ("torch-flash", lambda: {"torch-flash": sdpa(SDPBackend.FLASH_ATTENTION)})]
    if SITE:
        sparse = [("sglang-cute64", sglang_cute), ("cudnn-bsa64", cudnn_sparse)]
        dense.append(("flash-attn-4", fa4))
    if "PEERS_VSA_LIBS" in os.environ:
        sparse.append(("vsa-tk64", vsa))
    return collect(sparse, wanted, left_out), collect(dense, wanted, left_out)


def restart_for_vsa(wanted, left_out):
    """Before CUDA is touched: starts the process anew where that peer is wanted and possible."""
    if SITE is None or not wanted.search("vsa-tk64") or "PEERS_VSA_LIBS" in os.environ:
        return
    try:
        prepare_vsa()
    except Exception as error:
        left_out["vsa-tk64"] = repr(error)[:200]
        print(f"left out vsa-tk64: {error!r}", flush=True)
