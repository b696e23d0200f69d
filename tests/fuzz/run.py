"""Fuzzes the egress proxy's parsers and decisions: `python tests/fuzz/run.py [--seconds 10] [TARGET …]`.

With atheris, which follows what the code does with an input; what it learnt is kept in .cache/fuzz. Where atheris has
no wheel for this Python, inputs are mutated at random from the same seeds, which finds less: the output says which it
was.

An input that fails is written to .cache/fuzz as well, and `--replay FILE TARGET` runs it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT = HERE.parent.parent / ".cache/fuzz"
ONE_INPUT_SECONDS = 10
"""Longer than any input may take, on a busy machine."""
LONGEST = 4096


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def load(*, instrumented: bool) -> Any:
    """The targets; instrumented, the proxy's own modules tell atheris where they went."""
    sys.path.insert(0, str(HERE))
    if not instrumented:
        return importlib.import_module("fuzz_targets")
    import atheris  # type: ignore[import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["belljar.egress"]):
        return importlib.import_module("fuzz_targets")


def by_atheris(name: str, seconds: int, kept: Path, seed_number: int) -> None:
    """Does not return: libFuzzer ends the process, with a code other than 0 when something was found."""
    import atheris

    targets = load(instrumented=True)
    for seed in targets.SEEDS[name]:
        (kept / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    words = kept.parent / "tokens"
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in token) + '"\n' for token in targets.TOKENS]
    words.write_text("".join(lines))
    options = {
        "max_total_time": seconds,
        "seed": seed_number,
        "timeout": ONE_INPUT_SECONDS,
        "max_len": LONGEST,
        "rss_limit_mb": 2048,
    }
    arguments = [f"-{key}={value}" for key, value in options.items()]
    arguments += [f"-dict={words}", f"-artifact_prefix={kept.parent}/{name}-", "-verbosity=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *arguments, str(kept)], getattr(targets, name))
    atheris.Fuzz()


def by_chance(name: str, seconds: int, kept: Path, seed_number: int) -> None:
    """Mutate the seeds at random, and see."""
    targets = load(instrumented=False)
    target: Callable[[bytes], None] = getattr(targets, name)
    chance, count = random.Random(seed_number or None), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutated(chance, chance.choice(targets.SEEDS[name]), targets.SEEDS[name], targets.TOKENS)
        signal.alarm(ONE_INPUT_SECONDS)
        try:
            target(data)
        except BaseException:
            path = kept.parent / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"failed with {path}")
            raise
        count += 1
    print(f"{name}: {count} inputs")


def mutated(chance: random.Random, data: bytes, seeds: list[bytes], tokens: tuple[bytes, ...]) -> bytes:
    """A few bytes changed, put in, taken out or taken from elsewhere."""
    out = bytearray(data)
    for _change in range(chance.choice((0, 1, 1, 2, 3, 5, 8))):
        at = chance.randrange(len(out) + 1)
        end = min(len(out), at + chance.choice((1, 1, 2, 4, 16)))
        what = chance.randrange(5)
        if what == 0:
            out[at:end] = chance.randbytes(end - at)
        elif what == 1:
            out[at:at] = chance.choice(tokens)
        elif what == 2:
            out[at:end] = b""
        elif what == 3:
            out[at:end] = chance.choice(tokens)
        else:
            other = chance.choice(seeds)
            out[at:at] = other[chance.randrange(len(other)) :]
    return bytes(out[:LONGEST])


def fuzz_one(name: str, seconds: int, into: Path, seed_number: int) -> None:
    kept = into / name
    kept.mkdir(parents=True, exist_ok=True)
    (by_atheris if has_atheris() else by_chance)(name, seconds, kept, seed_number)


def one_after_the_other(names: list[str], seconds: int) -> int:
    """Each in a process of its own."""
    how = "atheris" if has_atheris() else "mutation at random (atheris is not installed)"
    print(f"fuzzing by {how}, {seconds} s each", flush=True)
    failed = []
    for name in names:
        command = [sys.executable, str(HERE / "run.py"), "--here", "--seconds", str(seconds), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(("INFO:", "WARNING:"))]
        runs = [line.split()[-1] for line in said if "number_of_executed_units" in line]
        print(
            f"  {name:<16}{'ok' if not done.returncode else 'FAILED'}{f', {runs[0]} inputs' if runs else ''}",
            flush=True,
        )
        if done.returncode:
            failed.append(name)
            print("\n".join(said)[-5000:])
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", help="which to fuzz (default: all)")
    parser.add_argument("--seconds", type=int, default=10, help="how long each (default: 10)")
    parser.add_argument("--here", action="store_true", help="in this process: one target only")
    parser.add_argument(
        "--kept", metavar="DIRECTORY", type=Path, default=KEPT, help="with --here: instead of .cache/fuzz"
    )
    parser.add_argument("--seed", type=int, default=0, help="with --here: the same inputs each time (default: others)")
    parser.add_argument("--replay", metavar="FILE", type=Path, help="run one input")
    options = parser.parse_args()
    if options.here:
        fuzz_one(options.target[0], options.seconds, options.kept, options.seed)
        return 0
    targets = load(instrumented=False)
    unknown = set(options.target) - set(targets.TARGETS)
    if unknown or (options.replay and len(options.target) != 1):
        parser.error(f"targets are {', '.join(targets.TARGETS)}")
    if options.replay:
        targets.TARGETS[options.target[0]](options.replay.read_bytes())
        return 0
    return one_after_the_other(options.target or list(targets.TARGETS), options.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
