"""The share of the machine: each limit at its number, and the machine as good as before."""

from __future__ import annotations

import json
from itertools import permutations

import pytest
from jars import OpenJar, is_enforced, sh, shares_memory_only, told

from belljar.sandbox.record.result import Outcome

MB = 1 << 20
PLACES = ("/workspace", "/tmp", "/dev/shm")


class TestSpace:
    """fs.size_mb and fs.inodes hold for all that the code can write, together."""

    POLICY = {"fs": {"size_mb": 8}, "proc": {"mem_mb": 256}}

    @pytest.mark.parametrize(("first", "second"), list(permutations(PLACES, 2)))
    def test_what_is_used_in_one_place_is_gone_in_the_other(self, open_jar: OpenJar, first: str, second: str) -> None:
        """6 MB fit, and 6 more do not."""
        jar = open_jar(self.POLICY)
        result = sh(
            jar, f"head -c 6291456 /dev/zero > {first}/one && echo fits && head -c 6291456 /dev/zero > {second}/two"
        )
        if "/dev/shm" in (first, second) and shares_memory_only(jar):
            assert told(result) == "fits\n"
            return
        assert result.outcome == "failed"
        assert result.stdout == "fits\n"
        assert "No space left" in result.stderr

    def test_the_number_is_exact(self, open_jar: OpenJar) -> None:
        """All of it can be used, to within one percent, and not a byte more."""
        jar = open_jar(self.POLICY)
        sh(jar, "cat /dev/zero > full")
        assert 0.98 * 8 * MB <= jar.files.list()[0].size <= 8 * MB

    def test_what_is_removed_can_be_used_again(self, open_jar: OpenJar) -> None:
        """By the code, by the API, and by the end of a run."""
        jar = open_jar(self.POLICY)
        fill = "head -c 6291456 /dev/zero >"
        assert told(sh(jar, f"{fill} a && rm a && {fill} b && echo fits")) == "fits\n"
        jar.files.remove("b")
        assert told(sh(jar, f"{fill} /tmp/c && echo fits")) == "fits\n"
        assert told(sh(jar, f"{fill} /dev/shm/d && echo fits")) == "fits\n"

    FILLS = {"space": "cat /dev/zero > full", "files": "i=0; while : > f$i; do i=$((i+1)); done"}

    @pytest.mark.parametrize("script", FILLS.values(), ids=FILLS.keys())
    def test_code_that_fills_it_does_not_lock_itself_out(self, open_jar: OpenJar, script: str) -> None:
        """The next run starts, can clean up, and then writes again. Nothing of the API hangs."""
        jar = open_jar({"fs": {"size_mb": 2, "inodes": 64}, "proc": {"mem_mb": 256}})
        sh(jar, f"({script}) 2>/dev/null")
        assert told(sh(jar, "echo alive")) == "alive\n"
        assert told(jar.run("echo alive", language="bash")) == "alive\n"
        with pytest.raises(OSError, match="No space"):
            jar.files.write("more", b"x" * 3 * MB)
        write = "echo x > new"
        if jar.backend_name == "gvisor":  # there what is given back comes back within moments, not at once
            write = "for turn in $(seq 100); do echo x > new && break; sleep 0.1; done 2>/dev/null"
        assert told(sh(jar, f"rm -f /workspace/*; {write} && cat new")) == "x\n"

    @pytest.mark.parametrize("place", PLACES)
    def test_files_are_counted(self, open_jar: OpenJar, place: str) -> None:
        """fs.inodes files, to within a few of belljar's own, wherever they are."""
        jar = open_jar({"fs": {"inodes": 200}})
        if place == "/dev/shm" and shares_memory_only(jar):
            pytest.skip("/dev/shm is memory of this backend's own: proc.mem_mb holds there")
        result = sh(jar, f"i=0; while : > {place}/f$i; do i=$((i+1)); echo; done 2>/dev/null")
        assert 180 <= result.stdout.count("\n") <= 200

    def test_files_of_all_places_are_counted_together(self, open_jar: OpenJar) -> None:
        """Directories and links count as well."""
        jar = open_jar({"fs": {"inodes": 200}})
        loop = "while : > /tmp/f$i && mkdir /workspace/d$i && ln -s x /dev/shm/l$i; do i=$((i+1)); echo; done"
        each = 2 if shares_memory_only(jar) else 3
        assert 180 / each - 5 <= sh(jar, f"i=0; {loop} 2>/dev/null").stdout.count("\n") <= 200 / each + 1

    def test_a_copy_on_write_workspace_is_held_too(self, open_jar: OpenJar, project) -> None:  # type: ignore[no-untyped-def]
        """What the code writes over the host's files counts."""
        (project / "file").write_bytes(b"x" * MB)
        jar = open_jar(self.POLICY, workspace=project)
        result = sh(jar, "cat /dev/zero >> file")
        assert "No space left" in result.stderr
        assert (project / "file").stat().st_size == MB


