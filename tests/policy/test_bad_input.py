"""What a policy file can do wrong. Each row: the file, and every line that its author hears, word for word."""

# ruff: noqa: E501, ISC004 (a row shows a message as its reader sees it)

from __future__ import annotations

import os
import random
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PolicyError, UsageError
from belljar.policy.builtin import BUILTIN_NAMES
from belljar.policy.load import resolve as resolve_module
from belljar.policy.load.resolve import from_mapping, resolve

LIMITS = "proc: {mem_mb: -5, pids: 0, uid: 0, timeout_ms: -1s, cpu_quota: -0.5}"
TOLD = {
    "not YAML": ("fs: [unclosed\nnet: }", ["2:4: not YAML: did not find expected ',' or ']'"]),
    "a tab": ("fs:\n\tmounts: []", ["2:1: not YAML: found character that cannot start any token"]),
    "a YAML bomb": ("a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]", ["1:4: wanted plain data, found the anchor &a"]),
    "an alias": ("fs: *a", ["1:5: wanted a value, found the alias *a: a policy has no aliases"]),
    "duplicate keys": (
        "proc:\n  mem_mb: 1\n  pids: 2\n  mem_mb: 3",
        ["4:3: the key 'mem_mb' is written twice, first in line 2"],
    ),
    "wrong types, all at once": (
        "proc: {mem_mb: [1], pids: many, cpu_quota: true}\nnet: {enabled: yes}\nfs: 3",
        [
            "1:16: proc.mem_mb: wanted a size from 1 MB to 16 TB, in MB or like '512m', found a list",
            "1:27: proc.pids: wanted a whole number from 1 to 4194304, found 'many'",
            "1:44: proc.cpu_quota: wanted a number from 0.01 to 1024, found true",
            "2:16: net.enabled: wanted true or false, found 'yes' (did you mean 'true'?)",
            "3:5: fs: wanted a mapping of mounts, deny_globs, size_mb, inodes, snapshot, workdir, found 3",
        ],
    ),
    "unknown keys": (
        "proc: {mem_mbs: 1}\nnett: {}\nmem_mb: 4\nzebra: 1",
        [
            "1:8: unknown key 'mem_mbs' in proc (did you mean 'mem_mb'?)",
            "2:1: unknown key 'nett' (did you mean 'net'?)",
            "3:1: unknown key 'mem_mb' (did you mean 'proc.mem_mb'?)",
            "4:1: unknown key 'zebra'",
        ],
    ),
    "negative limits": (
        LIMITS,
        [
            "1:16: proc.mem_mb: wanted a size from 1 MB to 16 TB, in MB or like '512m', found -5",
            "1:26: proc.pids: wanted a whole number from 1 to 4194304, found 0",
            "1:34: proc.uid: wanted a whole number from 1 to 2147483647, found 0",
            "1:49: proc.timeout_ms: wanted a time from 1 ms to 168 h, in ms or like '30s', found '-1s'",
            "1:65: proc.cpu_quota: wanted a number from 0.01 to 1024, found -0.5",
        ],
    ),
    "a uid that is too large": (
        "proc: {uid: 2147483648}",
        ["1:13: proc.uid: wanted a whole number from 1 to 2147483647, found 2147483648"],
    ),
    "mounts that do not exist": (
        "fs:\n  mounts:\n  - {path: /data, source: ./nowhere}\n  - {path: /more, source: /no/where}",
        [
            "3:27: fs.mounts[0].source: wanted a directory that exists, found './nowhere', which does not",
            "4:27: fs.mounts[1].source: wanted a directory that exists, found '/no/where', which does not",
        ],
    ),
    "a mount that is a file": (
        "fs: {mounts: [{path: /data, source: p.yaml}]}",
        ["1:37: fs.mounts[0].source: wanted a directory, found 'p.yaml', which is not one"],
    ),
    "a relative path that escapes": (
        "fs: {mounts: [{path: /data, source: ../..}]}",
        ["1:37: fs.mounts[0].source: wanted an absolute path, or one beneath HERE, found '../..', which leaves it"],
    ),
    "a home that nobody expands": (
        "fs: {mounts: [{path: /data, source: ~/x}]}",
        ["1:37: fs.mounts[0].source: wanted a path without '~', found '~/x'"],
    ),
    "the host itself": (
        "fs: {mounts: [{path: /a, source: /}, {path: /b, source: /proc/self/root}]}",
        [
            "1:34: fs.mounts[0].source: wanted a directory of files, found /, which is the host itself",
            "1:57: fs.mounts[1].source: wanted a directory of files, found /, which is the host itself",
        ],
    ),
    "paths in the jar": (
        "fs:\n  mounts:\n  - {path: data}\n  - {path: /a/../b}\n  - {path: /proc}\n  - {path: /}\n  - {path: //etc/x}\n"
        "  - {source: .}\n  - {path: /q, sauce: .}\n  - {path: /c, cow: true}",
        [
            "3:12: fs.mounts[0].path: wanted an absolute path in the jar, found 'data'",
            "4:12: fs.mounts[1].path: wanted a path without '..', found '/a/../b'",
            "5:12: fs.mounts[2].path: wanted a directory of its own, such as /data, found /proc: /proc is the jar's own",
            "6:12: fs.mounts[3].path: wanted a directory of its own, such as /data, found /: / is the jar's own",
            "7:12: fs.mounts[4].path: wanted a directory of its own, such as /data, found /etc/x: /etc is the jar's own",
            "8:5: fs.mounts[5]: wanted 'path', found 'source'",
            "9:16: unknown key 'sauce' in fs.mounts[6] (did you mean 'source'?)",
            "10:5: fs.mounts[7]: wanted 'cow' only together with 'rw: true' and a source",
        ],
    ),
    "a mount twice": (
        "fs:\n  mounts:\n  - {path: /a}\n  - {path: /a/}",
        ["4:5: fs.mounts: /a is written twice, first in line 3"],
    ),
    "a workdir that is nowhere": (
        "fs: {workdir: /data}",
        ["1:15: fs.workdir: wanted a directory in /workspace, /tmp, found '/data'"],
    ),
    "globs that can't be parsed": (
        "fs: {deny_globs: ['[a', '{a', '', '**x', 3]}",
        [
            "1:19: fs.deny_globs[0]: wanted a ']' after '[', in '[a'",
            "1:25: fs.deny_globs[1]: wanted a '}' after '{', in '{a'",
            "1:31: fs.deny_globs[2]: wanted a pattern, found nothing",
            "1:35: fs.deny_globs[3]: wanted '**' alone between slashes, found '**x', in '**x'",
            "1:42: fs.deny_globs[4]: wanted a pattern in quotes, found 3",
        ],
    ),
    "taking back what is not there": (
        "fs: {deny_globs: ['!**/.enw']}",
        ["1:19: fs.deny_globs: wanted an inherited pattern to take back, found '**/.enw' (did you mean '**/.env'?)"],
    ),
    "a URL in the place of a host": (
        "net: {allowlist: ['https://Example.com/V1/x']}",
        [
            "1:19: net.allowlist[0]: wanted a host without its scheme, found 'https://Example.com/V1/x': "
            "write {host: example.com, paths: ['/V1/x']}"
        ],
    ),
    "hosts": (
        "net:\n  allowlist:\n  - http://a\n  - a/b\n  - a:1\n  - '*.'\n  - -x\n  - {host: a.com, ports: [], rate: 5, paths: [x]}\n"
        "  - {ports: [1]}\n  - 4",
        [
            "3:5: net.allowlist[0]: wanted a host without its scheme, found 'http://a': write a",
            "4:5: net.allowlist[1]: wanted a host alone, found 'a/b': write its paths under 'paths'",
            "5:5: net.allowlist[2]: wanted a host without its port, found 'a:1': write {host: …, ports: […]}",
            "6:5: net.allowlist[3]: wanted a host such as example.com or *.example.com, found '*.'",
            "7:5: net.allowlist[4]: wanted a host such as example.com or *.example.com, found '-x'",
            "8:26: net.allowlist[5].ports: wanted at least one item, found an empty list: leave the key out instead",
            "8:36: net.allowlist[5].rate: wanted a rate such as 10/s, found 5",
            "8:47: net.allowlist[5].paths[0]: wanted a path that starts with '/', without '..', found 'x'",
            "9:5: net.allowlist[6]: wanted 'host', found 'ports'",
            "10:5: net.allowlist[7]: wanted a mapping of host, ports, methods, paths, query, credential, rate, addresses, budget_mb, get_body, sign, foreign_credentials, found 4",
        ],
    ),
    "more hosts": (
        "net:\n  allowlist:\n  - '127.1'\n  - '::ffff:1.2.3.4'\n  - host.belljar.internal\n  - {host: a, addresses: [b, '1.2.3.4:0']}\n"
        "  - {host: a, paths: ['/a**', '/{a}', '/a?b'], query: [], sign: 3, budget_mb: 0}\n  - {host: a, credential: none}\n"
        "  denylist:\n  - {hosts: a}\n  - {host: a, rate: 1/s}",
        [
            "3:5: net.allowlist[0]: wanted a name, or an address as four numbers, found '127.1'",
            "4:5: net.allowlist[1]: wanted an address that is not mapped, found '::ffff:1.2.3.4': write 1.2.3.4",
            "5:5: net.allowlist[2]: wanted a host, found 'host.belljar.internal', which is this one: write its ports in net.host_ports",
            "6:27: net.allowlist[3].addresses[0]: wanted an address such as 10.1.2.3, 10.1.2.3:8443 or '[::1]:8443', found 'b'",
            "6:30: net.allowlist[3].addresses[1]: wanted an address such as 10.1.2.3, 10.1.2.3:8443 or '[::1]:8443', found '1.2.3.4:0'",
            "7:23: net.allowlist[4].paths[0]: wanted '**' alone between slashes, found '/a**'",
            "7:31: net.allowlist[4].paths[1]: wanted a path in which '*' and '**' are all that is special, found '/{a}'",
            "7:39: net.allowlist[4].paths[2]: wanted a path as it is sent, percent-encoded, found '/a?b'",
            "7:55: net.allowlist[4].query: wanted at least one item, found an empty list: leave the key out instead",
            "7:65: net.allowlist[4].sign: wanted the name of a credential, found 3",
            "7:79: net.allowlist[4].budget_mb: wanted a size from 1 byte to 1 TB, in MB or like '512m', found 0",
            "10:5: net.denylist[0]: wanted 'host', found 'hosts'",
            "10:6: unknown key 'hosts' in net.denylist[0] (did you mean 'host'?)",
            "11:15: unknown key 'rate' in net.denylist[1]",
        ],
    ),
    "this host by a name of the jar": (
        "net:\n  allowlist:\n  - localhost\n  - {host: app.localhost, ports: [3000]}",
        [
            "3:5: net.allowlist[0]: wanted a host, found 'localhost', which in a jar is the jar itself: write ports of this host in net.host_ports, the code reaches them as host.belljar.internal",
            "4:12: net.allowlist[1].host: wanted a host, found 'app.localhost', which in a jar is the jar itself: write ports of this host in net.host_ports, the code reaches them as host.belljar.internal",
        ],
    ),
    "the rest of the network": (
        "net: {allow_builtin: [openai-file], host_ports: [0], publish: ['1:2:3', true], strip_headers: [Host, 'a b'],\n"
        "  ca_file: ./none.pem, canary_files: [a], max_names: -1}",
        [
            f"1:23: net.allow_builtin[0]: wanted one of {', '.join(BUILTIN_NAMES)}, "
            "found 'openai-file' (did you mean 'openai-files'?)",
            "1:50: net.host_ports[0]: wanted a whole number from 1 to 65535, found 0",
            "1:64: net.publish[0]: wanted a port such as 8000, or two such as '18000:8000', found '1:2:3'",
            "1:73: net.publish[1]: wanted a port such as 8000, or two such as '18000:8000', found true",
            "1:96: net.strip_headers[0]: wanted a header that is not part of how a request is framed, found 'Host'",
            "1:102: net.strip_headers[1]: wanted the name of a header, found 'a b'",
            "2:12: net.ca_file: wanted a file that exists, found './none.pem'",
            "2:39: net.canary_files[0]: wanted an absolute path in the jar, found 'a'",
            "2:54: net.max_names: wanted a whole number from 0 to 65536, found -1",
        ],
    ),
    "credentials": (
        "credentials:\n  a b: {from: env:A}\n  b: {}\n  c: {from: sk-secret-secret}\n  d: {from: env:D, query: k, header: K}\n"
        "  e: {from: env:E, algorithm: ed25519}\n  f: {from: env:F, algorithm: rsa, key_id: k}\n  g: 3\n"
        "  h: {from: env:H, format: x, placeholder: short, heder: A}\n  i: {command: []}\n"
        "  j: {from: env:J, algorithm: ed25519, key_id: k, header: A}",
        [
            "2:3: credentials.a b: wanted a name of letters, digits, '.', '_' and '-'",
            "3:3: credentials.b: wanted 'from' or 'command', to say where the secret is, and not both",
            "4:13: credentials.c.from: wanted env:NAME, file:PATH or keyring:SERVICE/USER, found something else",
            "5:3: credentials.d: wanted a header (with its format) or a query key, found both",
            "6:3: credentials.e: wanted 'algorithm' and 'key_id' together",
            "7:31: credentials.f.algorithm: wanted one of ed25519, hmac-sha256, found 'rsa'",
            "8:3: credentials.g: wanted a mapping of from, command, header, format, query, placeholder, env, hosts, methods, paths, "
            "algorithm, key_id, on_foreign_credential, reflects, found 3",
            "9:28: credentials.h.format: wanted a text with one {} or {base64} in it, found 'x'",
            "9:44: credentials.h.placeholder: wanted a text of 8 to 200 letters, digits and ._~+/=-, found 'short'",
            "9:51: unknown key 'heder' in credentials.h (did you mean 'header'?)",
            "10:16: credentials.i.command: wanted at least one item, found an empty list: leave the key out instead",
            "11:3: credentials.j: wanted a key that signs and is never sent ('algorithm'), found 'header' too",
        ],
    ),
    "credentials that rules name": (
        "net:\n  allowlist:\n  - {host: a, credential: tokn}\n  - {host: b, sign: token}\n  - {host: c, credential: key}\n"
        "credentials:\n  token: {from: env:A, env: LANG}\n  key: {from: env:K, algorithm: ed25519, key_id: k}\n"
        "  one: {from: env:A, placeholder: the-same-one}\n  two: {from: env:A, placeholder: the-same-one}\n"
        "env: {set: {LANG: C}}",
        [
            "3:5: net.allowlist[0].credential: wanted a name of 'credentials', found 'tokn' (did you mean 'token'?)",
            "4:5: net.allowlist[1].sign: wanted a credential with an 'algorithm', found 'token'",
            "5:5: net.allowlist[2].credential: wanted one without an 'algorithm': write 'sign', found 'key'",
            "7:10: credentials.token.env: wanted a variable that env.set does not have, found 'LANG' (p.yaml:11:19)",
            "10:8: credentials.two.placeholder: wanted another than that of 'one', found 'the-same-one'",
        ],
    ),
    "canaries and ports that can't be": (
        "fs: {mounts: [{path: /workspace, source: ., rw: false}]}\n"
        "net: {canary_files: [/etc/x, /workspace/x, /workspace], publish: [80, '80:81']}",
        [
            "2:22: net.canary_files: wanted a file beneath nothing: no mount is writable, found '/etc/x'",
            "2:30: net.canary_files: wanted a file beneath nothing: no mount is writable, found '/workspace/x'",
            "2:44: net.canary_files: wanted a file beneath nothing: no mount is writable, found '/workspace'",
            "2:71: net.publish: wanted each port of the host once, found 80 twice (p.yaml:2:67)",
        ],
    ),
    "an environment": (
        'env: {set: {1X: a, B: [1], C: , D: "\\0"}, pass: [a b, 3]}',
        [
            "1:13: env.set: wanted the name of a variable, found '1X'",
            "1:20: env.set: wanted text, found a list",
            "1:28: env.set: wanted text, found nothing",
            "1:33: env.set: wanted text, found '\\x00'",
            "1:50: env.pass[0]: wanted the name of a variable, found 'a b'",
            "1:55: env.pass[1]: wanted the name of a variable, found 3",
        ],
    ),
    "a backend that nobody has": (
        "backend: buublewrap\non_degraded: [proc.memory, fs.size_mb]",
        [
            "1:10: backend: wanted one of auto, bubblewrap, landlock, seatbelt, docker, podman, gvisor, unconfined, "
            "found 'buublewrap' (did you mean 'bubblewrap'?)",
            "2:15: on_degraded[0]: wanted a clause such as proc.mem_mb, found 'proc.memory' (did you mean 'proc.mem_mb'?)",
        ],
    ),
    "another version": ("version: 2", ["1:10: version: wanted 1, found 2"]),
    "a list": ("- 1", ["1:1: wanted a mapping of keys such as 'proc', found a list"]),
    "a word": ("hello", ["1:1: wanted a mapping of keys such as 'proc', found 'hello'"]),
    "a tag": (
        "fs: !!python/object/apply:os.system [x]",
        ["1:5: wanted plain data, found the tag 'tag:yaml.org,2002:python/object/apply:os.system'"],
    ),
    "a merge key": ("<<: {proc: {}}", ["1:1: wanted a key, found a merge key: use 'extends'"]),
    "two documents": ("version: 1\n---\nversion: 1", ["2:1: wanted one document, found a second one"]),
    "a list as a key": ("? [a]\n: b", ["1:3: wanted a name as a key, found a list"]),
    "too deep": ("[" * 100_000, ["1:13: wanted at most 12 levels, found more"]),
    "a NUL": ("a: \0b", ["1:4: not YAML: control characters are not allowed"]),
    "infinity": (
        "proc: {cpu_quota: 1e999}",
        ["1:19: proc.cpu_quota: wanted a number from 0.01 to 1024, found '1e999'"],
    ),
    "a venv that is none": (
        "python: {venv: ., interpreter: ./p.yaml}",
        [
            "1:16: python.venv: wanted a virtual environment, found '.', which has no pyvenv.cfg",
            "1:32: python.interpreter: wanted a program, found './p.yaml', which can't be executed",
        ],
    ),
    "nothing inherited, nothing said": (
        "extends: none\nfs: {mounts: []}\nproc: {uid: 1, cpu_quota: 1, mem_mb: 1, timeout_ms: 1, pids: 1, open_files: 8}",
        [
            "1:1: fs.size_mb: wanted a value, found nothing: 'extends: none' inherits nothing",
            "1:1: fs.inodes: wanted a value, found nothing: 'extends: none' inherits nothing",
            "1:1: proc.file_size_mb: wanted a value, found nothing: 'extends: none' inherits nothing",
            "1:1: proc.output_mb: wanted a value, found nothing: 'extends: none' inherits nothing",
        ],
    ),
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("p.yaml")


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="the words of a syntax error are libyaml's")
@pytest.mark.parametrize(("text", "told"), TOLD.values(), ids=TOLD)
def test_told(file: Path, text: str, told: list[str]) -> None:
    """Every problem is told, with its place, what was wanted and what was found."""
    file.write_text(text)
    with pytest.raises(PolicyError) as caught:
        resolve(file, managed=None)
    assert list(caught.value.problems) == [f"p.yaml:{line.replace('HERE', os.getcwd())}" for line in told]
    assert all(line in str(caught.value) for line in caught.value.problems)


