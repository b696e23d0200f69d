#!/usr/bin/env bash
# Installs what belljar (demo) or its tests (test) need from the system and do not find, with apt as root or through sudo.
# Where it can't, it says what to type and exits with 1. Nothing is installed that is already there.
#
#   scripts/install-prerequisites.sh demo|test [PYTHON]
set -euo pipefail

purpose=${1:?demo or test}
python=${2:-python3}
required=()   # packages without which there is no point in going on
wanted=()     # packages without which some tests are skipped
PATH=$PATH:/usr/sbin:/sbin

has() { command -v "$1" >/dev/null 2>&1; }

python_works() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

has_library() { ldconfig -p 2>/dev/null | grep -q "$1"; }

look() {
  required=() wanted=()
  python_works "$python" || required+=(python3 python3-venv)
  has bwrap || required+=(bubblewrap)
  has_library 'libseccomp\.so\.2' || required+=(libseccomp2)
  [ "$purpose" = test ] || return 0
  has node || wanted+=(nodejs)
  has gcc || wanted+=(gcc libc6-dev)
  if [ "$(id -u)" = 0 ]; then  # the second pass, as an ordinary user (test-as-user.sh)
    has setpriv || required+=(util-linux)
    has useradd || required+=(passwd)
    python_works /usr/bin/python3 || required+=(python3 python3-venv)
  fi
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

can_install() {
  has apt-get || return 1
  [ "$(id -u)" = 0 ] && return 0
  has sudo || return 1
  sudo -n true 2>/dev/null || { [ -t 0 ] && [ -t 2 ]; }
}

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes "$@" </dev/null >>"$log" 2>&1; }

install() {
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  echo "== installing $*"
  [ "$(id -u)" = 0 ] || sudo -v
  # Package lists are often missing or old on a fresh machine: try without, then with new ones.
  apt_get install --no-install-recommends "$@" && return 0
  apt_get update && apt_get install --no-install-recommends "$@" && return 0
  tail -n 5 "$log" >&2
  return 1
}

what_to_type() {
  local sudo=
  [ "$(id -u)" = 0 ] || sudo='sudo '
  if has apt-get || ! { has dnf || has pacman; }; then
    echo "  ${sudo}apt-get update && ${sudo}apt-get install $*" >&2
  elif has dnf; then
    echo "  ${sudo}dnf install $*   (names may differ: libseccomp2 is libseccomp there)" >&2
  else
    echo "  ${sudo}pacman -S $*   (names may differ: libseccomp2 is libseccomp there)" >&2
  fi
}

look
missing=("${required[@]}" "${wanted[@]}")
if [ "${#missing[@]}" -gt 0 ] && can_install; then
  install "${missing[@]}" || true
  look
fi
if [ "${#required[@]}" -gt 0 ]; then
  echo "error: belljar needs what is not installed here, and it can't be installed from here: ${required[*]}" >&2
  echo "hint: type this, then try again:" >&2
  what_to_type "${required[@]}"
  exit 1
fi
if [ "${#wanted[@]}" -gt 0 ]; then
  echo "note: not installed, so the tests that need it will be skipped: ${wanted[*]}" >&2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "error: belljar needs Python 3.11 or newer, and $python is $("$python" -V 2>&1)" >&2
  echo "hint: name a newer one: make $purpose PYTHON=python3.12" >&2
  exit 1
fi
