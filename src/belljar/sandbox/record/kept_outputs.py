"""Outputs that were cut for a model, kept whole in this process as long as there is room."""

from __future__ import annotations

from belljar.redaction.slices import OutputStore, Slice, cut

OUTPUTS = OutputStore()
"""Those of this process, by handle."""


def sliced(text: str, handle: str, *, head: int, tail: int, characters: int) -> Slice:
    """Return the text as a bounded slice. If something is left out, the whole is kept here, under its handle."""
    made = cut(text, head=head, tail=tail, characters=characters, handle=handle)
    if not made.whole:
        OUTPUTS.put(text, handle)
    return made
