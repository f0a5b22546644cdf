#!/usr/bin/env python3
"""Pairs Tessera with torch's scaled_dot_product_attention on this CPU, in one process.

    cmake --preset release && cmake --build --preset release
    python3 -m venv build/torch-venv
    build/torch-venv/bin/pip install torch==2.11.0 numpy
    build/torch-venv/bin/python tools/bench_vs_torch.py --json build/bench.json

Method: inputs are [B, S, H, D] in memory; torch gets contiguous [B, H, S, D] copies made outside
the timing. After one warm-up each, the two run alternately (torch, ours, torch, ours, ...) on the
same number of threads, and the ratio is taken pair by pair, so that a slow spell of the machine
hits both. Before timing, every result is checked against torch; a wrong one ends the run (exit 1).
"""
import argparse
import ctypes
import datetime
import json
import pathlib
import platform
import re
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = 64
# What issue 3 asks for: name of the case -> least speed against torch f32 dense.
TARGETS = {"dense f32": 1.0, "dense bf16": 0.9, "sparse shared": 3.3, "sparse random": 3.3}
ROUTER_SHARE_LIMIT, ROUTER_SHARE_TOKENS = 0.04, 8192
SETTLE_S = 0.05  # lets the other engine's worker threads stop spinning before a run is timed

try:
    import torch
except ImportError:
    sys.exit("bench_vs_torch: torch is not installed for this Python. Make an environment with\n"
             "  python3 -m venv build/torch-venv && build/torch-venv/bin/pip install "
             "torch==2.11.0 numpy\nand run this script with build/torch-venv/bin/python")


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64 * 4),
                ("stride", ctypes.c_int64 * 4), ("dtype", ctypes.c_int32)]


class Message(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class RouteConfig(ctypes.Structure):
    _fields_ = [("keep", ctypes.c_int32), ("n_q", ctypes.c_int32), ("n_k", ctypes.c_int32)]


class Times(ctypes.Structure):
    _fields_ = [("route_s", ctypes.c_double), ("attend_s", ctypes.c_double)]


class Tessera:
    """The shared library of tessera/bench, one method per function."""
    CODES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}

    def __init__(self, path, threads):
        self.lib = ctypes.CDLL(str(path))
        self.threads = threads
        self.text = ctypes.create_string_buffer(1024)
        self.message = Message(ctypes.addressof(self.text), len(self.text))

    def check(self, what, code):
        if code != 0:
            sys.exit(f"bench_vs_torch: {what} refused (code {code}): {self.text.value.decode()}")

    def describe(self):
        self.lib.tb_describe(ctypes.byref(self.message))
        return self.text.value.decode()

    def view(self, t):
        four = ctypes.c_int64 * 4
        return ctypes.byref(
            Tensor(t.data_ptr(), four(*t.shape), four(*t.stride()), self.CODES[t.dtype]))

    def dense(self, q, k, v, out):
        self.check("dense", self.lib.tb_attend_dense(
            self.view(q), self.view(k), self.view(v), self.view(out), self.threads,
            ctypes.byref(self.message)))

    def route(self, q, k, config, index, count):
        self.check("route", self.lib.tb_route_only(
            self.view(q), self.view(k), ctypes.byref(config), ctypes.c_void_p(index.data_ptr()),
            ctypes.c_void_p(count.data_ptr()), self.threads, ctypes.byref(self.message)))

    def sparse(self, q, k, v, out, config, plan):
        times = Times()
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in plan] if plan else [None, None]
        self.check("sparse", self.lib.tb_route_and_attend(
            self.view(q), self.view(k), self.view(v), self.view(out), ctypes.byref(config),
            *pointers, self.threads, ctypes.byref(times), ctypes.byref(self.message)))
        return times


def find_library(given):
    if given:
        path = pathlib.Path(given)
    else:
        path = next(iter(sorted((ROOT / "build" / "release").rglob("libtessera_bench_c.so"))), None)
    if path is None or not path.is_file():
        sys.exit(f"bench_vs_torch: {given or 'libtessera_bench_c.so under build/release'} not found; "
                 "build it with: cmake --preset release && cmake --build --preset release, "
                 "or name it with --lib")
    return path


# --- memory --------------------------------------------------------------------------------------

def status_kib(key):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{key}:\s+(\d+) kB", text, re.M).group(1))


def peak_growth_mib(call):
    """Highest resident memory during `call` above the level before it; None where the kernel does
    not let the high-water mark be reset."""
    ctypes.CDLL(None).malloc_trim(0)  # memory kept by the allocator would hide the call's own
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = status_kib("VmRSS")
    call()
    return max(0, status_kib("VmHWM") - before) / 1024


# --- plans and their check -----------------------------------------------------------------------

def shared_plan(heads, blocks, keep, generator):
    """Every query block of a head has the same list."""
    rows = [torch.randperm(blocks, generator=generator)[:keep].sort().values for _ in range(heads)]
    index = torch.stack(rows)[None, :, None, :].expand(1, heads, blocks, keep)
    return index.to(torch.int32).contiguous(), torch.full((1, heads, blocks), keep, dtype=torch.int32)


