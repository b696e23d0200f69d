#!/usr/bin/env bash
# Run the tests as the caller and, if that is root, after that as an ordinary user. Each pass has workers side by side; two
# passes at once would starve the tests that watch the clock.
#
#   make test-passes
set -uo pipefail
cd "$(dirname "$0")/.."

status=0
make test-here || status=1
if [ "$(id -u)" = 0 ]; then make test-user || status=1; fi
exit "$status"
