"""The one form of a host's name or address, and all that is refused because it has another."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.egress.decide.addresses import METADATA, METADATA_V6, is_public, judge
from belljar.egress.decide.names import (
    NameRefused,
    canonical_address,
    covered_labels,
    entropy,
    host_matches,
    is_address,
    normalise,
    split_authority,
)
from belljar.policy.builtin import BUILTIN

PLAIN = {
    "example.com": "example.com",
    "EXAMPLE.Com.": "example.com",
    "a_b-c.x--y.Example": "a_b-c.x--y.example",
    "xn--bcher-kva.example": "xn--bcher-kva.example",
    "localhost": "localhost",
    "1.2.3.4": "1.2.3.4",
    "1.2.3.4.": "1.2.3.4",
    "[::1]": "::1",
    "::1": "::1",
    "2001:DB8:0:0:0:0:0:1": "2001:db8::1",
    "::ffff:127.0.0.1": "127.0.0.1",
    "[::FFFF:7f00:1]": "127.0.0.1",
    "1password.com": "1password.com",
    "3.14.example": "3.14.example",
}


@pytest.mark.parametrize(("text", "wanted"), PLAIN.items())
def test_plain(text: str, wanted: str) -> None:
    """Case, a last dot and the brackets of an address make no difference, as text or as bytes."""
    assert normalise(text) == normalise(text.encode()) == normalise(wanted) == wanted


ODD = {
    "name-form": [
        "", ".", "..", "a..b", ".a", "a..", "a b", "a\0.com", "a\r\n.com", "a\n", "a%2ecom", "a%00", "a@b", "a/b",
        "a\\b", "a?b", "a#b", "-a.com", "a-.com", "*.com", "é.com", "a\u3002com", "\uff41.com", "a\u00ad.com", "a\t",
        " a", "a,b", "(a)", "a" * 64 + ".com",
    ],
    "address-form": [
        "127.1", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "1.2.3", "1.2.3.256", "1.2.3.4.5", "01.2.3.4",
        "1.2.3.04", "0x", "a.0x7f", "a.1", "127.0.0.0x1", "00000000177.1", "fe80::1%eth0", "[::1", "::1]", "[1.2.3.4]",
        "::ffff:0177.0.0.1", "1::2::3", ":::", "::1%25lo", "[v1.fe80::1]", "1:2:3:4:5:6:7:8:9", "a:b:c", "x:80",
        "user:x@a",
    ],
    "name-too-long": ["a." * 127 + "aa", "a." * 5000],
}  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "text"), [(reason, text) for reason, texts in ODD.items() for text in texts], ids=ascii
)
def test_odd(reason: str, text: str) -> None:
    """Nothing is repaired."""
    with pytest.raises(NameRefused) as caught:
        normalise(text)
    assert caught.value.reason == reason
    with pytest.raises(NameRefused):
        normalise(text.encode())


def test_bytes_that_are_no_text() -> None:
    """As a SOCKS client may send them."""
    for name in (b"\xff.com", b"a\x80", "é.com".encode()):
        with pytest.raises(NameRefused):
            normalise(name)


@settings(deadline=None)
@given(
    st.text(max_size=40) | st.from_regex(r"[0-9a-fx.:%\[\]]{1,30}", fullmatch=True) | st.text("abcA.-_0", max_size=300)
)
def test_once_is_enough(text: str) -> None:
    """What comes out is its own form; it is plain, and what is an address is one of Python's too."""
    try:
        name = normalise(text)
    except NameRefused:
        return
    assert normalise(name) == name
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-_.:")
    if is_address(name):
        assert str(ipaddress.ip_address(name)) == name
    else:
        assert ":" not in name
        with pytest.raises(ValueError, match="does not appear"):
            ipaddress.ip_address(name)


@settings(deadline=None)
@given(st.ip_addresses())
def test_every_address_is_plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """As a socket tells them."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    assert canonical_address(str(address)) == str(mapped or address)


AUTHORITIES = {
    "a.com": ("a.com", None),
    "A.com:8443": ("a.com", 8443),
    "[::1]:80": ("::1", 80),
    "[::1]": ("::1", None),
    "1.2.3.4:1": ("1.2.3.4", 1),
}


@pytest.mark.parametrize(("text", "wanted"), AUTHORITIES.items())
def test_authority(text: str, wanted: tuple[str, int | None]) -> None:
    """A Host header's value."""
    assert split_authority(text) == split_authority(text.encode()) == wanted


