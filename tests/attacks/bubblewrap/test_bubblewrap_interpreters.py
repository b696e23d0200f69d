"""Attacks through an interpreter that is not the system's: what else lies in the directory that it is installed in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from attack_control import python_control
from attack_probe import escaped, held, python_probe
from attack_search import SECRET

from belljar import Pool, PrerequisiteError, Sandbox, Session
from belljar.backends.installations import shown_of
from belljar.backends.runtimes import Installation, Runtime

OpenJar = Callable[..., Sandbox]

READ = python_probe(
    """
    def attack(*paths):
        found = [path for path in paths if os.path.lexists(path)]
        if not found:
            raise OSError(errno.ENOENT, "nothing")
        return [open(path, "rb").read(20) for path in found]
    """
)
PRIVATE = (".ssh/id_rsa", ".aws/credentials", ".env", "notes.txt", "lib/notes.txt", "share/notes.txt")


ANYWHERE = pytest.mark.parametrize("home", ["/tmp", "/var/tmp"], indirect=True)
"""Where every run has a fresh mount, and elsewhere."""


@pytest.fixture
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that everyone may read."""
    path = Path(mkdtemp(prefix="belljar-home-", dir=getattr(request, "param", "/var/tmp")))
    path.chmod(0o755)
    fill(path)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("BELLJAR_STATE_DIR")
    yield path
    shutil.rmtree(path)


def fill(directory: Path) -> None:
    """Private files, at the top and in directories that an interpreter is installed in too."""
    for name in PRIVATE:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(SECRET)


