"""All modules of a run from one file: to find and open a module takes ten times as long as to run most of them.

The file lies in belljar's state directory, one for each package and interpreter. It holds bytecode of the sources,
belljar's and the standard library's, and is not used for a source that has changed since. It is executed outside of any
jar, so it does not lie in the package: a package may be in a project's virtual environment, which code in a jar works
on. The file and its directory must belong to the user and be writable by nobody else. A damaged file is not used.
Without it everything is the same, and takes longer.
"""

from __future__ import annotations

import _frozen_importlib_external as bootstrap
import _imp
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

    _Entry = tuple[int, str, bool, int, int, int, int, bytes]
    """The source, beneath which root; is it a package, the source's time and size; place and digest of its bytecode."""

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOTS = (PACKAGE, os.path.dirname(os.__file__))
"""Where sources lie: belljar's, and those of the Python that runs it; what another has made is not for this one."""
_OPTIMISED = f".opt-{sys.flags.optimize}" if sys.flags.optimize else ""
_CACHED = f".{sys.implementation.cache_tag}{_OPTIMISED}.pyc"
_MARK = b"belljar 3\n" + bootstrap.MAGIC_NUMBER
_LENGTH = 8
_MOST_BYTES = 64 << 20
_MOST_KEPT = 8
"""Files in the directory; the oldest go."""
_LAUNCHER = "belljar.backends.bubblewrap.launcher.launcher"
_ALSO = ("cli.run.outcome", "limits.cgroup_v1", "limits.cgroup_v2", "policy.load.dangers", "policy.load.options")
"""With all of belljar's that they import; else it is what the run imported that made the file, and its launcher."""


def directory() -> str:
    """The directory of such files."""
    from belljar.state import state_directory

    return f"{state_directory()}/bytecode"


def path(kind: str = "") -> str:
    """Where the file lies, for this package, this interpreter and commands of this kind."""
    key = _imp.source_hash(1, "\0".join(_identity()).encode("utf-8", "surrogateescape")).hex()
    return f"{directory()}/{sys.implementation.cache_tag}{_OPTIMISED}-{key}{kind and '-'}{kind}"


def _identity() -> tuple[str, ...]:
    """What a file is for; it says so itself as well."""
    from belljar import __version__

    return (*_ROOTS, __version__, sys.version)


class _Loader(bootstrap.SourceFileLoader):
    """As Python's own, but the bytecode is here already."""

    bytecode: memoryview

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002 - it has one
        """The module's code."""
        code: CodeType = marshal.loads(self.bytecode)  # noqa: S302 - bytecode, as good as the sources
        return code


class BytecodeCache:
    """Finds modules in the file. What it has not, or not of today's source, Python finds as ever."""

    def __init__(self, content: bytes) -> None:
        start = len(_MARK) + _LENGTH + _LENGTH
        length = int.from_bytes(content[len(_MARK) : start - _LENGTH], "little")
        table = content[start : start + length]
        if _digest(table) != content[start - _LENGTH : start]:
            raise ValueError("damaged")
        self._index: dict[str, _Entry]
        identity, self._index = marshal.loads(table)  # noqa: S302 - see above
        if identity != _identity():
            raise ValueError("of another package, or for another interpreter")
        self._content = memoryview(content)[start + length :]
        self.stale = False

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """As an entry of `sys.meta_path` has it."""
        entry = self._index.get(name)
        if entry is None:
            return None
        root, file, is_package, changed_ns, size, at, length, digest = entry
        source = f"{_ROOTS[root]}/{file}"
        bytecode = self._content[at : at + length]
        try:
            status = os.stat(source)
        except OSError:
            return None
        is_todays = (status.st_mtime_ns, status.st_size) == (changed_ns, size)
        if not is_todays or _digest(bytecode) != digest:
            self.stale = True
            return None
        loader = _Loader(name, source)
        loader.bytecode = bytecode
        return _spec(name, loader, source, is_package=is_package)


def _spec(name: str, loader: _Loader, source: str, *, is_package: bool) -> ModuleSpec:
    """As `spec_from_file_location` makes it, which asks again for all that is known here."""
    spec = ModuleSpec(name, loader, origin=source, is_package=is_package)
    spec.has_location = True
    directory, _, file = source.rpartition("/")
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations.append(directory)
    if sys.pycache_prefix is None:
        spec.cached = f"{directory}/__pycache__/{file.removesuffix('.py')}{_CACHED}"
    return spec