JUNK = {
    "10 MB": (random.Random(0).randbytes(10 << 20), "wanted at most 262144 bytes, found 10485760"),
    "200 kB": (b"\xff" + random.Random(0).randbytes(200_000), "1:1: wanted UTF-8 text, found the byte 0xff"),
    "UTF-16": ("fs: {}".encode("utf-16"), "wanted UTF-8 text"),
    "deep mappings": (b"{a: " * 50_000, "wanted at most 12 levels"),
    "deep blocks": (b"".join(b" " * depth + b"a:\n" for depth in range(600)), "wanted at most 12 levels"),
    "dashes": (b"- " * 100_000, "wanted at most 12 levels"),
    "question marks": (b"? " * 100_000, "wanted a name as a key"),
    "many duplicates": (b"x: 1\n" * 40_000, "written twice"),
    "many values": (b"a: [" + b"1," * 100_000 + b"]", "wanted at most 5000 values"),
    "many globs": (b"fs: {deny_globs: [" + b"'['," * 4_000 + b"]}", "wanted a ']' after '['"),
    "a long number": (b"proc: {pids: " + b"9" * 100_000 + b"}", "wanted a whole number"),
    "a long key": (b"? " + b"a" * 100_000 + b"\n: 1", "unknown key"),
    "a long quote": (b"'" * 99_999, "not YAML"),
    "brackets": (b"[]" * 100_000, "not YAML"),
    "anchors": (b"".join(b"a%d: &a%d x\n" % (at, at) for at in range(9000)), "found the anchor"),
    "a long host": (b"net: {allowlist: [" + b"a." * 50_000 + b"]}", "wanted a host"),
    "colons": (b"net: {allowlist: ['" + b":" * 100_000 + b"']}", "wanted a host"),
    "a directive": (b"%YAML 9.9\n---\na: 1", "not YAML"),
    "a half character": (b'a: "\\ud800"', "not YAML"),
}


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize(("content", "told"), JUNK.values(), ids=JUNK)
def test_junk_is_refused_at_once(
    file: Path, content: bytes, told: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Junk of any kind is a `PolicyError` in well under a second, with libyaml and without."""
    if loader == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    file.write_bytes(content)
    start = time.process_time()
    with pytest.raises(PolicyError) as caught:
        resolve(file, managed=None)
    assert time.process_time() - start < 1
    if loader == "CSafeLoader":
        assert told in str(caught.value)
    assert len(str(caught.value)) < 20_000


def test_what_is_no_file(file: Path) -> None:
    """A missing file, a directory, a pipe that nobody writes and a device are all told apart from a policy."""
    Path("directory.yaml").mkdir()
    os.mkfifo("pipe.yaml")
    Path("zero.yaml").symlink_to("/dev/zero")
    told = {
        "none.yaml": "none.yaml: can't be read: No such file or directory",
        "directory.yaml": "directory.yaml: wanted a regular file, found a directory",
        "pipe.yaml": "pipe.yaml: wanted a regular file, found something else",
        "zero.yaml": "zero.yaml: wanted a regular file, found something else",
        "a\0b.yaml": "wanted a preset or the path of a file, found 'a\\x00b.yaml'",
        "aicod": "wanted a preset (strict, production, aicode, testing, webscraping, docker, development, unrestricted) "
        "or the path of a file, found 'aicod' (did you mean 'aicode'?)",
    }
    heard = {}
    for name in told:
        with pytest.raises(PolicyError) as caught:
            resolve(name, managed=None)
        heard[name] = str(caught.value)
    assert heard == told


EXTENDS = {
    "a cycle": (
        "extends: ./p.yaml",
        "p.yaml:1:10: extends: wanted a file that is not extended already, found './p.yaml': a cycle",
    ),
    "a preset that is none": ("extends: strickt", "(did you mean 'strict'?)"),
    "a missing file": ("extends: ./q.yaml", "p.yaml:1:10: extends: ./q.yaml: can't be read: No such file or directory"),
}


@pytest.mark.parametrize(("text", "told"), EXTENDS.values(), ids=EXTENDS)
def test_extends(file: Path, text: str, told: str) -> None:
    """What `extends` can't follow is told at the line that says it."""
    file.write_text(text)
    with pytest.raises(PolicyError) as caught:
        resolve(file, managed=None)
    assert told in str(caught.value)


def test_extends_is_bounded(file: Path) -> None:
    """A chain longer than anyone needs is refused, whatever it ends in."""
    for at in range(12):
        Path(f"p{at}.yaml").write_text(f"extends: p{at + 1}.yaml")
    with pytest.raises(PolicyError, match=f"wanted at most {resolve_module.DEEPEST_EXTENDS} files, found more"):
        resolve("p0.yaml", managed=None)


SET = {
    "no value": ("proc.mem_mb", "--set: wanted key=value, found 'proc.mem_mb'"),
    "unknown": ("proc.mem=1", "--set: unknown key 'proc.mem' (did you mean 'proc.mem_mb'?)"),
    "its section forgotten": ("mem_mb=1", "--set: unknown key 'mem_mb' (did you mean 'proc.mem_mb'?)"),
    "wrong": ("proc.pids=x", "--set: proc.pids: wanted a whole number from 1 to 4194304, found 'x'"),
    "not YAML": ("net.allowlist=[a", "--set: not YAML: did not find expected ',' or ']'"),
    "extends": ("extends=strict", "--set: unknown key 'extends'"),
    "an item": ("fs.mounts[].path=/a", "--set: unknown key 'fs.mounts[].path' (did you mean 'fs.mounts'?)"),
}


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="the words of a syntax error are libyaml's")
@pytest.mark.parametrize(("text", "told"), SET.values(), ids=SET)
def test_set(text: str, told: str) -> None:
    """An override is checked like a file, and names itself as the place."""
    with pytest.raises(PolicyError) as caught:
        resolve(overrides=[text], managed=None)
    assert str(caught.value) == told


