"""JavaScript in a pool: node is up before the code comes, and the code can't tell."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from belljar import Pool, RunResult, Sandbox
from belljar.backends.bubblewrap.shared import layout
from belljar.sandbox.record.result import Outcome

pytestmark = pytest.mark.backend("bubblewrap")

FACTS = """
const fs = require('fs'), Module = require('module');
const link = (name) => {
  try { return fs.readlinkSync('/proc/self/fd/' + name).replace(/[0-9]+/g, ''); } catch { return ''; }
};
const held = /^(Cap|Seccomp|NoNewPrivs|Uid|Gid|Sig(Blk|Ign|Cgt))/;
console.log(JSON.stringify({
  argv: process.argv, argv0: process.argv0, options: process.execArgv, preload: process._preload_modules,
  main: require.main === module, file: __filename, directory: __dirname, cwd: process.cwd(), title: process.title,
  env: process.env, paths: module.paths, global: Module.globalPaths, parent: module.parent,
  cache: Object.keys(require.cache), globals: Object.keys(globalThis),
  runMain: Object.getOwnPropertyDescriptor(Module, 'runMain'), runMainName: Module.runMain.name,
  descriptors: fs.readdirSync('/proc/self/fd').map(link).sort(), limits: fs.readFileSync('/proc/self/limits', 'utf8'),
  held: fs.readFileSync('/proc/self/status', 'utf8').split('\\n').filter((line) => held.test(line)),
}));
"""
CHILDREN = """
const { execFileSync, fork } = require('child_process'), { Worker } = require('worker_threads');
const list = 'for f in /proc/self/fd/*; do readlink $f; done | sed s/[0-9]//g; env | sort';
console.log(execFileSync('/bin/sh', ['-c', list]).toString());
const tell = "console.log(process.argv.length, process.execArgv, Object.keys(require.cache).length)";
new Worker(tell, { eval: true }).on('exit', (code) => {
  console.log('thread', code);
  require('fs').writeFileSync('/tmp/child.js', tell);
  fork('/tmp/child.js', ['a']).on('exit', (code) => console.log('child', code));
});
"""
LATER = {
    "package.json": '{"type": "module"}',
    "lib.js": "export const a = import.meta.url;",
    "node_modules/dep/index.js": "module.exports = __filename",
    "node_modules/dep/package.json": "{}",
}
MODULE = "import { a } from '/workspace/lib.js'; console.log(a, import.meta.url, process.argv, typeof require, this);"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "facts": (FACTS, {"args": ["a", "", "b c'\"\n\u00e9\U0001f600"]}),
    "a name": (FACTS, {"args": ["a"], "name": "other.js"}),
    "a common module": (FACTS, {"name": "other.cjs"}),
    "a module": (MODULE, {"name": "main.mjs", "files": LATER, "args": ["a"]}),
    "a module in an old file": (MODULE, {"files": LATER}),
    "files that came later": (
        "console.log(require('dep')); import('/workspace/lib.js').then((lib) => console.log(lib.a))",
        {"files": LATER},
    ),
    "nothing to require": ("require('./lib.js')", {"files": LATER}),
    "an error": ("function f() { throw new TypeError('told'); }\nconsole.log(1); f();", {}),
    "an error in a named file": ("throw new Error('told')", {"name": "a b.js"}),
    "an error in a module": ("console.log(1); throw new Error('told')", {"name": "x.mjs"}),
    "an error in a promise": ("Promise.reject(new Error('told'))", {}),
    "no JavaScript": ("const x = ;", {}),
    "a stack": ("console.log(new Error('x').stack); setTimeout(() => console.log(new Error('x').stack), 1)", {}),
    "an exit": ("process.on('exit', (code) => console.log('exit', code)); process.exit(7)", {}),
    "an exit code": ("process.exitCode = 3; console.error('told')", {}),
    "a signal": ("process.kill(process.pid, 'SIGKILL'); setTimeout(() => 0, 1e5)", {}),
    "children": (CHILDREN, {}),
    "no input": ("process.stdin.on('data', console.log).on('end', () => console.log('end'))", {}),
    "input": ("process.stdin.on('data', (data) => console.log(data.toString()))", {"stdin": b"given"}),
}


def waiting_nodes() -> list[int]:
    """The processes of this program's jars that are node, and wait."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _waits(pid)]


