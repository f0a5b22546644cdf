#!/usr/bin/env bash
# Builds the CUDA command line and the benchmark library for a machine that has only a driver, and
# collects them with what they need in one folder.
#   tools/collect_gpu_bundle.sh                     build/gpu-cli -> build/gpu-bundle-cli
#   tools/collect_gpu_bundle.sh BUILD_DIR OUT_DIR   other folders
#
# There:  ./tessera doctor;  python3 bench_vs_peers.py --commit ...;  ./cli_cuda_test
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
build=${1:-build/gpu-cli}
out=${2:-build/gpu-bundle-cli}
readonly kMaxMib=30

# The C++ runtime goes inside; the other shared libraries are looked for beside the binary.
cmake --preset cuda-sm90 -B "$build" -DTESSERA_VIDEO=OFF "-DCMAKE_BUILD_RPATH=\$ORIGIN" \
  "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc" \
  "-DCMAKE_SHARED_LINKER_FLAGS=-static-libstdc++ -static-libgcc" >/dev/null
cmake --build "$build" --target tessera_cli tessera_bench_c cli_cuda_test

rm -rf "$out"
mkdir -p "$out"
binaries=("$build/tessera/cli/tessera" "$build/tessera/bench/libtessera_bench_c.so"
          "$build/tessera/tests/cli/cli_cuda_test")
for file in "${binaries[@]}"; do
  strip --strip-unneeded -o "$out/$(basename "$file")" "$file"
done
cp tools/bench_vs_peers.py tools/peers_attention.py tools/peers_router_triton.py "$out/"

# Highway travels along, because Debian has no static library of it. The C++ runtime is linked in (a second
# copy beside a Python process would only get in torch's way), fmt is header-only in a CUDA build, and any
# other library is a dependency that slipped in.
needed() { ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u; }
while read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libstdc++.so.* | \
      libgcc_s.so.*) ;;
    libhwy.so.*) cp -L "$library" "$out/" ;;
    *)
      echo "collect_gpu_bundle.sh: the binaries need $library, which no machine with only a driver has;" \
        "link it statically or header-only" >&2
      exit 1 ;;
  esac
done < <(needed "${binaries[@]}")

size=$(du -sm "$out" | cut -f1)
ls -l "$out"
if ((size > kMaxMib)); then
  echo "collect_gpu_bundle.sh: $out has $size MiB; at most $kMaxMib are accepted" >&2
  exit 1
fi
