"""Files of a project that an earlier agent, or the author of a repository, wrote to reach more of the host."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from agent_runs import SECRET, Home, git

from belljar.backends.installations import find_shown
from belljar.coding_agents.project import Project, find_project
from belljar.coding_agents.shims import real_program, use_real_node
from belljar.errors import PrerequisiteError, UsageError
from belljar.policy.load.resolve import resolve
from belljar.sandbox.repository import host_git
from belljar.sandbox.repository.host_git import GitError, git_program
from belljar.sandbox.repository.making import jar_repositories

pytestmark = [pytest.mark.host, pytest.mark.backend("bubblewrap")]


def script(path: Path, text: str) -> Path:
    """A program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def test_an_agent_in_the_project_shows_no_more_of_it(home: Home) -> None:
    """It runs where the jar has the project: the host's `.git`, with its passwords, is not shown beside it."""
    git(home.project, "remote", "add", "origin", "https://ada:PASSWORD@example.com/x.git")
    look = "#!/bin/sh\necho $0; cat .git/config /opt/agent/*/.git/config; ls -A /opt/agent\n"
    script(home.project / "agent.sh", look)
    script(home.project / "cli.js", "#!/usr/bin/env node\nconsole.log(process.argv[1])\n")
    ran = home.belljar("agent", "--profile", "none", "--", "./agent.sh")
    assert ran.out.startswith(f"{home.project}/agent.sh\n"), ran.err
    assert "PASSWORD" not in ran.out
    if shutil.which("node", path="/usr/bin"):
        ran = home.belljar("agent", "--profile", "none", "--", "./cli.js")
        assert ran.out == f"{home.project}/cli.js\n", ran.err


@pytest.mark.parametrize("how", ["link", "directory link", "wrapper"])
def test_an_agent_in_the_project_that_leads_out(home: Home, how: str) -> None:
    """A link, or a wrapper of one line, chooses no directory of the host that the jar shows."""
    outside = script(home.directory / "other/run", "#!/bin/sh\ncat /opt/agent/bin/notes\n")
    (outside.parent / "notes").write_text("OF-THE-USER")
    name = "./agent.sh"
    if how == "link":
        (home.project / "agent.sh").symlink_to(outside)
    elif how == "directory link":
        (home.project / "tools").symlink_to(outside.parent)
        name = "./tools/run"
    else:
        script(home.project / "agent.sh", f'#!/bin/sh\nexec "{outside}" "$@"\n')
    ran = home.belljar("agent", "--profile", "none", "--", name)
    assert ran.code != 0
    assert "OF-THE-USER" not in ran.out
    assert how == "wrapper" or f"leads out of it: to {outside}" in ran.err
    control = home.belljar("agent", "--profile", "none", "--", str(outside))
    assert control.out == "OF-THE-USER", "a program that the user names is shown with its directory"


