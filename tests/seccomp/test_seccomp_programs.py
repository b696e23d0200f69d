"""Ordinary programs under the filter: what an agent's code uses every day must not notice it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).with_name("seccomp_probe.py")

THREADS = """
import concurrent.futures, threading
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(lambda n: n * n, range(100))))
"""
SUBPROCESSES = """
import subprocess, multiprocessing
print(subprocess.run(['/bin/sh', '-c', 'echo from a shell | cat'], capture_output=True, text=True).stdout.strip())
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(2) as pool:
        print(pool.map(abs, [-1, -2]))
"""
SOCKETS = """
import asyncio, socket, sqlite3, tempfile
async def main():
    server = await asyncio.start_server(lambda r, w: (w.write(b'hello'), w.close()), '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print((await reader.read()).decode())
    writer.close(); server.close()
asyncio.run(main())
socket.if_nameindex(); socket.getaddrinfo('127.0.0.1', 80)
with tempfile.NamedTemporaryFile() as file:
    sqlite3.connect(file.name).execute('create table t (a)')
"""
NODE = """
const { execSync } = require('child_process'); const { Worker } = require('worker_threads'); const fs = require('fs');
fs.writeFileSync('a.txt', execSync('echo child').toString());
new Worker('require("worker_threads").parentPort.postMessage(21)', { eval: true })
  .on('message', n => console.log(fs.readFileSync('a.txt', 'utf8').trim(), n * 2));
"""
C = """
cat > a.c <<'END'
#include <pthread.h>
#include <stdio.h>
static void *work(void *p) { puts("thread"); return p; }
int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); pthread_join(t, 0); puts("main"); return 0; }
END
gcc -pthread a.c -o a && ./a
"""
ARCHIVE = """
set -e
mkdir d && echo x > d/f && chmod 750 d && ln -s f d/l && mkfifo d/p
tar cf a.tar d && mkdir e && tar xf a.tar -C e && cp -a e/d g && ls -1 g | tr '\\n' ' '
touch -d 2020-01-01 g/f && mv g h && rm -r h d e && sort <(echo b; echo a) | tr '\\n' ' '
"""
JAVA = """
cat > T.java <<'END'
public class T {
  public static void main(String[] a) throws Exception {
    var t = new Thread(() -> System.out.println("thread")); t.start(); t.join();
    new ProcessBuilder("echo", "child").inheritIO().start().waitFor();
  }
}
END
java T.java
"""

WORKS: dict[str, tuple[list[str], str]] = {
    "python threads": ([sys.executable, "-c", THREADS], "328350"),
    "python subprocesses": ([sys.executable, "-c", SUBPROCESSES], "from a shell\n[1, 2]"),
    "python sockets": ([sys.executable, "-c", SOCKETS], "hello"),
    "bash": (["bash", "-c", ARCHIVE], "f l p a b"),
    "node": (["node", "-e", NODE], "child 42"),
    "gcc": (["bash", "-c", C], "thread\nmain"),
    "java": (["bash", "-c", JAVA], "thread\nchild"),
    "git": (["bash", "-c", "git init -q r && cd r && git status --porcelain && git --version | cut -c1-3"], "git"),
}
NEEDS = {"gcc": "gcc", "java": "java", "node": "node", "git": "git"}


@pytest.mark.parametrize("program", ["jar", "jar-reported"])
@pytest.mark.parametrize("what", WORKS)
def test_it_works(what: str, program: str, programs: dict[str, str], tmp_path: Path) -> None:
    """The same output as ever, and nothing on stderr."""
    command, expected = WORKS[what]
    tool = shutil.which(NEEDS.get(what, command[0]))
    if tool is None:
        pytest.skip(f"{NEEDS.get(what, command[0])} is not installed")
    command = [shutil.which(command[0]) or command[0], *command[1:]]
    done = subprocess.run(
        [sys.executable, PROBE, json.dumps({"programs": [programs[program]], "execute": command})],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == (expected, "", 0)
