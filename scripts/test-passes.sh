#!/usr/bin/env bash
# Run the tests as the caller and, if that is root, at the same time as an ordinary user, whose output is shown second.
# Tests wait more than they compute: both passes together take little longer than the longer one.
#
#   make test-passes
set -uo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || exec make test-here

log=$(mktemp)
setsid make test-user >"$log" 2>&1 </dev/null &
user=$!
# In a session of its own, so that all of it can be ended: its shell removes what it made.
trap 'rm -f "$log"' EXIT
trap 'kill -TERM -- "-$user" 2>/dev/null; wait "$user"; exit 130' INT TERM HUP

status=0
make test-here || status=1
wait "$user" || status=1
cat "$log"
exit "$status"