def python_in(prefix: Path) -> Path:
    """A Python at `prefix`/bin/python3: the system's, copied. It has a library of its own as well."""
    (prefix / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(Path("/usr/bin/python3").resolve(), prefix / "bin" / "python3")
    version = subprocess.check_output(["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    library = prefix / "lib" / f"python{version.decode().strip()}"
    library.mkdir(parents=True, exist_ok=True)
    (library / "of_its_own.py").write_text("found = 'found'\n")
    return prefix / "bin" / "python3"


# --- a home ----------------------------------------------------------------------------------------------------------


def test_a_prefix_that_is_a_home_is_refused(open_jar: OpenJar, home: Path) -> None:
    """`~/bin/python3`: its prefix is the home. The control reads it; the hint works."""
    python = python_in(home)
    assert escaped(python_control(READ, str(home / ".ssh/id_rsa")))
    with pytest.raises(PrerequisiteError, match=f"shows {home}") as raised:
        open_jar({"python": {"interpreter": str(python)}}).run("print(1)")
    (setting,) = [word for word in (raised.value.hint or "").split() if word.startswith("python.interpreter=")]
    assert open_jar(overrides=[setting]).run("print(1)").stdout == "1\n"


def test_a_prefix_that_has_homes_in_it_is_refused(open_jar: OpenJar, home: Path) -> None:
    """As `/home/bin/python3`, or a link to it."""
    parent = home.parent / f"{home.name}-parent"
    try:
        home.rename(parent)
        (parent / "user").mkdir()
        fill(parent / "user")
        home.symlink_to(parent / "user")
        python = python_in(parent)
        with pytest.raises(PrerequisiteError, match="shows"):
            open_jar({"python": {"interpreter": str(python)}}).run("print(1)")
    finally:
        home.unlink()
        parent.rename(home)


def test_belljars_own_python_in_a_home_is_refused(
    open_jar: OpenJar, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody named is judged as well; a command runs without it."""
    monkeypatch.setattr(sys, "_base_executable", str(python_in(home)))
    monkeypatch.setattr(sys, "base_prefix", str(home))
    jar = open_jar()
    with pytest.raises(PrerequisiteError, match="shows"):
        jar.run("print(1)")
    assert "SECRET" not in jar.exec(["sh", "-c", f"cat {home}/.ssh/id_rsa {home}/.env; ls {home}"]).stdout


@pytest.mark.parametrize("below", [".local", ".local/state", ".local/state/belljar/python", ".ssh/python"])
def test_a_prefix_with_belljars_state_or_keys_is_refused(open_jar: OpenJar, home: Path, below: str) -> None:
    """Whether the prefix holds the private place or lies in it."""
    with pytest.raises(PrerequisiteError, match="shows"):
        open_jar({"python": {"interpreter": str(python_in(home / below))}}).run("print(1)")


def test_node_in_a_home_is_refused(home: Path) -> None:
    """With another interpreter it is the same."""
    node = Runtime("javascript", str(home / "bin/node"), (str(home),))
    (home / "bin").mkdir()
    shutil.copy("/bin/true", home / "bin/node")
    with pytest.raises(PrerequisiteError, match=f"shows {home}"):
        shown_of(node, ())


def test_a_shim_is_refused(open_jar: OpenJar, home: Path) -> None:
    """pyenv's `shims/python3` starts an interpreter that lies elsewhere."""
    shim = home / ".pyenv" / "shims" / "python3"
    shim.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\nexec /usr/bin/python3\n")
    shim.chmod(0o755)
    with pytest.raises(PrerequisiteError, match="is a script"):
        open_jar({"python": {"interpreter": str(shim)}}).run("print(1)")


# --- a directory below a home ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "below", [".pyenv/versions/3.11.7", ".local/share/uv/python/cpython-3.11", "work", "miniconda3/envs/one"]
)
def test_only_the_interpreter_is_shown(open_jar: OpenJar, home: Path, below: str) -> None:
    """It runs and has its library; nothing else of its directory is there."""
    prefix = home / below
    python = python_in(prefix)
    fill(prefix)
    assert escaped(python_control(READ, str(prefix / "notes.txt")))
    jar = open_jar({"python": {"interpreter": str(python)}})
    library = next(prefix.glob("lib/python3*"))
    result = jar.run(f"import sys; print(sys.executable, open('{library}/of_its_own.py').read())")
    assert result.stdout.split() == [str(python), "found", "=", "'found'"], result
    assert held(jar.run(READ, args=[str(top / name) for top in (prefix, home) for name in PRIVATE]))


@ANYWHERE
def test_a_run_does_not_see_the_interpreter_of_another_language(open_jar: OpenJar, home: Path) -> None:
    """Python has no node, node's run no Python; a command has both, and they work."""
    python = python_in(home / "python")
    node = home / ".nvm" / "versions" / "v20" / "bin" / "node"
    node.parent.mkdir(parents=True)
    shutil.copy(Path("/usr/bin/python3").resolve(), node)  # a program that runs code from a file
    jar = open_jar({"python": {"interpreter": str(python)}})
    backend: Any = jar._backend
    host = backend.host(jar.policy)
    found = shown_of(Runtime("javascript", str(node), (str(node.parent.parent),)), host.secrets)
    runtimes = (*(each for each in host.runtimes if each.language != "javascript"), found)
    backend._host = (backend._host[0], replace(host, runtimes=runtimes))
    look = f"import os; print([os.path.exists(path) for path in ({str(python)!r}, {str(node)!r})])"
    assert jar.run(look).stdout == "[True, False]\n"
    assert jar.run(look, language="javascript").stdout == "[False, True]\n"
    assert jar.exec(["sh", "-c", f"{python} -c 'print(1)'; {node} -c 'print(2)'"]).stdout == "1\n2\n"
    assert jar.run(look).stdout == "[True, False]\n"


def test_a_canary_in_an_interpreters_directory_refuses_the_run(open_jar: OpenJar, home: Path) -> None:
    """If the choice of what to show were wrong, the finished jar is looked at all the same."""
    python = python_in(home / "python")
    jar = open_jar({"python": {"interpreter": str(python)}})
    backend: Any = jar._backend
    host = backend.host(jar.policy)
    parts = ((".ssh", str(home / ".ssh")), ("python/bin", str(home / "python/bin")))
    runtime = Runtime("python", str(python), (str(home),), installations=(Installation(str(home), parts),))
    backend._host = (backend._host[0], replace(host, runtimes=(runtime,)))
    result = jar.run("print(1)")
    assert result.stdout == ""
    assert f"{home}/.ssh can be opened" in str(result)


@ANYWHERE
def test_denied_names_in_an_interpreters_own_library(open_jar: OpenJar, home: Path) -> None:
    """They are hidden at any depth and under other names; modules of such names stay. Without patterns all is seen."""
    prefix = home / ".pyenv" / "versions" / "3"
    python = python_in(prefix)
    library = next(prefix.glob("lib/python3*"))
    (library / "package" / "deep").mkdir(parents=True)
    (library / "package" / "__init__.py").write_text("found = 'found'\n")
    (library / "token_of_ours.py").write_text("found = 'found'\n")
    (library / "site-packages" / "token_package").mkdir(parents=True)
    (library / "site-packages" / "token_package" / "__init__.py").write_text("")
    planted = [library / ".env", library / "package/deep/.env", library / "package/server.pem", prefix / "bin/.env"]
    planted += [library / "site-packages/token_package/.env", library / "token.txt"]
    for place in planted:
        place.write_text(SECRET)
    (library / "another").hardlink_to(planted[0])
    code = f"import sys; sys.path.insert(0, {str(library)!r}); import package, token_of_ours\n{find_in(prefix)}"
    asked = {"python": {"interpreter": str(python)}}
    jar = open_jar({**asked, "fs": {"deny_globs": ["**/*.pem", "**/token*"]}})
    result = jar.run(code)
    assert result.stdout == "found\n", result
    assert jar.exec([str(python), "-c", code]).stdout == "found\n"
    assert str(prefix) in result.enforcement.clause("fs.deny_globs").by
    given = [f"!{pattern}" for pattern in jar.policy.fs.deny_globs if pattern not in ("**/*.pem", "**/token*")]
    told = open_jar({**asked, "fs": {"deny_globs": given}}).run(code).stdout
    assert {line.split()[1] for line in told.splitlines()[1:]} == {*map(str, planted), str(library / "another")}


# --- a virtual environment -------------------------------------------------------------------------------------------


@pytest.fixture
def venv(home: Path) -> Path:
    """A project that is its own virtual environment, with denied names among the packages too."""
    project = home / "project"
    subprocess.run(["/usr/bin/python3", "-I", "-m", "venv", "--without-pip", project], check=True)
    fill(project)
    packages = next(project.glob("lib/python3*/site-packages"))
    (packages / "package" / "deep").mkdir(parents=True)
    (packages / "package" / "__init__.py").write_text("found = 'found'\n")
    for place in (packages / ".env", packages / "package" / "deep" / ".env", project / "bin" / ".env"):
        place.write_text(SECRET)
    return project


FIND = """
import os, package, sys
print(package.found)
for top, _, names in os.walk(sys.argv[1] if len(sys.argv) > 1 else PROJECT):
    for name in names:
        try: text = open(os.path.join(top, name), "rb").read()
        except OSError: continue
        if WANTED in text: print("ESCAPED", os.path.join(top, name))
"""


def find_in(venv: Path) -> str:
    """Code that prints every file in the virtual environment with the secret in it."""
    return f"PROJECT = {str(venv)!r}\nWANTED = {SECRET[:3]!r}.encode() + {SECRET[3:]!r}.encode()\n{FIND}"


@ANYWHERE
def test_a_project_that_is_its_own_virtual_environment(open_jar: OpenJar, venv: Path) -> None:
    """Its files are not shown, and denied names are not where its packages are. Without patterns the latter are."""
    policy = {"python": {"venv": str(venv)}}
    jar = open_jar(policy)
    assert jar.run(find_in(venv)).stdout == "found\n"
    assert jar.exec([str(venv / "bin/python"), "-c", find_in(venv)]).stdout == "found\n"
    given = [f"!{pattern}" for pattern in jar.policy.fs.deny_globs]
    told = open_jar({**policy, "fs": {"deny_globs": given}}).run(find_in(venv)).stdout
    assert {Path(line.split()[1]).parent.name for line in told.splitlines()[1:]} == {"bin", "deep", "site-packages"}


def test_a_denied_file_that_is_replaced_or_made_later(open_jar: OpenJar, venv: Path) -> None:
    """The name is hidden, not the file; where names are frozen, new ones are too. Elsewhere the report says so."""
    jar = open_jar({"python": {"venv": str(venv)}})
    assert jar.run(find_in(venv)).ok
    packages = next(venv.glob("lib/python3*/site-packages"))
    (packages / "fresh").write_text(SECRET)
    (packages / "fresh").rename(packages / "package" / "deep" / ".env")
    result = jar.run(find_in(venv))
    assert result.stdout == "found\n"
    (packages / "package" / "later").mkdir()
    (packages / "package" / "later" / ".env").write_text(SECRET)
    held = jar.run(find_in(venv)).stdout == "found\n"
    assert held == (result.enforcement.clause("fs.deny_globs").status == "enforced")


@ANYWHERE
def test_in_a_pool(venv: Path, need_backend: Callable[[str], None]) -> None:
    """Every jar of a pool is a copy of one that is made as the others are."""
    need_backend("bubblewrap")
    with Pool({"python": {"venv": str(venv)}}, size=1, timeout="20s") as pool:
        result = pool.run(find_in(venv))
        assert result.stdout == "found\n", result


def test_in_a_session(venv: Path, need_backend: Callable[[str], None]) -> None:
    """And in an interpreter that stays."""
    need_backend("bubblewrap")
    with Session({"python": {"venv": str(venv)}}) as session:
        assert session.run(find_in(venv)).stdout == "found\n"
