"""Server-sent events, however the bytes are cut. Cases from the HTML standard, section 9.2."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtrace.instrumentation.sse import Event, SseReader


def events(stream: bytes, cuts: tuple[int, ...] = (), **options: int) -> list[Event]:
    reader = SseReader(**options)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    found: list[Event] = []
    for start, end in itertools.pairwise(edges):
        found += reader.feed(stream[start:end])
    return found + reader.close()


@pytest.mark.parametrize(
    ("stream", "wanted"),
    [
        (b"data: a\n\ndata: b\n\n", [Event("", b"a"), Event("", b"b")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [Event("", b"a"), Event("", b"b")]),
        (b"data: a\r\rdata: b\r\r", [Event("", b"a"), Event("", b"b")]),
        (b"data:a\ndata: b\ndata:  c\n\n", [Event("", b"a\nb\n c")]),
        (b"event: error\ndata: x\n\ndata: y\n\n", [Event("error", b"x"), Event("", b"y")]),
        (b": ping\n\n: ping\ndata: x\n\n", [Event("", b"x")]),
        (b"\xef\xbb\xbfdata: x\n\n", [Event("", b"x")]),
        (b"id: 7\nretry: 10\ndata\n\n", [Event("", b"")]),
        (b"event: lonely\n\ndata: x\n\n", [Event("", b"x")]),
        (b"data: never ended", [Event("", b"never ended")]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_framing(stream: bytes, wanted: list[Event]) -> None:
    assert events(stream) == wanted
    assert events(stream, cuts=tuple(range(len(stream)))) == wanted


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\r\n\r") == [Event("", b"a")]
    assert reader.feed(b"\ndata: b\n") == []
    assert reader.feed(b"\n") == [Event("", b"b")]


def test_whole_events_one_by_one() -> None:
    """How servers really send them; the reader has a short way for it that must not differ."""
    parts = [b"data: a\n\n", b"data:  b\n\n", b"event: x\n", b"data: c\n\n", b"data: \n\n", b"data: d\r\n\n", b"data: e\n\n",
             b"data: f\n", b"data: g\n\n", b"data: h\r\r", b"\ndata: i\n\n", b"data: j\n\n"]  # fmt: skip
    reader = SseReader()
    found = [event for part in parts for event in reader.feed(part)] + reader.close()
    assert found == events(b"".join(parts))
    data = [b"a", b" b", b"c", b"", b"d", b"e", b"f\ng", b"h", b"i", b"j"]
    assert found == [Event("x" if one == b"c" else "", one) for one in data]


def test_a_long_event_is_told_without_its_data_and_a_long_comment_is_nothing() -> None:
    long = b"x" * 100
    stream = b"data: " + long + b"\n\n:" + long + b"\n\n" + b"data: x\n" * 30 + b"\ndata: short\n\n"
    assert events(stream, max_event_bytes=50) == [Event("", None), Event("", None), Event("", b"short")]


def test_memory_is_bounded() -> None:
    reader = SseReader(max_event_bytes=1000)
    for _ in range(1000):
        reader.feed(b"y" * 1000)
        reader.feed(b"data: z\n")
    kept = len(reader._line) + sum(map(len, reader._data))
    assert kept <= 1000


@given(
    parts=st.lists(
        st.sampled_from(
            [
                b"data: {}",
                b"data:",
                b"\n",
                b"\n\n",
                b"\r\n",
                b"\r",
                b": c",
                b"event: e",
                "dáta: ü€🙂".encode(),
                b"data: \xf0\x9f",
            ]
        ),
        max_size=30,
    ),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    limit=st.sampled_from([8, 20, 1 << 20]),
)
def test_any_cut_gives_the_same_events(parts: list[bytes], cuts: list[int], limit: int) -> None:
    stream = b"".join(parts)
    assert events(stream, tuple(cuts), max_event_bytes=limit) == events(stream, max_event_bytes=limit)
