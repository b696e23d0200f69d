"""Runs a command in a virtual machine with cgroup v2: `python3 tests/vm/run.py -- CMD…`.

Boots Debian's own kernel and systemd in QEMU, unpacks this work tree (tracked and untracked files, not ignored ones) in
an ordinary user's home, and runs the command there in a login session with a user systemd instance. The command's
stdout, stderr and exit code become this program's. 124: it took too long. 125: the harness failed, no verdict.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from types import FrameType

from image import prepare
from machine import Hardware, boot
from payload import payload
from progress import STARTED, VmError, say

DEFAULT_COMMAND = ["python3", "-m", "pytest", "tests/conformance", "-q"]
HARNESS_CODE = 125


def main() -> int:
    """The command's exit code, or the harness's own."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        image = prepare(rebuild=options.rebuild)
        if options.build_only:
            return 0
        hardware = Hardware(options.cpus, options.memory, options.accel)
        with payload(options.command, options.user) as disk:
            code = boot(image, hardware, disk, timeout=options.timeout, show_console=options.console)
    except VmError as error:
        say(f"error: {error}")
        return HARNESS_CODE
    except KeyboardInterrupt:
        say("interrupted")
        return 128 + signal.SIGINT
    except Exception:  # noqa: BLE001 (Python's own exit code 1 would pass for the command's)
        traceback.print_exc()
        return HARNESS_CODE
    say(f"total: {time.monotonic() - STARTED:.1f} s")
    return code


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--as", dest="user", choices=("agent", "root"), default="agent", help="who runs the command inside"
    )
    parser.add_argument(
        "--timeout", type=float, default=900, metavar="SECONDS", help="for the command, boot excluded (default: 900)"
    )
    parser.add_argument("--memory", type=int, default=3072, metavar="MB", help="of the virtual machine (default: 3072)")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument(
        "--accel", default="tcg,thread=multi", help="QEMU's accelerator; 'kvm' where it works (default: %(default)s)"
    )
    parser.add_argument("--rebuild", action="store_true", help="build the image again, with today's Debian packages")
    parser.add_argument("--build-only", action="store_true", help="build the image and stop")
    parser.add_argument("--console", action="store_true", help="show the kernel's and systemd's messages")
    parser.add_argument("command", nargs="*", metavar="CMD", help=f"default: {' '.join(DEFAULT_COMMAND)}")
    options = parser.parse_args()
    options.command = options.command or DEFAULT_COMMAND
    return options


if __name__ == "__main__":
    sys.exit(main())
