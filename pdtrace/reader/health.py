"""What cannot be seen, in words: the blind spots of the dialects that were seen, and the warnings, counted.

Owns the sentences of `pdtrace doctor`. Does not query.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdtrace.reader.contract import Row


def blind_spots() -> dict[str, tuple[str, ...]]:
    """Dialect name -> what it can never tell."""
    from pdtrace.dialects import DIALECTS  # lazily: dialects are many, and most questions need none of them

    return {dialect.name: tuple(dialect.blind_spots) for dialect in DIALECTS}


def missing_sentences(dialects: Sequence[Row], warnings: Sequence[Row]) -> list[str]:
    """One sentence for everything that is not seen.

    Args:
        dialects: rows with dialect and blind_spots.
        warnings: rows with code, requests and example.
    """
    sentences = [f"{d['dialect']}: {spot}" for d in dialects for spot in d["blind_spots"]]
    for w in warnings:
        count = w["requests"]
        sentences.append(f"{w['code']} on {count} request{'' if count == 1 else 's'}, e.g. {w['example']}")
    return sentences
