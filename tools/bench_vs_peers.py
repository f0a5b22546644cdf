#!/usr/bin/env python3
"""Times our CUDA kernels beside the public ones, in one process on one Hopper GPU.

    python3 tools/bench_vs_peers.py --lib ./libtessera_bench_c.so --commit $(git rev-parse HEAD) \\
        --json bench/results/h200.json

Ours is called through the C interface with torch's pointers. Peers are used where they can be
imported (PEERS_SITE names a folder of unpacked packages; torch's own kernels are always there) and
left out with a printed reason where not. All get the same tensors and lists. The calls of a group
run in turn, A B C A B C, back to back in one stream, each between two events; the order rotates
from round to round. Every result is checked against fp32 torch on some rows before timing; a wrong
result of ours ends the run (exit 1), a wrong peer is left out. TFLOP/s count listed blocks
(4 * 64 * 64 * 128 operations each); layouts that a peer needs are prepared outside the timing.
"""
import argparse
import ctypes
import datetime
import json
import math
import pathlib
import re
import statistics
import sys

from peers_attention import (BLOCK, SCALE, WIDTH, Lists,  # first: it extends the search path
                             attention_peers, restart_for_vsa)
import torch  # noqa: E402

PAIR_FLOPS = 4 * BLOCK * BLOCK * WIDTH
GEMM = 8192
FLUSH_BYTES = 256 << 20  # five times the L2
LIMIT, LIMIT_FP8 = 1e-2, 1.5e-1  # relative L2 on the checked rows


# --- our library ---------------------------------------------------------------------------------

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64 * 4),
                ("stride", ctypes.c_int64 * 4), ("dtype", ctypes.c_int32)]


class Message(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class RouteConfig(ctypes.Structure):
    _fields_ = [("keep", ctypes.c_int32), ("n_q", ctypes.c_int32), ("n_k", ctypes.c_int32)]


class Plan(ctypes.Structure):
    _fields_ = [("index", ctypes.c_void_p), ("count", ctypes.c_void_p),
                ("bitmap", ctypes.c_void_p), ("width", ctypes.c_int32)]


class Call(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int32), ("stream", ctypes.c_void_p),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t),
                ("kernel", ctypes.c_char_p), ("check_plan", ctypes.c_int32)]


class Tessera:
    CODES = {torch.bfloat16: 0, torch.float16: 1}

    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        self.text = ctypes.create_string_buffer(1024)
        self.message = Message(ctypes.addressof(self.text), len(self.text))

    def call(self, name, *arguments):
        pointers = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in arguments]
        code = getattr(self.lib, name)(*pointers, ctypes.byref(self.message))
        if code != 0:
            raise RuntimeError(f"{name} refused (code {code}): {self.text.value.decode()}")

    def view(self, t):
        four = ctypes.c_int64 * 4
        return Tensor(t.data_ptr(), four(*t.shape), four(*t.stride()), self.CODES[t.dtype])

    def settings(self, kernel=""):
        return Call(torch.cuda.current_device(), None, None, 0, kernel.encode(), 0)

    def with_workspace(self, call, name, *arguments):
        """Scratch for a call, by the library's own answer."""
        needed = ctypes.c_size_t(0)
        self.call(name, *arguments, call, ctypes.byref(needed))
        workspace = torch.empty(max(256, needed.value), dtype=torch.uint8, device="cuda")
        call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
        return workspace

    def attend(self, q, k, v, kernel, lists=None, bitmap=None):
        """A function that runs one attention call and returns its output tensor."""
        out = torch.empty_like(q)
        views = [self.view(t) for t in (q, k, v, out)]
        plan = None
        if bitmap is not None:
            plan = Plan(None, None, bitmap.data_ptr(), 0)
        elif lists is not None:
            plan = Plan(lists.index.data_ptr(), lists.count.data_ptr(), None, lists.keep)
        call = self.settings(kernel)
        hold = self.with_workspace(call, "tb_cuda_attend_workspace", *views, None, plan)

        def run(keep_alive=(q, k, v, lists, bitmap, hold)):
            call.stream = torch.cuda.current_stream().cuda_stream
            self.call("tb_cuda_attend", *views, None, plan, call)
            return out
        return run

    def router(self, q, k, keep):
        """A function that routes and returns ids i32 [B, H, Gq, keep]."""
        rows, blocks = (math.ceil(t.shape[1] / BLOCK) for t in (q, k))
        new = lambda *shape, dtype=torch.int32: torch.empty(shape, dtype=dtype, device="cuda")
        index, count = new(1, q.shape[2], rows, keep), new(1, q.shape[2], rows)
        bitmap = new(1, q.shape[2], rows, math.ceil(blocks / 32))
        dense = new(1, rows, dtype=torch.uint8)
        views, config = [self.view(q), self.view(k)], RouteConfig(keep, 4, 4)
        plan = Plan(index.data_ptr(), count.data_ptr(), bitmap.data_ptr(), keep)
        call = self.settings()
        hold = self.with_workspace(call, "tb_cuda_route_workspace", *views, config)

        def run(keep_alive=(q, k, count, bitmap, hold)):
            call.stream = torch.cuda.current_stream().cuda_stream
            self.call("tb_cuda_route", *views, config, plan, ctypes.c_void_p(dense.data_ptr()), call)
            return index
        return run


