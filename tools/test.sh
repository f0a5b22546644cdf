#!/usr/bin/env bash
# Sets up this machine (Debian 12 or Ubuntu 24.04) and runs every check that CI runs.
#   tools/test.sh                    everything
#   tools/test.sh --quick            release build and its fast tests only
# Options:
#   --no-install      do not install packages
#   --no-sanitizers   leave out the asan and tsan builds
#   --no-fuzz         leave out the fuzzers
#   --no-h3           leave out the engine and the Python package (both need PyTorch, 5.5 GB)
#   --fuzz-seconds N  time per fuzz target (default 30)
# Can be run again at any time; builds in build/ are reused. Logs are in build/test-logs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,11s/^# \{0,1\}//p' "$0"; }

quick=false install=true sanitizers=true fuzz=true engine=true fuzz_seconds=30
while [[ $# -gt 0 ]]; do
  case "$1" in
    --quick) quick=true ;;
    --no-install) install=false ;;
    --no-sanitizers) sanitizers=false ;;
    --no-fuzz) fuzz=false ;;
    --no-h3) engine=false ;;
    --fuzz-seconds)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "test.sh: --fuzz-seconds needs a whole number of seconds, got '${2:-}'" >&2; exit 2; }
      fuzz_seconds=$2
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "test.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

