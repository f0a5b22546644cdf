#!/usr/bin/env python3
"""Compiles the CUDA kernels of tessera and h3 and the GPU tests for sm_90a and checks what ptxas says about the kernels.

    tools/check_kernels.py               build in build/kernels and check; no GPU is needed
    tools/check_kernels.py --log FILE    check the output of another build (nvcc with -Xptxas=-v)
    tools/check_kernels.py --self-test   plant every violation in a scratch log and demand it is found

Checked: no product serialised, no spills beyond ALLOWED_SPILLS, registers within the launch bounds,
all kernels present, machine code of sm_90a only. Exit code 0 ok, 1 violation, 77 skipped (no nvcc).
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARCH = "sm_90a"
SKIPPED = 77
TARGETS = ["tessera_core", "gpu_attention_test", "gpu_router_test", "gpu_large_test", "h3_kernels"]

# Kernel: (threads of a CTA, CTAs an SM has to hold, instances). As in __launch_bounds__, or the size of
# the launch where a kernel has none. An instance that is added or lost has to be entered here.
KERNELS = {
    "sm90_union_fwd_kernel": (512, 1, 8),
    "sm90_list_fwd_kernel": (128, 2, 4),
    "key_norm_kernel": (128, 1, 2),
    "build_bitmap_kernel": (128, 1, 1),
    "copy_tail_kernel": (256, 1, 1),
    "clear_rows_kernel": (64, 1, 1),
    "router_pool_kernel": (128, 1, 2),
    "router_score_kernel": (256, 2, 16),
    "router_select_kernel": (128, 1, 10),
    "router_defaults_kernel": (128, 1, 1),
    "sm90_owned_rows_kernel": (224, 2, 4),
    "sm90_any_rows_kernel": (256, 1, 4),
    "sm90_swiglu_kernel": (128, 6, 2),
    "sm90_qk_norm_rope_kernel": (224, 3, 4),
}

# (pattern of the instance, bytes at most, reason). Every other kernel: 0.
ALLOWED_SPILLS = [
    (r"sm90_union_fwd_kernel<.*", 28,
     "in the scheduling warp, which has 32 registers and runs beside the computing warpgroups"),
    (r"router_select_kernel<(16|20)>", 4,
     "one word; ptxas settles on fewer registers than the launch bounds allow"),
    (r"router_select_kernel<26>", 20,
     "five words; ptxas settles on fewer registers than the launch bounds allow"),
]

ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(\S+)' for '(\w+)'")
PROPERTIES = re.compile(r"ptxas info\s*: Function properties for (\S+)")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"ptxas info\s*: Used (\d+) registers")
SERIALISED = re.compile(r"serializ|\(C75\d\d\)", re.I)
READABLE = re.compile(r"(?:^|::)(\w+)(<.*>)?\(")


@dataclasses.dataclass
class Function:
    symbol: str
    arch: str = ""  # empty: not a kernel
    stack: int = 0
    spill: int = -1  # bytes, the larger of stores and loads; -1: ptxas did not say
    registers: int = -1
    name: str = ""  # readable, as sm90_list_fwd_kernel<...>

    @property
    def family(self):
        return self.name.split("<")[0]


def parse(log):
    """Functions by symbol, and the lines that speak of serialised products."""
    functions, serialised, current = {}, [], None
    for line in log.split("\n"):
        if SERIALISED.search(line):
            serialised.append(line.strip())
        entry, properties = ENTRY.search(line), PROPERTIES.search(line)
        if entry:
            current = functions.setdefault(entry[1], Function(entry[1]))
            current.arch = entry[2]
        elif properties:
            current = functions.setdefault(properties[1], Function(properties[1]))
        elif current is not None:
            if match := SPILLS.search(line):
                current.stack = max(current.stack, int(match[1]))
                current.spill = max(current.spill, int(match[2]), int(match[3]))
            elif match := REGISTERS.search(line):
                current.registers = max(current.registers, int(match[1]))
    return functions, serialised


def name_functions(functions):
    symbols = list(functions)
    done = subprocess.run(["c++filt"], input="\n".join(symbols), text=True, capture_output=True,
                          check=True)
    for symbol, text in zip(symbols, done.stdout.split("\n")):
        match = READABLE.search(text)
        functions[symbol].name = (match[1] + (match[2] or "")) if match else text


def register_limit(threads, ctas):
    return min(255, 65536 // (threads * ctas) // 8 * 8)


def allowed_spill(name):
    for pattern, limit, reason in ALLOWED_SPILLS:
        if re.fullmatch(pattern, name):
            return limit, reason
    return 0, ""


def check_function(function):
    name = function.name
    if not function.arch or function.family not in KERNELS:
        what = "kernel without a row in KERNELS" if function.arch else "function that was not inlined"
        return [f"unknown: {name} is a {what}"]
    errors = []
    if function.arch != ARCH:
        errors.append(f"arch: {name} is compiled for {function.arch}; only {ARCH} is meant")
    if function.registers < 0 or function.spill < 0:
        return errors + [f"incomplete: the log has no registers or spills of {name}; is -Xptxas=-v set?"]
    threads, ctas, _ = KERNELS[function.family]
    limit = register_limit(threads, ctas)
    if function.registers > limit:
        errors.append(f"registers: {name} uses {function.registers}; {ctas} x {threads} threads on an "
                      f"SM leave {limit}")
    spill, reason = allowed_spill(name)
    if function.spill > spill:
        errors.append(f"spill: {name} spills {function.spill} bytes; allowed are {spill}"
                      + (f" ({reason})" if reason else ""))
    return errors


def check_log(log):
    """(errors, functions) of the text that nvcc and ptxas printed."""
    functions, serialised = parse(log)
    name_functions(functions)
    errors = [f"serialised: {line}" for line in serialised]
    for function in functions.values():
        errors += check_function(function)
    for family, (_, _, instances) in KERNELS.items():
        found = sum(f.family == family and bool(f.arch) for f in functions.values())
        if found != instances:
            errors.append(f"instances: {found} of {family} in the log; KERNELS says {instances}")
    return errors, functions


def print_table(functions):
    print(f"{'kernel':<26}{'instances':>10}{'registers':>11}{'limit':>7}{'spill':>7}{'stack':>7}")
    for family, (threads, ctas, _) in KERNELS.items():
        own = [f for f in functions.values() if f.family == family]
        if own:
            print(f"{family:<26}{len(own):>10}{max(f.registers for f in own):>11}"
                  f"{register_limit(threads, ctas):>7}{max(f.spill for f in own):>7}"
                  f"{max(f.stack for f in own):>7}")


# --- build ---------------------------------------------------------------------------------------


def find_tool(name, places=()):
    found = shutil.which(name)
    candidates = [pathlib.Path(found)] if found else []
    candidates += [pathlib.Path(place) / name for place in places]
    return next((str(path) for path in candidates if os.access(path, os.X_OK)), None)


def build(folder, nvcc):
    """Compiles both .cu files anew (an incremental build would print nothing); (log, objects)."""
    configure = subprocess.run(
        ["cmake", "--preset", "cuda-sm90", "-B", str(folder), "-DTESSERA_CLI=OFF", "-DTESSERA_VIDEO=OFF",
         "-DH3=ON", "-DH3_TORCH=OFF",
         f"-DCMAKE_CUDA_COMPILER={nvcc}"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)
    if configure.returncode != 0:
        sys.exit(configure.stdout + f"check_kernels: configuring failed; to start over: rm -rf {folder}")
    for old in folder.rglob("*.cu.o"):
        old.unlink()
    done = subprocess.run(["cmake", "--build", str(folder), "-j", str(os.cpu_count()), "--target", *TARGETS],
                          cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (folder / "ptxas.log").write_text(done.stdout)
    if done.returncode != 0:
        sys.exit(done.stdout + "check_kernels: the build failed")
    return done.stdout, sorted(folder.rglob("*.cu.o"))


def check_commands(commands):
    """Every .cu file is compiled to machine code of one architecture, nothing else."""
    errors = []
    sources = [c for c in commands if c["file"].endswith(".cu")]
    if not sources:
        errors.append("commands: no .cu file in compile_commands.json")
    for command in sources:
        codes = re.findall(r"--?(?:generate-code|gencode)[= ](\S+)", command["command"])
        if codes != [f"arch=compute_{ARCH[3:]},code=[{ARCH}]"]:
            errors.append(f"commands: {pathlib.Path(command['file']).name} is compiled with {codes}; "
                          f"CMAKE_CUDA_ARCHITECTURES must be {ARCH[3:]}-real")
    return errors


def check_object(cuobjdump, path):
    def ask(flag):
        return subprocess.run([cuobjdump, flag, str(path)], text=True, capture_output=True).stdout

    return check_contents(path.name, ask("-res-usage"), ask("--list-ptx"))


def check_contents(name, usage, ptx):
    """`usage` has a heading with the architecture for each piece of machine code."""
    archs = re.findall(r"^arch = (\S+)", usage, re.M)
    errors = [f"object: {name} holds code for {a}; only {ARCH} is meant" for a in archs if a != ARCH]
    if not archs:
        errors.append(f"object: {name} holds no machine code")
    errors += [f"object: {name} holds PTX ({p})" for p in re.findall(r"PTX file\s+\d+: (\S+)", ptx)]
    return errors


# --- self-test -----------------------------------------------------------------------------------


def log_of(symbol, arch=ARCH, registers=32, stores=0, loads=0, inlined=True):
    entry = f"ptxas info    : Compiling entry function '{symbol}' for '{arch}'\n" if inlined else ""
    return (f"{entry}ptxas info    : Function properties for {symbol}\n"
            f"    0 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers\n")


def symbol_of(family, number):
    return f"_ZN7tessera4sm90{len(family)}{family}ILi{number}EEEvi"


SELECT = [2, 4, 8, 16, 20, 26, 32, 48, 64, 128]
CLEAN = {(family, n): log_of(symbol_of(family, n))
         for family, (_, _, count) in KERNELS.items()
         for n in (SELECT if family == "router_select_kernel" else range(count))}


def planted(key, **changes):
    return "".join({**CLEAN, key: log_of(symbol_of(*key), **changes)}.values())


def violations():
    union, score, select = ("sm90_union_fwd_kernel", 0), ("router_score_kernel", 3), "router_select_kernel"
    clean = "".join(CLEAN.values())
    return [
        ("serialised", clean + "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
                               "instructions are serialized due to function call in _Zx\n"),
        ("serialised", clean + "ptxas info    : (C7518) Potential Performance Loss: something new\n"),
        ("spill", planted(score, loads=4)),
        ("spill", planted(score, stores=4)),
        ("spill", planted(union, loads=32)),
        ("spill", planted((select, 16), loads=8)),
        ("spill", planted((select, 48), stores=4)),
        ("registers", planted(union, registers=136)),
        ("registers", planted(score, registers=129)),
        ("registers", planted(("copy_tail_kernel", 0), registers=256)),
        ("arch", planted(score, arch="sm_90")),
        ("unknown", clean + log_of("_ZN7tessera4sm9010new_kernelEv")),
        ("unknown", clean + log_of("_ZN7tessera4sm9011slow_helperEf", inlined=False)),
        ("instances", "".join(text for key, text in CLEAN.items() if key != score)),
        ("instances", ""),
        ("incomplete", "\n".join(line for line in clean.split("\n") if "Used" not in line)),
    ]


def self_test():
    failures = []
    errors, functions = check_log("".join(CLEAN.values()))
    failures += [f"clean log: unexpected {e}" for e in errors]
    if len(functions) != len(CLEAN):
        failures.append(f"clean log: {len(functions)} functions found, {len(CLEAN)} written")
    for key, changes in [(("sm90_union_fwd_kernel", 1), {"loads": 28, "registers": 128}),
                         (("router_select_kernel", 26), {"stores": 20, "registers": 255})]:
        failures += [f"allowed {key}: unexpected {e}" for e in check_log(planted(key, **changes))[0]]
    cases = violations()
    for rule, log in cases:
        found = {e.split(":")[0] for e in check_log(log)[0]}
        if rule not in found:
            failures.append(f"not found: {rule}; got {sorted(found)}")
    good = {"file": "a.cu", "command": "nvcc --generate-code=arch=compute_90a,code=[sm_90a] -c a.cu"}
    embeds = {**good, "command": good["command"].replace("[sm_90a]", "[compute_90a,sm_90a]")}
    for errors, expected in [(check_commands([good]), 0), (check_commands([embeds]), 1),
                             (check_commands([good, embeds]), 1), (check_commands([]), 1)]:
        if len(errors) != expected:
            failures.append(f"commands: {expected} errors expected, got {errors}")
    elf, ptx = "\nFatbin elf code:\narch = sm_90a\nhost = linux\n", "PTX file    1: a.1.sm_90a.ptx\n"
    for given, expected in [((elf, ""), 0), ((elf, ptx), 1), (("", ""), 1),
                            ((elf + elf.replace("90a", "80"), ""), 1)]:
        if len(check_contents("a.cu.o", *given)) != expected:
            failures.append(f"object: {expected} errors expected of {given}")
    for failure in failures:
        print(f"self-test: {failure}", file=sys.stderr)
    print(f"check_kernels self-test: {len(cases) + 6} planted violations, {len(failures)} failures")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--log", type=pathlib.Path, help="check this text instead of building")
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "kernels")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    started, errors = time.monotonic(), []
    if options.log:
        if not options.log.is_file():
            parser.error(f"--log {options.log}: no such file")
        log = options.log.read_text()
    else:
        nvcc = find_tool("nvcc", ["/usr/local/cuda/bin"])
        if nvcc is None:
            print("check_kernels: SKIPPED: no nvcc in PATH or /usr/local/cuda/bin; install the CUDA 13 "
                  "compiler to run it")
            return SKIPPED
        log, objects = build(options.build_dir, nvcc)
        errors += check_commands(json.loads((options.build_dir / "compile_commands.json").read_text()))
        cuobjdump = find_tool("cuobjdump", [pathlib.Path(nvcc).parent,
                                            *ROOT.glob("build/venv/lib/*/site-packages/triton/backends/nvidia/bin")])
        if cuobjdump is None:
            print("check_kernels: no cuobjdump here; the objects' contents are judged by their commands only")
        else:
            for path in objects:
                errors += check_object(cuobjdump, path)
    found, functions = check_log(log)
    errors += found
    print_table(functions)
    for error in errors:
        print(f"check_kernels: {error}", file=sys.stderr)
    print(f"check_kernels: {len(functions)} kernels, {len(errors)} errors, {time.monotonic() - started:.0f} s")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
