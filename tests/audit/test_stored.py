"""What records refer to by its digest: inputs, policies and plans, on a disk that is full and after half a write."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.audit import stored


def test_inputs_behind_half_of_one() -> None:
    """A process that was killed left it; what came later is found, and what only looks like an entry is not."""
    first = stored.keep_input(b"one")
    (path,) = Path(stored.inputs()).iterdir()
    wanted = hashlib.sha256(b"two").hexdigest()
    with path.open("ab") as file:
        file.write(b"f" * 64 + b" 100\nhalf of it\n%s 3\nno!\n%s 99999999999999999999\n" % (2 * (wanted.encode(),)))
    assert stored.keep_input(b"two") == wanted
    third = stored.keep_input(b"three" * 100)
    found = [stored.load_input(digest) for digest in (first, wanted, third)]
    assert found == [b"one", b"two", b"three" * 100]


FULL_OF_INPUTS = """
import os, sys
from belljar.audit import stored
from belljar.errors import AuditError
first = stored.keep_input(b"first")
(name,) = os.listdir(stored.inputs())
path = os.path.join(stored.inputs(), name)
before = open(path, "rb").read()
for number in range(3):
    try:
        stored.keep_input(b"%d" % number * 300_000)
    except AuditError as error:
        assert "No space left on device" in str(error), error
    else:
        raise AssertionError("it fits")
    try:
        stored.store(stored.plans(), b"%d" % number * 300_000, ".json")
    except AuditError as error:
        assert "No space left on device" in str(error), error
assert open(path, "rb").read() == before
assert os.listdir(stored.plans()) == [], os.listdir(stored.plans())
os.unlink(sys.argv[1])
second = stored.keep_input(b"second")
assert [stored.load_input(one) for one in (first, second)] == [b"first", b"second"]
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk has to be mounted, which only root may do")
def test_inputs_on_a_full_disk(tmp_path: Path) -> None:
    """Half of one is taken back, so that with room again the next are found; plans leave nothing half either."""
    mounted = f"mount -t tmpfs -o size=256k none {tmp_path} && head -c 100000 /dev/zero >{tmp_path}/ballast"
    inside = f"{mounted} && BELLJAR_STATE_DIR={tmp_path}/state exec {sys.executable} -c"
    command = ["unshare", "--mount", "sh", "-c", f'{inside} "$0" "$1"', FULL_OF_INPUTS, str(tmp_path / "ballast")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_secret_digest_can_not_be_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the same for the same text, in every process of the user; and with another key, another."""
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path / "one"))
    first = stored.secret_digest(b"1234")
    script = "from belljar.audit import stored; print(stored.secret_digest(b'1234'))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert first == other != hashlib.sha256(b"1234").hexdigest()
    assert (tmp_path / "one/digests.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["digests.key"]
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path / "two"))
    assert stored.secret_digest(b"1234") != first