def test_a_bare_timeout_is_refused() -> None:
    """`--timeout 5` would be five milliseconds in the file's unit, which nobody who types it means."""
    with pytest.raises(
        PolicyError, match=r"--timeout: wanted a time with its unit, found '5000': write 5000s or 5000ms"
    ):
        resolve(timeout="5000", managed=None)


@pytest.mark.parametrize("value", [0, -1, True, float("nan"), float("inf"), [], b"5s", timedelta(0)])
def test_a_timeout_that_is_no_time(value: Any) -> None:
    with pytest.raises(UsageError, match=r"wanted seconds, more than 0"):
        resolve(timeout=value, managed=None)


def test_a_relative_path_that_leaves_the_directory() -> None:
    """The message shows the whole path and says what else could be written."""
    told = rf"--set: python\.venv: wanted an absolute path, or one beneath {re.escape(os.getcwd())}, found '\.\./x'"
    with pytest.raises(PolicyError, match=told):
        resolve(overrides=["python.venv=../x"], managed=None)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=10,
)
sections = st.sampled_from(
    ["fs", "net", "proc", "env", "python", "logging", "version", "backend", "fallback", "on_degraded"]
)
keys = st.sampled_from(
    ["mounts", "deny_globs", "size_mb", "allowlist", "pids", "timeout_ms", "set", "pass", "venv", "uid"]
)


@given(st.dictionaries(sections, plain | st.dictionaries(keys, plain, max_size=4), max_size=4) | plain)
def test_any_mapping_is_a_policy_or_a_policy_error(mapping: object) -> None:
    """Nothing that a program can pass makes any other exception."""
    try:
        from_mapping(mapping)  # type: ignore[arg-type]
    except PolicyError:
        pass


@given(st.binary(max_size=60) | st.text("{}[]:,&*!|>'\"%@#-? \n\tab1.~<", max_size=40).map(str.encode))
def test_any_bytes_are_a_policy_or_a_policy_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Nothing that a file can hold makes any other exception."""
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    try:
        resolve(file, managed=None)
    except PolicyError:
        pass


def test_a_mapping_that_holds_itself() -> None:
    """A cycle in the caller's data ends at the depth that a policy may have."""
    loop: dict[str, object] = {}
    loop["fs"] = loop
    with pytest.raises(PolicyError, match="wanted at most 12 levels"):
        from_mapping(loop)
    with pytest.raises(PolicyError, match="64 bits"):
        from_mapping({"proc": {"pids": 10**5000}})
