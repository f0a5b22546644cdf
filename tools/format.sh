#!/usr/bin/env bash
# Formats every C++ file of the tree with clang-format 14, the version whose output is the standard.
#   tools/format.sh           rewrite files in place
#   tools/format.sh --check   change nothing; list files that differ and exit 1
#
# Other versions break lines differently. --check then says so and exits 0; rewriting is refused.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,5s/^# \{0,1\}//p' "$0"; }

check=false
case "${1:-}" in
  "") ;;
  --check) check=true ;;
  -h | --help) usage; exit 0 ;;
  *) echo "format.sh: unknown option '$1'; accepted: --check, --help" >&2; exit 2 ;;
esac

readonly kVersion=14
formatter=""
for candidate in clang-format-$kVersion clang-format; do
  command -v "$candidate" >/dev/null || continue
  formatter=$candidate
  break
done
if [[ -z $formatter ]]; then
  echo "format.sh: clang-format not found; install it with: apt-get install clang-format-$kVersion" >&2
  exit 1
fi
version=$("$formatter" --version | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
if [[ $version != "$kVersion" ]]; then
  reason="clang-format $version found, the tree is formatted with $kVersion (other versions differ)"
  if $check; then
    echo "format check SKIPPED: $reason"
    exit 0
  fi
  echo "format.sh: $reason; install clang-format-$kVersion" >&2
  exit 1
fi

mapfile -d '' -t files < <(git ls-files -z --cached --others --exclude-standard -- \
  '*.h' '*.hpp' '*.cc' '*.cpp' '*.cu' '*.cuh' | sort -zu)
existing=()
for file in "${files[@]}"; do
  [[ -f $file ]] && existing+=("$file")
done
if [[ ${#existing[@]} -eq 0 ]]; then
  echo "format.sh: no C++ files found in $(pwd); is this a git checkout?" >&2
  exit 1
fi

if ! $check; then
  "$formatter" -i "${existing[@]}"
  echo "formatted ${#existing[@]} files"
  exit 0
fi
bad=0
for file in "${existing[@]}"; do
  if ! "$formatter" --dry-run -Werror "$file" >/dev/null 2>&1; then
    echo "needs formatting: $file"
    bad=$((bad + 1))
  fi
done
if [[ $bad -gt 0 ]]; then
  echo "format check: $bad of ${#existing[@]} files differ; run tools/format.sh" >&2
  exit 1
fi
echo "format check: ${#existing[@]} files are formatted"
