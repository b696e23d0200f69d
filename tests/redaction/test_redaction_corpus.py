"""Precision and recall on the labelled corpus, for each kind: what has to be found is, and little else."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from redaction_corpus import FORMS, SEED, Example, corpus, escaped, templates

from belljar.redaction.finders.keyblocks import blocks
from belljar.redaction.scan import scan

BOUNDS = {
    # kind: precision, recall
    "private_key": (0.98, 0.95),
    "token": (0.98, 0.95),
    "jwt": (0.98, 0.95),
    "url_password": (0.98, 0.95),
    "named_secret": (0.98, 0.95),
    "email": (0.95, 0.95),
    "phone": (0.95, 0.95),
    "card": (0.95, 0.95),
    "iban": (0.95, 0.95),
    "national_id": (0.95, 0.95),
    "ip": (0.95, 0.95),
}


def found(text: str) -> set[tuple[int, int, str]]:
    """What is found in a text, as the corpus labels it."""
    spans, place = set(), 0
    for start, end, _ in [*blocks(text), (len(text), len(text), "closed")]:
        spans |= {(place + first, place + last, kind.value) for first, last, kind in scan(text[place:start])}
        if end > start:
            spans.add((start, end, "private_key"))
        place = end
    return spans


@pytest.fixture(scope="module", params=[SEED, SEED + 1, SEED + 2])
def examples(request: pytest.FixtureRequest) -> list[Example]:
    """The corpus, and two others with other values."""
    return list(corpus(request.param))


def test_how_large_it_is(examples: list[Example]) -> None:
    """A kind that has a bound is there often enough to have one."""
    labelled = Counter(kind for example in examples for *_, kind in example.spans)
    assert sum(labelled.values()) > 2000
    assert set(labelled) == set(BOUNDS)
    assert min(labelled.values()) >= 60
    assert len(templates("negatives")) > 90


def test_precision_and_recall(examples: list[Example]) -> None:
    """The whole value and nothing else, of the right kind, or it does not count."""
    right, wrong, missed = Counter[str](), Counter[str](), Counter[str]()
    for example in examples:
        spans, labelled = found(example.text), set(example.spans)
        right.update(kind for *_, kind in spans & labelled)
        wrong.update(kind for *_, kind in spans - labelled)
        missed.update(kind for *_, kind in labelled - spans)
    low = {}
    for kind, (precision, recall) in BOUNDS.items():
        here = (right[kind] / (right[kind] + wrong[kind]), right[kind] / (right[kind] + missed[kind]))
        if here[0] < precision or here[1] < recall:
            low[kind] = here
    assert not low
    assert not set(wrong) - set(BOUNDS)


def test_nothing_is_left_of_a_secret(examples: list[Example]) -> None:
    """However it is labelled: of nearly every secret no character is left in the open."""
    total = leaked = 0
    for example in examples:
        covered = {place for start, end, _ in found(example.text) for place in range(start, end)}
        for start, end, kind in example.spans:
            if kind in ("private_key", "token", "jwt", "url_password", "named_secret"):
                total += 1
                leaked += not covered.issuperset(range(start, end))
    assert leaked / total < 0.02


@pytest.mark.parametrize("form", FORMS)
def test_of_what_tools_print_nothing_is_left(form: str) -> None:
    """In colour, escaped, numbered: of nearly every value that is found as it is, no character is left in the open."""
    total, leaked = Counter[str](), Counter[str]()
    for example in corpus(rounds=2):
        if not example.spans or not set(example.spans) <= found(example.text):
            continue
        printed = escaped(example, form)
        covered = {place for start, end, _ in found(printed.text) for place in range(start, end)}
        for start, end, kind in printed.spans:
            left = "".join(printed.text[place] for place in range(start, end) if place not in covered)
            total[kind] += 1
            leaked[kind] += any(map(str.isalnum, re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", left)))
    low = {kind: (leaked[kind], total[kind]) for kind in total if leaked[kind] > 0.05 * total[kind] + 1}
    assert not low


@pytest.mark.parametrize("form", FORMS)
def test_of_what_tools_print_little_else_is_found(form: str) -> None:
    """Text with nothing to find has nothing to find in another form."""
    plain = [example for example in corpus(rounds=2) if not example.spans]
    before = sum(len(found(example.text)) for example in plain)
    after = sum(len(found(escaped(example, form).text)) for example in plain)
    assert after <= before + 0.02 * len(plain)
