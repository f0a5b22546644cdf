# Installs the Debian packages that building and testing need. Source it, then call
#   install_packages         everything: build, demo, tests, formatting, fuzzing
#   install_packages demo    only what building and running the command line needs
# Packages that are already there are not touched; a second call does nothing.
# shellcheck shell=bash

tessera_demo_packages=(
  g++ cmake ninja-build ccache pkg-config git
  libhwy-dev nlohmann-json3-dev libcli11-dev libfmt-dev
  libavformat-dev libavcodec-dev libavutil-dev libswscale-dev libswresample-dev
  libcairo2-dev libeigen3-dev libpng-dev fonts-dejavu-core
  ffmpeg python3 python3-venv python3-pip
)
tessera_test_packages=(
  libgtest-dev libgloo-dev clang libclang-rt-dev clang-format-14
)

install_packages() {
  local wanted=("${tessera_demo_packages[@]}")
  [[ ${1:-all} == demo ]] || wanted+=("${tessera_test_packages[@]}")
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: this machine has no apt; Debian 12 and Ubuntu 24.04 are supported." >&2
    echo "setup: install the equivalents of these packages, then build with cmake --preset cpu-only:" >&2
    printf '  %s\n' "${wanted[@]}" >&2
    return 1
  fi
  local missing=() package
  for package in "${wanted[@]}"; do
    # shellcheck disable=SC2016  # ${Status} is dpkg-query's own syntax
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == *"ok installed" ]] ||
      missing+=("$package")
  done
  if [[ ${#missing[@]} -eq 0 ]]; then
    echo "setup: all ${#wanted[@]} packages are installed"
    return 0
  fi
  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: ${#missing[@]} packages are missing, and there is no sudo. As root, run:" >&2
      echo "  apt-get update && apt-get install -y ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
  # Old lists may still be good enough, so a failed update alone does not stop the set-up.
  "${as_root[@]}" apt-get -qq update || echo "setup: apt-get update failed, trying with the old lists" >&2
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null; then
    echo "setup: apt-get could not install: ${missing[*]}" >&2
    echo "setup: check the network and /etc/apt/sources.list, or install them by hand" >&2
    return 1
  fi
}