class TestEachProcess:
    """proc.open_files and proc.file_size_mb."""

    def test_open_files_are_exact(self, open_jar: OpenJar) -> None:
        """Descriptors 0 to n-1 and no other."""
        code = """
import os
highest = 2
try:
    while True: highest = os.open("/dev/null", os.O_RDONLY)
except OSError as error: print(highest, error.strerror)
"""
        assert told(open_jar({"proc": {"open_files": 40}}).run(code)) == "39 Too many open files\n"

    def test_it_cannot_be_raised(self, open_jar: OpenJar) -> None:
        """The hard limit is the policy's too."""
        jar = open_jar({"proc": {"open_files": 40, "file_size_mb": 1}})
        assert (
            told(sh(jar, "ulimit -Hn; ulimit -n 41 2>/dev/null || echo no; ulimit -f 4096 2>/dev/null || echo no"))
            == "40\nno\nno\n"
        )

    def test_only_three_descriptors_are_inherited(self, open_jar: OpenJar) -> None:
        """Nothing of the host's is open in the jar."""
        assert told(sh(open_jar(), "cd /proc/self/fd && echo *")) == "0 1 2 3\n"

    @pytest.mark.parametrize("place", PLACES)
    def test_file_size_is_exact(self, open_jar: OpenJar, place: str) -> None:
        """A file grows to the number and not beyond."""
        script = f"head -c 3000000 /dev/zero > {place}/f; wc -c < {place}/f"
        result = sh(open_jar({"proc": {"file_size_mb": 1}}), script)
        assert result.stdout == f"{MB}\n"

    def test_no_core_is_written(self, open_jar: OpenJar) -> None:
        """A crash leaves nothing behind."""
        jar = open_jar()
        result = sh(jar, "ulimit -c unlimited 2>/dev/null; kill -SEGV $$")
        assert result.signal == "SIGSEGV"
        assert jar.files.list() == []


COUNT = """
import os, signal, threading
kind, done = {kind!r}, threading.Event()
count = 1
try:
    while count < 500:
        if kind == "processes":
            if os.fork() == 0: signal.pause()
        else: threading.Thread(target=done.wait, daemon=True).start()
        count += 1
except (OSError, RuntimeError): pass
print(count, flush=True)
os._exit(0)
"""


class TestProcesses:
    """proc.pids."""

    @pytest.mark.parametrize("pids", [1, 2, 16])
    @pytest.mark.parametrize("kind", ["processes", "threads"])
    def test_the_number_is_exact(self, open_jar: OpenJar, kind: str, pids: int) -> None:
        """As many as the policy says, the code itself among them; processes and threads alike."""
        assert told(open_jar({"proc": {"pids": pids}}).run(COUNT.format(kind=kind))) == f"{pids}\n"

    def test_each_run_has_its_own_number(self, open_jar: OpenJar) -> None:
        """Two at once do not share it."""
        jar = open_jar({"proc": {"pids": 8}})
        other = jar.stream(argv=["sh", "-c", "for i in 1 2 3 4 5 6; do sleep 600 & done; echo up; wait"])
        next(other)
        assert told(jar.run(COUNT.format(kind="processes"))) == "8\n"
        jar.kill()
        list(other)

    @pytest.mark.slow
    def test_a_fork_bomb_is_contained(self, open_jar: OpenJar) -> None:
        """It ends with its time, the denial names the rule, and the next run is like any other."""
        jar = open_jar({"proc": {"pids": 20, "timeout_ms": "2s"}})
        result = sh(jar, "b() { b | b & }; b; b; exec sleep 600")
        assert result.outcome in (Outcome.TIMEOUT, Outcome.FAILED)
        assert told(sh(jar, "echo fine")) == "fine\n"


BURN = """
import json, os, time
for _ in range({others}):
    if os.fork() == 0:
        while True: pass
start, used = time.monotonic(), os.times
while time.monotonic() - start < {seconds}: pass
print(json.dumps(time.monotonic() - start), flush=True)
os._exit(0)
"""


