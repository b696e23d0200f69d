"""Tokens: stable, bounded, put back only where belljar put them; what a policy lets through; names."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

import pytest
from redaction_values import Values

from belljar.policy.keys.redaction import PERSONAL, REDACTABLE, SECRETS
from belljar.policy.load.resolve import resolve
from belljar.redaction import Redactor
from belljar.redaction.kinds import EVERYTHING, Kind, expand
from belljar.redaction.tokens import TokenMap

VALUES = Values(9)


def test_the_same_value_the_same_token() -> None:
    """Within a run, in every text of it; another value gets another."""
    redactor = Redactor()
    assert redactor.text("a@b.co c@d.co a@b.co") == "<EMAIL_1> <EMAIL_2> <EMAIL_1>"
    assert redactor.text("again c@d.co, 10.1.2.3") == "again <EMAIL_2>, <IP_1>"
    assert redactor.found == {"email": 4, "ip": 1}
    assert Redactor().text("c@d.co") == "<EMAIL_1>"


def test_restore() -> None:
    """Known tokens become values, others stay; a value that holds a token is not put back twice."""
    redactor = Redactor()
    redactor.text('password = "x<EMAIL_1>y7!", mail a@b.co')
    assert redactor.restore("to <EMAIL_1>, not <EMAIL_7> or <PHONE_1>") == "to a@b.co, not <EMAIL_7> or <PHONE_1>"


def test_tokens_that_the_code_prints() -> None:
    """They are told apart from belljar's own, or code could choose where a value is put."""
    redactor = Redactor()
    assert redactor.text("a@b.co <EMAIL_1> <EMAIL_999> <EMAIL>") == "<EMAIL_1> <LITERAL_1> <LITERAL_2> <EMAIL>"
    assert redactor.restore("<LITERAL_1> <EMAIL_1>") == "<EMAIL_1> a@b.co"
    assert redactor.text("<LITERAL_1>") == "<LITERAL_3>"
    assert "literal" not in redactor.found


def test_a_map_has_a_bound() -> None:
    """What no longer fits is redacted all the same, but can't be put back."""
    redactor = Redactor(tokens=TokenMap(most_values=2))
    text = redactor.text("a@b.co c@d.co e@f.co a@b.co")
    assert text == "<EMAIL_1> <EMAIL_2> <EMAIL_0> <EMAIL_1>"
    assert redactor.restore(text) == "a@b.co c@d.co <EMAIL_0> a@b.co"
    tight = Redactor(tokens=TokenMap(most_characters=8))
    assert tight.text("a@b.co c@d.co") == "<EMAIL_1> <EMAIL_0>"


def test_repr_shows_no_value() -> None:
    """A map in a traceback gives nothing away."""
    redactor = Redactor()
    redactor.text("a@b.co")
    assert "a@b" not in repr(redactor.tokens) + repr(redactor)


