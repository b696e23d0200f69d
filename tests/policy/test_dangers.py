"""What hands the host to the code: refused in every preset but `unrestricted`, whichever layer asks for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import PolicyError
from belljar.policy.keys.table import KEYS
from belljar.policy.load import engine_sockets
from belljar.policy.load import resolve as resolve_module
from belljar.policy.load.resolve import from_mapping, preset_names, resolve
from belljar.policy.models import ContainerPolicy
from belljar.policy.show import to_mapping

HELD = [name for name in preset_names() if name != "unrestricted"]
DANGERS = {
    "container.privileged": ("true", "wanted false, found true: a privileged container is root on the host"),
    "container.network": ("host", "wanted none, found 'host': the code would have the host's own network"),
    "container.pid": ("host", "wanted private, found 'host': the code would see every process"),
    "a bridge": ("bridge", "wanted none, found 'bridge': a bridge reaches every host"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resolve_module, "MANAGED_OWNER", os.geteuid())
    for name in ("DOCKER_HOST", "CONTAINER_HOST", "CONTAINERD_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path.resolve()


def key_of(name: str) -> str:
    return name if name in KEYS else "container.network"


def managed(text: str) -> str:
    Path("managed.yaml").write_text(text)
    Path("managed.yaml").chmod(0o644)
    return "managed.yaml"


class TestValues:
    """`--privileged`, the host's network and processes."""

    @pytest.mark.parametrize("preset", HELD)
    @pytest.mark.parametrize("name", DANGERS)
    def test_no_file_over_a_preset_has_them(self, preset: str, name: str) -> None:
        """With the line, the reason and what to type."""
        value, told = DANGERS[name]
        section, _, field = key_of(name).partition(".")
        Path("p.yaml").write_text(f"version: 1\nextends: {preset}\n{section}:\n  {field}: {value}\n")
        with pytest.raises(PolicyError) as caught:
            resolve("p.yaml", managed=None)
        (problem,) = caught.value.problems
        assert problem.startswith(f"p.yaml:4:{len(field) + 5}: {key_of(name)}: {told}")
        assert "extends: unrestricted" in caught.value.hint

    @pytest.mark.parametrize("preset", HELD)
    @pytest.mark.parametrize("name", DANGERS)
    def test_nor_an_option_nor_a_mapping(self, preset: str, name: str) -> None:
        """The last word is no better than the first."""
        value, told = DANGERS[name]
        key = key_of(name)
        section, _, field = key.partition(".")
        plain: Any = True if value == "true" else value
        for layers in ({"overrides": [f"{key}={value}"]}, {"layers": [{section: {field: plain}}]}):
            with pytest.raises(PolicyError, match=told.partition(":")[0]):
                resolve(preset, managed=None, **layers)

    @pytest.mark.parametrize("name", DANGERS)
    def test_nor_a_file_that_extends_nothing(self, name: str) -> None:
        """A file that says everything itself does not say who may have the host."""
        value, told = DANGERS[name]
        whole = to_mapping(resolve("unrestricted", managed=None))
        assert whole["extends"] == "none"
        whole["container"][key_of(name).partition(".")[2]] = True if value == "true" else value
        with pytest.raises(PolicyError, match=told.partition(":")[0]):
            from_mapping(whole)

    @pytest.mark.parametrize("name", DANGERS)
    def test_unrestricted_has_them(self, name: str) -> None:
        """By name, by a file that extends it, and by a file that extends such a file."""
        value, _ = DANGERS[name]
        setting = f"{key_of(name)}={value}"
        Path("one.yaml").write_text("extends: unrestricted")
        Path("two.yaml").write_text("extends: ./one.yaml")
        for source in ("unrestricted", "one.yaml", "two.yaml"):
            policy = resolve(source, overrides=[setting], managed=None)
            assert policy.dangerous
            assert not resolve(source, managed=None).dangerous
        first = {"extends": "unrestricted", "container": {"privileged": True}}
        assert resolve(layers=[first], managed=None).container.privileged

    def test_a_preset_is_not_dangerous_itself(self) -> None:
        """None of them, not even that one."""
        assert not any(resolve(name, managed=None).dangerous for name in preset_names())

    def test_later_layers_take_back(self) -> None:
        """What counts is what comes out."""
        Path("p.yaml").write_text("container: {privileged: true}")
        assert not resolve("p.yaml", overrides=["container.privileged=false"], managed=None).dangerous

    def test_what_is_shown_reads_back(self) -> None:
        """As a policy that extends `unrestricted`, with the patterns that it took back."""
        layer = {
            "container": {"privileged": True, "network": "host"},
            "fs": {"deny_globs": ["!**/.env", "*.key"], "mounts": [{"path": "/data", "source": "/usr/share"}]},
        }
        policy = resolve("unrestricted", layers=[layer], managed=None)
        again = from_mapping(to_mapping(policy))
        assert (again, again.digest) == (policy, policy.digest)
        assert again.digest != resolve("unrestricted", managed=None).digest

    def test_the_managed_policy_must_name_them_too(self) -> None:
        """`unrestricted` is anyone's word; the host's is another file."""
        for name, (value, _) in DANGERS.items():
            setting = f"{key_of(name)}={value}"
            with pytest.raises(PolicyError, match="the managed policy does not name it"):
                resolve("unrestricted", overrides=[setting], managed=managed("proc: {pids: 9}"))
            section, _, field = key_of(name).partition(".")
            allowed = managed(f"{section}: {{{field}: {value}}}")
            assert resolve("unrestricted", overrides=[setting], managed=allowed).dangerous
            with pytest.raises(PolicyError, match="unrestricted"):
                resolve("aicode", overrides=[setting], managed=allowed)


