"""A program that uses belljar, to lose its launcher or to be killed with it: started by test_launcher_killed."""

from __future__ import annotations

import sys

LONG = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print("on", flush=True)
time.sleep(300)
"""


def main(package: str) -> None:
    """Two Sandboxes, one with a jar that waits, one in which code runs; a word when it does, and when it is over."""
    sys.path.insert(0, package)
    from belljar import BelljarError, Sandbox

    with Sandbox(backend="bubblewrap") as waiting, Sandbox(backend="bubblewrap") as busy:
        assert waiting.run("pass").ok
        try:
            for event in busy.stream(LONG):
                print(event, flush=True)
        except BelljarError as error:
            print("told:", type(error).__name__, error.message, flush=True)
    with Sandbox(backend="bubblewrap") as jar:
        print("then:", jar.run("print('alive')").stdout, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
