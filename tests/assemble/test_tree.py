"""The view of one request's spans: keys, and the nearest marked ancestor on chains, forks and cycles."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from pdtrace.dialects.contract import Tree
from pdtrace.model import Span

TRACE = "0" * 31 + "1"


def span(span_id: str, parent_id: str = "", start_ns: int = 1) -> Span:
    """A span of one trace."""
    return Span(TRACE, span_id, parent_id, span_id, 1, start_ns, start_ns + 1, "", {}, {})


def above(parents: dict[str, str], marked: str) -> dict[str, str]:
    """Marked span -> its nearest marked ancestor, by name."""
    tree = Tree([span(name, parent, at) for at, (name, parent) in enumerate(parents.items(), 1)], {})
    return {below.span_id: nearest.span_id for below, nearest in tree.nearest_above(set(marked))}


@pytest.mark.parametrize(
    ("parents", "marked", "expected"),
    [
        ({"a": "", "b": "a", "c": "b"}, "ac", {"c": "a"}),
        ({"a": "", "b": "a", "c": "b", "d": "b"}, "acd", {"c": "a", "d": "a"}),
        ({"d": "b", "c": "b", "b": "a", "a": ""}, "acd", {"c": "a", "d": "a"}),
        ({"a": "x", "b": "a"}, "b", {}),
        ({"a": "b", "b": "a"}, "ab", {"a": "b", "b": "a"}),
        ({"m": "u", "u": "v", "v": "u"}, "m", {}),
        ({"m": "u", "n": "v", "u": "v", "v": "u"}, "mn", {}),
    ],
)
def test_nearest_marked_ancestor(parents: dict[str, str], marked: str, expected: dict[str, str]) -> None:
    assert above(parents, marked) == expected


def test_children_are_those_that_name_the_parent_by_start() -> None:
    late, early, root = span("c", "a", 9), span("b", "a", 5), span("a")
    tree = Tree([late, early, root], {})
    assert tree.children(root) == [early, late]
    assert tree.children(early) == []
    assert list(tree.descendants(root)) == [late, early]


def test_keys_of_a_span_are_its_own_and_its_parents_identity() -> None:
    child = span("b", "a")
    assert (child.key, child.parent_key) == (TRACE + "b", TRACE + "a")
    assert span("a").parent_key == ""
    assert dataclasses.replace(child, span_id="c").key == TRACE + "c"
    assert pickle.loads(pickle.dumps(child)).parent_key == TRACE + "a"
    assert "key" not in repr(child)  # it would say twice what the ids say
