"""Packages that an agent installs stay for the next call with `--keep-packages`: whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path

import pytest
from agent_runs import SECRET, Home
from model_endpoint import ModelEndpoint, bash, say
from scripted_claude import Calls

from belljar.backends.contract import ChangedTree
from belljar.coding_agents import kept_packages
from belljar.coding_agents.home_store import place
from belljar.coding_agents.kept_packages import KeptPackages, forget_packages

KEEP = "--keep-packages"
INFO = "greeting-1.0.dist-info"


def _wheel(directory: Path) -> str:
    """A package with a module and a program."""
    files = {
        "greeting.py": "def main():\n    print('hello')\n",
        f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{INFO}/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
        f"{INFO}/RECORD": "",
    }
    wheel = directory / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel.name


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
@pytest.mark.usefixtures("claude")
def test_the_next_call_of_claude_code_imports_what_pip_installed(home: Home) -> None:
    """Its programs are on PATH. A call without the option does not see them, and --reset forgets them."""
    wheel = _wheel(home.project)
    look = "python3 -B -c 'import greeting; greeting.main()'; greet"

    def call(command: str, *options: str) -> str:
        with ModelEndpoint([bash(command), say("Done.")]) as model:
            extra = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": model.url}
            ran = home.belljar("claude", *options, "-p", "go", **extra)
            assert ran.code == 0, ran.err
            assert "packages" not in ran.err
            return model.results()[0]

    assert "Successfully installed" in call(f"python3 -m pip install --no-index ./{wheel}", KEEP)
    assert call(look, KEEP).splitlines() == ["hello", "hello"]
    assert "No module named 'greeting'" in call(look)
    assert "No module named 'greeting'" in call(look, KEEP, "--reset")


# --- a program by that name ---


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_files_of_packages_stay_and_state_and_keys_do_not(calls: Calls) -> None:
    """Programs, and links that name another program; no key of the model, and not what is no package."""
    half = len(SECRET) // 2
    calls(
        "mkdir -p ~/.local/bin ~/.local/state/x ~/.local/lib; echo '#!/bin/sh\necho runs' > ~/.local/bin/tool; "
        "chmod +x ~/.local/bin/tool; ln -s /usr/bin/env ~/.local/bin/other; echo 1 > ~/.local/state/x/y; "
        f"printf '%s%s' {SECRET[:half]} {SECRET[half:]} > ~/.local/lib/pasted",
        KEEP,
    )
    ran = calls("cd ~/.local; find . -type f -o -type l | sort; tool; other echo env; npm config get prefix", KEEP)
    assert ran.out.splitlines() == ["./bin/other", "./bin/tool", "runs", "env", "/home/agent/.local"]
    assert calls("ls -A ~").out.split() == [".claude", ".claude.json", ".gitconfig"]


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_a_run_that_was_interrupted_keeps_no_half_of_a_package(calls: Calls) -> None:
    """Ctrl-C while something is being installed: those of before stay, and belljar says so."""
    calls("mkdir -p ~/.local/lib; echo before > ~/.local/lib/word", KEEP)
    with calls.waiting("echo half > ~/.local/lib/word", KEEP) as process:
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=60)
    assert "packages of this run are not kept, and those of before stay: the agent was stopped" in err
    assert calls("cat ~/.local/lib/word", KEEP).out == "before\n"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_two_at_once_do_not_mix_their_packages(calls: Calls) -> None:
    """Those of the run that ends first stay; the other's are not kept, and belljar says so."""
    with calls.waiting("mkdir -p ~/.local/lib; echo a > ~/.local/lib/word", KEEP) as process:
        calls("mkdir -p ~/.local/lib; echo b > ~/.local/lib/word", KEEP)
        _out, err = process.communicate("", timeout=60)
    assert "another run in this project changed them meanwhile" in err
    assert calls("cat ~/.local/lib/word", KEEP).out == "b\n"


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_an_agent_without_a_profile_has_packages_of_its_own(home: Home) -> None:
    """Also where it keeps no home; prune forgets them as a home."""
    assert home.agent("mkdir -p ~/.local/lib; echo mine > ~/.local/lib/word", KEEP).code == 0
    assert home.agent("cat ~/.local/lib/word", KEEP).out == "mine\n"
    kept = place(os.path.realpath(home.project), "sh, packages")
    os.utime(os.path.join(kept, "about.json"), (0, 0))
    assert json.loads(home.belljar("prune", "--older", "30d", "--json").out)["homes"] == [kept]


# --- the directory itself ---


@pytest.mark.parametrize(
    ("limit", "most", "told"),
    [
        ("MOST_BYTES", 1 << 20, "they have 3 MiB, and at most 1 are kept"),
        ("MOST_FILES", 2, "they are more than 2 files"),
        ("MOST_FILE_BYTES", 1 << 19, "one file has 1 MiB, and at most 0 are kept"),
    ],
)
def test_packages_that_are_too_large_are_not_kept_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, told: str
) -> None:
    """None of the new files is there, and those of before are."""
    packages = KeptPackages("/project", "claude")
    packages.begin()
    packages.mounted()

    def keep() -> None:
        descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            changed = {".local": ChangedTree(descriptor, layered=False)}
            packages.keep(changed, {}, denied=lambda _name, _path: False, secrets=())
        finally:
            os.close(descriptor)

    (tmp_path / "before").write_text("1")
    keep()
    packages.close()
    packages = KeptPackages("/project", "claude")
    packages.begin()
    packages.mounted()
    for number in range(3):
        (tmp_path / f"file{number}").write_bytes(b"x" * (1 << 20))
    monkeypatch.setattr(kept_packages, limit, most)
    with pytest.raises(OSError, match=told):
        keep()
    assert os.listdir(packages.mounts[".local"]) == ["before"]
    packages.close()
    assert forget_packages("/project", "claude")
