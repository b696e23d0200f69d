"""What a run is born with, what it finds of others, and what an engine shows of it to whoever may ask."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_control import ordinary_user
from attack_probe import escaped, held
from test_attack_inheritance import DESCRIPTORS, ESCAPES, LATE, PACKAGE, PUSH, at_a_terminal, belljar_run, on_a_terminal
from test_attack_neighbours import FIND, NEED, end_run, leave, use_up
from test_attack_trust import USE as TRUST

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]
SECRET = "BEGIN-BELLJAR-SECRET"


def test_neither_sandboxes_nor_runs_find_each_other(open_jar: OpenJar) -> None:
    """At once, in another Sandbox and in the same one; and one after the other: no file, queue, socket or process."""
    word = secrets.token_hex(8)
    first, second = open_jar(), open_jar()
    running = leave(first, word)
    assert held(second.run(FIND, args=[word]))
    assert first.run(FIND, args=[word]).stdout.strip() == "ESCAPED: ['/workspace']"
    end_run(*running)
    first.files.remove(word)
    assert held(first.run(FIND, args=[word]))


def test_one_sandbox_does_not_use_up_what_another_needs(open_jar: OpenJar) -> None:
    """Descriptors in flight, inotify instances, queued signals: another Sandbox has its own. The next run starts."""
    first = open_jar()
    running = use_up(first)
    second = open_jar()
    needs = second.run(NEED)
    assert held(needs) or "count as" in second.plan(argv=["true"]).report.clause("proc.uid").by, needs
    assert first.run("print('started')").stdout == "started\n"
    end_run(*running)


FRESH = """
import os, sys
processes = [name for name in os.listdir("/proc") if name.isdigit()]
found = [sorted(os.listdir(place)) for place in ("/tmp", "/dev/shm", "/run/jar")]
print(*found, len(processes), os.environ.get("MARK"))
for place in ("/tmp", "/dev/shm", "/run/jar"):
    open(f"{place}/x", "w")
    os.chmod(place, 0)
os.environ["MARK"] = "x"
"""


def test_waiting_container_has_nothing_of_the_last_run(open_jar: OpenJar) -> None:
    """A container that was made ready while another run went on is as fresh as the first."""
    jar = open_jar()
    said = {jar.run(FRESH).stdout for _ in range(4)}
    assert said == {"['home'] [] ['.room', 'main.py'] 2 None\n"}


def _cli_environment(home: Path, engines: dict[str, str]) -> dict[str, str]:
    return {**at_a_terminal(home), **engines, "HOME": str(home)}


def test_terminal_is_out_of_reach(backend: str, arena: Path, engine_environment: dict[str, str]) -> None:
    """TIOCSTI, and escape sequences: nothing is typed into the user's terminal, and nothing reaches it unescaped."""
    env = _cli_environment(arena, engine_environment)
    (arena / "push.py").write_text(f"import os\nos.write(1, b'{ESCAPES}')\n{PUSH}")
    said, _waiting = on_a_terminal([*belljar_run(backend), str(arena / "push.py")], env)
    assert not escaped("\n".join(line[line.find("HELD:") :] if "HELD:" in line else line
                                 for line in said.replace("\r", "").splitlines())), said  # fmt: skip
    for forbidden in ("\x1b]", "\x1b[2J", "\x1b[6n", "\x1bP", "\x9b", "\x07", "\x08", "\x1b[?1049h"):
        assert forbidden not in said, (forbidden, said)


USE = f"""
import json, os, sys
sys.path.insert(0, {PACKAGE!r})
given = json.loads(sys.stdin.read())
os.environ.update(given["env"])
os.dup2(os.open(given["place"], os.O_RDONLY), 9, inheritable=True)
from belljar import Sandbox
with Sandbox(backend=sys.argv[1], workspace=given["project"]) as jar:
    print(jar.run(given["probe"], args=["x"]).stdout)
    look = "print(sorted(os.environ), open('/proc/self/environ').read(), repr(sys.stdin.read()))"
    print(jar.run("import os, sys\\n" + look).stdout)
    print(jar.run("env; cat /proc/self/environ", language="bash").stdout)
"""