@pytest.mark.parametrize(
    "text", ["a.com:", "a.com:0", "a.com:65536", "a.com:+1", "a.com: 80", "a.com:\u0661", "::1:80",
             "a:b:80", "u@a.com", "a.com,b.com", ""]
)  # fmt: skip
def test_no_authority(text: str) -> None:
    """What is neither."""
    with pytest.raises(NameRefused):
        split_authority(text)


MATCHES = [
    ("a.com", "a.com", True),
    ("a.com", "x.a.com", False),
    ("*.a.com", "x.a.com", True),
    ("*.a.com", "y.x.a.com", True),
    ("*.a.com", "a.com", False),
    ("*.a.com", "xa.com", False),
    ("*", "anything.example", True),
    ("*", "10.0.0.1", True),
    ("*.0.1", "10.0.0.1", False),
]


@pytest.mark.parametrize(("pattern", "host", "wanted"), MATCHES)
def test_matches(pattern: str, host: str, wanted: bool) -> None:
    """A name itself, subdomains only, everything."""
    assert host_matches(pattern, host) is wanted


def test_what_a_star_covers() -> None:
    """Those are the parts that whoever asks may choose."""
    assert covered_labels("*.a.com", "x.y.a.com") == ("x", "y")
    assert covered_labels("*", "x.com") == ("x", "com")
    assert covered_labels("a.com", "a.com") == ()


def test_entropy() -> None:
    """Words are low, encoded data is high."""
    assert entropy("") == 0
    assert entropy("aaaa") == 0
    assert entropy("abcd") == 2
    assert entropy("production-eu-west-1") < 4.2 < entropy("mzxw6ytboi4dcmbvgyytcmrtgqydsojrhe2dkmzv7qk3hx")


ADDRESSES = {
    "": ["8.8.8.8", "2606:4700::1111", "2001:4860:4860::8888", "64:ff9b::808:808", "172.15.0.1", "172.32.0.1"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd12::1", "fec0::1", "::ffff:10.0.0.1"],
    "link-local": ["169.254.0.1", "fe80::1"],
    "metadata": [*METADATA, *METADATA_V6, "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "shared": ["100.64.0.1"],
    "benchmarking": ["198.18.0.1", "198.19.255.255"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.2.1", "2001:db8::1", "100::1", "4000::1", "5f00::1"],
    "embedded": ["::ffff:8.8.8.8", "2002:808:808::1", "::8.8.8.8", "2001:470::200:5efe:808:808"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "ip"), [(kind, ip) for kind, ips in ADDRESSES.items() for ip in ips])
def test_kinds_of_addresses(kind: str, ip: str) -> None:
    """What an address is, whatever form it hides in."""
    assert judge(ip) == kind
    assert is_public(ip) is (kind == "")


@settings(deadline=None)
@given(st.ip_addresses())
def test_public_is_never_more_than_python_says(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """An address that the standard library calls private is not public here."""
    if is_public(str(address)) and address not in ipaddress.ip_network("64:ff9b::/96"):
        kinds = ("private", "loopback", "link_local", "multicast", "unspecified", "reserved")
        assert [kind for kind in kinds if getattr(address, f"is_{kind}")] == []


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_embedding_hides_nothing(address: ipaddress.IPv4Address) -> None:
    """An IPv4 address inside of an IPv6 one is at least as closed as it is itself."""
    if not is_public(str(address)):
        for form in (f"::ffff:{address}", f"64:ff9b::{address}", f"::{address}"):
            assert not is_public(form)


def test_the_metadata_addresses_are_one_list() -> None:
    """The table of addresses and the built-in deny list agree."""
    entry = next(entry for entry in BUILTIN if entry.name == "cloud-metadata")
    assert {*METADATA, *METADATA_V6} == {host for host in entry.hosts if is_address(host)}
