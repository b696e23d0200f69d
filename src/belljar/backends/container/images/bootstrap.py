"""mmdebstrap: the wanted packages, installed in a directory of their own, as one tar file.

It runs on the host: as root in namespaces of its own that end with it, as an ordinary user in a user namespace. The
packages' own scripts run inside, as they do wherever the packages are installed. No registry is asked for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable

from belljar.backends.container.images.recipe import EPOCH, ROOTS, Recipe
from belljar.backends.container.images.sources import Sources, building_program
from belljar.errors import PrerequisiteError, SandboxUnavailableError

Tell = Callable[[str], None]
"""Is told what is being done, a step at a time."""

_UNREAD = ("doc", "doc-base", "man", "locale", "info", "lintian", "bash-completion", "bug", "pixmaps", "zsh")
_HOOKS = "/usr/share/mmdebstrap/hooks/maybe-merged-usr"
_GRACE_SECONDS = 30.0
_OURS = re.compile(r"I: (downloading|extracting|installing|running --customize|creating)")
_STEPS = {
    "downloading": "fetching packages",
    "extracting": "unpacking",
    "installing": "installing",
    "running --customize": "compiling Python's library",
    "creating": "writing the files down",
}
# Compiled code that names no time and is not compared with its source: an image is read-only, and a run that had to
# compile the standard library would be slow each time. The fixed seed and the order make it the same on every machine.
_COMPILE = """\
set -eu
for library in "$1"/usr/lib/python3*; do find "$library" -depth -name __pycache__ -exec rm -rf {} +; done
chroot "$1" env -i PATH=/usr/bin:/bin PYTHONHASHSEED=0 python3 -I -c '
import compileall, glob, py_compile
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for directory in sorted(glob.glob("/usr/lib/python3*") + glob.glob("/usr/local/lib/python3*/dist-packages")):
    compileall.compile_dir(directory, maxlevels=20, quiet=2, force=True, invalidation_mode=mode)
'
"""


def bootstrap(recipe: Recipe, sources: Sources, output: str, *, scratch: str, site: str | None, tell: Tell) -> None:
    """Install what the recipe wants and write it to the file `output`; `site` is a
    directory `pythonVERSION/dist-packages` to add.

    Raises:
        PrerequisiteError: mmdebstrap is missing, or may not work for this user.
        SandboxUnavailableError: a package does not exist, or could not be fetched or installed.

    """
    tell("reading package lists")
    command = _command(recipe, sources, site)
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    if os.geteuid() == 0:
        # Only root's: an ordinary user's namespace maps other ids, which may not enter this closed directory.
        environment["TMPDIR"] = scratch
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            said = _follow(process, tell)
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        raise _failure(said, process.returncode)


def _command(recipe: Recipe, sources: Sources, site: str | None) -> list[str]:
    program = building_program("mmdebstrap", "mmdebstrap")
    hooks = [f"--hook-dir={_HOOKS}"] if os.path.isdir(_HOOKS) else []
    if site is not None:
        inside = f"/usr/local/lib/{os.path.basename(os.path.dirname(site))}"
        hooks += [f'--customize-hook=mkdir -p "$1"{inside}', f"--customize-hook=copy-in {shlex.quote(site)} {inside}"]
    return [
        *_held(),
        program,
        f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
        "--variant=essential",
        f"--architectures={sources.architecture}",
        f"--include={','.join([*ROOTS, 'usr-is-merged', *recipe.packages])}",
        "--aptopt=APT::Install-Recommends false",
        *(f"--aptopt={option}" for option in sources.transport),
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNREAD),
        "--dpkgopt=force-unsafe-io",
        *hooks,
        f"--customize-hook={_COMPILE}",
        "--format=tar",
        sources.release,
        "-",
        *sources.lines,
    ]


def _held() -> list[str]:
    """For root: namespaces of its own. When belljar dies, all that it started and mounted goes too."""
    if os.geteuid() != 0:
        return []
    setpriv, unshare = (building_program(name, "util-linux") for name in ("setpriv", "unshare"))
    return [setpriv, "--pdeathsig=KILL", unshare, "--fork", "--kill-child", "--pid", "--mount", "--mount-proc"]


def _follow(process: subprocess.Popen[bytes], tell: Tell) -> list[str]:
    """Tell of each step that mmdebstrap says it begins; returns the last lines."""
    said: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        text = line.decode(errors="replace").rstrip()
        said = [*said[-40:], text]
        if match := _OURS.match(text):
            tell(_STEPS[match[1]])
    process.wait()
    return said


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it clean up after itself; then make sure."""
    for number, seconds in ((signal.SIGINT, _GRACE_SECONDS), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            continue


def _failure(said: list[str], code: int) -> PrerequisiteError | SandboxUnavailableError:
    text = "\n".join(said)
    if match := re.search(r"Unable to locate package (\S+)", text):
        return SandboxUnavailableError(f"there is no Debian package {match[1]!r}", hint=f"apt-cache search {match[1]}")
    if os.geteuid() != 0 and re.search(r"newuidmap|subuid|unshare|user namespaces", text):
        return PrerequisiteError(
            "an ordinary user needs user namespaces and a range of ids to build an image: " + _complaint(said),
            hint="apt install uidmap, and a line for you in /etc/subuid and /etc/subgid; or build it as root",
        )
    return SandboxUnavailableError(
        f"mmdebstrap failed with code {code}: {_complaint(said)}",
        hint="is the mirror of this host's apt within reach? `apt-get update` as root says so",
    )


def _complaint(said: list[str]) -> str:
    """The first line of the last ones that is an error's."""
    errors = [line for line in said if re.match(r"(E: |.*[Ee]rror|.*[Ff]ailed)", line)]
    return (errors or said or ["it gave no reason"])[0].removeprefix("E: ")