def random_plan(heads, blocks, keep, generator):
    index = torch.stack([torch.randperm(blocks, generator=generator)[:keep].sort().values
                         for _ in range(heads * blocks)])
    return (index.view(1, heads, blocks, keep).to(torch.int32).contiguous(),
            torch.full((1, heads, blocks), keep, dtype=torch.int32))


def sparse_error(q, k, v, out, plan):
    """Largest error of some query blocks against float64 attention over their listed keys."""
    index, worst = plan[0], 0.0
    heads, blocks = index.shape[1], index.shape[2]
    for head in range(heads):
        for block in sorted({0, 1, blocks // 2, blocks - 1}):
            rows = slice(block * BLOCK, (block + 1) * BLOCK)
            keys = torch.cat([torch.arange(j * BLOCK, (j + 1) * BLOCK)
                              for j in index[0, head, block].tolist()])
            want = torch.nn.functional.scaled_dot_product_attention(
                q[0, rows, head].double()[None], k[0, keys, head].double()[None],
                v[0, keys, head].double()[None])[0]
            worst = max(worst, (out[0, rows, head].double() - want).abs().max().item())
    return worst


# --- timing --------------------------------------------------------------------------------------

def timed(call):
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    extra = call()
    return time.perf_counter() - start, extra


def paired(theirs, ours, repeats):
    theirs(), ours()
    pairs = []
    for _ in range(repeats):
        torch_s, _ = timed(theirs)
        ours_s, extra = timed(ours)
        pairs.append((torch_s, ours_s, extra))
    return pairs


class Case:
    def __init__(self, tokens, name, pairs, flops, error, tolerance, peaks):
        self.torch_s = statistics.median(p[0] for p in pairs)
        self.ours_s = statistics.median(p[1] for p in pairs)
        self.speed = statistics.median(p[0] / p[1] for p in pairs)
        self.low, self.high = min(p[0] / p[1] for p in pairs), max(p[0] / p[1] for p in pairs)
        shares = [p[2].route_s / p[1] for p in pairs if p[2] is not None]
        self.router_share = statistics.median(shares) if shares else None
        self.tokens, self.name, self.repeats = tokens, name, len(pairs)
        self.gflops = flops / self.ours_s / 1e9
        self.error, self.tolerance = error, tolerance
        self.torch_peak_mib, self.ours_peak_mib = peaks
        self.target = TARGETS.get(name)
        self.share_limit = (ROUTER_SHARE_LIMIT
                            if self.router_share is not None and tokens >= ROUTER_SHARE_TOKENS
                            else None)
        if not error <= tolerance:
            sys.exit(f"bench_vs_torch: {name} at S={tokens}: largest error {error:.2e} against "
                     f"torch, at most {tolerance:.0e} accepted; the timing would mean nothing")

    def met(self):
        fast = self.target is None or self.speed >= self.target
        return fast and (self.share_limit is None or self.router_share <= self.share_limit)

    def verdict(self):
        if self.target is None and self.share_limit is None:
            return "-"
        return "met" if self.met() else "MISSED"


def mib(value):
    return "n/a" if value is None else f"{value:.0f}"


def print_case(case):
    share = "-" if case.router_share is None else f"{100 * case.router_share:.2f} %"
    target = "-" if case.target is None else f">= {case.target}"
    print(f"{case.tokens:>6} {case.name:<15} {1e3 * case.torch_s:>9.1f} {1e3 * case.ours_s:>9.1f} "
          f"{case.speed:>7.2f} {case.low:>6.2f}-{case.high:<6.2f} {target:>7} {share:>8} "
          f"{case.gflops:>8.1f} {case.error:>9.1e} {mib(case.torch_peak_mib):>6} "
          f"{mib(case.ours_peak_mib):>6}  {case.verdict()}", flush=True)


HEADER = (f"{'S':>6} {'case':<15} {'torch ms':>9} {'ours ms':>9} {'speed':>7} {'min-max':>13} "
          f"{'target':>7} {'router':>8} {'GFLOP/s':>8} {'max err':>9} {'MiB':>6} {'MiB':>6}")


def run_tokens(tessera, tokens, options):
    generator = torch.Generator().manual_seed(options.seed + tokens)
    shape = (1, tokens, options.heads, options.width)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    best = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    out = torch.zeros(shape)  # written once, so that its pages do not count as working memory
    flops = 4.0 * tokens * tokens * options.width * options.heads
    cases = []

    def measure(name, theirs, ours, work, error, tolerance):
        peaks = peak_growth_mib(theirs), peak_growth_mib(ours)
        case = Case(tokens, name, paired(theirs, ours, options.repeats), work, error, tolerance,
                    peaks)
        print_case(case)
        cases.append(case)

    def torch_dense():
        sdpa(*best)

    reference = sdpa(*best).transpose(1, 2)
    tessera.dense(q, k, v, out)
    measure("dense f32", torch_dense, lambda: tessera.dense(q, k, v, out), flops,
            (out - reference).abs().max().item(), 1e-4)

    half = [t.bfloat16() for t in (q, k, v)]
    half_out = torch.zeros(shape, dtype=torch.bfloat16)
    wide = [t.float().transpose(1, 2).contiguous() for t in half]
    tessera.dense(*half, half_out)
    error = (half_out.float() - sdpa(*wide).transpose(1, 2)).abs().max().item()
    measure("dense bf16", torch_dense, lambda: tessera.dense(*half, half_out), flops, error, 1e-2)

    blocks = tokens // BLOCK
    keep = max(1, round(options.density * blocks))
    config = RouteConfig(keep, options.cells, options.cells)
    routed = (torch.empty((1, options.heads, blocks, keep), dtype=torch.int32),
              torch.empty((1, options.heads, blocks), dtype=torch.int32))
    tessera.route(q, k, config, *routed)
    for name, plan, given in (
            ("sparse shared", shared_plan(options.heads, blocks, keep, generator), True),
            ("sparse random", random_plan(options.heads, blocks, keep, generator), True),
            ("sparse routed", routed, False)):
        lists = plan if given else None
        tessera.sparse(q, k, v, out, config, lists)
        measure(name, torch_dense, lambda: tessera.sparse(q, k, v, out, config, lists),
                flops * keep / blocks, sparse_error(q, k, v, out, plan), 1e-4)
    return cases, torch_bf16(half, tokens, options)


def torch_bf16(half, tokens, options):
    """torch's own bf16 attention, for information; None where the first run breaks the cap."""
    if tokens > options.torch_bf16_tokens:
        return None
    layout = [t.transpose(1, 2).contiguous() for t in half]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    first, _ = timed(lambda: sdpa(*layout) is None)
    if first > options.torch_bf16_cap:
        return {"tokens": tokens, "seconds": first, "repeats": 1}
    seconds = [timed(lambda: sdpa(*layout) is None)[0] for _ in range(options.repeats)]
    return {"tokens": tokens, "seconds": statistics.median(seconds), "repeats": options.repeats}


def cpu_model():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return match.group(1) if match else platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", help="libtessera_bench_c.so (default: searched in build/release)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192],
                        help="multiples of 64 (default: 4096 8192)")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, choices=[64, 128])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7, help="pairs per case (default: 7)")
    parser.add_argument("--density", type=float, default=0.25)
    parser.add_argument("--cells", type=int, default=4, choices=[1, 2, 4, 8], help="n_q = n_k")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--torch-bf16-tokens", type=int, default=4096,
                        help="largest S at which torch's own bf16 is timed")
    parser.add_argument("--torch-bf16-cap", type=float, default=20.0,
                        help="seconds after which torch bf16 is not repeated")
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers to this file too")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args()
    for tokens in options.tokens:
        if tokens < BLOCK or tokens % BLOCK:
            parser.error(f"--tokens {tokens}: multiples of {BLOCK} are accepted")
    if not 0 < options.density <= 1:
        parser.error(f"--density {options.density}: accepted is (0, 1]")
    if min(options.repeats, options.heads, options.threads) < 1:
        parser.error("--repeats, --heads and --threads are at least 1")

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    tessera = Tessera(find_library(options.lib), options.threads)
    versions = {"torch": torch.__version__, "tessera": tessera.describe(), "cpu": cpu_model(),
                "date": datetime.date.today().isoformat()}
    print(f"tessera {versions['tessera']}, torch {versions['torch']}, {versions['cpu']}, "
          f"{versions['date']}\nB=1 H={options.heads} D={options.width}, {options.threads} threads, "
          f"{options.repeats} pairs, density {options.density}; torch = f32 dense in every row; "
          f"speed = torch / ours\nMiB = peak resident growth of one call, torch (its output included) then ours\n{HEADER}")
    cases, information = [], []
    for tokens in options.tokens:
        done, bf16 = run_tokens(tessera, tokens, options)
        cases += done
        if bf16:
            information.append(bf16)
            print(f"{tokens:>6} for information: torch's own bf16 dense takes "
                  f"{1e3 * bf16['seconds']:.1f} ms (median of {bf16['repeats']})", flush=True)
    peak = status_kib("VmHWM") / 1024
    judged = [c for c in cases if c.verdict() != "-"]
    missed = [c for c in judged if not c.met()]
    print(f"resident now {status_kib('VmRSS') / 1024:.0f} MiB, since the last reset at most "
          f"{peak:.0f} MiB; {len(judged) - len(missed)} of {len(judged)} rows with a target meet it")
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key not in ("json", "lib")}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(
            {"versions": versions, "settings": settings, "cases": [vars(c) for c in cases],
             "torch_bf16": information}, indent=1) + "\n")
        print(f"wrote {options.json}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
