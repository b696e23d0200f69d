"""URL paths and queries, as every server might read them."""

# ruff: noqa: E501 (rows of tables)

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.egress.decide.paths import (
    AmbiguousPath,
    allowed_by,
    denied_by,
    matches,
    query_keys,
    readings,
    split_target,
)

GLOBS = [
    # glob, path, whether it matches
    ("/v1/items", "/v1/items", True),
    ("/v1/items", "/v1/items/", False),
    ("/v1/items", "/v1/Items", False),
    ("/v1/*", "/v1/items", True),
    ("/v1/*", "/v1/", True),
    ("/v1/*", "/v1/a/b", False),
    ("/v1/*", "/v1", False),
    ("/v1/*.json", "/v1/a.json", True),
    ("/v1/*.json", "/v1/a/b.json", False),
    ("/v1/**", "/v1/", True),
    ("/v1/**", "/v1/a/b/c", True),
    ("/v1/**", "/v1", False),
    ("/v1/**", "/v10/a", False),
    ("/**/x", "/x", True),
    ("/**/x", "/a/b/x", True),
    ("/**/x", "/a/b/xy", False),
    ("/a/**/b/**", "/a/b/", True),
    ("/a/**/b/**", "/a/1/2/b/3", True),
    ("/**", "/", True),
    ("/a.b", "/axb", False),
    ("/a(b", "/a(b", True),
    ("/a%20b", "/a b", True),
    ("/a%2Ab", "/axb", False),
    ("/a%2Ab", "/a*b", True),
    ("/@s%2Fx", "/@s/x", False),
]


@pytest.mark.parametrize(("glob", "path", "wanted"), GLOBS)
def test_globs(glob: str, path: str, wanted: bool) -> None:
    """`*` stays between two slashes, `**` does not, and the rest is itself, percent-encoded or not."""
    assert matches(glob, path) is wanted


AMBIGUOUS = [
    "/a/../b", "/a/./b", "/..", "/a/%2e%2e/b", "/a/%2E./b", "/a/.%2e", "/a/..;/b", "/a/..;x=1/b", "/a\\b", "/a%5cb", "/a%00b",
    "/a%0ab", "/a%0d", "/a%7f", "/a%", "/a%2", "/a%zz", "/%252e%252e/b", "/a%252fb", "/a%2500", "/%c0%ae%c0%ae/", "/%ff",
    "//v1/files", "/%2fv1/files", "/;x//v1/files", "/%2561dmin", "/a%253fb", "/a/..%3f", "/a/%ef%bc%8e%ef%bc%8e/b", "/a/%ef%bc%bcb",
    "/" + "a" * 8192, "/%80", "/a/%2e%2e%2fb", "/a%2f..%2fb", "/a/;x=1/../b", "/a/.;/b", "/%ee%80%80",
    "/a/..%20/b", "/a/.%20./b", "/a/...", "/a/%20/b",
]  # fmt: skip


@pytest.mark.parametrize("path", AMBIGUOUS)
def test_ambiguous(path: str) -> None:
    """Nothing that climbs, hides a separator, is encoded twice or is no text."""
    with pytest.raises(AmbiguousPath):
        readings(path)


READINGS = {
    "/v1/items": {"/v1/items"},
    "/v1/%69tems": {"/v1/items"},
    "/v1//items": {"/v1//items", "/v1/items"},
    "/v1;x=1/items": {"/v1;x=1/items", "/v1/items"},
    "/@s%2fx": {"/@s\ue000x", "/@s/x"},
    "/caf%C3%A9": {"/café"},
    "/who%3F": {"/who?", "/who"},
    "/a%23b/c": {"/a#b/c", "/a"},
    "/a./b%20": {"/a./b ", "/a/b"},
    "/%ef%bc%a1/b": {"/\uff21/b", "/A/b"},
    "/100%25/x": {"/100%/x"},
    "/a...b/..c": {"/a...b/..c"},
    "*": {"*"},
}


@pytest.mark.parametrize(("path", "wanted"), READINGS.items())
def test_readings(path: str, wanted: set[str]) -> None:
    """Each way in which a server might take it."""
    assert set(readings(path)) == wanted


