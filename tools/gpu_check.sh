#!/usr/bin/env bash
# Runs the GPU tests on a machine that has only a driver, from a folder made by the target
# gpu_bundle:   bash gpu_check.sh [FOLDER]   (default: the folder of this script)
# Every gpu_*_test found there, then compute-sanitizer (memcheck, racecheck, synccheck) over a set of
# short tests, where that tool exists (in FOLDER, /usr/local/cuda/bin or PATH; TESSERA_SANITIZER names
# another place). Prints one verdict line a step; exit code 0 only if none failed. The full output is
# in $OUT (default: FOLDER/logs).
set -uo pipefail
folder=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")}" && pwd) || exit 2
logs=${OUT:-$folder/logs}
mkdir -p "$logs" || exit 2
export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# A test may hang on a broken kernel; the machine is rented by the minute.
readonly kTestSeconds=150 kSanitizerSeconds=45
failed=0

device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
echo "device: ${device:-none found (nvidia-smi gave nothing)}"
echo "date:   $(date -u +%Y-%m-%dT%H:%MZ)"

# verdict NAME CODE LOG SECONDS: one line; the end of the log as well when it failed.
verdict() {
  local name=$1 code=$2 log=$3 seconds=$4 passed skipped
  passed=$(grep -cE '^\[       OK \]' "$log")
  skipped=$(grep -cE '^\[  SKIPPED \] [^ ]+ \(' "$log")
  if [[ $code -eq 0 && $passed -gt 0 ]]; then
    echo "ok      $name: $passed passed, $skipped skipped, $seconds s"
  elif [[ $code -eq 0 ]]; then
    echo "FAILED  $name: nothing ran ($skipped skipped), $seconds s"
    grep -m 1 -A 2 'Skipped' "$log"
    failed=1
  else
    echo "FAILED  $name: exit code $code$([[ $code -eq 124 ]] && echo ' (timed out)'), $passed passed, $seconds s"
    grep -E '^\[  FAILED  \] [^ ]+ \(|========= (ERROR|Error|Race)' "$log" | sort | uniq -c | head -n 25
    grep -E -A 8 ': Failure$' "$log" | head -n 40
    failed=1
  fi
}

shopt -s nullglob
tests=("$folder"/gpu_*_test)
if [[ ${#tests[@]} -eq 0 ]]; then
  echo "FAILED  no gpu_*_test in $folder; build the target gpu_bundle"
  exit 1
fi
for test in "${tests[@]}"; do
  name=$(basename "$test") start=$SECONDS
  timeout "$kTestSeconds" "$test" --gtest_color=no >"$logs/$name.log" 2>&1
  verdict "$name" $? "$logs/$name.log" $((SECONDS - start))
done

sanitizer=${TESSERA_SANITIZER:-}
for place in "$folder/compute-sanitizer/compute-sanitizer" /usr/local/cuda/bin/compute-sanitizer \
  "$(command -v compute-sanitizer)"; do
  [[ -z $sanitizer && -x $place ]] && sanitizer=$place
done
if [[ -z $sanitizer ]]; then
  echo "not run compute-sanitizer: the tool is not on this machine"
else
  attention='GpuAttention.Tokens257*:GpuAttention.NaNInOneBlock*:GpuAttention.PackedDocuments*:GpuAttention.ListsDiffer*:GpuFieldCase.FC3*:GpuPlan.BadValuesUnchecked*'
  router='GpuRouter.PackedDocuments*:GpuRouter.NaNScores*:GpuRouter.PartialTies*'
  for tool in memcheck racecheck synccheck; do
    for pair in "gpu_attention_test=$attention" "gpu_router_test=$router"; do
      name=${pair%%=*} start=$SECONDS
      log=$logs/$tool-$name.log
      timeout "$kSanitizerSeconds" "$sanitizer" --tool "$tool" --error-exitcode 99 \
        "$folder/$name" --gtest_color=no --gtest_filter="${pair#*=}" >"$log" 2>&1
      code=$?
      if grep -q 'Device not supported' "$log"; then
        echo "not run $tool $name: the tool says 'Device not supported' (virtual machine without it)"
      else
        verdict "$tool $name" "$code" "$log" $((SECONDS - start))
      fi
    done
  done
fi
[[ $failed -eq 0 ]] && echo "VERDICT: all passed" || echo "VERDICT: FAILED"
exit $failed