def _waits(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        while f"{layout.JAR_CODE}/{layout.SHIM}".encode() in words and pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if pid == os.getpid():
                return True
    except OSError:
        pass
    return False


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert what()


@pytest.fixture
def pool() -> Iterator[Pool]:
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    with Pool(size=1, timeout="30s") as made:
        assert made.run("", language="javascript").ok
        yield made


def cold(code: str, files: Mapping[str, str] | None = None, **options: Any) -> RunResult:
    with Sandbox(one_shot=True, timeout="30s") as jar:
        for path, content in (files or {}).items():
            jar.files.write(path, content)
        return jar.run(code, language="javascript", **options)


@pytest.mark.parametrize("case", list(CASES))
def test_it_is_a_run_like_any_other(pool: Pool, case: str) -> None:
    """What it prints, where it fails and how it ends, to the letter."""
    code, options = CASES[case]
    until(waiting_nodes)
    warm = pool.run(code, language="javascript", **options)
    usual = cold(code, **options)
    assert warm.stdout == usual.stdout
    assert warm.stderr == usual.stderr
    assert (warm.outcome, warm.exit_code, warm.signal) == (usual.outcome, usual.exit_code, usual.signal)


def test_node_is_up_before_the_code_is_there(pool: Pool) -> None:
    """The process that waits is the one that runs the code, confined as the canaries found it."""
    until(waiting_nodes)
    (pid,) = waiting_nodes()
    status = dict(line.split(":\t", 1) for line in _status(pid).splitlines() if ":\t" in line)
    assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)
    code = "const fs = require('fs'), all = '/proc/self/fd/'; console.log(fs.existsSync('/run/jar/.wait.cjs'));"
    code += "for (const name of fs.readdirSync(all)) try { console.log(fs.readlinkSync(all + name)) } catch {}"
    seen = pool.run(code, language="javascript").stdout.splitlines()
    assert seen[0] == "true"
    assert not [name for name in seen if name.startswith("socket:")], "the gate is open to the code"


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def _stat(pid: int) -> list[str]:
    """The fields from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _age_seconds(pid: int) -> float:
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")


def _until_at_rest(pid: int) -> None:
    """Until it has used no processor time for a while: node has started, and read what it reads by itself."""
    looks = [-1]
    while looks[-5:] != looks[-1:] * 5:
        looks.append(sum(map(int, _stat(pid)[11:13])))
        time.sleep(0.05)


def test_time_begins_with_the_code() -> None:
    """What a jar waited is not the run's."""
    with Pool(size=1, timeout="2s") as pool:
        assert pool.run("", language="javascript").ok
        until(waiting_nodes)
        until(lambda: min(map(_age_seconds, waiting_nodes()), default=0.0) > 2.0)
        result = pool.run("console.log(1)", language="javascript")
        assert (result.stdout, result.outcome) == ("1\n", Outcome.OK)
        assert pool.run("for (;;);", language="javascript").outcome is Outcome.TIMEOUT


def test_a_policy_that_tells_node_what_to_load() -> None:
    """That may not be there yet, or is code: node starts when the run does."""
    policy = {"env": {"set": {"NODE_OPTIONS": "--require /workspace/first.js"}}}
    with Pool(policy, size=1, timeout="30s") as pool:
        for _ in range(2):
            result = pool.run("console.log(2)", language="javascript", files={"first.js": "console.log(1)"})
            assert result.stdout == "1\n2\n", result
            until(lambda: pool.statistics().waiting)
        assert waiting_nodes() == []


def test_a_jar_that_waits_for_something_else() -> None:
    """Another language, another command: a jar of its own, and the one that waits is there for what it waits for."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    with Sandbox(timeout="30s") as jar:
        jar.prepare(language="javascript")
        until(waiting_nodes)
        assert jar.run("echo 1", language="bash").stdout == "1\n"
        assert jar.exec(["node", "-p", "process.argv.length"]).stdout == "1\n"
        jar.prepare(language="javascript")
        until(waiting_nodes)
        assert jar.run("console.log(2)", language="javascript").stdout == "2\n"
    until(lambda: not waiting_nodes())


def test_a_workspace_that_changes_while_it_waits() -> None:
    """Node keeps what it has read of a package.json: of this one it has read nothing."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    with Sandbox(one_shot=True, timeout="30s") as jar:
        jar.files.write("package.json", '{"name": "x", "exports": "./a.js"}')
        jar.prepare(language="javascript")
        until(waiting_nodes)
        _until_at_rest(waiting_nodes()[0])
        for path, content in LATER.items():
            jar.files.write(path, content)
        result = jar.run("import('/workspace/lib.js').then((lib) => console.log(lib.a))", language="javascript")
    assert (result.stdout, result.stderr) == ("file:///workspace/lib.js\n", "")


def test_a_jar_that_dies_while_it_waits(pool: Pool) -> None:
    """The run gets another."""
    until(waiting_nodes)
    for pid in waiting_nodes():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not waiting_nodes())
    assert pool.run("console.log(1)", language="javascript").stdout == "1\n"
