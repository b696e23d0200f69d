"""Gets a secret on the host, for one run: from the environment, a file, a program or a keyring. It is never written."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from collections.abc import Mapping

from belljar.errors import PrerequisiteError
from belljar.policy.models import Credential

COMMAND_SECONDS = 30.0
LARGEST = 64 * 1024
_UNFIT = re.compile(r"[\x00-\x1f\x7f]")


def fetch(spec: Credential, environ: Mapping[str, str], *, seconds: float = COMMAND_SECONDS) -> str:
    """The secret that `spec` tells of. Runs on the host, as the user who runs belljar.

    Raises:
        PrerequisiteError: when it can't be had. The text never has any of it.

    """
    kind, _, rest = spec.source.partition(":")
    if spec.command:
        text = _command(spec, environ, seconds)
    elif kind == "env":
        text = _variable(spec, rest, environ)
    elif kind == "file":
        text = _file(spec, rest)
    else:
        text = _keyring(spec, rest)
    text = text.rstrip("\r\n")
    if not text:
        raise _missing(spec, "it is empty")
    if spec.kind != "signature" and _UNFIT.search(text):
        raise _missing(spec, "it has more than one line, or a character that no header may have")
    return text


def _missing(spec: Credential, why: str, hint: str = "") -> PrerequisiteError:
    return PrerequisiteError(f"the credential {spec.name} could not be got: {why}", hint=hint)


def _variable(spec: Credential, name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise _missing(spec, f"the variable {name} is not set", f"export {name}=…")
    return environ[name]


def _file(spec: Credential, path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(LARGEST + 1) or b""
    except OSError as error:
        raise _missing(spec, f"{path}: {error.strerror}") from None
    return _text(spec, content)


def _command(spec: Credential, environ: Mapping[str, str], seconds: float) -> str:
    name = spec.command[0]
    try:
        done = subprocess.run(
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise _missing(spec, f"{name}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _missing(spec, f"{name} took longer than {seconds:g} s") from None
    if done.returncode != 0:
        raise _missing(spec, f"{name} ended with {done.returncode}")
    return _text(spec, done.stdout)


def _keyring(spec: Credential, rest: str) -> str:
    service, _, user = rest.partition("/")
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise _missing(spec, "the keyring package is not installed", "pip install 'belljar[keyring]'") from None
    try:
        found = keyring.get_password(service, user)
    except Exception as error:  # noqa: BLE001 every keyring has errors of its own
        raise _missing(spec, f"the keyring failed: {type(error).__name__}") from None
    if found is None:
        raise _missing(spec, f"the keyring has nothing for {service}/{user}", f"keyring set {service} {user}")
    return str(found)


def _text(spec: Credential, content: bytes) -> str:
    if len(content) > LARGEST:
        raise _missing(spec, f"it is larger than {LARGEST} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _missing(spec, "it is not text") from None