@contextmanager
def listening(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # a socket's address is short
        yield


class TestSockets:
    """Whoever reaches an engine is root on the host."""

    FIXED = ["/run", "/var/run", "/var", "/run/../run"]

    @pytest.mark.parametrize("source", [path for path in FIXED if os.path.isdir(path)])
    @pytest.mark.parametrize("preset", HELD)
    def test_system_directories(self, preset: str, source: str) -> None:
        """Whether an engine runs at the moment or not, in a mount and as the workspace."""
        layer = {"fs": {"mounts": [{"path": "/data", "source": source}]}}
        for options in ({"layers": [layer]}, {"workspace": source}):
            with pytest.raises(PolicyError, match=r"fs\.mounts: .* is root on the host") as caught:
                resolve(preset, managed=None, **options)
            assert "extends: unrestricted" in caught.value.hint
            assert resolve("unrestricted", managed=None, **options).dangerous

    SHOWN = [
        ("/run/podman", "/run/podman/podman.sock"),
        ("/run/containerd", "/run/containerd/containerd.sock"),
        ("/run", "/run/docker.sock"),
        ("/", "/run/docker.sock"),
        ("/run/podmans", None),
        ("/run/user", "/run/user/{uid}/docker.sock"),
        ("/run/user/{uid}", "/run/user/{uid}/docker.sock"),
        ("/run/user/{uid}/podman", "/run/user/{uid}/podman/podman.sock"),
        ("/run/user/{uid}/app", None),
        ("/usr", None),
        ("/srv/data", None),
    ]

    @pytest.mark.parametrize(("source", "expected"), SHOWN)
    def test_by_name(self, source: str, expected: str | None) -> None:
        """Each engine's own place."""
        uid = str(os.geteuid())
        wanted = expected and expected.replace("{uid}", uid)
        assert engine_sockets.shown_by(source.replace("{uid}", uid), {}) == wanted

    NAMED = [
        ({"DOCKER_HOST": "unix:///srv/e/d.sock"}, "/srv/e", "/srv/e/d.sock"),
        ({"DOCKER_HOST": "unix:///srv/e/d.sock"}, "/srv", "/srv/e/d.sock"),
        ({"DOCKER_HOST": "unix:///srv/e/d.sock"}, "/srv/f", None),
        ({"DOCKER_HOST": "unix:/srv/e/../e/d.sock"}, "/srv/e", "/srv/e/d.sock"),
        ({"DOCKER_HOST": "unix://e/d.sock"}, "HERE", "HERE/e/d.sock"),
        ({"DOCKER_HOST": "tcp://127.0.0.1:2375"}, "/srv", None),
        ({"DOCKER_HOST": "ssh://me@there/srv/e"}, "/srv", None),
        ({"CONTAINER_HOST": "unix:///srv/p.sock"}, "/srv", "/srv/p.sock"),
        ({"CONTAINERD_ADDRESS": "/srv/c.sock"}, "/srv", "/srv/c.sock"),
        ({"XDG_RUNTIME_DIR": "/srv/x"}, "/srv/x/podman", "/srv/x/podman/podman.sock"),
        ({"DOCKER_HOST": ""}, "/srv", None),
    ]

    @pytest.mark.parametrize(("environ", "source", "expected"), NAMED)
    def test_by_the_environment(self, here: Path, environ: dict[str, str], source: str, expected: str | None) -> None:
        """What the engine's own program would use."""
        wanted = expected and expected.replace("HERE", str(here))
        assert engine_sockets.shown_by(source.replace("HERE", str(here)), environ) == wanted

    def test_the_callers_environment_counts(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Through links, of the socket and of the source."""
        (here / "real").mkdir()
        (here / "link").symlink_to("real")
        monkeypatch.setenv("DOCKER_HOST", f"unix://{here}/link/docker.sock")
        for workspace in ("real", "link", "."):
            with pytest.raises(PolicyError, match=r"link/docker\.sock lies in it"):
                resolve(workspace=workspace, managed=None)
        (here / "else").mkdir()
        assert resolve(workspace="else", managed=None).fs.mounts[0].source == f"{here}/else"

    def test_a_link_in_the_usual_place(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on hosts whose engine is in a virtual machine."""
        (here / "vm/deep").mkdir(parents=True)
        (here / "usual.sock").symlink_to(here / "vm/deep/engine.sock")
        monkeypatch.setattr(engine_sockets, "_ALWAYS", (f"{here}/usual.sock",))
        for source in ("vm/deep", "vm"):
            assert engine_sockets.shown_by(f"{here}/{source}", {}) == f"{here}/usual.sock"

    @pytest.mark.parametrize("name", ["docker.sock", "podman/podman.sock", "containerd.sock"])
    def test_a_socket_that_is_there(self, here: Path, name: str) -> None:
        """Wherever it is: another user's engine, or one with a place of its own. A file of that name is nothing."""
        (here / "file/podman").mkdir(parents=True)
        (here / "file" / name).touch()
        resolve(workspace="file", managed=None)
        with listening(here / "live" / name), pytest.raises(PolicyError, match="is root on the host"):
            resolve(workspace="live", managed=None)

    def test_a_home_only_if_the_engine_is_there(self, here: Path) -> None:
        """A home has more in it."""
        (here / "home").mkdir()
        resolve(workspace="home", managed=None)
        with listening(here / "home/.docker/run/docker.sock"), pytest.raises(PolicyError, match="is root on the host"):
            resolve(workspace="home", managed=None)

    def test_the_same_directory_under_another_name(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a bind mount would have it: two paths, one directory."""
        (here / "one").mkdir()
        (here / "two").mkdir()
        assert engine_sockets.shown_by(f"{here}/two", {"DOCKER_HOST": f"unix://{here}/one/d.sock"}) is None
        monkeypatch.setattr(engine_sockets, "_identity", lambda path: path.replace("two", "one"))
        assert engine_sockets.shown_by(f"{here}/two", {"DOCKER_HOST": f"unix://{here}/one/d.sock"}) is not None

    def test_a_virtual_environment(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is a mount as well."""
        (here / "venv").mkdir()
        (here / "venv/pyvenv.cfg").touch()
        resolve(overrides=["python.venv=venv"], managed=None)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{here}/venv/d.sock")
        with pytest.raises(PolicyError, match=r"python\.venv: .* is root on the host"):
            resolve(overrides=["python.venv=venv"], managed=None)

    def test_beneath_a_managed_policy(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It must have a mount of that place itself."""
        (here / "e").mkdir()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{here}/e/d.sock")
        with pytest.raises(PolicyError, match="the managed policy does not name it"):
            resolve("unrestricted", workspace="e", managed=managed("proc: {pids: 9}"))
        own = managed(f"fs: {{mounts: [{{path: /workspace, source: {here}/e, rw: true}}]}}")
        assert resolve("unrestricted", workspace="e", managed=own).dangerous


AGREE = [
    ({"backend": "docker", "container": {"engine": "docker"}}, ""),
    ({"backend": "docker", "container": {"engine": "nerdctl"}}, ""),
    ({"backend": "podman", "container": {"engine": "podman", "runtime": "crun"}}, ""),
    ({"backend": "gvisor", "container": {"engine": "nerdctl", "runtime": "runsc"}}, ""),
    ({"backend": "docker", "container": {"runtime": "runsc"}}, ""),
    (
        {"backend": "docker", "container": {"engine": "podman"}},
        "wanted auto or docker or nerdctl for the backend docker",
    ),
    ({"backend": "podman", "container": {"engine": "docker"}}, "wanted auto or podman for the backend podman"),
    ({"backend": "gvisor", "container": {"runtime": "runc"}}, "wanted runsc for the backend gvisor"),
    ({"extends": "docker", "container": {"runtime": "crun"}}, "wanted runsc for the backend gvisor"),
    ({"fallback": ["gvisor"], "container": {"runtime": "crun"}}, "wanted runsc for the backend gvisor"),
    ({"fallback": ["podman"], "container": {"engine": "docker"}}, "wanted auto or podman for the backend podman"),
    (
        {"extends": "unrestricted", "net": {"enabled": False}, "container": {"network": "bridge"}},
        "wanted none, because net.enabled is false",
    ),
]


@pytest.mark.parametrize(("layer", "told"), AGREE, ids=str)
def test_engine_runtime_and_network_agree_with_the_rest(layer: dict[str, Any], told: str) -> None:
    """gVisor is runsc and nothing else; a backend uses its own engine."""
    if not told:
        resolve(layers=[layer], managed=None)
        return
    with pytest.raises(PolicyError, match=told):
        resolve(layers=[layer], managed=None)


@pytest.mark.parametrize("image", ["a\n", "a\0", "a\u2028b", "x" * 401, "a/" * 150 + "a:" + "b" * 129])
def test_an_image_is_one_word(image: str) -> None:
    """What an engine could read as two words, or as something else than a name."""
    with pytest.raises(PolicyError, match=r"container\.image: wanted an image such as"):
        resolve(layers=[{"container": {"image": image}}], managed=None)


def test_presets_ask_for_the_strongest_container() -> None:
    """gVisor, and what stands in for it is written down."""
    policy = resolve("docker", managed=None)
    assert (policy.backend, policy.fallback) == ("gvisor", ("docker", "podman"))
    for name in preset_names():
        assert resolve(name, managed=None).container == ContainerPolicy()
