"""Deny globs: a table of what each form means, and a property against a matcher too simple to be wrong."""

from __future__ import annotations

import fnmatch
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy.globs import DenyGlobs, GlobError, parse

MEANING = [
    # pattern, denied, not denied
    ("**/.env", ["/.env", "/a/.env", "/a/b/.env", "/a/.env/below"], ["/a/.env2", "/a/x.env", "/env"]),
    (".env", ["/.env", "/a/b/.env"], ["/a/.envrc"]),
    ("**/.ssh/**", ["/.ssh", "/home/x/.ssh", "/home/x/.ssh/id"], ["/home/x/ssh", "/home/.sshd"]),
    ("**/id_rsa*", ["/k/id_rsa", "/k/id_rsa.pub", "/id_rsa_2/x"], ["/k/my_id_rsa", "/k/id_rs"]),
    ("/home/**", ["/home", "/home/a", "/home/a/b"], ["/homes", "/srv/home"]),
    ("/home/*/.netrc", ["/home/a/.netrc", "/home/a/.netrc/x"], ["/home/.netrc", "/home/a/b/.netrc"]),
    ("/a/**/z", ["/a/z", "/a/b/z", "/a/b/c/z/y"], ["/b/a/z", "/a/zz"]),
    ("a/b", ["/a/b", "/x/a/b/c"], ["/a/x/b", "/ab"]),
    ("*.key", ["/x.key", "/.key", "/a/b.key"], ["/key", "/x.keys"]),
    ("?.key", ["/a.key"], ["/.key", "/ab.key"]),
    ("[ab].key", ["/a.key", "/b.key"], ["/c.key", "/.key"]),
    ("[!ab].key", ["/c.key"], ["/a.key", "/b.key", "/x/.key"]),
    ("[a-c]x", ["/ax", "/cx"], ["/dx", "/-x"]),
    ("[]x]y", ["/]y", "/xy"], ["/zy"]),
    ("{.env,.envrc}", ["/.env", "/a/.envrc"], ["/{.env,.envrc}", "/.envx"]),
    ("/{a,b/{c,d}}/e", ["/a/e", "/b/c/e", "/b/d/e"], ["/b/e", "/c/e"]),
    (r"a\*b", ["/a*b"], ["/axb"]),
    ("*a*b*c", ["/abc", "/xaxbxcxc", "/aabbcc"], ["/acb", "/abcd"]),
    ("a.c", ["/a.c"], ["/abc"]),
]


@pytest.mark.parametrize(("pattern", "denied", "seen"), MEANING, ids=[row[0] for row in MEANING])
def test_meaning(pattern: str, denied: list[str], seen: list[str]) -> None:
    """Each form denies what the reference says, and nothing beside it."""
    globs = DenyGlobs([pattern])
    assert {path: globs.match(path) for path in denied} == dict.fromkeys(denied, 0)
    assert {path: globs.match(path) for path in seen} == dict.fromkeys(seen)


@pytest.mark.parametrize(("pattern", "denied", "seen"), MEANING, ids=[row[0] for row in MEANING])
def test_a_path_that_lacks_the_text(pattern: str, denied: list[str], seen: list[str]) -> None:
    """It is told no before there is a regular expression, and no other is."""
    for path in denied:
        assert DenyGlobs(["/other/*", pattern]).match(path) == 1
    globs = DenyGlobs(["**/*.pem", "/home/*/x", pattern])
    assert globs.match("/srv/data") is None
    assert "_regex" not in vars(globs)


UNPARSABLE = [
    ("", "wanted a pattern, found nothing"),
    ("[abc", "wanted a ']' after '['"),
    ("[]", "wanted a ']' after '['"),
    ("a[/]b", "wanted characters of a name between '[' and ']', found '/'"),
    ("[z-a]", "wanted a range from low to high, found 'z-a'"),
    ("{a,b", "wanted a '}' after '{'"),
    ("a}", "wanted a '{' before '}'"),
    ("**x", "wanted '**' alone between slashes, found '**x'"),
    ("/a/b**/c", "wanted '**' alone between slashes, found 'b**'"),
    ("***", "wanted '**' alone between slashes, found '***'"),
    ("**", "wanted a pattern that leaves something, found one that denies every path"),
    ("/**", "wanted a pattern that leaves something, found one that denies every path"),
    ("/", "wanted a pattern that leaves something, found one that denies every path"),
    ("a//b", "wanted a name between slashes, found '//'"),
    ("../x", "wanted names, found '..'"),
    ("./x", "wanted names, found '.'"),
    ("a\\", "wanted a character after '\\'"),
    ("a\0b", "wanted a path pattern, found a NUL character"),
    ("x" * 600, "wanted at most 512 characters, found 600"),
    ("{a,b}" * 20, "wanted at most 64 alternatives, found more"),
]


@pytest.mark.parametrize(("pattern", "message"), UNPARSABLE, ids=[row[1] for row in UNPARSABLE])
def test_unparsable(pattern: str, message: str) -> None:
    """What can't be parsed says what was wanted."""
    with pytest.raises(GlobError) as caught:
        DenyGlobs([pattern])
    assert str(caught.value) == message


