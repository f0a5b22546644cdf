#!/usr/bin/env bash
# Installs what building and testing the h3 engine and the Python package needs from PyPI into
# build/venv (about 5.5 GB, two to three minutes). Does nothing where it is installed.
#   tools/setup_torch.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kVenv=build/venv
readonly kPackages=(torch==2.11.0 numpy pytest "scikit-build-core>=0.10" diffusers==0.42.1
  transformers==5.24.0)
have() {
  "$kVenv/bin/python" -c '
import importlib.metadata, re, sys, torch
for wanted in sys.argv[1:]:
    name, _, version = re.fullmatch(r"([\w-]+)(==|>=)?(.*)", wanted).groups()
    got = importlib.metadata.version(name)
    assert "==" not in wanted or got.split("+")[0] == version, got' "${kPackages[@]}" 2>/dev/null
}

if [[ -x $kVenv/bin/python ]] && have; then
  echo "setup: PyTorch 2.11.0 is installed in $kVenv"
  exit 0
fi
mkdir -p build
[[ -x $kVenv/bin/python ]] || python3 -m venv "$kVenv"
echo "setup: installing ${kPackages[*]} into $kVenv"
"$kVenv/bin/python" -m pip install --quiet --disable-pip-version-check "${kPackages[@]}"
have || { echo "setup: PyTorch 2.11.0 does not import from $kVenv" >&2; exit 1; }
