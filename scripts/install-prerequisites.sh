#!/usr/bin/env bash
# Installs what belljar (demo), its tests (test), the benchmark of its proxy (bench) or what belljar is compared with
# (peers) need from the system and do not find, with apt as root or through sudo.
# Where it can't, it says what to type and exits with 1. Nothing is installed that is already there.
#
# As root on Debian the tests also get container engines and servers, which they start themselves (tests/engines,
# tests/network): a package's own daemon is not started. Elsewhere they use what is there.
#
#   scripts/install-prerequisites.sh demo|test|bench|peers [PYTHON]
set -euo pipefail

purpose=${1:?demo, test, bench or peers}
python=${2:-python3}
required=()   # packages without which there is no point in going on
wanted=()     # packages without which some tests are skipped
engines=()    # the same, for packages that bring daemons: container engines, databases, sshd
PATH=$PATH:/usr/sbin:/sbin

has() { command -v "$1" >/dev/null 2>&1; }

python_works() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

has_library() { ldconfig -p 2>/dev/null | grep -q "$1"; }

look() {
  required=() wanted=() engines=()
  python_works "$python" || required+=(python3 python3-venv)
  has bwrap || required+=(bubblewrap)
  has_library 'libseccomp\.so\.2' || required+=(libseccomp2)
  [ "$purpose" != bench ] || look_for_proxies
  [ "$purpose" != peers ] || look_for_peers
  [ "$purpose" = test ] || return 0
  has node || wanted+=(nodejs)
  has gcc || wanted+=(gcc libc6-dev)
  has curl || wanted+=(curl)
  has git || wanted+=(git)
  has ssh || wanted+=(openssh-client)
  has javac || wanted+=(default-jdk-headless)
  has npm || wanted+=(npm)
  if [ "$(id -u)" = 0 ]; then  # the second pass, as an ordinary user (test-as-user.sh)
    has setpriv || required+=(util-linux)
    has useradd || required+=(passwd)
    python_works /usr/bin/python3 || required+=(python3 python3-venv)
    ! is_debian || { look_for_engines; look_for_servers; }
  fi
}

is_debian() { grep -Eqs '^ID(_LIKE)?=.*debian' /etc/os-release; }

look_for_engines() {
  has dockerd || engines+=(docker.io)
  has docker || ! has dockerd || engines+=(docker-cli)  # since Debian 13 docker.io is the daemon alone
  has containerd || engines+=(containerd)
  has runc || engines+=(runc)
  has runsc || engines+=(runsc)
  has podman || engines+=(podman netavark)
  has conmon || engines+=(conmon)
  has newuidmap || engines+=(uidmap)
  has mmdebstrap || engines+=(mmdebstrap)
}

# What the jar's network is tried with. Their programs are not all in PATH.
look_for_servers() {
  has redis-server || engines+=(redis-server)
  has sshd || engines+=(openssh-server)
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || engines+=(postgresql)
}

# What the egress proxy is compared with; this squid can open TLS.
look_for_proxies() {
  has squid || [ "$(id -u)" != 0 ] || ! is_debian || engines+=(squid-openssl)
}

# What a jar is compared with: srt calls socat and rg, it and Codex come by npm, and the floor is written in C.
look_for_peers() {
  has node || wanted+=(nodejs)
  has npm || wanted+=(npm)
  has socat || wanted+=(socat)
  has rg || wanted+=(ripgrep)
  has gcc || wanted+=(gcc libc6-dev)
  [ "$(id -u)" != 0 ] || ! is_debian || look_for_engines
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

# The packages among these that apt knows: not every release has all of them.
known() {
  apt-cache policy "$@" 2>/dev/null |
    awk '/^[^ ]/ {name = $1; sub(/:$/, "", name)} $1 == "Candidate:" && $2 != "(none)" {print name}'
}

# While this file is there and says 101, no package starts a daemon. One that somebody made is left as it is.
no_daemons() {
  policy=/usr/sbin/policy-rc.d
  [ ! -e "$policy" ] || { policy=; return 0; }
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
}

daemons_again() {
  [ -z "${policy:-}" ] || rm -f "$policy"
  policy=
}

begin_log() {
  log=${log:-$(mktemp)}
  trap 'rm -f "$log"; daemons_again' EXIT
}

install_engines() {
  local packages
  begin_log
  mapfile -t packages < <(known "$@")
  if [ "${#packages[@]}" -lt "$#" ]; then  # perhaps only because there are no package lists
    apt_get update || true
    mapfile -t packages < <(known "$@")
  fi
  if [ "${#packages[@]}" = 0 ]; then return 0; fi
  no_daemons
  if install "${packages[@]}"; then
    stay_off "${packages[@]}"
  fi
  daemons_again
}

# Nor at the next boot: who wants the system's own docker has to say so.
stay_off() {
  local units=()
  has systemctl || return 0
  case " $* " in *' docker.io '*) units+=(docker.service docker.socket) ;; esac
  case " $* " in *' containerd '*) units+=(containerd.service) ;; esac
  case " $* " in *' podman '*) units+=(podman.socket) ;; esac
  case " $* " in *' redis-server '*) units+=(redis-server.service) ;; esac
  case " $* " in *' openssh-server '*) units+=(ssh.service) ;; esac
  case " $* " in *' postgresql '*) units+=(postgresql.service) ;; esac
  case " $* " in *' squid-openssl '*) units+=(squid.service) ;; esac
  [ "${#units[@]}" = 0 ] || systemctl --quiet disable "${units[@]}" >>"$log" 2>&1 || true
}

install() {
  begin_log
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
if [ "${#required[@]}${#wanted[@]}" != 00 ] && can_install; then
  install "${required[@]}" "${wanted[@]}" || { [ "${#required[@]}" = 0 ] || install "${required[@]}" || true; }
  look
fi
for _ in 1 2; do  # what one brings along may lack another
  [ "${#engines[@]}" -gt 0 ] && can_install || break
  install_engines "${engines[@]}"
  look
done
if [ "${#required[@]}" -gt 0 ]; then
  echo "error: belljar needs what is not installed here, and it can't be installed from here: ${required[*]}" >&2
  echo "hint: type this, then try again:" >&2
  what_to_type "${required[@]}"
  exit 1
fi
missing=("${wanted[@]}" "${engines[@]}")
if [ "${#missing[@]}" -gt 0 ]; then
  case $purpose in
    test) skipped='the tests that need it will be skipped' ;;
    *) skipped='what needs it will be left out' ;;
  esac
  echo "note: not installed, so $skipped: ${missing[*]}" >&2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "error: belljar needs Python 3.11 or newer, and $python is $("$python" -V 2>&1)" >&2
  echo "hint: name a newer one: make $purpose PYTHON=python3.12" >&2
  exit 1
fi