def test_allowed_if_all_readings_are() -> None:
    """An encoded slash passes only where both a segment and a separator do."""
    assert allowed_by(("/**",), readings("/@s%2fx"))
    assert allowed_by(("/@s%2Fx", "/@s/x"), readings("/@s%2fx"))
    assert not allowed_by(("/@s%2Fx",), readings("/@s%2fx"))
    assert not allowed_by(("/*",), readings("/a%2fb"))
    assert not allowed_by(("/v1/items",), readings("/v1//items"))


DENIED = ["/v1/files", "/v1/files/", "/v1/files/x", "/v1/files.", "/v1/files%20/x", "/v1/files%3f", "/v1/files%23x", "/v1/%ef%bd%86iles", "/v1//files/x", "/v1;a/files", "/v1/files;a=b", "/v1/%66iles",
          "/v1%2ffiles", "/v1/files//"]  # fmt: skip


@pytest.mark.parametrize("path", DENIED)
def test_denied_if_one_reading_is(path: str) -> None:
    """`/v1/files/**` means the path itself, too."""
    assert denied_by(("/v1/files/**",), readings(path))
    assert not denied_by(("/v1/files/**",), readings("/v1/filesystem"))


def test_targets() -> None:
    """Only what may stand in a request line."""
    assert split_target(b"/a?b=c?d") == ("/a", "b=c?d")
    assert split_target("*") == ("*", "")
    for target in ("", "a", "http://a/", "/a b", "/a#b", "/a\r\nX: y", "/a\0", "*?x", b"/\x7f", "?a=b"):
        with pytest.raises(AmbiguousPath):
            split_target(target)


QUERIES = {
    "": set(),
    "a=1": {"a"},
    "a": {"a"},
    "a=1&b=2&&a=3": {"a", "b"},
    "a%5B%5D=1": {"a[]"},
    "a+b=1": {"a b"},
    "%61=1": {"a"},
    "a=1;b=2": {"a", "b"},
    "=1": {""},
}


@pytest.mark.parametrize(("query", "wanted"), QUERIES.items())
def test_query_keys(query: str, wanted: set[str]) -> None:
    """Decoded, and split in each way in which servers do."""
    assert query_keys(query) == wanted


@pytest.mark.parametrize("query", ["%=1", "a%f=1", "%ff=1"])
def test_ambiguous_keys(query: str) -> None:
    with pytest.raises(AmbiguousPath):
        query_keys(query)


def naive(glob: list[str], path: list[str]) -> bool:
    """The globs once more, without regular expressions."""
    if not glob:
        return not path
    if glob[0] == "**":
        if len(glob) == 1:
            return bool(path)
        return any(naive(glob[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and _segment(glob[0], path[0]) and naive(glob[1:], path[1:])


def _segment(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob[0] == "*":
        return any(_segment(glob[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and glob[0] == text[0] and _segment(glob[1:], text[1:])


def test_globs_take_linear_time() -> None:
    """A path that nearly fits in a million ways is refused as fast as any other."""
    for glob, path in (
        ("/**/a/**/b/**/c/**/d", "/a/b/c" * 1300),
        ("/" + "*a" * 20 + "b", "/" + "a" * 8000),
        ("/**/*a*a*a*b/x", "/aaaaaaa" * 1000),
    ):
        began = time.thread_time()
        assert not matches(glob, path)
        assert time.thread_time() - began < 0.5


def test_too_many_keys() -> None:
    with pytest.raises(AmbiguousPath):
        split_target("/?" + "&" * 2000)
    with pytest.raises(AmbiguousPath):
        query_keys("a;" * 2000)


segments = st.lists(st.text("ab.", max_size=3), min_size=1, max_size=4)
globs = st.lists(
    st.just("**") | st.text("ab.*", max_size=3).filter(lambda text: "**" not in text), min_size=1, max_size=4
)


@settings(deadline=None)
@given(globs, segments)
def test_agrees_with_the_naive_matcher(glob: list[str], path: list[str]) -> None:
    """What a glob means is what the few lines above say."""
    assert matches("/" + "/".join(glob), "/" + "/".join(path)) is naive(glob, path)


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("/.%2eEfF5cC;a\\", max_size=40))
def test_readings_never_climb(text: str) -> None:
    """Any text is refused, or read without a way up."""
    try:
        found = readings(split_target("/" + text)[0])
    except AmbiguousPath:
        return
    for path in found:
        assert path.startswith("/")
        assert not {"..", "."} & set(path.split("/"))
        assert "\\" not in path
        assert "\0" not in path
