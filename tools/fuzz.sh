#!/usr/bin/env bash
# Builds the libFuzzer targets (preset `fuzz`) and runs each for the given number of seconds.
#   tools/fuzz.sh [SECONDS]        default 60; both targets run side by side, one core each
# New inputs and crashes are kept in build/fuzz/; the committed seeds are only read.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz.sh: SECONDS must be a whole number from 1, got '$seconds'; example: tools/fuzz.sh 60" >&2
  exit 2
fi
for tool in clang++ cmake ninja; do
  if ! command -v "$tool" >/dev/null; then
    echo "fuzz.sh: $tool is missing; install it: apt-get install clang cmake ninja-build" >&2
    exit 2
  fi
done

targets=(fuzz_safetensors fuzz_backend_options)
build=build/fuzz
echo "fuzz.sh: building ${targets[*]} in $build"
cmake --preset fuzz >/dev/null
cmake --build "$build" --target "${targets[@]}"

# Longest input in bytes: option texts gain nothing from length, and short ones run faster.
declare -A max_len=([fuzz_safetensors]=65536 [fuzz_backend_options]=2048)
declare -A pids
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/crashes"
  binary=$(find "$build" -type f -name "$target" -perm -u+x -print -quit)
  "$binary" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len="${max_len[$target]}" \
    -print_final_stats=1 -artifact_prefix="$build/crashes/$target-" \
    "$build/corpus/$target" "tessera/fuzz/corpus/$target" >"$build/$target.log" 2>&1 &
  pids[$target]=$!
done
# An interrupted run must not leave the fuzzers behind.
trap 'kill "${pids[@]}" 2>/dev/null || true' INT TERM

verdict=0
for target in "${targets[@]}"; do
  result=ok
  wait "${pids[$target]}" || result=FAILED
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")
  echo "fuzz.sh: $target: $result, ${runs:-unknown} executions in $seconds s (log: $build/$target.log)"
  if [[ $result != ok ]]; then
    verdict=1
    tail -n 30 "$build/$target.log"
  fi
done
if [[ $verdict -eq 0 ]]; then
  echo "fuzz.sh: PASS, no target failed"
else
  echo "fuzz.sh: FAIL, the failing inputs are in $build/crashes" >&2
fi
exit "$verdict"
