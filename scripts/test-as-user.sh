#!/usr/bin/env bash
# Runs the tests once more, as an ordinary user, on the built package. Started by root.
#
# That user can read neither root's home nor, perhaps, this tree. So the tests run in a copy, with a virtual environment
# of their own that is made from an interpreter the user may execute. Both lie in one temporary directory that is removed
# at the end; the user (belljar-test, made if missing, no password) stays.
#
# Container engines, only with BELLJAR_USER_ENGINES=1 (else their tests are skipped): docker is the dockerd of the tests'
# own (DOCKER_HOST, from tests/engines), whose socket is given to the user's group for as long as it lives; podman is the
# user's own, rootless, with its storage in the directory.
#
#   scripts/test-as-user.sh PYTHON [PYTEST-ARGUMENT…]
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

python=$1
shift
user=${BELLJAR_TEST_USER:-belljar-test}

id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/sh --comment "belljar's tests" "$user"
home=$(getent passwd "$user" | cut -d: -f6)

work=$(mktemp -d "${TMPDIR:-/tmp}/belljar-test.XXXXXX")
trap 'end_podman; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
chmod 755 "$work"
mkdir -p "$work/tree" "$work/tmp"
engines=()  # variables that lead to the engines

as_user() {
  setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups --inh-caps=-all -- \
    env -i HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/sh LANG=C.UTF-8 TMPDIR="$work/tmp" \
    PATH=/usr/local/bin:/usr/bin:/bin ${CI:+CI="$CI"} ${TERM:+TERM="$TERM"} \
    ${BELLJAR_MUST_WORK:+BELLJAR_MUST_WORK="$BELLJAR_MUST_WORK"} "${engines[@]}" "$@"
}

# Only a socket of the tests' own: who may speak with a dockerd is root in all but name.
give_docker() {
  local host=${DOCKER_HOST:-} socket bin
  socket=${host#unix://}
  case $socket in /tmp/belljar-engines.*/docker.sock) ;; *) return 0 ;; esac
  chgrp "$(id -g "$user")" "$socket"
  chmod 660 "$socket"
  engines+=(DOCKER_HOST="$DOCKER_HOST")
  bin=${socket%/*}/bin
  [ ! -d "$bin" ] || engines+=(PATH="$bin:/usr/local/bin:/usr/bin:/bin")
}

give_podman() {
  [ "${BELLJAR_TEST_ENGINES:-}" != here ] && command -v podman newuidmap >/dev/null || return 0
  grep -qs "^$user:" /etc/subuid && grep -qs "^$user:" /etc/subgid || give_subordinate_ids
  mkdir -m 700 "$work/podman" "$work/podman/runtime"
  "$python" tests/engines/run.py podman-settings "$work/podman" >"$work/podman/exports"
  chown -R "$user:" "$work/podman"
  engines+=(XDG_RUNTIME_DIR="$work/podman/runtime" \
    CONTAINERS_CONF="$work/podman/containers.conf" CONTAINERS_STORAGE_CONF="$work/podman/storage.conf")
  [ -d "${BELLJAR_IMAGE_CACHE:-}" ] || return 0
  cp -r "$BELLJAR_IMAGE_CACHE" "$work/images"
  chown -R "$user:" "$work/images"
  engines+=(BELLJAR_IMAGE_CACHE="$work/images")
  (cd / && as_user BELLJAR_STATE_DIR="$work/tmp/state" "$work/venv/bin/belljar" image build --engine podman) \
    >/dev/null || echo "note: rootless podman has no base image" >&2
}

# 65536 ids above all that are given to somebody.
give_subordinate_ids() {
  local first
  first=$(cat /etc/subuid /etc/subgid 2>/dev/null |
    awk -F: 'BEGIN {top = 100000} $2 + $3 > top {top = $2 + $3} END {print top}')
  usermod --add-subuids "$first-$((first + 65535))" --add-subgids "$first-$((first + 65535))" "$user"
}

# Containers that a killed test left, and the process that holds a rootless podman's user namespace.
end_podman() {
  [ -e "$work/podman/runtime/libpod" ] || return 0
  cd /
  as_user timeout 60 podman rm --all --force --time 0 >/dev/null 2>&1 || true
  as_user timeout 60 podman system migrate >/dev/null 2>&1 || true
}

base=
for candidate in "$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')" /usr/bin/python3; do
  if (cd / && as_user "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))') 2>/dev/null; then
    base=$candidate
    break
  fi
done
if [ -z "$base" ]; then
  echo "error: no Python from 3.11 on that the user $user may execute" >&2
  echo "hint: apt-get install python3 python3-venv" >&2
  exit 1
fi

echo "== installing the built package for $user"
tar --create --exclude=./.git --exclude=./.venv --exclude=./.cache --exclude=__pycache__ --exclude='./.*_cache' \
  --exclude=./.hypothesis --exclude=./build --exclude=./dist . | tar --extract --no-same-owner --directory "$work/tree"
"$base" -m venv "$work/venv"
mapfile -t wanted < <("$python" scripts/dependency_group.py test)
"$work/venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet "$work/tree" "${wanted[@]}"
chown -R "$user:" "$work/tree" "$work/tmp"

if [ "${BELLJAR_USER_ENGINES:-}" = 1 ]; then
  give_docker
  give_podman
else
  BELLJAR_MUST_WORK=${BELLJAR_MUST_WORK:+bubblewrap}
fi

echo "== tests as $user, Python $("$base" -c 'import platform; print(platform.python_version())')"
cd "$work/tree"
as_user timeout --foreground --kill-after=20 "${TEST_SECONDS:-2400}" "$work/venv/bin/python" -m pytest -n "${PYTEST_WORKERS:-3}" "$@"