def test_nothing_is_inherited(backend: str, arena: Path, project: Path, engine_environment: dict[str, str]) -> None:
    """Descriptors, standard input and variables of the caller reach neither the code nor an engine's helper.

    docker's client has proxies with a password in its settings, which it would give to every container.
    """
    (arena / "docker").mkdir()
    proxies = {"default": {"httpProxy": f"http://user:{SECRET}@192.0.2.1:3128", "noProxy": SECRET}}
    (arena / "docker" / "config.json").write_text(json.dumps({"proxies": proxies}))
    mark = f"open({str(arena / 'marker')!r}, 'a').write('python')"
    (arena / "sitecustomize.py").write_text(mark)
    (arena / "env.sh").write_text(f"printf shell >> {arena / 'marker'}\n")
    env = {
        "DOCKER_CONFIG": str(arena / "docker"), "http_proxy": SECRET, "HTTPS_PROXY": SECRET, "PYTHONPATH": str(arena),
        "BASH_ENV": str(arena / "env.sh"), "ENV": str(arena / "env.sh"), "NODE_OPTIONS": SECRET, "GIT_DIR": SECRET,
        "LD_LIBRARY_PATH": str(arena), "A_SECRET": SECRET,
    }  # fmt: skip
    given = {"env": env, "place": str(arena), "project": str(project), "probe": DESCRIPTORS}
    done = subprocess.run(
        [sys.executable, "-I", "-c", USE, backend],
        input=json.dumps(given) + "\n",
        capture_output=True,
        text=True,
        check=False,
        env={**engine_environment, "BELLJAR_STATE_DIR": str(arena / "state")},
    )
    assert done.returncode == 0, done.stderr
    assert not escaped(done.stdout), done.stdout
    assert SECRET not in done.stdout
    assert "''" in done.stdout
    assert not (arena / "marker").exists()
    shell = [*ordinary_user(), "bash", "-c", "env"]  # the control: a plain child has them all
    child = subprocess.run(shell, env={"PATH": "/bin", **env}, capture_output=True, text=True, check=True)
    assert SECRET in child.stdout
    assert (arena / "marker").exists()


def test_words_and_exit_codes_are_the_codes_own(open_jar: OpenJar) -> None:
    """Odd variables and arguments arrive as they are; an exit code is no timeout, refusal or kill."""
    value = "{run} {files} {volume} $(id) \x1b[2J * --privileged"
    jar = open_jar({"env": {"set": {"ODD": value}}})
    argv = ["$(id)", "`id`", "'", '"', "-n", "a\nb", "{run}", "{jar}", "\\", "*", "", " "]
    code = "import os, sys; print(ascii([os.environ['ODD'], *sys.argv[1:]]))"
    assert jar.exec(["python3", "-c", code, *argv]).stdout == f"{[value, *argv]!a}\n"
    for number in (124, 125, 126, 127, 137):
        result = jar.run(f"import os; os._exit({number})")
        assert (result.outcome, result.exit_code) == ("failed", number)
    assert jar.run(LATE).exit_code == 3
    assert not jar.exec(["--privileged"]).ok


def test_host_runs_nothing_of_a_workspace(
    backend: str, project: Path, arena: Path, engine_environment: dict[str, str]
) -> None:
    """A program that stands in the workspace, with it in PATH: no module and no program of it runs on the host."""
    mark = f"#!/bin/sh\necho $0 >> {arena / 'marker'}\n"
    for name in ("docker", "podman", "runc", "runsc", "crun", "conmon", "nerdctl", "sh", "git", "python3", "newuidmap"):
        (project / name).write_text(mark)
        (project / name).chmod(0o755)
    for name in ("json", "socket", "select", "ctypes", "sitecustomize", "usercustomize", "belljar"):
        (project / f"{name}.py").write_text(f"open({str(arena / 'marker')!r}, 'a').write(__name__)")
    (project / "data.pickle").write_bytes(b"cos\nsystem\n(S'touch marker'\ntR.")
    env = {**engine_environment, "BELLJAR_STATE_DIR": str(arena / "state"), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys\nsys.path.insert(0, {PACKAGE!r})\n{TRUST}", arena / "saved", backend],
        cwd=project,
        env={**env, "PATH": f".:{project}:{engine_environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ran" in done.stdout
    assert not (arena / "marker").exists(), (arena / "marker").read_text()
    subprocess.run([*ordinary_user(), "sh", "-c", "docker"], env={"PATH": f"{project}:/bin"}, cwd=project, check=False)
    assert (arena / "marker").exists() or not os.access(arena, os.W_OK)  # the control


@pytest.mark.parametrize("what", ["container"])
def test_engine_shows_nothing_of_the_run(open_jar: OpenJar, backend: str, what: str) -> None:
    """Whoever may ask the engine learns neither code, nor arguments, input or variables: they are not in its settings.

    Containers of one Sandbox can't be told from those of another by a name that could be guessed.
    """
    program = "podman" if backend == "podman" else "docker"
    jar = open_jar({"env": {"set": {"TOKEN": f"{SECRET}-variable"}}})
    reader, writer = os.pipe()
    code = f"import sys; print('on', flush=True); sys.stdin.read()  # {SECRET}-code"
    events = iter(jar.stream(code, args=[f"{SECRET}-argument"], stdin=reader))
    os.write(writer, f"{SECRET}-input".encode())
    next(events)
    names = subprocess.run([program, "ps", "-aq", "--filter", "label=belljar=1", "--no-trunc"],
                           capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    told = subprocess.run([program, "inspect", "--type", what, *names], capture_output=True, text=True, check=False)
    logs = subprocess.run([program, "logs", names[0]], capture_output=True, text=True, check=False)
    os.close(writer)
    os.close(reader)
    for _event in events:
        pass
    assert '"belljar"' in told.stdout  # the control: these are the containers
    assert SECRET not in told.stdout + told.stderr + logs.stdout
    settings = [found for found in json.loads(told.stdout) if found["Config"]["Labels"].get("belljar") == "1"]
    assert all(not found["HostConfig"]["Privileged"] for found in settings)
    assert all(len(found["Name"].strip("/").split("-")[1]) == 12 for found in settings)