@pytest.mark.slow
class TestProcessorTime:
    """proc.cpu_quota, where the report says that it is enforced."""

    @pytest.mark.parametrize(("quota", "others"), [(0.25, 0), (0.25, 2)], ids=["one process", "three processes"])
    def test_the_tree_gets_its_share(self, open_jar: OpenJar, quota: float, others: int) -> None:
        """Processor time over wall time is the quota, not more; however many share it."""
        jar = open_jar({"proc": {"cpu_quota": quota, "timeout_ms": "300s"}})
        if not is_enforced(jar, "proc.cpu_quota"):
            pytest.skip("the report says that this host can't hold proc.cpu_quota")
        result = jar.run(BURN.format(others=others, seconds=1.5))
        wall = json.loads(told(result))
        assert result.usage.cpu_seconds / max(wall, result.duration) < quota * 1.5

    def test_without_a_low_quota_it_gets_more(self, open_jar: OpenJar) -> None:
        """The control: the same code uses more when it may. Others may want the processors too, but not always."""
        jar = open_jar({"proc": {"cpu_quota": 4, "timeout_ms": "300s"}})
        results = (jar.run(BURN.format(others=0, seconds=0.5)) for _attempt in range(30))
        assert any(result.ok and result.usage.cpu_seconds > 0.2 for result in results)


class TestMemory:
    """proc.mem_mb counts the tree."""

    def test_what_fits_fits(self, open_jar: OpenJar) -> None:
        """100 MB under a limit of 256."""
        assert (
            told(open_jar({"proc": {"mem_mb": 256}}).run("x = bytearray(100 << 20); print(len(x))")) == f"{100 << 20}\n"
        )

    def test_what_does_not_fit_ends_the_run(self, open_jar: OpenJar) -> None:
        """Touched memory, in steps."""
        result = open_jar({"proc": {"mem_mb": 64}}).run("x = []\nwhile True: x.append(bytearray(4 << 20))")
        assert result.outcome is Outcome.OOM

    @pytest.mark.slow
    def test_many_small_ones_together(self, open_jar: OpenJar) -> None:
        """Each child below the limit, all of them above it."""
        code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(os.urandom(1 << 20) * 30)
        time.sleep(600)
time.sleep(600)
"""
        result = open_jar({"proc": {"mem_mb": 128, "timeout_ms": "120s"}}).run(code)
        assert result.outcome is Outcome.OOM

    @pytest.mark.parametrize("place", PLACES)
    def test_files_in_memory_count(self, open_jar: OpenJar, place: str) -> None:
        """tmpfs is memory: it can't be used to go around the limit, where the report says that this holds."""
        jar = open_jar({"fs": {"size_mb": 400}, "proc": {"mem_mb": 64, "timeout_ms": "120s"}})
        if not is_enforced(jar, "proc.mem_mb"):
            pytest.skip("the report says that this host can't hold proc.mem_mb in full")
        result = sh(jar, f"head -c 200000000 /dev/zero > {place}/big; echo done; exec sleep 600")
        assert result.outcome is Outcome.OOM
        sh(jar, "rm -f /workspace/big")
        assert told(sh(jar, "echo next")) == "next\n"


class TestUsage:
    """What a run used, told in numbers that can be true."""

    def test_processor_time(self, open_jar: OpenJar) -> None:
        """Burned time is counted, also that of children."""
        code = (
            "import os, time\nif os.fork() == 0:\n    while time.process_time() < 0.3: pass\n    os._exit(0)\nos.wait()"
        )
        usage = open_jar().run(code).usage
        assert 0.3 <= usage.cpu_seconds < 30

    def test_memory(self, open_jar: OpenJar) -> None:
        """The peak, not what was left at the end."""
        result = open_jar({"proc": {"mem_mb": 512}}).run(
            "x = bytearray(os.urandom(1) * (80 << 20)) if (os := __import__('os')) else 0; del x; input()", stdin="\n"
        )
        assert result.ok
        peak = result.usage.peak_memory_bytes
        assert peak is not None
        assert 80 * MB <= peak <= 512 * MB

    def test_processes(self, open_jar: OpenJar) -> None:
        """The code's own, without belljar's."""
        jar = open_jar()
        assert sh(jar, "exec true").usage.processes in (None, 1)
        many = jar.run(
            "import os, time\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(0.2); os._exit(0)\n"
            "for _ in range(5): os.wait()"
        )
        assert many.usage.processes in (None, 6)

    def test_bytes(self, open_jar: OpenJar) -> None:
        """Read and written, where the host can tell."""
        usage = sh(open_jar(), "head -c 3000000 /dev/zero > f; cat f f > /dev/null").usage
        if usage.bytes_written is not None:
            assert 3_000_000 <= usage.bytes_written < 40_000_000
        if usage.bytes_read is not None:
            assert 6_000_000 <= usage.bytes_read < 40_000_000

    def test_a_small_run_is_small(self, open_jar: OpenJar) -> None:
        """Numbers are of this run alone."""
        jar = open_jar()
        jar.run("x = bytearray(80 << 20)\nfor _ in range(10**6): pass")
        usage = sh(jar, "true").usage
        assert usage.cpu_seconds < 5
        assert usage.peak_memory_bytes is None or usage.peak_memory_bytes < 60 * MB