def kept_blocks(blocks, density):
    """Without a density: what sparsity 0.75 keeps, rounded up to a multiple of 8."""
    if density is None:
        return min(blocks, 8 * max(1, math.ceil(math.ceil(0.25 * blocks) / 8)))
    return max(1, math.ceil(density * blocks - 1e-9))


# --- timing --------------------------------------------------------------------------------------

class Sensor:
    """SM clock and power through the driver's management library, where it is installed."""

    def __init__(self):
        self.clocks, self.watts, self.handle = [], [], ctypes.c_void_p()
        try:
            self.lib = ctypes.CDLL("libnvidia-ml.so.1")
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            bus = (f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:"
                   f"{properties.pci_device_id:02x}.0")
            self.works = (self.lib.nvmlInit_v2() == 0 and self.lib.nvmlDeviceGetHandleByPciBusId_v2(
                bus.encode(), ctypes.byref(self.handle)) == 0)
        except (OSError, AttributeError):
            self.works = False

    def sample(self):
        value = ctypes.c_uint()
        if self.works and self.lib.nvmlDeviceGetClockInfo(self.handle, 1, ctypes.byref(value)) == 0:
            self.clocks.append(value.value)
        if self.works and self.lib.nvmlDeviceGetPowerUsage(self.handle, ctypes.byref(value)) == 0:
            self.watts.append(value.value / 1000)

    def take(self):
        taken = [statistics.median(values) if values else None
                 for values in (self.clocks, self.watts)]
        self.clocks, self.watts = [], []
        return taken


def quantile(values, p):
    values = sorted(values)
    at = p * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


class Bench:
    def __init__(self, options):
        self.options, self.sensor, self.cases = options, Sensor(), []
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def run(self, calls, flush=False):
        """{name: function} to {name: [milliseconds]}, interleaved."""
        names, times = list(calls), {name: [] for name in calls}
        events = {name: [torch.cuda.Event(enable_timing=True) for _ in range(2)] for name in calls}
        for turn in range(self.options.warm_up + self.options.samples):
            self.flush.fill_(turn & 0xff)  # busy while the first calls are enqueued
            for i in range(len(names)):
                name = names[(i + turn) % len(names)]
                if flush:
                    self.flush.fill_(turn & 0xff)
                events[name][0].record()
                calls[name]()
                events[name][1].record()
            if turn >= self.options.warm_up:
                self.sensor.sample()
            torch.cuda.synchronize()
            if turn >= self.options.warm_up:
                for name in names:
                    times[name].append(events[name][0].elapsed_time(events[name][1]))
        return times

    def add(self, group, times, flops=0, gemm=None, errors=None, **facts):
        clock, watts = self.sensor.take()
        for name, values in times.items():
            median = statistics.median(values)
            case = dict(group=group, name=name, **facts, median_ms=median,
                        p10_ms=quantile(values, 0.1), p90_ms=quantile(values, 0.9),
                        samples=len(values), sm_clock_mhz=clock, power_watt=watts)
            if flops:
                case["tflops"] = flops / median / 1e9
                if gemm:
                    case["percent_of_gemm"] = 100 * case["tflops"] / gemm
            if errors and name in errors:
                case["error"] = errors[name]
            self.cases.append(case)
            rate = f"{case['tflops']:.0f} TFLOP/s" if flops else ""
            print(f"  {group} {name}: {median:.4f} ms {rate}", flush=True)


