"""An agent's program behind a shim, and words for Claude Code that name places of the host."""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest
from agent_runs import SECRET, Home
from model_endpoint import ModelEndpoint, say, use

from belljar.coding_agents.claude_arguments import show
from belljar.coding_agents.environment import find_environment
from belljar.coding_agents.program import find
from belljar.coding_agents.project import Project, find_project
from belljar.coding_agents.shims import real_program
from belljar.errors import PrerequisiteError, UsageError
from belljar.policy.load.resolve import resolve

PROJECT = Project("/nonexistent", "/workspace", "/workspace")
pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]


def script(path: Path, text: str) -> Path:
    """A program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def make_manager(directory: Path, name: str, program: Path | None) -> Path:
    """A version manager: for `which NAME` it prints the program, unless it stands in a project."""
    rooted = '[ "$PYENV_ROOT" ] && ' if name == "pyenv" else ""
    answer = f'{rooted}[ "$1" = which ] && [ "$PWD" = / ] && echo {program}\n' if program else "echo none >&2; exit 1\n"
    return script(directory / name, f"#!/bin/sh\n{answer}")


def make_shim(directory: Path, kind: str, program: Path | None) -> Path:
    """A program called `my-agent`, as this manager makes it."""
    shim = directory / "shims/my-agent"
    if kind == "pyenv":
        manager = make_manager(directory / "libexec", "pyenv", program)
        lines = (
            f'set -e\nprogram="${{0##*/}}"\nexport PYENV_ROOT="{directory}"\nexec "{manager}" exec "$program" "$@"\n'
        )
        return script(shim, f"#!/usr/bin/env bash\n{lines}")
    if kind == "asdf":
        manager = make_manager(directory / "bin", "asdf", program)
        return script(shim, f'#!/usr/bin/env bash\n# asdf-plugin: nodejs 20.1.0\nexec {manager} exec "my-agent" "$@"\n')
    if kind == "wrapper":
        return script(shim, f'#!/bin/bash\nexec "{program}" "$@"\n')
    real, asked = ("mise", "mise") if kind == "mise" else ("volta-shim", "volta")
    make_manager(directory / "bin", asked, program)
    if real != asked:
        script(directory / "bin" / real, "no script")
    shim.parent.mkdir(parents=True)
    shim.symlink_to(directory / "bin" / real)
    return shim


@pytest.mark.parametrize("kind", ["pyenv", "asdf", "mise", "volta", "wrapper"])
def test_an_agent_behind_a_shim(home: Home, tmp_path: Path, kind: str) -> None:
    """The jar runs the program that the shim stands for, and has nothing of the manager."""
    program = script(tmp_path / "versions/1.0/bin/my-agent", '#!/bin/sh\necho "$0 got $*"\n')
    shim = make_shim(tmp_path / "manager", kind, program)
    ran = home.belljar("agent", "--", "my-agent", "a word", PATH=f"{shim.parent}:{os.environ['PATH']}")
    assert (ran.code, ran.out) == (0, "/opt/agent/bin/my-agent got a word\n"), ran.err


@pytest.mark.parametrize("kind", ["pyenv", "asdf", "mise", "volta"])
def test_a_shim_without_a_program(tmp_path: Path, kind: str) -> None:
    """The hint names the manager, in whose words the program is found from within the project."""
    shim = make_shim(tmp_path / "manager", kind, None)
    with pytest.raises(PrerequisiteError, match=f"is a shim of {kind}") as caught:
        find("my-agent", {"PATH": f"{shim.parent}:{os.environ['PATH']}"}, PROJECT)
    assert caught.value.hint == f'name the program itself: belljar agent -- "$({kind} which my-agent)"'


def test_what_pyenv_would_say(tmp_path: Path) -> None:
    """Its own files are read where they are plain, and pyenv is asked otherwise."""
    asked = script(tmp_path / "asked", "")
    shim = make_shim(tmp_path / "pyenv", "pyenv", asked)
    one, two = (script(tmp_path / f"pyenv/versions/{name}/bin/my-agent", "") for name in ("3.1", "3.2"))
    assert real_program(str(shim), {}, "/nonexistent") == str(asked), "no version is chosen"
    for version, environ, found in (
        ("3.1\n", {}, one),
        ("3.1\n", {"PYENV_VERSION": "3.2"}, two),
        ("3.1\n", {"PYENV_VERSION": "../3.2"}, asked),
        ("3.1:3.2\n", {}, asked),
        ("3.3\n", {}, asked),
    ):
        (tmp_path / "pyenv/version").write_text(version)
        assert real_program(str(shim), environ, "/nonexistent") == str(found)


def test_shims_that_lead_nowhere(tmp_path: Path) -> None:
    """One that names itself, and wrappers around each other."""
    shim = make_shim(tmp_path / "manager", "pyenv", tmp_path / "manager/shims/my-agent")
    with pytest.raises(PrerequisiteError, match="names no program"):
        real_program(str(shim), os.environ, "/nonexistent")
    one = script(tmp_path / "one", f'#!/bin/sh\nexec "{tmp_path}/two" "$@"\n')
    script(tmp_path / "two", f'#!/bin/sh\nexec "{tmp_path}/one" "$@"\n')
    with pytest.raises(PrerequisiteError, match="start one another"):
        real_program(str(one), os.environ, "/nonexistent")


def make_node(version: Path) -> Path:
    """A node that tells what it runs, with an agent that npm installed for it."""
    script(version / "bin/node", '#!/bin/sh\necho "node runs $(basename "$1") $2"\n')
    package = script(version / "lib/node_modules/my-agent/cli.js", "#!/usr/bin/env node\n")
    (version / "bin/my-agent").symlink_to(os.path.relpath(package, version / "bin"))
    return version / "bin"


@pytest.mark.parametrize("manager", ["nvm", "asdf"])
def test_an_agent_of_npm_and_its_node(home: Home, tmp_path: Path, manager: str) -> None:
    """The node beside it counts, also if `node` itself is a shim."""
    bin_directory = make_node(tmp_path / "versions/node/v20.1.0")
    path = str(bin_directory)
    if manager == "asdf":
        path = str(make_shim(tmp_path / "asdf", "asdf", bin_directory / "my-agent").parent)
        script(tmp_path / "asdf/shims/node", '#!/bin/sh\nexec /nonexistent/asdf exec "node" "$@"\n')
    ran = home.belljar("agent", "--", "my-agent", "hello", PATH=f"{path}:{os.environ['PATH']}")
    assert (ran.code, ran.out) == (0, "node runs cli.js hello\n"), ran.err


def test_the_python_that_a_project_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.python-version` chooses among those that the manager has; what is no version chooses nothing."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    python = os.path.realpath("/usr/bin/python3")
    if not os.access(python, os.X_OK):
        pytest.skip("the system has no Python")
    manager = script(tmp_path / "pyenv", f'#!/bin/sh\n[ "$PYENV_VERSION" = 3.99.1 ] && echo {python}\n')
    shim = script(tmp_path / "shims/python3", f'#!/bin/sh\nexec "{manager}" exec "python3" "$@"\n')
    environ = {"PATH": str(shim.parent)}
    for text, found in (("3.99.1\n", {"python": {"interpreter": python}}), ("../../x\n", {}), ("3.1\n", {})):
        Path(".python-version").write_text(text)
        assert find_environment(find_project(".", None), environ).policy == found


# --- words for Claude Code -------------------------------------------------------------------------------------------


def claude(home: Home, *words: str, shell: str = "") -> list[str]:
    """What a program called claude got as its words, and what `shell` printed."""
    told = 'for word in "$@"; do echo "word $word"; done\n'
    program = script(home.directory / "bin/claude", f"#!/bin/sh\n{told}{shell}\n")
    path = f"{program.parent}:{os.environ['PATH']}"
    ran = home.belljar("claude", *words, PATH=path, ANTHROPIC_API_KEY=SECRET)
    return (ran.out if ran.code == 0 else ran.err).removeprefix("word --dangerously-skip-permissions\n").splitlines()


def test_places_that_the_words_name(home: Home, tmp_path: Path) -> None:
    """Directories at their own path, read-only and without denied names; files as copies; the rest as it is."""
    other = tmp_path / "other data"
    other.mkdir()
    (other / "file").write_text("shown\n")
    (other / ".env").write_text("hidden\n")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    (home.project / "own").mkdir()
    words = ["--add-dir", "../../other data", "own", "--mcp-config", str(tmp_path / "mcp.json"), '{"a": 1}']
    words += [f"--add-dir={other}", "--settings", "absent.json", "-p", "own"]
    look = f"cd '{other}'; cat file .env; touch new; cat /opt/agent/given/0/mcp.json"
    assert claude(home, *words, shell=look) == [
        *("word --add-dir", f"word {other}", f"word {home.project}/own", "word --mcp-config"),
        *("word /opt/agent/given/0/mcp.json", 'word {"a": 1}', f"word --add-dir={other}"),
        *("word --settings", "word absent.json", "word -p", "word own", "shown", '{"mcpServers": {}}'),
    ]
    assert sorted(os.listdir(other)) == [".env", "file"]


def test_a_directory_around_the_project(home: Home) -> None:
    """It is read-only, and the project in it is as always."""
    outer = home.directory / "work"
    (outer / "sibling").mkdir(parents=True)
    home.project.rename(outer / "project")
    program = script(home.directory / "bin/claude", "#!/bin/sh\nls ..; touch ../new || touch mine && git status -s\n")
    path = f"{program.parent}:{os.environ['PATH']}"
    ran = home.belljar("claude", "--add-dir", "..", cwd=outer / "project", PATH=path, ANTHROPIC_API_KEY=SECRET)
    assert ran.out == "project\nsibling\n?? mine\n", ran.err


@pytest.mark.parametrize("place", ["~", "~/.ssh", "~/.ssh/id_ed25519", "~/..", "/etc", "/", "~/.config/x", "state"])
def test_private_places_are_refused(home: Home, state_directory: str, place: str) -> None:
    """With what is seen by that, and what to do."""
    (home.directory / ".config/x").mkdir(parents=True)
    word = place.replace("~", str(home.directory)) if place != "state" else state_directory
    os.makedirs(state_directory, exist_ok=True)
    said = "\n".join(claude(home, "--add-dir", word))
    assert f"--add-dir {word}: an agent that sees " in said
    holds_more = place in ("~", "~/..", "/etc", "/")
    assert f"hint: {'name the directory in' if holds_more else 'copy what it needs into the project'}" in said


@pytest.mark.parametrize(
    ("option", "name", "content", "said"),
    [
        ("--mcp-config", ".env", "TOKEN=1", "its name is denied by fs.deny_globs **/.env"),
        ("--settings", "id_rsa", "{}", "its name is denied by fs.deny_globs **/id_rsa*"),
        ("--append-system-prompt-file", ".netrc", "machine a", "its name is denied by fs.deny_globs **/.netrc"),
        ("--mcp-config", "notes.txt", "password: 1", "wanted JSON with mcpServers in it"),
        ("--mcp-config", "other.json", '{"token": 1}', "wanted JSON with mcpServers in it"),
        ("--mcp-config", "list.json", "[1]", "wanted JSON with mcpServers in it"),
        ("--settings", "notes.txt", "password: 1", "wanted settings of Claude Code, which are JSON"),
    ],
)
def test_files_that_are_not_what_the_option_takes(
    home: Home, tmp_path: Path, option: str, name: str, content: str, said: str
) -> None:
    """A file is copied for the agent to read, so that it must be what the option is for."""
    (tmp_path / name).write_text(content)
    project = find_project(str(home.project), None)
    with pytest.raises(UsageError, match=re.escape(f"{option} {tmp_path / name}: {said}")):
        show([option, str(tmp_path / name)], project, temporary=True, globs=resolve(None).fs.deny_globs)


@pytest.mark.parametrize(
    ("place", "refused"),
    [(".config", True), (".ssh", True), (".ssh/keys", True), (".kube", True), (".config/nvim", False), ("x", False)],
)
def test_private_places_are_no_projects(
    home: Home, monkeypatch: pytest.MonkeyPatch, place: str, *, refused: bool
) -> None:
    """As `--add-dir` refuses them. A directory in ~/.config may be a project."""
    monkeypatch.setenv("HOME", str(home.directory))
    (home.directory / place).mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match="which is yours alone") if refused else nullcontext():
        find_project(str(home.directory / place), None)


@pytest.mark.usefixtures("claude")
def test_the_real_claude_reads_a_directory_beside_the_project(home: Home, tmp_path: Path) -> None:
    """And takes a file of servers, though that names none."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/fact.txt").write_text("the-fact\n")
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {}}))
    words = ("--add-dir", str(tmp_path / "other"), "--mcp-config", str(tmp_path / "mcp.json"), "-p", "read")
    with ModelEndpoint([use("Read", file_path=f"{tmp_path}/other/fact.txt"), say("Read.")]) as model:
        ran = home.belljar("claude", *words, ANTHROPIC_API_KEY=SECRET, ANTHROPIC_BASE_URL=model.url)
        results = model.results()
    assert (ran.code, ran.out) == (0, "Read.\n"), ran.err
    assert "the-fact" in results[0]
