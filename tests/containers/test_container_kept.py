"""What a Sandbox on a container engine leaves when it is told to, and what it has mounted when it is not: live
directories, kept containers, pulled images.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar import PolicyError, Sandbox
from belljar.backends.container.backend import _image
from belljar.backends.container.engine.engine import Engine
from belljar.backends.container.jar import live

LIVE = {"on_degraded": "allow"}
_PATIENCE_SECONDS = 60.0

VICTIM = """
import os, sys
from belljar import Sandbox
jar = Sandbox({"on_degraded": "allow"}, backend=sys.argv[1], workspace=sys.argv[2], live=True)
for event in jar.stream(argv=["sh", "-c", "echo up; sleep 600"]):
    os.write(1, b"up")
"""


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> str:
    """Engines whose containers see the mounts of this system."""
    return str(request.param)


@pytest.fixture(autouse=True)
def only_where_it_works(request: pytest.FixtureRequest) -> None:
    if "engine" in request.fixturenames:
        request.getfixturevalue("need_backend")(request.getfixturevalue("engine"))


def mounted(state: str) -> list[str]:
    """What is mounted beneath a state directory."""
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4] for line in file if line.split()[4].startswith(f"{state}/")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root maps owners")
class TestLive:
    """The mount with the owner mapped."""

    def test_it_goes_with_the_sandbox(self, engine: str, tmp_path: Path, state_directory: str) -> None:
        """Mounted while it is open, in a directory of belljar's; then neither is left."""
        with Sandbox(LIVE, backend=engine, workspace=tmp_path, live=True) as jar:
            assert jar.exec(["sh", "-c", "echo x > made"]).ok
            assert len(mounted(state_directory)) == 1
            assert jar.files.read("made") == b"x\n"
            jar.files.write("from/outside", b"y")
            assert jar.exec(["cat", "from/outside"]).stdout == "y"
            jar.files.remove("from")
        assert mounted(state_directory) == []
        assert os.listdir(f"{state_directory}/live") == []
        assert [path.name for path in tmp_path.iterdir()] == ["made"]

    def test_denied_names_are_denied_to_the_api_too(self, engine: str, tmp_path: Path) -> None:
        """Covered in the volume server as in the runs; the host's file stays what it is."""
        (tmp_path / ".env").write_text("secret")
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh" / "id_rsa").write_text("secret")
        with Sandbox(LIVE, backend=engine, workspace=tmp_path, live=True) as jar:
            shown = jar.exec(["sh", "-c", "cat .env .ssh/id_rsa; rm -rf .env .ssh; mv .env other; ls -a"])
            assert "secret" not in shown.stdout
            with pytest.raises(PermissionError):
                jar.files.read(".env")
        assert (tmp_path / ".env").read_text() == (tmp_path / ".ssh" / "id_rsa").read_text() == "secret"

    def test_nothing_is_left_when_belljar_is_killed(self, engine: str, tmp_path: Path, state_directory: str) -> None:
        """Its keeper unmounts."""
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, engine, str(tmp_path)], stdout=subprocess.PIPE)
        assert victim.stdout is not None
        assert victim.stdout.read(2) == b"up"
        assert len(mounted(state_directory)) == 1
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while mounted(state_directory) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert mounted(state_directory) == []

    def test_a_sweep_takes_what_the_keeper_missed(self, tmp_path: Path, state_directory: str) -> None:
        """Of the dead only."""
        namespace = os.stat("/proc/self/ns/pid").st_ino
        alive = live.LiveDirectories(f"{state_directory}/live", "alive")
        alive.share(0, str(tmp_path), 1000)
        dead = live.LiveDirectories(f"{state_directory}/live", "dead")
        dead.directory = f"{state_directory}/live/0-{namespace}-1-1-dead"  # pid 1 did not start at tick 1
        dead.share(0, str(tmp_path), 1000)
        assert len(mounted(state_directory)) == 2
        live.sweep(f"{state_directory}/live")
        assert mounted(state_directory) == [f"{alive.directory}/0"]
        alive.close()
        dead.close()
        assert mounted(state_directory) == []
        assert os.listdir(f"{state_directory}/live") == []


