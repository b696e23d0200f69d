"""What a jar must withstand, in the jars of a pool: the host's files, links that lead out, words and ends, traps.

The tables are those of one directory up, with their controls; what a run of a pool can't have (a workspace of the
host's, a terminal) is not there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from attack_control import control
from test_attack_files import (
    home,
    test_no_way_around_the_root,
    test_part_of_the_host_is_not_there,
    test_passwd_is_the_jars_own,
    test_secrets_of_home_are_not_there,
)
from test_attack_inheritance import (
    test_child_can_not_answer_for_the_code,
    test_exit_code_can_not_be_forged,
    test_odd_argument_is_only_text,
    test_odd_value_of_a_variable_is_only_text,
)
from test_attack_trust import test_result_is_data

from belljar import Pool

__all__ = [
    "home",
    "test_child_can_not_answer_for_the_code",
    "test_exit_code_can_not_be_forged",
    "test_no_way_around_the_root",
    "test_odd_argument_is_only_text",
    "test_odd_value_of_a_variable_is_only_text",
    "test_part_of_the_host_is_not_there",
    "test_passwd_is_the_jars_own",
    "test_result_is_data",
    "test_secrets_of_home_are_not_there",
]

SECRET = "BEGIN-BELLJAR-SECRET"
LINKS = (
    "ln -s {secret} link; ln -s {directory} out; ln {secret} hard 2>/dev/null; mkfifo pipe; "
    "mkdir deep; ln -s ../link deep/x; "
)


@pytest.fixture
def pool(backend: str) -> Pool:
    """Closed by its test."""
    assert backend == "bubblewrap"
    return Pool(size=1)


def test_artifacts_are_plain_files_only(pool: Pool, arena: Path) -> None:
    """Links and pipes are no artifacts, and the host writes through no link that lies where they go."""
    secret, target = arena / "secret", arena / "artifacts"
    secret.write_text(SECRET)
    target.mkdir()
    (target / "plain").symlink_to(secret)
    script = f"{LINKS.format(secret=secret, directory=arena)} echo mine > plain"
    code = f"import subprocess; subprocess.run(['bash', '-c', {script!r}])"
    with pool:
        try:
            result = pool.run(code, artifacts=target)
        except OSError:
            pass
        else:
            assert [artifact.path for artifact in result.artifacts] == ["plain"]
    assert secret.read_text() == SECRET
    careless = arena / "careless"
    careless.mkdir()
    careless.chmod(0o777)
    follow = f"{LINKS.format(secret=secret, directory=arena)} cat link"
    assert control(["bash", "-c", follow], cwd=str(careless)) == SECRET
    (target / "plain").write_text("mine")
    assert secret.read_text() == "mine"


TRAPS = dict.fromkeys(("json.py", "sitecustomize.py", "os.py", "belljar.py"), "print('trapped')")


def test_files_that_are_given_are_imported_by_nobody_but_the_code(pool: Pool) -> None:
    """They are in the workspace, where a program that wants them finds them; nothing of belljar's looks there."""
    with pool:
        assert pool.run("print('plain')", files=TRAPS).stdout == "plain\n"
        # The control: whoever imports one of these names runs them. The workspace is where the code's own modules are.
        assert pool.run("import json", files=TRAPS).stdout == "trapped\n"
        assert pool.run("print('on')").stdout == "on\n"


IMPORTED = {
    "stringprep": "# coding: idna\nprint('code')\n",
    "_codecs_jp": "# coding: cp932\nprint('code')\n",
    "_multibytecodec": "# coding: cp932\nprint('code')\n",
    "linecache": "1 is 1\nprint('code')\n",
    "tokenize": "1 is 1\nprint('code')\n",
}
"""Code that has Python import a module when it is compiled, which is before it may run."""


@pytest.mark.parametrize("module", IMPORTED)
def test_nothing_of_a_run_is_imported_before_it_may_run(pool: Pool, module: str) -> None:
    """What its code is compiled with is Python's own: the process is not the run's yet, and has belljar's socket."""
    trap = {f"{module}.py": "print('trapped')"}
    with pool:
        assert pool.run(IMPORTED[module], files=trap).stdout == "code\n"
        assert pool.run(f"import {module}", files=trap).stdout == "trapped\n"  # the control: the code's own import