def test_no_program_of_the_project_runs_on_the_host(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a shim, not its manager, not a `git` in an environment that is active."""
    mark = tmp_path / "ran"
    own = home.project / ".venv/bin"
    manager = script(own / "manager", f"#!/bin/sh\necho $0 >> {mark}\n")
    for name in ("node", "my-agent", "bash"):
        script(own / name, f'#!/bin/sh\nexec "{manager}" exec "$@"\n')
    script(own / "git", f'#!/bin/sh\necho $0 >> {mark}\nexec /usr/bin/git "$@"\n')
    path = f"{own}:{os.environ['PATH']}"
    home.belljar("agent", "--profile", "none", "--", "my-agent", PATH=path)
    assert not mark.exists()
    monkeypatch.setenv("PATH", path)
    use_real_node(str(home.project))
    assert not git_program().startswith(str(home.project))
    with monkeypatch.context() as patched:  # a host that has no other git
        patched.setattr(host_git, "_SYSTEM", "/nonexistent")
        patched.setenv("PATH", str(own))
        for here, project in ((home.project, ""), (Path("/"), str(home.project))):
            patched.chdir(here)
            with pytest.raises(GitError, match="outside of the project"):
                git_program(project)
        assert git_program() == str(own / "git"), "elsewhere it is a program like any other"
    # A manager outside starts its own programs from PATH.
    theirs = script(tmp_path / "theirs", "#!/usr/bin/env bash\necho /bin/true\n")
    shim = script(tmp_path / "shims/x", f'#!/bin/sh\nexec "{theirs}" exec "x" "$@"\n')
    assert real_program(str(shim), os.environ, str(home.project)) == "/bin/true"
    assert not mark.exists()
    # A shim outside whose manager is the project's.
    shim = script(tmp_path / "shims/y", f'#!/bin/sh\nexec "{manager}" exec "y" "$@"\n')
    with pytest.raises(PrerequisiteError, match="lies in the project"):
        real_program(str(shim), os.environ, str(home.project))
    assert not mark.exists()
    with pytest.raises(PrerequisiteError, match="names no program"):
        real_program(str(shim), os.environ, "/nonexistent")
    assert mark.exists(), "the control: with another project the manager is asked"


@pytest.mark.parametrize("target", ["/proc/self/environ", ".npmrc", "documents"])
@pytest.mark.parametrize("option", ["--settings", "--mcp-config", "--add-dir"])
def test_words_that_name_links_of_the_project(home: Home, target: str, option: str) -> None:
    """A repository may hold links. The user named the link, and its author chose where it leads."""
    (home.directory / "documents").mkdir()
    (home.directory / ".npmrc").write_text("token")
    (home.project / "link").symlink_to(home.directory / target)
    script(home.directory / "bin/claude", '#!/bin/sh\nfor word in "$@"; do cat "$word"; done\n')
    path = f"{home.directory}/bin:{os.environ['PATH']}"
    ran = home.belljar("claude", option, "link", PATH=path, ANTHROPIC_API_KEY=SECRET)
    assert ran.code == 2
    assert f"{option} link: {home.project}/link is a link of the project's, and leads out of it" in ran.err
    assert SECRET not in ran.out
    hint = f"hint: if that is right, name the place itself: {option} {home.directory / target}"
    assert (hint in ran.err) == (not target.startswith("/proc"))
    if target.startswith("/proc"):
        ran = home.belljar("claude", option, target, PATH=path, ANTHROPIC_API_KEY=SECRET)
        assert (ran.code, SECRET in ran.out) == (2, False), "nor by its own name"


def test_an_environment_whose_directories_are_links(tmp_path: Path) -> None:
    """What is behind `share` and `include` is not shown: somebody else's files may have these names."""
    environment, other = tmp_path / "environment", tmp_path / "other"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to("/usr/bin/python3")
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for name in ("share/jupyter", "include/python3-own"):
        (environment / name).mkdir(parents=True)
        (other / name).mkdir(parents=True)
    policy = resolve(layers=[{"python": {"venv": str(environment)}}], managed=None)

    def shown() -> list[str]:
        return [name for one in find_shown("python", policy, ()).installations for name, _real in one.parts]

    assert {"share/jupyter", "include/python3-own"} <= set(shown())
    for name in ("share", "include"):
        shutil.rmtree(environment / name)
        (environment / name).symlink_to(other / name)
    assert not [name for name in shown() if name.startswith(("share", "include"))]


def test_belljars_own_files_are_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys and what other projects kept are there."""
    state = tmp_path / "state"
    (state / "homes/x").mkdir(parents=True)
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(state))
    for path in (state, state / "homes/x"):
        with pytest.raises(UsageError, match="belljar keeps its own files"):
            find_project(str(path), None)
    assert isinstance(find_project(str(tmp_path), None), Project)


@pytest.mark.parametrize("top", ["home", "above the home"])
def test_a_repository_of_the_home_is_not_in_the_jar(home: Home, top: str) -> None:
    """People keep their settings in one. It is no project, and what was committed there is none of the agent's."""
    (home.directory / "notes").write_text("OF-THE-USER\n")
    work = home.directory / "work"
    (work / "project").mkdir(parents=True)
    where = home.directory if top == "home" else home.directory.parent
    git(where, "init", "-q")
    git(where, "add", str(home.directory / "notes"))
    git(where, "commit", "-q", "-m", "settings")
    ran = home.agent("git log -p --all; ls /repository-objects", cwd=work / "project")
    assert (ran.out, "OF-THE-USER" in ran.err) == ("", False)
    git(work, "init", "-q")
    git(work, "commit", "-q", "--allow-empty", "-m", "of the work")
    ran = home.agent("git log --format=%s --all", "--project", ".", cwd=work / "project")
    assert ran.out == "of the work\n", "the control: a repository that counts"


@pytest.mark.parametrize("how", ["\n{objects}\n", "# none\n{objects}\n", "link"])
def test_objects_that_are_borrowed(home: Home, tmp_path: Path, how: str) -> None:
    """Whatever the first line is, the repository is not used: on the host git would read another one's objects."""
    alternates = home.project / ".git/objects/info/alternates"
    alternates.parent.mkdir(exist_ok=True)
    if how == "link":
        (tmp_path / "names").write_text("/nonexistent\n")
        alternates.symlink_to(tmp_path / "names")
    else:
        alternates.write_text(how.format(objects="/nonexistent"))
    found = jar_repositories(str(home.project), str(home.project))
    assert "borrows objects" in found.problem


@pytest.mark.parametrize("home", ["/bin", "/usr/bin"])
def test_an_environment_of_the_systems_python(tmp_path: Path, home: str) -> None:
    """`/bin` is a link to `/usr/bin` on most hosts, and nothing beside it is shown. A huge file is read in part."""
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to("/usr/bin/python3")
    (environment / "pyvenv.cfg").write_text(f"home = {home}\n")
    os.truncate(environment / "pyvenv.cfg", 1 << 40)
    policy = resolve(layers=[{"python": {"venv": str(environment)}}], managed=None)
    assert [one.path for one in find_shown("python", policy, ()).installations] == [str(environment)]


def test_a_project_behind_a_link_is_named(tmp_path: Path) -> None:
    """Whoever made the link chose what the agent sees, so the user hears what that is."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert find_project(str(tmp_path / "real"), None).notes == ()
    found = find_project(str(tmp_path / "link"), None)
    assert found.notes == (f"the project is {tmp_path}/real: {tmp_path}/link leads there through a link",)
