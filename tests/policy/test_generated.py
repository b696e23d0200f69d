"""What is generated from the tables is current, and the presets keep what their pages promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from belljar.policy.globs import DenyGlobs
from belljar.policy.load.resolve import preset_names, resolve

ROOT = Path(__file__).resolve().parents[2]


def test_generated_files_are_current() -> None:
    """`python scripts/generate.py` has been run since the tables changed."""
    command = [sys.executable, str(ROOT / "scripts/generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


SECRETS = [
    ".env",
    ".env.local",
    ".env.production",
    ".env.test.local",
    ".envrc",
    ".ssh/id_ed25519",
    "keys/id_rsa",
    "keys/id_rsa.pub",
    "id_ecdsa_sk",
    "id_dsa",
    ".aws/credentials",
    ".azure/token",
    ".kube/config",
    ".docker/config.json",
    ".config/gcloud/x.json",
    ".config/gh/hosts.yml",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".gnupg/secring.gpg",
    ".claude/.credentials.json",
]
NEEDED = [
    ".env.example",
    ".env.template",
    ".env.sample",
    "environment.py",
    ".git/config",
    ".gitignore",
    "src/id.py",
    ".docker/Dockerfile",
    ".config/x.toml",
    "site-packages/certifi/cacert.pem",
    ".claude/settings.json",
    ".github/workflows/ci.yml",
    "sshd_config",
    "test_env.py",
]


@pytest.mark.parametrize("preset", preset_names())
def test_presets_hide_secrets_and_nothing_else(preset: str) -> None:
    """The keys that people leave in projects are hidden, at any depth; what a project needs is not."""
    globs = DenyGlobs(resolve(preset, managed=None).fs.deny_globs).within("/home/alice/project", "/workspace")

    def hidden(name: str) -> bool:
        return globs.denies(f"/home/alice/project/{name}", f"/workspace/{name}") is not None

    assert [name for name in SECRETS if not hidden(name) or not hidden(f"deep/er/{name}")] == []
    assert [name for name in NEEDED if hidden(name) or hidden(f"deep/er/{name}")] == []


@pytest.mark.parametrize("preset", preset_names())
def test_presets_hide_no_mount_of_their_own(preset: str) -> None:
    """The check that a plain preset skips at run time."""
    policy = resolve(preset, managed=None)
    globs = DenyGlobs(policy.fs.deny_globs)
    assert [mount for mount in policy.fs.mounts if globs.match(mount.path) is not None] == []


def test_strictness_order() -> None:
    """The names mean what they say: strict has the least of everything, and refuses what can't be held.

    All but one: no container engine can hold `proc.host_info`.
    """
    strict = resolve("strict", managed=None)
    for name in preset_names():
        other = resolve(name, managed=None)
        assert strict.proc.mem_bytes <= other.proc.mem_bytes
        assert strict.proc.timeout_seconds <= other.proc.timeout_seconds
        assert strict.fs.size_bytes <= other.fs.size_bytes
        assert other.net.enabled is (name in ("webscraping", "unrestricted"))
    for name in ("strict", "production", "docker"):
        assert resolve(name, managed=None).on_degraded == ("proc.host_info",)