def test_threads() -> None:
    """Two streams of a run share their tokens."""
    redactor = Redactor()
    values = [VALUES.email() for _ in range(200)]
    results: list[str] = []

    def work() -> None:
        results.append(redactor.text("\n".join(values)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert redactor.restore(results[0]) == "\n".join(values)


LET_THROUGH = {
    "a pattern": (["*@example.com"], "a@example.com b@other.com", "a@example.com <EMAIL_1>"),
    "a domain": (["example.com"], "a@example.com b@x.example.com", "a@example.com <EMAIL_1>"),
    "a value": (["a@b.co"], "a@b.co A@B.CO c@b.co", "a@b.co A@B.CO <EMAIL_1>"),
    "a network": (["10.0.0.0/8"], "10.1.2.3 192.168.1.2", "10.1.2.3 <IP_1>"),
    "a network of six": (["2001:db8::/32"], "2001:db8::1:2 2001:db9::1:2", "2001:db8::1:2 <IP_1>"),
    "a number": (["4111 1111 1111 1111"], "4111 1111 1111 1111", "4111 1111 1111 1111"),
    "everything, but no key": (["*"], "a@b.co <EMAIL_1>", "a@b.co <LITERAL_1>"),
}


@pytest.mark.parametrize(("patterns", "text", "wanted"), LET_THROUGH.values(), ids=LET_THROUGH)
def test_let_through(patterns: list[str], text: str, wanted: str) -> None:
    """What the policy names stays as it is."""
    assert Redactor(let_through=patterns).text(text) == wanted


def test_kinds_of_a_policy() -> None:
    """Groups and single kinds; every name that a policy may list is one."""
    assert expand(["secrets", "personal"]) == EVERYTHING == expand([*SECRETS, *PERSONAL])
    assert expand(["email", "jwt"]) == {Kind.EMAIL, Kind.JWT}
    assert all(expand([name]) for name in REDACTABLE)
    key = VALUES.private_key()
    assert Redactor(["email"]).text(f"a@b.co 10.1.2.3 {key}") == f"<EMAIL_1> 10.1.2.3 {key}"


def test_for_policy() -> None:
    """What the policy says, or nothing at all."""
    redactor = Redactor.for_policy(resolve(managed=None))
    assert redactor is not None
    assert redactor.kinds == EVERYTHING
    assert (redactor.applies_to("log"), redactor.applies_to("result")) == (True, False)
    layer = {"redact": ["email"], "redact_in": ["result"], "let_through": ["*@example.com"]}
    redactor = Redactor.for_policy(resolve(layers=[{"logging": layer}], managed=None))
    assert redactor is not None
    assert redactor.text("a@example.com a@b.co 10.1.2.3") == "a@example.com <EMAIL_1> 10.1.2.3"
    assert (redactor.applies_to("log"), redactor.applies_to("result")) == (False, True)
    for off in ({"redact_pii": False}, {"redact": []}, {"redact_in": []}):
        assert Redactor.for_policy(resolve(layers=[{"logging": off}], managed=None)) is None


def test_names_need_a_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one none are found; with one they are tokens like others, in pieces too."""
    monkeypatch.setitem(sys.modules, "spacy", None)

    def detector(line: str) -> Iterable[tuple[int, int]]:
        return [(line.index("Ada Lovelace"), line.index("Ada Lovelace") + 12)] if "Ada Lovelace" in line else []

    text = "dear Ada Lovelace, ada@b.co\nAda Lovelace\n"
    redactor = Redactor(detector=detector)
    assert redactor.detects_names
    assert redactor.text(text) == "dear <NAME_1>, <EMAIL_1>\n<NAME_1>\n"
    stream = Redactor(detector=detector).stream()
    assert "".join([*map(stream.feed, text), stream.finish()]) == "dear <NAME_1>, <EMAIL_1>\n<NAME_1>\n"
    assert not Redactor(["email"], detector=detector).detects_names


def test_what_overlaps_becomes_one() -> None:
    """Of the kind that takes precedence; and is then no single address that could be let through."""

    def detector(line: str) -> Iterable[tuple[int, int]]:
        return [(0, len(line))] if line else []

    assert Redactor(detector=detector, let_through=["10.0.0.0/8"]).text("Ada 10.1.2.3") == "<IP_1>"
    assert Redactor(let_through=["10.0.0.0/8"]).text("Ada 10.1.2.3") == "Ada 10.1.2.3"


NOT_SEEN = {
    "in base64": "aHVudGVyMkBleGFtcGxlLmNvbQ==",
    "spelled out": "alice at example dot com",
    "reversed": "moc.elpmaxe@ecila"[::-1].replace("@", " (at) "),
    "a word as a password": 'password = "swordfish"',
    "digits apart": "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
}


@pytest.mark.parametrize("text", NOT_SEEN.values(), ids=NOT_SEEN)
def test_what_is_not_seen(text: str) -> None:
    """The limits that docs/concepts/redaction.md names: code that wants to hide a value can."""
    assert Redactor().text(text) == text