def test_index_is_of_the_first_pattern_that_denies() -> None:
    """A denial names its rule, so the index must be the list's own."""
    globs = DenyGlobs(["**/a*", "**/b", "/x/**", "**/.env"])
    paths = {"/q/abc": 0, "/q/b": 1, "/x/q": 2, "/x/b": 1, "/x/ab": 0, "/q/.env": 3, "/q": None}
    assert {path: globs.match(path) for path in paths} == paths


def test_literal_names_and_wildcards() -> None:
    """What can be whited out by name in every directory is told apart from what needs a walk."""
    literal = DenyGlobs(["**/.env", ".ssh/**", "**/{.aws,.kube}", "/etc/shadow"])
    assert literal.literal_names() == [".env", ".ssh", ".aws", ".kube"]
    assert not literal.has_wildcards()
    for pattern in ("**/id_*", "**/.config/gcloud", "/home/*", "/home/**/x", "[a]"):
        assert DenyGlobs([pattern]).has_wildcards(), pattern


def test_a_file_is_denied_by_either_of_its_names() -> None:
    """A file has a path on the host and one in the jar; a pattern for either holds."""
    globs = DenyGlobs(["/srv/data/secret/**", "/data/private"])
    assert globs.denies("/srv/data/secret/a", "/data/secret/a") == 0
    assert globs.denies("/srv/data/private", "/data/private") == 1
    assert globs.denies(None, "/data/private/x") == 1
    assert globs.denies("/srv/data/open", "/data/open") is None


def test_absolute_pattern_yields_to_a_mount_that_was_named() -> None:
    """`/home/**` says "nothing else of /home"; a name is denied wherever it is."""
    globs = DenyGlobs(["/home/**", "**/.env", "/home/alice/project/keys"]).within("/home/alice/project", "/workspace")
    assert globs.denies("/home/alice/project/main.py", "/workspace/main.py") is None
    assert globs.denies("/home/alice/project/.env", "/workspace/.env") == 1
    assert globs.denies("/home/alice/project/keys/a", "/workspace/keys/a") == 2


HARD = [
    ("*a" * 40 + "b", "/" + "a" * 4000),
    ("**/" + "a/**/" * 60 + "b", "/a" * 2000),
    ("**/" + "*a*/" * 30 + "b", "/aaaaaaaa" * 400),
    ("[a-z]*" * 40 + "!", "/" + "a" * 4000),
    ("?*" * 60 + "!", "/" + "a" * 4000),
]


@pytest.mark.parametrize(("pattern", "path"), HARD, ids=[row[0][:12] for row in HARD])
def test_no_catastrophic_backtracking(pattern: str, path: str) -> None:
    """Patterns made to be slow, on paths longer than a kernel takes, are still quick."""
    globs = DenyGlobs([pattern])
    start = time.perf_counter()
    assert globs.match(path) is None
    assert time.perf_counter() - start < 0.5


def naive(pattern: str, path: str) -> bool:
    """The reference: every parent of the path, name by name, with `fnmatch` for one name."""
    absolute = pattern.startswith("/")
    wanted = tuple(pattern.strip("/").split("/"))
    names = tuple(path.strip("/").split("/"))

    @cache
    def matches(at: int, name: int, end: int) -> bool:
        if at == len(wanted):
            return name == end
        if wanted[at] == "**":
            return any(matches(at + 1, skip, end) for skip in range(name, end + 1))
        return name < end and fnmatch.fnmatchcase(names[name], wanted[at]) and matches(at + 1, name + 1, end)

    if not absolute:
        wanted = ("**", *wanted)
    return any(matches(0, 0, end) for end in range(1, len(names) + 1))


names = st.text("ab.", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
pieces = st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]"])
glob_names = (
    st.lists(pieces, min_size=1, max_size=5)
    .map("".join)
    .filter(lambda name: "**" not in name and name not in (".", ".."))
)
patterns = st.builds(
    lambda absolute, parts: ("/" if absolute else "") + "/".join(parts),
    st.booleans(),
    st.lists(glob_names | st.just("**"), min_size=1, max_size=5).filter(lambda parts: set(parts) != {"**"}),
)
paths = st.lists(names, min_size=1, max_size=6).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(patterns, min_size=1, max_size=4), paths)
def test_agrees_with_the_naive_matcher(globs: list[str], path: str) -> None:
    """One expression with atomic groups says what four nested loops say, index included."""
    # A trailing `/**` hides the directory too, which is what the pattern without it says.
    plain = [_without_tail(pattern) for pattern in globs]
    expected = next((at for at, pattern in enumerate(plain) if naive(pattern, path)), None)
    assert DenyGlobs(globs).match(path) == expected


def _without_tail(pattern: str) -> str:
    while pattern.endswith("/**"):
        pattern = pattern[:-3]
    return pattern


@given(st.text("ab/*?[]{},\\!-^.", max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """No text makes anything but a matcher or a `GlobError`."""
    try:
        parse(text)
    except GlobError:
        return
    DenyGlobs([text]).match("/a/b")
