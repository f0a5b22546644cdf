#!/usr/bin/env python3
"""Checks the rules that keep the tree in shape: who may include whom, header and file hygiene.

    tools/check_tree.py              check this checkout; exit code 1 and one line per violation
    tools/check_tree.py --root DIR   check another tree
    tools/check_tree.py --self-test  plant every violation in a scratch tree and demand it is found

Only the Python standard library is used. The rules are explained in HACKING.md.
"""
import argparse
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CXX = {".h", ".hpp", ".cuh", ".cc", ".cpp", ".cu"}
HEADERS = {".h", ".hpp", ".cuh"}
SOURCES = CXX | {".py", ".sh", ".cmake"}
WARN_LINES, MAX_LINES = 500, 800
PUBLIC = "tessera/include/"

# Lower layers never include higher ones; folders of one rank may include each other unless PEERS
# separates them.
RANK = {
    "tessera": 0,
    "h3/common": 1, "h3/attention": 1, "h3/parallel": 1, "h3/quant": 1, "h3/weights": 1,
    "h3/tokenizer": 1, "h3/media": 1,
    "h3/layers": 2,
    "h3/models": 3,
    "h3/pipeline": 4,
    "h3/server": 5, "h3/cli": 5,
}
PEERS = [{"h3/server", "h3/cli"}]

# Inside tessera/: a folder on the left includes nothing from the folders on the right.
TESSERA_BANS = {
    "include": {"src", "io", "cli", "video", "bench", "fuzz", "tests"},
    "src": {"io", "cli", "video", "bench", "fuzz", "tests"},
    "io": {"cli", "video", "bench", "fuzz", "tests"},
    "video": {"bench", "fuzz", "tests"},
    "cli": {"bench", "fuzz", "tests"},
    "bench": {"cli", "video", "fuzz", "tests"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Written in two pieces so that this file does not trip over its own patterns.
MACHINE_PATH = re.compile(r"(?<![\w.$})~-])/(?:" + "|".join(["work", "home", "root", "Users"]) + r")/\w")
LEFTOVER = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME"]) + r")\b")
CATALOGUE = "docs/testing.md"
CATALOGUE_NAME = re.compile(r"`([A-Z][\w*]*\.[\w*]+)`")  # a test, or a pattern such as `Offsets.*`
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.M)


class Report:
    def __init__(self):
        self.errors = []
        self.warnings = []

    def error(self, rule, path, line, text):
        self.errors.append((rule, path, line, text))

    def warn(self, rule, path, line, text):
        self.warnings.append((rule, path, line, text))


def tree_files(root):
    """Paths relative to root: what git tracks or would track; every file where there is no git."""
    if (root / ".git").exists():
        done = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True)
        names = {n for n in done.stdout.decode().split("\0") if n}
        return sorted(n for n in names if (root / n).is_file())
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [d for d in folders if d not in ("build", ".git", "__pycache__")]
        found += [str((pathlib.Path(folder) / n).relative_to(root)) for n in names]
    return sorted(found)


def layer_of(path):
    """Key into RANK, or None for files outside both products (tools, examples)."""
    parts = path.split("/")
    if parts[0] == "tessera":
        return "tessera"
    if parts[0] == "h3" and len(parts) > 2:
        return "/".join(parts[:2])
    return None


def resolve(root, included):
    """Repository path that an include names: public headers first, then the repository root."""
    for candidate in (PUBLIC + included, included):
        if (root / candidate).is_file():
            return candidate
    return None


def check_public_header(report, path, number, kind, included, target):
    if kind == "<" and ("." in included or "/" in included) and target is None:
        report.error("public-header", path, number,
                     f"<{included}> is no C++ standard header; public headers include only those "
                     "and other public headers")
    if target is not None and not target.startswith(PUBLIC):
        report.error("public-header", path, number,
                     f'"{included}" is internal; public headers include only public headers')


def check_direction(report, path, number, included, target):
    here, there = layer_of(path), layer_of(target)
    if here is None or there is None:
        return
    if here not in RANK or there not in RANK:
        return  # reported once per file by check_file
    if RANK[there] > RANK[here]:
        report.error("direction", path, number, f'{here} includes "{included}" of the higher {there}')
    if here != there and any({here, there} <= group for group in PEERS):
        report.error("direction", path, number, f"{here} and {there} must not know each other")
    if here == there == "tessera":
        mine = path.split("/")[1]
        theirs = target.split("/")[1]
        if target.startswith(PUBLIC + "tessera/io/"):
            theirs = "io"  # the public face of io is still io
        if path.startswith(PUBLIC + "tessera/io/"):
            mine = "io"
        if theirs in TESSERA_BANS.get(mine, set()):
            report.error("tessera-layers", path, number,
                         f'tessera/{mine} must not include "{included}" of tessera/{theirs}')


