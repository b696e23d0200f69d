"""The hosts that a user lets agents reach, in all projects or in one. `belljar allow` writes them, and runs read them.

They are in the state directory, where no jar can write. The managed policy is a ceiling over them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from belljar.audit.log import record
from belljar.errors import PolicyError, UsageError
from belljar.policy.builtin import HOST_NAME
from belljar.policy.companions import READING, Companion, companions
from belljar.policy.keys.addresses import judge
from belljar.policy.keys.hosts import HostError, covers, host_name
from belljar.policy.layer import Layer
from belljar.policy.load.resolve import MANAGED_PATH, read_managed
from belljar.policy.models import HostRule
from belljar.state import private_directory, state_directory

_LARGEST = 1 << 20
_THIS_HOST = ("loopback", "unspecified")


def read_allowed(project: str | None) -> list[str]:
    """The hosts that agents may reach in a project, or in every project if it is None. Raises PolicyError."""
    path = _path(project)
    try:
        with open(path, "rb") as file:
            hosts = json.loads(file.read(_LARGEST))["hosts"]
        return [host_name(host) for host in hosts]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyError(f"{path}: the allowed hosts can't be read: {error}", hint=f"rm {path}") from None


def change_allowed(
    project: str | None, hosts: Sequence[str], *, remove: bool, managed: str | None = MANAGED_PATH
) -> tuple[list[str], list[str]]:
    """Allow hosts for good, or take them back. Return the list before and after.

    Raises:
        UsageError: a host is none, or one to take back is not there.
        PolicyError: the managed policy does not allow it.
        AuditError: it can't be recorded, so nothing changed.

    """
    names = [_checked(host) for host in hosts]
    with _turn():
        before = read_allowed(project)
        if remove:
            for name in names:
                if name not in before:
                    where = "in this project" if project else "in every project"
                    raise UsageError(f"{name} is not allowed {where}", hint="belljar allow --list")
            after = [host for host in before if host not in names]
        else:
            refuse_this_host(names)
            check_ceiling(names, _ceiling(managed))
            after = list(dict.fromkeys([*before, *names]))
        if after != before:
            done = "take back" if remove else "allow"
            record("allow", do=done, hosts=names, project=project, allowed=after)
            _write(_path(project), {"project": project, "hosts": after})
    return before, after


def rules(project: str, more: Iterable[str], *, managed: str | None = MANAGED_PATH) -> list[str | dict[str, Any]]:
    """The entries of an allowlist for an agent in a project: what is allowed for good, and `more` for this run.

    Hosts that come with these are opened for reading, unless the managed policy does not allow them.

    Raises:
        PolicyError: the managed policy does not allow a host that was allowed before.
        UsageError: a host is this one, by its address.

    """
    ceiling = _ceiling(managed)
    for where in (None, project):
        check_ceiling(read_allowed(where), ceiling, project=where)
    return rules_for([*read_allowed(None), *read_allowed(project), *more], managed=managed)


def rules_for(hosts: Sequence[str], *, managed: str | None = MANAGED_PATH) -> list[str | dict[str, Any]]:
    """The entries of an allowlist for these hosts, and for those that come with them. Raises UsageError."""
    refuse_this_host(hosts)
    each = list(dict.fromkeys(hosts))
    also = with_them(each, _ceiling(managed))
    return [*each, *({"host": one.host, "ports": [443], "methods": list(READING)} for one in also)]


def with_them(hosts: Sequence[str], ceiling: Layer | None) -> list[Companion]:
    """The hosts that come with these, as far as the managed policy allows them."""
    return [
        one
        for one in companions([host.lower().removesuffix(".") for host in hosts])
        if _is_covered(HostRule(one.host, ports=(443,), methods=READING), ceiling)
    ]


def check_ceiling(hosts: Iterable[str], ceiling: Layer | None, *, project: str | None = None) -> None:
    """Raise PolicyError if the managed policy does not allow one of these."""
    for host in hosts:
        if not _is_covered(HostRule(host), ceiling):
            again = f"belljar allow --remove {host}{' --for-project' if project else ''}"
            raise PolicyError(
                f"{host}: the managed policy ({MANAGED_PATH}) does not allow it",
                hint=f"ask who administers this host; if it was allowed before, take it back: {again}",
            )


def _is_covered(rule: HostRule, ceiling: Layer | None) -> bool:
    if ceiling is None:
        return True
    if (enabled := ceiling.get("net.enabled")) and not enabled.value:
        return False
    listed = ceiling.get("net.allowlist")
    return listed is None or any(covers(outer.value, rule) for outer in listed.value)


def _ceiling(managed: str | None) -> Layer | None:
    return None if managed is None else read_managed(managed)


def _checked(host: str) -> str:
    try:
        name = host_name(host)
    except HostError as error:
        raise UsageError(str(error), hint="belljar allow pypi.org --for-project") from None
    if name == "*":
        raise UsageError("every host is too many to allow for good", hint="for one run: belljar claude --allow '*'")
    return name


def refuse_this_host(hosts: Iterable[str]) -> None:
    """Raise UsageError for an address of this host, or one at which a cloud answers: a name opens neither."""
    for name in hosts:
        if (kind := _leads_to(name)) in _THIS_HOST:
            raise UsageError(
                f"{name} is a {kind} address: this host itself, or the jar",
                hint=f"name ports of this host: --set 'net.host_ports=[8080]'; the code reaches them as {HOST_NAME}",
            )
        if kind in ("link-local", "metadata"):
            raise UsageError(
                f"{name} is a {kind} address: clouds hand out the credentials of the machine there",
                hint="if a service of yours is there, write it into a policy: net.allowlist, net.allow_builtin",
            )


def _leads_to(name: str) -> str:
    """Return what kind of address a host is; nothing for a name, or an address of the internet."""
    try:
        return judge(name)
    except ValueError:
        return ""


def _path(project: str | None) -> str:
    if project is None:
        name = "every-project"
    else:
        name = hashlib.sha256(project.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return os.path.join(state_directory(), "allowed", f"{name}.json")


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One process after the other."""
    descriptor = os.open(private_directory(os.path.dirname(_path(None))), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: str, content: dict[str, Any]) -> None:
    unfinished = f"{path}.{os.getpid()}"
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(content, file)
    os.rename(unfinished, path)
