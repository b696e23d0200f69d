"""`container.read_only: false`: the code may change its image where its user may, and no file of the engine's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]
WRITABLE = ["container.read_only=false", "on_degraded=[container.read_only, proc.host_info]"]
WRITE = """
for path in ("/var/tmp/made", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/passwd", "/run/.containerenv"):
    try:
        open(path, "a").close()
        print(path)
    except OSError:
        pass
"""


@pytest.mark.parametrize("backend", ["docker", "gvisor", "podman"], scope="session", indirect=True)
def test_what_is_promised_is_what_runs(open_jar: OpenJar) -> None:
    """A plan that is not refused starts. Files that the engine mounts stay root's. By default nothing is written."""
    jar = open_jar(overrides=WRITABLE)
    assert not jar.plan(argv=["true"]).report.refused_by(jar.policy)
    result = jar.run(WRITE)
    assert (result.outcome, result.stdout) == ("ok", "/var/tmp/made\n"), result.reason
    assert open_jar().run(WRITE).stdout == ""
