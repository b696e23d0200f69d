"""What belljar is compared with: how each is called, and why one can't be measured here.

All of them run the interpreter of the clean virtual environment, in containers through a mount. Each is tried before it
is measured: what does not print what it was told to has no time.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from environments import PEERS, SYSTEM_PATH, Place

from belljar.backends.container.images.engine_images import BASE_IMAGE

BWRAP, SRT, CODEX, CODEX_NPM = "bwrap, by hand", "srt", "codex sandbox", "codex sandbox, through npm's wrapper"
DOCKER, GVISOR = "docker run", "docker run, gVisor"
TRY_SECONDS = 60
HINT = "make bench-peers installs it"

Command = Callable[[str], list[str]]
"""The command that runs some code."""


@dataclass(frozen=True)
class Peer:
    """One of them, as it was found here."""

    name: str
    version: str
    command: Command
    how: str
    """How it is called, without this machine's paths."""
    slow: bool = False
    """It takes so long that it is measured less often."""


class MissingError(Exception):
    """It can't be measured here; the message says why."""


def find(place: Place) -> tuple[list[Peer], dict[str, str]]:
    """Those that work here, and why the others don't."""
    peers, missing = [], {}
    for name, look in LOOKS.items():
        try:
            peers.append(tried(look(place), place))
        except MissingError as why:
            missing[name] = str(why)
    return peers, missing


def tried(peer: Peer, place: Place) -> Peer:
    command = peer.command("print(1)")
    try:
        done = subprocess.run(
            command,
            env=place.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"it does not run here: {type(error).__name__}") from error
    if done.returncode or done.stdout.split() != ["1"]:
        said = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[0]
        raise MissingError(f"it does not run here (exit code {done.returncode}): {said.replace(str(place.top), '…')}")
    return peer


def _program(name: str, hint: str) -> str:
    return shutil.which(name, path=f"{SYSTEM_PATH}:{os.environ.get('PATH', '')}") or _missing(hint)


def _missing(why: str) -> str:
    raise MissingError(why)


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRY_SECONDS)
    return (
        (done.stdout.strip().splitlines() or ["unknown"])[0].removeprefix("bubblewrap ").removeprefix("runsc version ")
    )


# --- bubblewrap ------------------------------------------------------------------------------------------------------


def bwrap(place: Place) -> Peer:
    """What one would type by hand: every namespace, the system, the interpreter and its environment, read-only."""
    program = _program("bwrap", "apt install bubblewrap")
    arguments = [program, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = f"/{name}"
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in of_the_interpreter(place):
        arguments += ["--ro-bind", path, path]
    arguments += ["--", place.python, "-I", "-c"]
    how = "bwrap --unshare-all --die-with-parent --new-session --ro-bind … --proc … --dev … --tmpfs /tmp -- python …"
    return Peer(BWRAP, _first_line(program, "--version"), lambda code: [*arguments, code], how)


def of_the_interpreter(place: Place) -> Iterator[str]:
    """The directories that hold it, beside the system's own."""
    program = os.path.realpath(place.python)
    if not program.startswith("/usr/"):
        yield os.path.dirname(os.path.dirname(program))
    yield str(place.venv)


# --- from npm --------------------------------------------------------------------------------------------------------


def srt(place: Place) -> Peer:
    """No network, and writing beneath /tmp alone. Its words are joined by blanks, so the command is one string."""
    program, version = _from_npm("@anthropic-ai/sandbox-runtime", "srt")
    settings = place.top / "srt.json"
    files = {"denyRead": [], "allowWrite": ["/tmp"], "denyWrite": []}
    settings.write_text(json.dumps({"network": {"allowedDomains": [], "deniedDomains": []}, "filesystem": files}))
    start = [program, "--settings", str(settings), "-c"]
    return Peer(SRT, version, lambda code: [*start, _in_shell(place, code)], "srt --settings FILE -c 'python …'")


def _in_shell(place: Place, code: str) -> str:
    return shlex.join([place.python, "-I", "-c", code])


def codex(place: Place) -> Peer:
    """The program itself: a read-only file system and no network, which is its default."""
    _wrapper, version = _from_npm("@openai/codex", "codex")
    natives = sorted((PEERS / "npm/node_modules/@openai").glob("codex-*/vendor/*/bin/codex"))
    if not natives:
        raise MissingError("npm brought no program for this processor")
    start = [str(natives[0]), "sandbox", "--", place.python, "-I", "-c"]
    return Peer(CODEX, version, lambda code: [*start, code], "codex sandbox -- python …")


def codex_npm(place: Place) -> Peer:
    """What a user of npm types: JavaScript that starts the program."""
    program, version = _from_npm("@openai/codex", "codex")
    start = [program, "sandbox", "--", place.python, "-I", "-c"]
    return Peer(CODEX_NPM, version, lambda code: [*start, code], "node_modules/.bin/codex sandbox -- python …")


def _from_npm(package: str, command: str) -> tuple[str, str]:
    program, about = PEERS / "npm/node_modules/.bin" / command, PEERS / "npm/node_modules" / package / "package.json"
    if not program.exists() or not about.exists():
        raise MissingError(f"not installed; {HINT}")
    return str(program), str(json.loads(about.read_text())["version"])


# --- containers ------------------------------------------------------------------------------------------------------


def docker(place: Place) -> Peer:
    start, version = docker_run(place)
    how = "docker run --rm --network none --user 0:0 --volume … --entrypoint python IMAGE …"
    return Peer(DOCKER, version, lambda code: [*start, code], how, slow=True)


def gvisor(place: Place) -> Peer:
    start, _version = docker_run(place, "--runtime", "runsc")
    known = _first_line(start[0], "info", "--format", "{{json .Runtimes}}")
    if "runsc" not in known:
        raise MissingError("docker knows no runtime runsc")
    runsc = shutil.which("runsc", path=SYSTEM_PATH)
    version = _first_line(runsc, "--version") if runsc else "unknown"
    return Peer(GVISOR, version, lambda code: [*start, code], "docker run --runtime runsc …", slow=True)


def docker_run(place: Place, *options: str) -> tuple[list[str], str]:
    """As one would type it, and the engine's version. Most images run as root, who can read the mounted interpreter."""
    program = _program("docker", f"docker is not installed; {HINT}")
    version = _first_line(program, "version", "--format", "{{.Server.Version}}")
    if version in ("unknown", ""):
        raise MissingError("no docker engine answers")
    if _first_line(program, "image", "ls", "--quiet", BASE_IMAGE) == "unknown":
        raise MissingError(f"there is no image {BASE_IMAGE} (belljar image build)")
    command = [program, "run", "--rm", "--network", "none", "--user", "0:0", *options]
    for path in of_the_interpreter(place):
        command += ["--volume", f"{path}:{path}:ro"]
    return [*command, "--entrypoint", place.python, BASE_IMAGE, "-I", "-c"], version


LOOKS: dict[str, Callable[[Place], Peer]] = {
    BWRAP: bwrap,
    SRT: srt,
    CODEX: codex,
    CODEX_NPM: codex_npm,
    DOCKER: docker,
    GVISOR: gvisor,
}
