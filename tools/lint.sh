#!/usr/bin/env bash
# Runs the include rules and clang-tidy over changed C++ sources.
#   tools/lint.sh             files that differ from the merge base with origin/main (or HEAD)
#   tools/lint.sh --all       every source in the compilation database
#   tools/lint.sh FILE...     these files
# Needs build/release/compile_commands.json: cmake --preset release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kDatabase=build/release/compile_commands.json
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  exit 0
fi
if ! command -v clang-tidy >/dev/null; then
  echo "lint.sh: clang-tidy not found; install it with: apt-get install clang-tidy" >&2
  exit 1
fi
if [[ ! -f $kDatabase ]]; then
  echo "lint.sh: $kDatabase is missing; create it with: cmake --preset release" >&2
  exit 1
fi

tools/check_tree.py

# Only what the database knows: clang-tidy guesses flags for anything else and reports nonsense.
known=$(python3 - "$kDatabase" <<'PY'
import json, os, sys
for entry in json.load(open(sys.argv[1])):
    print(os.path.relpath(os.path.join(entry["directory"], entry["file"])))
PY
)
if [[ ${1:-} == --all ]]; then
  wanted=$known
elif [[ $# -gt 0 ]]; then
  wanted=$(printf '%s\n' "$@")
else
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
  wanted=$({ git diff --name-only --diff-filter=d "$base"
             git ls-files --others --exclude-standard; } | sort -u)
fi
mapfile -t files < <(comm -12 <(sort -u <<<"$known") <(sort -u <<<"$wanted"))
if [[ ${#files[@]} -eq 0 || -z ${files[0]} ]]; then
  echo "lint: no changed source is part of the release build"
  exit 0
fi
echo "lint: clang-tidy over ${#files[@]} files"
# The database holds the flags of the compiler that builds; GCC's own warnings are unknown to clang.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/release --quiet --warnings-as-errors='*' \
    --extra-arg=-Wno-unknown-warning-option
echo "lint: clean"