# --- checks --------------------------------------------------------------------------------------

def check_rows(out, q, k, v, lists):
    """Relative L2 of three query blocks of the first and last head against fp32 torch."""
    blocks = q.shape[1] // BLOCK
    got, want = [], []
    for head in {0, q.shape[2] - 1}:
        for block in {0, blocks // 2, blocks - 1}:
            rows = slice(block * BLOCK, (block + 1) * BLOCK)
            keys = slice(None)
            if lists is not None:
                ids = lists.index[0, head, block].long()
                keys = (ids[:, None] * BLOCK + torch.arange(BLOCK, device="cuda")).flatten()
            scores = q[0, rows, head].float() @ k[0, keys, head].float().T * SCALE
            want.append(torch.softmax(scores, -1) @ v[0, keys, head].float())
            got.append(out[0, rows, head].float())
    got, want = torch.stack(got), torch.stack(want)
    return ((got - want).norm() / want.norm()).item()


def checked(makers, q, k, v, lists, left_out):
    """Builds every call and keeps those whose result is right."""
    calls, errors = {}, {}
    for name, make in makers.items():
        limit = LIMIT_FP8 if "fp8" in name else LIMIT
        try:
            run = make()
            error = check_rows(run(), q, k, v, lists)
            torch.cuda.synchronize()
            if not error < limit:
                raise RuntimeError(f"relative L2 {error:.2e} against fp32, at most {limit} accepted")
        except Exception as failure:
            if name.startswith("tessera"):
                sys.exit(f"bench_vs_peers: {name}: {failure}")
            left_out[name] = repr(failure)[:200]
            print(f"  left out {name}: {left_out[name]}", flush=True)
            continue
        calls[name], errors[name] = run, error
    return calls, errors


# --- groups --------------------------------------------------------------------------------------

def our_name(kernel):
    return "tessera" if kernel == "" else f"tessera/{kernel}"


def run_dense(bench, tessera, peers, tensors, facts):
    q, k, v = tensors
    options = bench.options
    makers = {our_name(kernel): lambda kernel=kernel: tessera.attend(q, k, v, kernel)
              for kernel in options.kernels}
    makers.update({name: lambda make=make: make(q, k, v) for name, make in peers.items()})
    if not options.groups.search("dense"):
        makers = {}
    calls, errors = checked(makers, q, k, v, None, bench.left_out)
    a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    calls["gemm-8192"] = lambda: torch.matmul(a, b)
    times = bench.run(calls)
    gemm_times = {"gemm-8192": times.pop("gemm-8192")}
    gemm = 2 * GEMM ** 3 / statistics.median(gemm_times["gemm-8192"]) / 1e9
    bench.add("gemm", gemm_times, 2 * GEMM ** 3, **facts)
    flops = 4 * facts["tokens"] ** 2 * WIDTH * facts["heads"]
    bench.add("dense", times, flops, gemm, errors, **facts)
    return gemm


def run_sparse(bench, tessera, peers, tensors, facts, keep, kind, gemm):
    q, k, v = tensors
    blocks, options = facts["tokens"] // BLOCK, bench.options
    lists = Lists(facts["heads"], blocks, keep, kind)
    makers = {our_name(kernel): lambda kernel=kernel: tessera.attend(q, k, v, kernel, lists)
              for kernel in options.kernels}
    if options.bitmap:
        bitmap = lists.bitmap()
        makers["tessera/bitmap"] = lambda: tessera.attend(q, k, v, "", bitmap=bitmap)
    makers.update({name: lambda make=make: make(q, k, v, lists) for name, make in peers.items()})
    calls, errors = checked(makers, q, k, v, lists, bench.left_out)
    flops = PAIR_FLOPS * keep * blocks * facts["heads"]
    bench.add(f"sparse {kind}", bench.run(calls), flops, gemm, errors, **facts, keep=keep,
              density=keep / blocks)


def in_graph(run):
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(keep_alive=run):
        graph.replay()
    return replay


def run_router(bench, tessera, tensors, facts, keep):
    q, k, _ = tensors
    ours = tessera.router(q, k, keep)
    calls, ids = {"tessera": ours}, ours().clone()
    calls["tessera/graph"] = in_graph(ours)
    try:
        import peers_router_triton
        theirs = peers_router_triton.Router(q, k, keep)
        other = theirs()
        mine, other = (torch.zeros(*ids.shape[:3], facts["tokens"] // BLOCK, dtype=torch.bool,
                                   device="cuda").scatter_(-1, t.long(), True)
                       for t in (ids, other))
        overlap = (mine & other).sum().item() / ids.numel()
        print(f"  router: {100 * overlap:.3f} % of the ids are those of the Triton router",
              flush=True)
        if overlap < 0.99:
            sys.exit("bench_vs_peers: the routers disagree; their times would mean nothing")
        facts = dict(facts, ids_in_common=overlap)
        calls["triton-router"] = theirs
        calls["triton-router/graph"] = in_graph(theirs)
    except Exception as error:  # no Triton, or no compiler for it
        calls = {name: run for name, run in calls.items() if name.startswith("tessera")}
        bench.left_out["triton-router"] = repr(error)[:200]
        print(f"  left out triton-router: {repr(error)[:200]}", flush=True)
    bench.add("router", bench.run(calls, flush=True), **facts, keep=keep)


def print_ratios(cases):
    """Ours against the best peer of each group, and what routing adds to the attention."""
    print()
    groups = {}
    for c in cases:
        key = (c["tokens"], c["heads"], c["group"], c.get("keep"))
        groups.setdefault(key, {})[c["name"]] = c["median_ms"]
    for (tokens, heads, group, keep), times in groups.items():
        peers = {n: t for n, t in times.items() if not n.startswith("tessera") and "fp8" not in n}
        if "tessera" not in times or not peers:
            continue
        ours = min(t for n, t in times.items() if n.startswith("tessera"))
        best = min(peers, key=peers.get)
        line = (f"S={tokens} H={heads} {group}: dispatched {peers[best] / times['tessera']:.3f} x, "
                f"our best {peers[best] / ours:.3f} x the speed of the best peer ({best})")
        dense = groups.get((tokens, heads, "dense", None), {}).get("tessera")
        router = groups.get((tokens, heads, "router", keep), {}).get("tessera/graph")
        if group.startswith("sparse") and dense:
            line += f"; {dense / times['tessera']:.2f} x own dense"
        if group.startswith("sparse") and router:
            line += f"; router (graph) {100 * router / times['tessera']:.1f} % of it"
        print(line)


def print_table(bench, options):
    print(f"\n{'S':>6} {'H':>3} {'group':<14} {'name':<26} {'ms':>9} {'p10':>9} {'p90':>9} "
          f"{'TFLOP/s':>8} {'% GEMM':>7} {'error':>8} {'MHz':>5} {'W':>4}")
    last = None
    for c in bench.cases:
        key = (c["tokens"], c["heads"], c["group"], c.get("keep"))
        if last not in (None, key):
            print()
        last = key
        text = lambda field, form: format(c[field], form) if c.get(field) is not None else "-"
        print(f"{c['tokens']:>6} {c['heads']:>3} {c['group']:<14} {c['name']:<26} "
              f"{c['median_ms']:>9.4f} {c['p10_ms']:>9.4f} {c['p90_ms']:>9.4f} "
              f"{text('tflops', '.1f'):>8} {text('percent_of_gemm', '.1f'):>7} "
              f"{text('error', '.1e'):>8} {text('sm_clock_mhz', '.0f'):>5} "
              f"{text('power_watt', '.0f'):>4}")
    print_ratios(bench.cases)
    print("keep: " + ", ".join(sorted({f"{c['keep']} of {c['tokens'] // BLOCK}"
                                       for c in bench.cases if "keep" in c})))
    if bench.left_out:
        print("left out: " + "; ".join(f"{name} ({why})" for name, why in bench.left_out.items()))
    if options.json:
        print(f"wrote {options.json}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--lib", default=str(here / "libtessera_bench_c.so"),
                        help="libtessera_bench_c.so of a CUDA build (default: beside this script)")
    parser.add_argument("--shape", action="append", metavar="S,H",
                        help="tokens and heads; may be repeated (37760,7 96000,7 37760,56)")
    parser.add_argument("--density", type=float, action="append", metavar="X",
                        help="share of key blocks kept; may be repeated (what sparsity 0.75 keeps)")
    parser.add_argument("--lists", action="append", choices=["random", "shared"])
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME",
                        help="also time this kernel of ours; may be repeated")
    parser.add_argument("--bitmap", action="store_true", help="also time ours with bitmaps")
    parser.add_argument("--peers", default="", metavar="REGEX",
                        help="use only peers whose name matches; ^$ for none")
    parser.add_argument("--groups", default="", metavar="REGEX",
                        help="run only groups that match: dense, sparse, router")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--commit", default="unknown", help="git rev-parse HEAD, for the record")
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers to this file")
    options = parser.parse_args()
    shapes = []
    for text in options.shape or ["37760,7", "96000,7", "37760,56"]:
        match = re.fullmatch(r"(\d{2,7}),(\d{1,4})", text)
        tokens, heads = (int(n) for n in match.groups()) if match else (0, 0)
        if heads < 1 or tokens < BLOCK or tokens % BLOCK:
            parser.error(f"--shape {text}: TOKENS,HEADS with tokens a multiple of {BLOCK}")
        shapes.append((tokens, heads))
    options.shape = shapes
    for density in options.density or []:
        if not 0 < density <= 1:
            parser.error(f"--density {density}: accepted is (0, 1]")
    if options.samples < 1 or options.warm_up < 1:
        parser.error("--samples and --warm-up are at least 1")
    options.kernels = [""] + options.kernel
    for name in ("peers", "groups"):
        try:
            setattr(options, name, re.compile(getattr(options, name)))
        except re.error as error:
            parser.error(f"--{name}: no regular expression: {error}")
    return options


