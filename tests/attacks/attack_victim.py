"""A program that uses belljar, to be killed: started by attack_kill with the marker that its guest carries."""

from __future__ import annotations

import sys

SHORT = """
import time
print("on", flush=True)
time.sleep(0.05)
"""
LEAVING = """
import subprocess, time
subprocess.Popen(["sleep", "300"], start_new_session=True)
time.sleep(0.05)
"""
LONG = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", sys.argv[1]], start_new_session=True)
print("on", flush=True)
time.sleep(300)
"""


def main(package: str, backend: str, marker: str, workspace: str) -> None:
    """Open, run, close, without end, so that a kill at any moment meets every phase; say when a run is on."""
    sys.path.insert(0, package)
    from belljar import Sandbox

    while True:
        with Sandbox(backend=backend, workspace=workspace) as jar:
            for event in jar.stream(SHORT, args=[marker]):
                if getattr(event, "data", b"").startswith(b"on"):
                    print("on", flush=True)
            jar.run(LEAVING, args=[marker])
            jar.files.write("f", "x")


def hold(package: str, backend: str, marker: str, workspace: str) -> None:
    """One long run, and a word when it is on."""
    sys.path.insert(0, package)
    from belljar import BelljarError, Sandbox

    with Sandbox(backend=backend, workspace=workspace) as jar:
        try:
            for event in jar.stream(LONG, args=[marker]):
                print(getattr(event, "data", b"") or event, flush=True)
        except BelljarError as error:
            print("told:", type(error).__name__, error.message, flush=True)


def careless(_package: str, _backend: str, marker: str, _workspace: str) -> None:
    """A long run without a jar, of a harmless program in a temporary directory, as many a program starts it."""
    import os
    import subprocess
    import tempfile

    user = 61_234 if os.geteuid() == 0 else None
    code = ["sh", "-c", f"echo on; sleep 300; : {marker}"]
    subprocess.Popen(code, cwd=tempfile.mkdtemp(), user=user, start_new_session=True).wait()


if __name__ == "__main__":
    {"main": main, "hold": hold, "careless": careless}[sys.argv[1]](*sys.argv[2:])
