"""What goes into the machine: one raw disk that is a tar archive of the job, the guest program and the work tree."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tempfile
import tomllib
from typing import IO

from image import HERE, ROOT
from progress import VmError


def payload(command: list[str], user: str) -> IO[bytes]:
    """The second disk, as a file without a name: job, guest program, work tree."""
    with tempfile.TemporaryFile() as disk:
        with tarfile.open(fileobj=disk, mode="w", format=tarfile.PAX_FORMAT) as archive:
            add_bytes(archive, "job.json", json.dumps(job(command, user)).encode())
            add_bytes(archive, "guest.py", (HERE / "guest.py").read_bytes())
            for name in work_tree():
                archive.add(ROOT / name, arcname=f"belljar/{name}", recursive=False)
        disk.seek(0, os.SEEK_END)
        disk.write(b"\0" * (-disk.tell() % 4096))
        disk.flush()
        # QEMU takes a descriptor for a read-only disk only if it is read-only.
        return open(f"/proc/self/fd/{disk.fileno()}", "rb")


def add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def work_tree() -> list[str]:
    """What a commit of everything would hold: tracked and new files that exist, without the ignored ones."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    if listed.returncode:
        raise VmError(f"git can't list the work tree: {listed.stderr.decode().strip()}")
    return sorted({name for name in listed.stdout.decode().split("\0") if name and os.path.lexists(ROOT / name)})


def job(command: list[str], user: str) -> dict[str, object]:
    """What guest.py does, in its words."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = f"belljar-{project['version']}.dist-info"
    return {
        "command": command,
        "user": user,
        "session": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "XDG_SESSION_TYPE": "tty", "XDG_SESSION_CLASS": "user"},
        "environment": {
            "PATH": "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin" + (":/usr/sbin:/sbin" if user == "root" else ""),
            "LANG": "C.UTF-8",
            "BELLJAR_TEST_VM": "1",
            "BELLJAR_MUST_WORK": "bubblewrap",
        },
        "site": {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        },
        "scripts": {"belljar": (ROOT / "scripts/belljar").read_text().replace("#!python", "#!/opt/venv/bin/python3")},
    }
