"""Python packages for an image: wheels for the Python inside, fetched by this host's pip, none of them built or run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from belljar.backends.container.images.sources import Sources, python_version
from belljar.errors import PrerequisiteError, SandboxUnavailableError

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "i386": "i686", "ppc64el": "ppc64le", "s390x": "s390x"}
_GLIBC = ("_2_36", "_2_35", "_2_34", "_2_31", "_2_28", "_2_27", "_2_24", "_2_17", "2014")
"""What wheels may ask of the C library; Debian 12 has 2.36."""


def fetch_packages(requirements: tuple[str, ...], sources: Sources, scratch: str) -> str:
    """A directory `pythonVERSION/dist-packages` with the packages in it.

    Raises:
        PrerequisiteError: there is no pip here, or it is not known which Python the image will have.
        SandboxUnavailableError: pip did not find the packages as wheels.

    """
    version = python_version()
    site = os.path.join(scratch, f"python{version}", "dist-packages")
    machine = _MACHINES.get(sources.architecture, sources.architecture)
    command = [
        *_pip(),
        *("install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile", "--no-warn-conflicts"),
        *(f"--platform=manylinux{tag}_{machine}" for tag in _GLIBC),
        *(f"--python-version={version}", "--implementation=cp", "--only-binary=:all:", f"--target={site}"),
        *("--", *requirements),
    ]
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        stdin=subprocess.DEVNULL,
        cwd=scratch,  # a file here that has the name of a package must not be taken for it
    )
    if done.returncode:
        raise SandboxUnavailableError(
            f"pip could not get {', '.join(requirements)}: {_complaint(done.stderr)}",
            hint=f"only wheels for Python {version} on {machine} are taken; nothing is compiled",
        )
    shutil.rmtree(os.path.join(site, "bin"), ignore_errors=True)  # scripts that name the host's own interpreter
    return site


def _pip() -> list[str]:
    for command in ([sys.executable, "-m", "pip"], ["python3", "-m", "pip"], ["pip"]):
        try:
            if subprocess.run([*command, "--version"], check=False, capture_output=True).returncode == 0:
                return command
        except OSError:
            continue
    raise PrerequisiteError("there is no pip here, and --pip needs it", hint="apt install python3-pip")


def _complaint(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR:")]
    return (errors or stderr.strip().splitlines() or ["no reason was given"])[-1].removeprefix("ERROR: ")