def check_includes(report, root, path, lines):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, included = match.groups()
        top = included.split("/")[0]
        if path.startswith("tessera/") and top in ("torch", "ATen", "c10"):
            report.error("framework-free", path, number, f"tessera/ must not include <{included}>")
        if path.startswith("h3/") and included.endswith(".cuh"):
            report.error("no-cuh", path, number, f"h3/ must not include device code ({included})")
        ours = top in ("tessera", "h3")
        if kind == '"' and (included.startswith(".") or "/../" in included or "/" not in included):
            report.error("relative-include", path, number,
                         f'"{included}": name the path from the repository root')
            continue
        target = resolve(root, included) if ours or kind == '"' else None
        if ours and target is None:
            report.error("missing-include", path, number,
                         f'"{included}" is neither under {PUBLIC} nor in the repository')
        if path.startswith(PUBLIC):
            check_public_header(report, path, number, kind, included, target)
        if target is not None:
            check_direction(report, path, number, included, target)


def check_file(report, root, path):
    suffix = pathlib.PurePosixPath(path).suffix
    try:
        text = (root / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        if suffix in SOURCES:
            report.error("encoding", path, 1, "source files are UTF-8")
        return
    lines = text.split("\n")

    for number, line in enumerate(lines, 1):
        match = MACHINE_PATH.search(line)
        if match:
            report.error("machine-path", path, number,
                         f"'{match.group(0)}...' exists on one machine only")
        if suffix in SOURCES and LEFTOVER.search(line):
            report.error("leftover", path, number, "finish it or write it into an issue")

    if suffix not in SOURCES and not path.endswith("CMakeLists.txt"):
        return
    count = len(text.splitlines())
    if count > MAX_LINES:
        report.error("file-length", path, count, f"{count} lines, at most {MAX_LINES}: split it")
    elif count > WARN_LINES:
        report.warn("file-length", path, count, f"{count} lines, aim at {WARN_LINES}")

    if suffix not in CXX:
        return
    layer = layer_of(path)
    if layer is not None and layer not in RANK:
        report.error("direction", path, 1, f"{layer} has no rank; add it to RANK in check_tree.py")
    if suffix in HEADERS:
        # Highway compiles *-inl.h once per instruction set, which #pragma once would prevent.
        guard = "HWY_TARGET_TOGGLE" if path.endswith("-inl.h") else "#pragma once"
        if guard not in text:
            report.error("header-guard", path, 1, f"a header needs {guard}")
    check_includes(report, root, path, lines)


def check_catalogue(report, root, paths):
    """Every test that docs/testing.md names has to exist; a pattern must match at least one."""
    if CATALOGUE not in paths:
        return
    tests = set()
    for path in paths:
        if path.endswith("_test.cc"):
            tests |= {".".join(found) for found in TEST_NAME.findall((root / path).read_text())}
    for number, line in enumerate((root / CATALOGUE).read_text().split("\n"), 1):
        for name in CATALOGUE_NAME.findall(line) if line.startswith("|") else []:
            if not fnmatch.filter(tests, name):
                report.error("catalogue", CATALOGUE, number, f"no test is called {name}")


def check_tree(root):
    report = Report()
    paths = tree_files(root)
    for path in paths:
        check_file(report, root, path)
    check_catalogue(report, root, paths)
    return report


# --- self-test -----------------------------------------------------------------------------------

CLEAN = {
    "tessera/include/tessera/a.h": '#pragma once\n#include <vector>\n#include "tessera/b.h"\n',
    "tessera/include/tessera/b.h": "#pragma once\n",
    "tessera/include/tessera/io/f.h": '#pragma once\n#include "tessera/a.h"\n',
    "tessera/src/common/c.h": '#pragma once\n#include "tessera/a.h"\n',
    "tessera/src/cpu/k-inl.h": "#if defined(K) == defined(HWY_TARGET_TOGGLE)\n#endif\n",
    "tessera/src/cpu/k.cuh": "#pragma once\n",
    "tessera/io/f.cc": '#include "tessera/io/f.h"\n#include "tessera/src/common/c.h"\n',
    "tessera/cli/m.h": "#pragma once\n",
    "tessera/cli/m.cc": '#include "tessera/cli/m.h"\n#include "tessera/io/f.h"\n',
    "tessera/video/v.h": "#pragma once\n",
    "tessera/tests/t.h": "#pragma once\n",
    "h3/attention/x.h": '#pragma once\n#include <torch/torch.h>\n#include "tessera/a.h"\n',
    "h3/models/dit.h": '#pragma once\n#include "h3/attention/x.h"\n',
    "h3/server/s.h": "#pragma once\n",
    "h3/cli/c.h": "#pragma once\n",
    "docs/a.md": "Run it from build/work/x and read https://example.org/home/page.\n",
    "tools/x.py": "print(1)\n",
    "tessera/tests/t_test.cc": "TEST_F(Router, Tail_IsMasked) {}\n",
    "docs/b.md": "| X1 | outside the catalogue | `Router.Absent_Test` |\n",
}

SLASH = "/"
VIOLATIONS = [
    ("framework-free", "tessera/src/common/z.cc", "#include <torch/torch.h>\n"),
    ("framework-free", "tessera/src/common/z.cc", '#include "ATen/ATen.h"\n'),
    ("framework-free", "tessera/cli/z.cc", "#include <c10/util/Half.h>\n"),
    ("no-cuh", "h3/models/z.cc", '#include "tessera/src/cpu/k.cuh"\n'),
    ("direction", "tessera/src/common/z.cc", '#include "h3/attention/x.h"\n'),
    ("direction", "h3/attention/z.cc", '#include "h3/models/dit.h"\n'),
    ("direction", "h3/models/z.cc", '#include "h3/server/s.h"\n'),
    ("direction", "h3/server/z.cc", '#include "h3/cli/c.h"\n'),
    ("direction", "h3/surprise/z.cc", "int x;\n"),
    ("tessera-layers", "tessera/src/common/z.cc", '#include "tessera/cli/m.h"\n'),
    ("tessera-layers", "tessera/src/common/z.cc", '#include "tessera/io/f.h"\n'),
    ("tessera-layers", "tessera/src/common/z.cc", '#include "tessera/video/v.h"\n'),
    ("tessera-layers", "tessera/io/z.cc", '#include "tessera/cli/m.h"\n'),
    ("tessera-layers", "tessera/cli/z.cc", '#include "tessera/tests/t.h"\n'),
    ("tessera-layers", "tessera/include/tessera/z.h", '#pragma once\n#include "tessera/io/f.h"\n'),
    ("public-header", "tessera/include/tessera/z.h", "#pragma once\n#include <hwy/highway.h>\n"),
    ("public-header", "tessera/include/tessera/z.h", "#pragma once\n#include <stdint.h>\n"),
    ("public-header", "tessera/include/tessera/z.h",
     '#pragma once\n#include "tessera/src/common/c.h"\n'),
    ("relative-include", "tessera/src/common/z.cc", '#include "../cpu/k-inl.h"\n'),
    ("relative-include", "tessera/src/common/z.cc", '#include "c.h"\n'),
    ("relative-include", "tessera/src/common/z.cc", '#include "tessera/src/../io/f.h"\n'),
    ("missing-include", "tessera/src/common/z.cc", '#include "tessera/src/common/absent.h"\n'),
    ("header-guard", "tessera/src/common/z.h", "int x();\n"),
    ("header-guard", "tessera/src/cpu/z-inl.h", "#pragma once\n"),
    ("file-length", "tessera/src/common/z.cc", "int x;\n" * (MAX_LINES + 1)),
    ("file-length", "tools/z.sh", "true\n" * (MAX_LINES + 1)),
    ("machine-path", "docs/z.md", "See " + SLASH + "work/main/README.md.\n"),
    ("machine-path", "tools/z.sh", "cd " + SLASH + "home/someone/src\n"),
    ("leftover", "tessera/src/common/z.cc", "// TO" + "DO: later\n"),
    ("catalogue", "docs/testing.md", "| R1 | a | `Router.Tail_IsMasked`, `Router.Gone_Test` |\n"),
    ("catalogue", "docs/testing.md", "| R1 | a | `Router.Tail_*`, `Rooter.*` |\n"),
    ("encoding", "tessera/src/common/z.cc", b"// \xff\xfe\n"),
]


def write(root, path, content):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, content in CLEAN.items():
            write(root, path, content)
        for found in check_tree(root).errors:
            failures.append(f"clean tree: unexpected {found}")
        for rule, path, content in VIOLATIONS:
            write(root, path, content)
            found = [(e[0], e[1]) for e in check_tree(root).errors]
            if (rule, path) not in found:
                failures.append(f"not found: {rule} in {path} ({content[:60]!r}); got {found}")
            (root / path).unlink()
        write(root, "tessera/src/common/z.cc", "int x;\n" * (WARN_LINES + 1))
        report = check_tree(root)
        if report.errors or len(report.warnings) != 1:
            failures.append(f"{WARN_LINES + 1} lines: a warning and no error expected")
    untested = {"framework-free", "no-cuh", "direction", "tessera-layers", "public-header",
                "relative-include", "missing-include", "header-guard", "file-length",
                "machine-path", "leftover", "encoding", "catalogue"} - {v[0] for v in VIOLATIONS}
    failures += [f"rule without a planted violation: {rule}" for rule in sorted(untested)]
    for failure in failures:
        print(f"self-test: {failure}", file=sys.stderr)
    print(f"check_tree self-test: {len(VIOLATIONS)} planted violations, {len(failures)} failures")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    if not options.root.is_dir():
        parser.error(f"--root {options.root}: no such folder")
    report = check_tree(options.root)
    for rule, path, line, text in report.warnings:
        print(f"{path}:{line}: warning: {text} [{rule}]")
    for rule, path, line, text in report.errors:
        print(f"{path}:{line}: error: {text} [{rule}]", file=sys.stderr)
    print(f"check_tree: {len(report.errors)} errors, {len(report.warnings)} warnings")
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