def main():
    options = parse_arguments()
    # Folder names of one machine do not belong into a record.
    command = " ".join(pathlib.PurePath(a).name if "/" in a else a for a in sys.argv)
    left_out = {}
    restart_for_vsa(options.peers, left_out)
    if not torch.cuda.is_available():
        sys.exit("bench_vs_peers: torch finds no CUDA device; run this on a machine with an H100 or "
                 "H200")
    torch.set_grad_enabled(False)
    torch.manual_seed(options.seed)
    if not pathlib.Path(options.lib).is_file():
        sys.exit(f"bench_vs_peers: {options.lib} not found; build the preset cuda-sm90 and name its "
                 "libtessera_bench_c.so with --lib")
    tessera = Tessera(options.lib)
    sparse, dense = attention_peers(options.peers, left_out)
    bench = Bench(options)
    bench.left_out = left_out
    for tokens, heads in options.shape:
        print(f"S={tokens} H={heads}", flush=True)
        facts = dict(tokens=tokens, heads=heads)
        tensors = [torch.randn(1, tokens, heads, WIDTH, device="cuda", dtype=torch.bfloat16)
                   for _ in range(3)]
        gemm = run_dense(bench, tessera, dense, tensors, facts)
        for density in options.density or [None]:
            keep = kept_blocks(tokens // BLOCK, density)
            if options.groups.search("sparse"):
                for kind in options.lists or ["random", "shared"]:
                    run_sparse(bench, tessera, sparse, tensors, facts, keep, kind, gemm)
            if options.groups.search("router"):
                run_router(bench, tessera, tensors, facts, keep)
        del tensors
        torch.cuda.empty_cache()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(
            {"device": torch.cuda.get_device_name(), "date": datetime.date.today().isoformat(),
             "commit": options.commit, "command": command, "torch": torch.__version__,
             "cuda": torch.version.cuda, "warm_up": options.warm_up, "samples": options.samples,
             "seed": options.seed, "cases": bench.cases, "left_out": left_out}, indent=1) + "\n")
    print_table(bench, options)


if __name__ == "__main__":
    main()