readonly kLogs=build/test-logs
mkdir -p "$kLogs"
rm -f "$kLogs"/*.xml
jobs=$(nproc)
# The same sources are compiled for several presets; where the options agree, ccache serves them.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
current="start"
step_lines=()
started=$SECONDS

finish() {
  local code=$?
  [[ $code -eq 0 ]] && return
  echo
  printf '%s\n' "${step_lines[@]}"
  print_counts
  echo "VERDICT: FAILED in step '$current' after $((SECONDS - started)) s (exit code $code)"
}
trap finish EXIT

skip_lines=()

# Sums the test counts of all ctest runs from the reports they wrote.
print_counts() {
  python3 - "$kLogs" <<'PY'
import pathlib, sys, xml.etree.ElementTree as tree
total = failed = skipped = 0
for report in sorted(pathlib.Path(sys.argv[1]).glob("ctest-*.xml")):
    try:
        root = tree.parse(report).getroot()
        suite = root if root.tag == "testsuite" else root[0]  # pytest wraps it
    except tree.ParseError:
        continue  # ctest was stopped while writing; the failed step is named in the verdict
    n, f, s = (int(suite.get(k, 0)) for k in ("tests", "failures", "skipped"))
    f += int(suite.get("errors", 0))
    total, failed, skipped = total + n, failed + f, skipped + s
    print(f"  {report.stem[6:]}: {n - f - s} passed, {f} failed, {s} skipped")
print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped")
PY
}

# step NAME FUNCTION: announces, runs, times.
# A function that cannot run here sets skip_reason.
step() {
  current=$1
  echo
  echo "=== $current"
  local begin=$SECONDS word=ok
  skip_reason=""
  "$2"
  if [[ -n $skip_reason ]]; then
    word=skipped
    skip_lines+=("$current ($skip_reason)")
  fi
  step_lines+=("$(printf '  %-34s %-7s %5d s' "$current" $word $((SECONDS - begin)))")
  echo "=== $current: $word${skip_reason:+: $skip_reason} ($((SECONDS - begin)) s)"
}

packages() {
  # shellcheck source=tools/lib/setup.sh disable=SC1091
  source tools/lib/setup.sh
  install_packages
}

include_rules() {
  python3 tools/check_tree.py --self-test
  python3 tools/check_tree.py
}

format() { tools/format.sh --check; }

# No GPU is needed: the kernels are compiled and judged by what ptxas says about them.
kernels() {
  python3 tools/check_kernels.py --self-test
  local code=0
  python3 tools/check_kernels.py || code=$?
  if [[ $code -eq 77 ]]; then
    skip_reason="no nvcc"
  elif [[ $code -ne 0 ]]; then
    return "$code"
  fi
}

# build PRESET: configures and builds; the configure log is shown only when it fails.
build() {
  local log=$kLogs/configure-$1.log
  if ! cmake --preset "$1" >"$log" 2>&1; then
    cat "$log"
    echo "test.sh: configuring the preset '$1' failed; to start over: rm -rf build/$1" >&2
    return 1
  fi
  ${wrapper[@]+"${wrapper[@]}"} cmake --build --preset "$1" -j "$jobs"
}

# run_tests PRESET ARGS...: a run that finds no test is a failure, not a success.
run_tests() {
  local preset=$1
  shift
  ${wrapper[@]+"${wrapper[@]}"} ctest --test-dir "build/$preset" --output-on-failure \
    --no-tests=error -j "$jobs" --timeout 600 --output-junit "$PWD/$kLogs/ctest-$preset.xml" "$@" |
    { grep -vE '^ *Start +[0-9]+: |^ *[0-9]+/[0-9]+ Test .* Passed ' || true; }
}

wrapper=()  # command prefix for building and running a preset; used by tsan

release_build() { build release; }
release_tests() { run_tests release; }
release_fast_tests() { run_tests release -L fast; }

install_test() {
  rm -rf build/install build/examples
  cmake --install build/release --prefix "$PWD/build/install" >"$kLogs/install.log"
  cmake -S examples -B build/examples -G Ninja -DCMAKE_PREFIX_PATH="$PWD/build/install" \
    >"$kLogs/configure-examples.log" || { cat "$kLogs/configure-examples.log"; return 1; }
  cmake --build build/examples
  build/examples/attend
  build/examples/options 'sparsity=0.8,n_k=2'
  if build/examples/options 'sparsity=1.5' 2>"$kLogs/options.txt"; then
    echo "test.sh: the options example accepted sparsity=1.5" >&2
    return 1
  fi
  build/install/bin/tessera doctor
  # Every installed header has to compile on its own, in any order.
  local header
  (cd build/install/include && find . -name '*.h' | sort) | while read -r header; do
    echo "#include \"${header#./}\"" |
      "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -Ibuild/install/include -x c++ - ||
      { echo "test.sh: installed header $header does not compile on its own" >&2; return 1; }
  done
}

asan() {
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp:print_suppressions=0
  build asan
  run_tests asan -L fast
}

# GCC's ThreadSanitizer cannot place its shadow memory under the wider address randomisation of some
# kernels. Tests are then built (test discovery runs them) and run without randomisation.
tsan_wrapper() {
  local probe=$kLogs/tsan-probe
  echo 'int main() { return 0; }' | "${CXX:-c++}" -fsanitize=thread -x c++ - -o "$probe"
  if "$probe" 2>/dev/null; then
    wrapper=()
  elif setarch "$(uname -m)" -R "$probe" 2>/dev/null; then
    echo "address randomisation is switched off for ThreadSanitizer"
    wrapper=(setarch "$(uname -m)" -R)
  else
    echo "test.sh: programs built with -fsanitize=thread do not start on this machine; lower" \
      "vm.mmap_rnd_bits (sysctl vm.mmap_rnd_bits=28) or use --no-sanitizers" >&2
    return 1
  fi
}

tsan() {
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  tsan_wrapper
  build tsan
  run_tests tsan -L fast
  wrapper=()
}

fuzzers() { tools/fuzz.sh "$fuzz_seconds"; }

torch() { tools/setup_torch.sh; }
h3_build() { build h3; }
h3_tests() { run_tests h3; }

# The engine against the public implementations, as programs against Python.
h3_parity() {
  H3_BUILD=$PWD/build/h3 build/venv/bin/python -m pytest -q -p no:cacheprovider \
    --junitxml="$PWD/$kLogs/ctest-parity.xml" h3/tests/parity
}

# Installed as a user would, into the environment that holds torch.
python_package() {
  build/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation . \
    >"$kLogs/pip.log" 2>&1 || { cat "$kLogs/pip.log"; return 1; }
  build/venv/bin/python -m pytest -q -p no:cacheprovider -m "not slow" \
    --junitxml="$PWD/$kLogs/ctest-python.xml" python/tests
}

if $install; then step "packages" packages; fi
if ! $quick; then
  step "include and tree rules" include_rules
  step "format" format
fi
step "build: release" release_build
if $quick; then
  step "tests: release, fast" release_fast_tests
else
  step "tests: release, all" release_tests
  step "install, then build examples" install_test
  step "CUDA kernels, compile only" kernels
  if $sanitizers; then
    step "address + undefined sanitizers" asan
    step "thread sanitizer" tsan
  fi
  if $fuzz; then step "fuzzers, $fuzz_seconds s each" fuzzers; fi
  if $engine; then
    step "PyTorch for h3" torch
    step "build: h3" h3_build
    step "tests: h3" h3_tests
    step "parity of h3" h3_parity
    step "Python package" python_package
  fi
fi

echo
printf '%s\n' "${step_lines[@]}"
verdict="all ${#step_lines[@]} steps passed"
if ((${#skip_lines[@]} > 0)); then
  verdict="$((${#step_lines[@]} - ${#skip_lines[@]})) steps passed, skipped: $(printf '%s; ' "${skip_lines[@]}")"
  verdict=${verdict%; }
fi
echo "VERDICT: $verdict in $((SECONDS - started)) s; tests:"
print_counts