def use(kind: str = "") -> BytecodeCache | None:
    """Import from the file, if there is one that can be trusted."""
    try:
        found = _read(path(kind))
    except (OSError, ValueError, EOFError, TypeError):
        return None
    finders: list[Any] = sys.meta_path
    finders.insert(0, found)
    return found


def _read(place: str) -> BytecodeCache:
    above = os.lstat(os.path.dirname(place))
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not _is_ours(above, 0o040000) or not _is_ours(status, 0o100000) or status.st_size > _MOST_BYTES:
            raise ValueError("someone else could have written it")
        content = file.readall()
    if not content.startswith(_MARK):
        raise ValueError("not a bundle of this Python's")
    return BytecodeCache(content)


def _is_ours(status: os.stat_result, kind: int) -> bool:
    """Return True if a file, or a directory, belongs to the user and nobody else may write to it."""
    return status.st_mode & 0o170000 == kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def keep(used: BytecodeCache | None, kind: str = "") -> None:
    """Make the file, if there is none for today's sources, where Python may keep bytecode and the state is ours."""
    if (used is not None and not used.stale) or sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return
    from belljar.state import private_directory

    own = f"{path(kind)}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if not _is_ours(os.lstat(private_directory(directory())), 0o040000):
            return
        descriptor = os.open(own, flags, 0o600)  # first: where it can't be written it need not be made, in every run
    except OSError:
        return
    try:
        with open(descriptor, "wb") as file:
            file.write(_made())
        os.replace(own, path(kind))
        _forget_old()
    except (OSError, ImportError, SyntaxError, ValueError, KeyboardInterrupt):
        if os.path.exists(own):
            os.unlink(own)  # the next run is as slow as this one


def _forget_old() -> None:
    """Keep files of a few packages and interpreters: they are of packages that are gone, mostly."""
    place = directory()
    found = sorted((os.lstat(f"{place}/{name}").st_mtime_ns, name) for name in os.listdir(place))
    for _time, name in found[:-_MOST_KEPT]:
        os.unlink(f"{place}/{name}")


def _made() -> bytes:
    __import__(_LAUNCHER)
    standard = {name for name in sys.modules if not name.startswith("belljar")}
    for name in _ALSO:
        __import__(f"belljar.{name}")
    index: dict[str, _Entry] = {}
    pieces: list[bytes] = []
    at = 0
    for name, module in sorted(sys.modules.items()):
        root = _root(name, module)
        if root is not None and (root == 0 or name in standard):
            source: str = module.__file__  # type: ignore[assignment]
            before, piece, after = os.stat(source), _bytecode(name, source), os.stat(source)
            if before.st_mtime_ns != after.st_mtime_ns:
                raise ValueError(f"{source} is being written")
            identity = (root, source.removeprefix(f"{_ROOTS[root]}/"), hasattr(module, "__path__"), before.st_mtime_ns)
            index[name] = (*identity, before.st_size, at, len(piece), _digest(piece))
            pieces.append(piece)
            at += len(piece)
    table = marshal.dumps((_identity(), index))
    return b"".join((_MARK, len(table).to_bytes(_LENGTH, "little"), _digest(table), table, *pieces))


def _root(name: str, module: ModuleType) -> int | None:
    """The root that has its source, if it is a module that is to be in the file."""
    if not isinstance(getattr(module, "__loader__", None), bootstrap.SourceFileLoader) or module.__name__ != name:
        return None
    source = module.__file__ or ""
    if name.startswith("belljar."):
        return 0 if source.startswith(f"{_ROOTS[0]}/") else None
    is_standard = name.partition(".")[0] in sys.stdlib_module_names and "/site-packages/" not in source
    return 1 if is_standard and source.startswith(f"{_ROOTS[1]}/") else None


def _bytecode(name: str, source: str) -> bytes:
    return marshal.dumps(bootstrap.SourceFileLoader(name, source).get_code(name))


def _digest(content: bytes | memoryview) -> bytes:
    """What Python tells a changed source by. It finds damage, not malice: owner and mode are checked for that."""
    return _imp.source_hash(1, content)
