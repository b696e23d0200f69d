"""What the keys of the network, the credentials and the rest of a policy have to agree on. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from belljar.policy.layer import Layer, Written
from belljar.policy.models import Mount
from belljar.policy.paths import beneath
from belljar.policy.problems import Problems, found, nearest, place


def check(values: Layer, problems: Problems) -> None:
    """Note what contradicts itself."""
    check_credentials(values, problems)
    _check_placeholders(values, problems)
    _check_canaries(values, problems)
    _check_published(values, problems)


def check_credentials(values: Layer, problems: Problems) -> None:
    """A rule names a credential that is there, and of the right kind."""
    defined: dict[str, Written] = values["credentials"].value if "credentials" in values else {}
    for at, item in enumerate(_items(values, "net.allowlist")):
        for key, name, signs in (("credential", item.value.credential, False), ("sign", item.value.sign, True)):
            where = f"net.allowlist[{at}].{key}"
            if name is None:
                continue
            if name not in defined:
                close = nearest(name, defined)
                problems.add(item.origin, f"{where}: wanted a name of 'credentials', found {found(name)}{close}")
            elif (defined[name].value.algorithm is not None) != signs:
                wanted = "a credential with an 'algorithm'" if signs else "one without an 'algorithm': write 'sign'"
                problems.add(item.origin, f"{where}: wanted {wanted}, found {found(name)}")


def _check_placeholders(values: Layer, problems: Problems) -> None:
    """One placeholder and one variable stand for one secret."""
    defined: dict[str, Written] = values["credentials"].value if "credentials" in values else {}
    first: dict[tuple[str, str], str] = {}
    variables = values["env.set"].value if "env.set" in values else {}
    for name, item in defined.items():
        if item.value.env in variables:
            text = f"wanted a variable that env.set does not have, found {found(item.value.env)}"
            problems.add(item.origin, f"credentials.{name}.env: {text} ({place(variables[item.value.env].origin)})")
        for key in ("placeholder", "env"):
            if (value := getattr(item.value, key)) is None:
                continue
            if other := first.get((key, value)):
                text = f"wanted another than that of '{other}', found {found(value)}"
                problems.add(item.origin, f"credentials.{name}.{key}: {text}")
            first.setdefault((key, value), name)


def _check_canaries(values: Layer, problems: Problems) -> None:
    """A planted file lies where the jar can have one, and the host does not get it."""
    mounts: list[Mount] = [item.value for item in _items(values, "fs.mounts")]
    for item in _items(values, "net.canary_files"):
        holding = [mount for mount in mounts if beneath(item.value, mount.path) and item.value != mount.path]
        mount = max(holding, key=lambda mount: len(mount.path), default=None)
        if mount is None or not mount.rw:
            homes = ", ".join(mount.path for mount in mounts if mount.rw) or "nothing: no mount is writable"
            text = f"wanted a file beneath {homes}, found {found(item.value)}"
        elif mount.source and not mount.cow:
            text = f"wanted a file that is not the host's own, found {found(item.value)} in a live mount"
        else:
            continue
        problems.add(item.origin, f"net.canary_files: {text}")


def _check_published(values: Layer, problems: Problems) -> None:
    first: dict[str, Written] = {}
    for item in _items(values, "net.publish"):
        port = item.value.partition(":")[0]
        if port in first:
            where = place(first[port].origin)
            problems.add(item.origin, f"net.publish: wanted each port of the host once, found {port} twice ({where})")
        first.setdefault(port, item)


def _items(values: Layer, key: str) -> Iterator[Written]:
    yield from values[key].value if key in values else ()
