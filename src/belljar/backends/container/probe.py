"""Does a container backend work here, and if not, why? Two questions to the engine at most; nothing is started."""

from __future__ import annotations

import re

from belljar.backends.container.engine.engine import Engine, find_engine
from belljar.backends.container.engine.escapes import EscapeVerdict
from belljar.backends.container.engine.facts import Facts, facts, runtime_problem
from belljar.backends.container.engine.faults import GVISOR_INSTALL, fault
from belljar.backends.container.images.engine_images import BASE_IMAGE, how_to_get
from belljar.backends.contract import Availability, Check
from belljar.errors import BelljarError

_SECONDS = 15.0
"""For each question."""
_OLDEST = {"docker": (20, 10), "podman": (4, 0), "nerdctl": (1, 0)}
_NOT_NEEDED = ("control groups", "root")
"""Checks that a backend works without; what is lost then, the report of a run says."""


def probe(backend: str, image: str = BASE_IMAGE) -> Availability:
    """Look for the engine of `docker`, `podman` or `gvisor`, and ask it, also for the image that runs would use."""
    try:
        engine = find_engine(backend, timeout=_SECONDS)
    except BelljarError as error:
        return _unavailable(backend, (Check("engine", ok=False, found=error.message, hint=error.hint),))
    checks = [Check("engine", ok=True, found=engine.program)]
    try:
        known = facts(engine, timeout=_SECONDS)
    except BelljarError as error:
        return _unavailable(backend, (*checks, Check("daemon", ok=False, found=error.message, hint=error.hint)))
    checks += (*known_checks(engine, known), _image(engine, image))
    if any(not check.ok and check.name not in _NOT_NEEDED for check in checks):
        return _unavailable(backend, tuple(checks))
    reason = f"{engine.name} {known.version} with {known.runtime} answers"
    return Availability(backend, available=True, reason=reason, checks=tuple(checks))


def _unavailable(backend: str, checks: tuple[Check, ...]) -> Availability:
    first = next(check for check in checks if not check.ok and check.name not in _NOT_NEEDED)
    return Availability(backend, available=False, reason=first.found, hint=first.hint, checks=checks)


def known_checks(engine: Engine, known: Facts) -> tuple[Check, ...]:
    """What there is to say about an engine that answers. Pure but for the package of runc."""
    return (
        _version(engine, known),
        _runtime(engine, known),
        _escapes(known),
        _seccomp(engine, known),
        _root(engine, known),
        _control_groups(known),
    )


def _version(engine: Engine, known: Facts) -> Check:
    oldest = _OLDEST[engine.name]
    numbers = tuple(map(int, re.findall(r"\d+", known.version)[:2]))
    ok = not numbers or numbers >= oldest
    where = "on this system" if known.local else "elsewhere, or in a virtual machine"
    wanted = ".".join(map(str, oldest))
    return Check(
        "daemon" if engine.name == "docker" else "version",
        ok,
        f"{engine.name} {known.version}, {known.os}/{known.architecture}, {known.storage_driver}, {where}",
        "" if ok else f"belljar needs {wanted} or later",
        "" if ok else f"install {engine.name} {wanted} or later",
    )


def _runtime(engine: Engine, known: Facts) -> Check:
    wanted = engine.runtime
    is_there = not known.runtimes or known.runtime in known.runtimes
    ok = is_there and wanted in (None, known.runtime)
    meaning = "a kernel of its own between the code and this one" if known.runtime == "runsc" else ""
    found = f"{known.runtime} {known.runtime_version}".strip()
    hint = GVISOR_INSTALL if wanted == "runsc" else f"sudo apt install {wanted or known.runtime}"
    return Check("runtime", ok, found if ok else f"{engine.name} has no {wanted}", meaning, "" if ok else hint)


def _escapes(known: Facts) -> Check:
    judgement = runtime_problem(known)
    if judgement.verdict is EscapeVerdict.UNKNOWN and not judgement.hint:
        return Check("known escapes", ok=True, found=f"none looked for in {judgement.text}")
    meaning = {
        EscapeVerdict.REACHABLE: "belljar runs nothing with it",
        EscapeVerdict.UNREACHABLE: "belljar's containers have none of that; still, a newer one is better",
    }.get(judgement.verdict, "")
    return Check(
        "known escapes", judgement.verdict is not EscapeVerdict.REACHABLE, judgement.text, meaning, judgement.hint
    )


def _seccomp(engine: Engine, known: Facts) -> Check:
    if known.seccomp or known.runtime == "runsc":
        return Check("seccomp", ok=True, found="runsc filters its own calls" if not known.seccomp else "supported")
    return Check(
        "seccomp",
        ok=False,
        found=f"{engine.name} was built, or runs on a kernel, without seccomp",
        meaning="system calls can't be filtered",
        hint=f"install the distribution's {engine.name}, on a kernel with CONFIG_SECCOMP_FILTER",
    )


def _root(engine: Engine, known: Facts) -> Check:
    if known.rootless or known.user_namespace:
        how = "runs without root" if known.rootless else "maps root in a container to nobody"
        return Check("root", ok=True, found=f"{engine.name} {how}")
    return Check(
        "root",
        ok=True,
        found=f"{engine.name} runs as root",
        meaning="code in a container is an ordinary user without capabilities, but not in a user namespace",
    )


def _control_groups(known: Facts) -> Check:
    found = f"cgroup v{known.cgroup_version}, {known.cgroup_driver}"
    if not known.rootless or known.cgroup_version == "2":
        return Check("control groups", ok=True, found=found)
    return Check(
        "control groups",
        ok=False,
        found=f"{found}, without root",
        meaning="an engine without root can't limit memory, processor or processes on cgroup v1",
        hint="boot with systemd.unified_cgroup_hierarchy=1, or use the engine as root",
    )


def _image(engine: Engine, image: str) -> Check:
    try:
        code, digest, stderr = engine.attempt("image", "inspect", "--format", "{{.Id}}", image, timeout=_SECONDS)
    except BelljarError as error:
        return Check("image", ok=False, found=error.message, hint=error.hint)
    if code == 0:
        return Check("image", ok=True, found=f"{image}, {digest.strip().removeprefix('sha256:')[:12]}")
    problem = fault(engine, stderr, code)
    if not re.search("no such|not known|not found", stderr, re.IGNORECASE):
        return Check("image", ok=False, found=problem.message, hint=problem.hint)
    return Check(
        "image",
        ok=False,
        found=f"{engine.name} has no image {image}",
        meaning="runs use it, unless the policy names another" if image == BASE_IMAGE else "the policy names it",
        hint=how_to_get(engine, image),
    )