def test_a_directory_that_the_code_could_not_change(tmp_path: Path) -> None:
    """An ordinary user is told before anything is started, and what to type."""
    tmp_path.chmod(0o755)
    with pytest.raises(PolicyError, match="could change nothing there") as caught:
        live.need_writable(str(tmp_path), os.getuid() + 1)
    assert "--set proc.uid=$(id -u)" in str(caught.value.hint)
    live.need_writable(str(tmp_path), os.getuid())
    tmp_path.chmod(0o777)
    live.need_writable(str(tmp_path), os.getuid() + 1)


class TestKept:
    """`container.auto_remove: false`"""

    @pytest.fixture
    def clean(self, engine: str) -> Iterator[None]:
        yield
        left = self.kept(engine)
        if left:
            subprocess.run([engine, "rm", "--force", *left], capture_output=True, check=False)

    @staticmethod
    def kept(engine: str) -> list[str]:
        command = [engine, "ps", "--all", "--filter", "label=belljar.kept=1", "--format", "{{.Names}}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    @pytest.mark.usefixtures("clean")
    def test_the_runs_container_stays(self, engine: str) -> None:
        """It has ended, its name is in the result, and the one that waited for the next run is gone."""
        layer = {"container": {"auto_remove": False, "name": "kept"}}
        with Sandbox(layer, backend=engine) as jar:
            names = [jar.exec(["true"]).container for _ in range(2)]
            assert self.comes_to_be(lambda: len(self.kept(engine)) == 3)  # else it would come after we have looked
        assert all(name.startswith("belljar-kept-") for name in names)
        assert self.comes_to_be(lambda: sorted(self.kept(engine)) == sorted(names)), self.kept(engine)

    @staticmethod
    def comes_to_be(true: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not true():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def test_others_do_not(self, engine: str) -> None:
        """And have no name in the result; the image's digest is there."""
        with Sandbox(backend=engine) as jar:
            result = jar.exec(["true"])
        assert result.container == ""
        assert result.image.startswith("sha256:")
        assert result.to_dict()["image"] == result.image


PULLING = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
"image inspect")
    [ -e {pulled} ] && echo '[{{"Id": "sha256:1", "Config": {{}}}}]' && exit
    echo "Error: No such image: $3" >&2; exit 1;;
"pull other:1") touch {pulled}; echo progress;;
esac
"""


class TestPull:
    """`container.pull`, with a program that plays docker."""

    @pytest.fixture
    def played(self, tmp_path: Path) -> Engine:
        program = tmp_path / "docker"
        program.write_text(PULLING.format(log=tmp_path / "log", pulled=tmp_path / "pulled"))
        program.chmod(0o755)
        return Engine("docker", str(program))

    def test_what_is_missing_is_pulled_once(
        self, played: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The engine's progress is seen on standard error."""
        for _ in range(2):
            assert _image(played, "other:1", pulls=True).id == "sha256:1"
        assert (tmp_path / "log").read_text().count("pull other:1") == 1
        assert capfd.readouterr() == ("", "progress\n")

    def test_never(self, played: Engine, tmp_path: Path) -> None:
        """The default: an error with the command."""
        with pytest.raises(Exception, match="no image 'other:1'") as caught:
            _image(played, "other:1", pulls=False)
        assert "pull other:1" in str(getattr(caught.value, "hint", ""))
        assert "pull" not in (tmp_path / "log").read_text()

    def test_belljars_own_is_built(self, played: Engine, tmp_path: Path) -> None:
        """It is in no registry, and whoever puts something of that name there is not asked."""
        with pytest.raises(Exception, match="no image"):
            _image(played, "belljar-base:1", pulls=True)
        assert "pull" not in (tmp_path / "log").read_text()
