"""Tokens of clouds and vendors, by the prefix that each puts before its random part.

A row is a prefix, what follows it, and whether the rest has to look random because the prefix alone says little. A
prefix may follow `_`, `-` or `=`, but no letter or digit, and every repetition is bounded: no text is read many times.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import repeat
from typing import NamedTuple

from belljar.redaction.finders.checks import placeholder, random_looking, web_token
from belljar.redaction.kinds import Kind, Span
from belljar.redaction.view import TextView, matches, matches_at, places

# The words of a text that are long enough for a vendor's token, with what is just before each, one after another.
#
# They are a small part of most text, and fifty prefixes are looked for in that part only. Every prefix has a letter
# that is no hexadecimal digit, so digests and UUIDs are left out, unless a sign that ends a prefix stands before them.
SHORTEST = 20
"""No token is shorter; a run of that many letters, digits, _ and - is rare in most text."""
CONTEXT = 9
"""How much of what is before a word is kept with it: the longest sign that does not belong to a word."""
_RUN = b"a" * SHORTEST
_SIGNS_END = (b".", b":")


class LongWords:
    """The words as one text, and where in the whole text each place of it is."""

    def __init__(self, view: TextView) -> None:
        self._starts: list[int] = []
        self._origins: list[int] = []
        self.text = b"\n".join(self._words(view))

    def _words(self, view: TextView) -> Iterator[bytes]:
        words, data, hexadecimal = view.words, view.data, view.hexadecimal
        length = 0
        start = words.find(_RUN)
        while start >= 0:
            end = words.find(b" ", start)
            end = len(words) if end < 0 else end
            if hexadecimal.find(b"a", start, end) >= 0 or data[start - 1 : start] in _SIGNS_END:
                before = start - CONTEXT if start > CONTEXT else 0
                self._starts.append(length)
                self._origins.append(before)
                yield data[before:end]
                length += end - before + 1
            start = words.find(_RUN, end)

    def origin(self, place: int) -> int:
        """Where in the whole text a place of these words is."""
        word = bisect_right(self._starts, place) - 1
        return place - self._starts[word] + self._origins[word]

    def places(self, sign: bytes) -> Iterator[int]:
        """Where in the whole text a sign is that is part of such a word, or just before it."""
        return map(self.origin, places(self.text, sign))


class Vendor(NamedTuple):
    """One form of token: whose, what it begins with, what follows."""

    whose: str
    prefix: str
    rest: str
    judged: bool = False


VENDORS = (
    Vendor("AWS", "AKIA", "[A-Z2-7]{16}"),
    Vendor("AWS", "ASIA", "[A-Z2-7]{16}"),
    Vendor("GitHub", "ghp_", "[A-Za-z0-9]{36,251}"),
    Vendor("GitHub", "gho_", "[A-Za-z0-9]{36,251}"),
    Vendor("GitHub", "ghu_", "[A-Za-z0-9]{36,251}"),
    Vendor("GitHub", "ghs_", "[A-Za-z0-9]{36,251}"),
    Vendor("GitHub", "ghr_", "[A-Za-z0-9]{36,251}"),
    Vendor("GitHub", "github_pat_", "[A-Za-z0-9_]{22,251}", judged=True),
    Vendor("GitLab", "glpat-", r"[\w-]{20,64}", judged=True),
    Vendor("GitLab", "glrt-", r"[\w-]{20,64}", judged=True),
    Vendor("GitLab", "gldt-", r"[\w-]{20,64}", judged=True),
    Vendor("Slack", "xox", r"[abeoprs]-[A-Za-z0-9-]{10,250}", judged=True),
    Vendor("Slack", "xapp-", r"\d-[A-Z0-9]+-\d+-[a-z0-9]{20,100}"),
    Vendor("Stripe", "sk_live_", "[A-Za-z0-9]{16,247}", judged=True),
    Vendor("Stripe", "sk_test_", "[A-Za-z0-9]{16,247}", judged=True),
    Vendor("Stripe", "rk_live_", "[A-Za-z0-9]{16,247}", judged=True),
    Vendor("Stripe", "rk_test_", "[A-Za-z0-9]{16,247}", judged=True),
    Vendor("OpenAI, Anthropic and others", "sk-", r"[\w-]{20,220}", judged=True),
    Vendor("Groq", "gsk_", "[A-Za-z0-9]{40,60}"),
    Vendor("xAI", "xai-", "[A-Za-z0-9]{60,100}"),
    Vendor("Perplexity", "pplx-", "[A-Za-z0-9]{40,64}"),
    Vendor("Replicate", "r8_", "[A-Za-z0-9]{37}"),
    Vendor("Hugging Face", "hf_", "[A-Za-z0-9]{34,40}"),
    Vendor("Google", "AIza", r"[\w-]{35}"),
    Vendor("Google OAuth", "GOCSPX-", r"[\w-]{28}"),
    Vendor("npm", "npm_", "[A-Za-z0-9]{36}"),
    Vendor("PyPI", "pypi-", r"AgEI[\w-]{50,250}"),
    Vendor("RubyGems", "rubygems_", "[0-9a-f]{48}"),
    Vendor("Docker", "dckr_pat_", r"[\w-]{27}"),
    Vendor("DigitalOcean", "dop_v1_", "[0-9a-f]{64}"),
    Vendor("DigitalOcean", "doo_v1_", "[0-9a-f]{64}"),
    Vendor("Shopify", "shp", "(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    Vendor("Twilio", "SK", "[0-9a-f]{32}"),
    Vendor("Mailgun", "key-", "[0-9a-f]{32}"),
    Vendor("Databricks", "dapi", "[0-9a-f]{32}(?:-[0-9])?"),
    Vendor("Linear", "lin_api_", "[A-Za-z0-9]{40}"),
    Vendor("Notion", "ntn_", "[A-Za-z0-9]{40,60}"),
    Vendor("Notion", "secret_", "[A-Za-z0-9]{43}"),
    Vendor("Grafana", "glsa_", "[A-Za-z0-9]{32}_[0-9a-fA-F]{8}"),
    Vendor("New Relic", "NRAK-", "[A-Z0-9]{27}"),
    Vendor("Sentry", "sntrys_", r"[\w-]{40,250}"),
    Vendor("Postman", "PMAK-", "[0-9a-f]{24}-[0-9a-f]{34}"),
    Vendor("Figma", "figd_", r"[\w-]{40,60}"),
    Vendor("Supabase", "sbp_", "[0-9a-f]{40}"),
    Vendor("Tailscale", "tskey-", r"[a-z]+-[A-Za-z0-9]{10,40}-[A-Za-z0-9]{20,60}"),
    Vendor("Pulumi", "pul-", "[0-9a-f]{40}"),
    Vendor("age", "AGE-SECRET-KEY-1", "[0-9A-Z]{58}"),
    Vendor("Square", "sq0", r"(?:atp|csp)-[\w-]{22,43}"),
    Vendor("Brevo", "xkeysib-", r"[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    Vendor("Artifactory", "AKCp", "[A-Za-z0-9]{60,80}", judged=True),
)

_ALONE = (
    # Forms with a dot, a slash or a sign of base64 in them: they are looked for in the whole text.
    Vendor("AWS Bedrock", "ABSK", "[A-Za-z0-9+/]{100,250}={0,2}"),
    Vendor("Stripe", "whsec_", "[A-Za-z0-9+/]{24,100}={0,2}"),
    Vendor("Slack", "hooks.slack.com/services/", "(T[A-Z0-9]{6,12}/B[A-Z0-9]{6,12}/[A-Za-z0-9]{20,30})"),
    Vendor("Discord", "/api/webhooks/", r"(\d{16,20}/[\w-]{60,80})"),
)
_BEFORE_LONG_WORDS = (
    # Such forms again, but a long word follows the sign: where no long word has it before it there is none.
    Vendor("Atlassian", "ATATT3x", r"[\w-]{50,250}=?[0-9A-F]{0,8}"),
    Vendor("SendGrid", "SG.", r"[\w-]{22}\.[\w-]{43}"),
    Vendor("Google OAuth", "ya29.", r"[\w-]{20,400}"),
    Vendor("Vault", "hvs.", r"[\w-]{24,200}"),
    Vendor("Doppler", "dp.pt.", "[A-Za-z0-9]{40,44}"),
)
_AROUND = (
    # Forms whose sign is in their middle: what is before it, the sign, what follows.
    ("Telegram", rb"(?<![A-Za-z0-9])\d{8,10}\Z", b":AA", rb"[\w-]{33}"),
    ("Mailchimp", rb"(?<![A-Za-z0-9])[0-9a-f]{32}\Z", b"-us", rb"\d{1,2}"),
    ("Terraform", rb"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\Z", b".atlasv1.", rb"[\w-]{60,80}"),
)
_AFTER = rb"(?![A-Za-z0-9_-])"


@cache
def _form(row: Vendor) -> re.Pattern[bytes]:
    """What a row looks like to `re`, made when its prefix is first seen."""
    # The fixed text comes first, because then `re` finds its places quickly; what is before it is asked afterwards.
    fixed = re.escape(row.prefix.encode())
    before = b"" if row.prefix.startswith("/") else b"(?<![A-Za-z0-9]" + fixed + b")"
    return re.compile(fixed + before + b"(?>" + row.rest.encode() + b")" + _AFTER)


_PREFIXED = tuple((row.prefix.encode(), row) for row in VENDORS)
_DOTTED = tuple((row.prefix.encode(), row) for row in _ALONE)
_DOTTED_LONG = tuple((row.prefix.encode(), row) for row in _BEFORE_LONG_WORDS)
_MIDDLES = tuple(
    (re.compile(head), sign, re.compile(re.escape(sign) + tail + _AFTER)) for _, head, sign, tail in _AROUND
)
_JWT = re.compile(
    rb"eyJ(?<![A-Za-z0-9_-]eyJ)[\w-]{8,4000}\.(?:[\w-]{2,8000}\.[\w-]{0,2000}|[\w-]{0,1000}(?:\.[\w-]{1,8000}){3})(?![\w-])"
)


def tokens(view: TextView) -> Iterator[Span]:
    """Tokens of the vendors in the tables above."""
    for prefix, row in _DOTTED:
        yield from _dotted(matches(_form(row), view.data, prefix) if prefix in view.data else ())
    words = LongWords(view)
    if not words.text:
        return
    for prefix, row in _PREFIXED:
        if prefix not in words.text:
            continue
        for found in matches_at(_form(row), words.text, prefix):
            value = found[0].decode("latin-1")
            if random_looking(value) if row.judged else not placeholder(value):
                start = words.origin(found.start())
                yield Span(start, start + len(value), Kind.TOKEN)
    for prefix, row in _DOTTED_LONG:
        yield from _dotted(map(_form(row).match, repeat(view.data), words.places(prefix)))
    for head, sign, form in _MIDDLES:
        for place in words.places(sign):
            tail = form.match(view.data, place)
            if tail and (before := head.search(view.data, max(0, place - 33), place)):
                yield Span(before.start(), tail.end(), Kind.TOKEN)


def _dotted(matched: Iterable[re.Match[bytes] | None]) -> Iterator[Span]:
    for found in filter(None, matched):
        whole = found.lastindex or 0
        if not placeholder(found[whole].decode("latin-1")):
            yield Span(found.start(whole), found.end(whole), Kind.TOKEN)


def web_tokens(view: TextView) -> Iterator[Span]:
    """JSON Web Tokens, signed or encrypted, with a header that says so."""
    for found in matches(_JWT, view.data, b"eyJ"):
        if web_token(found[0].decode("ascii")):
            yield Span(found.start(), found.end(), Kind.JWT)
