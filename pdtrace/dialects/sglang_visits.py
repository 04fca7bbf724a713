"""Where in SGLang a span was made: the visit (one request on one engine), the worker, the clock, the rank, the attempt.

Owns the tree walk and SGLang's ids. Does not name stages and appends nothing to a Reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from pdtrace.dialects.contract import Tree, as_int, clock_of, seconds_to_ns, worker_of
from pdtrace.model import Role, Span, SpanKey

SENDER: Final = "Sender Req"  #: root of a mooncake sender's own trace, one per rank
BOOTSTRAP_ROOM: Final = "Bootstrap Room"  #: old form: root of everything
_ROLE_OF_ROOT: Final[dict[str, Literal["prefill", "decode", "aggregated", "router"]]] = {
    "prefill": "prefill",
    "decode": "decode",
    "router": "router",
    "": "aggregated",  # unified mode: the name is " Req <rid>", with a leading space
    "unified": "aggregated",
}


def request_root(span: Span) -> Literal["prefill", "decode", "aggregated", "router"] | None:
    """The role a request root's name says ("router" only in the old form), or None for any other span."""
    head, found, _ = span.name.partition("Req ")
    return _ROLE_OF_ROOT.get(head.strip()) if found else None


def is_thread(span: Span) -> bool:
    """Thread spans carry the rank and the host of everything below them."""
    return "thread_label" in span.attributes or "(host:" in span.name


def room_of(span: Span) -> str | None:
    """The bootstrap room as a decimal u64; None without one, and for room 0, which warm-ups and unified mode share.

    Roots carry it as hex text ("0x16d5b706fb42df3d"), the old router as its decimal `rid`, bodies and logs as an int.
    """
    raw = span.attributes.get("bootstrap_room")
    if raw is None and request_root(span) == "router":
        raw = span.attributes.get("rid")
    if raw is None and span.name.startswith((SENDER, BOOTSTRAP_ROOM)):
        raw = span.attributes.get("rid")
    if isinstance(raw, str):
        try:
            number = int(raw, 16) if raw[:2].lower() == "0x" else int(raw)
        except ValueError:
            return None
    elif isinstance(raw, int) and not isinstance(raw, bool):
        number = raw
    else:
        return None
    number &= (1 << 64) - 1
    return str(number) if number else None


def finish_reasons(raw: object) -> list[str]:
    """Finish reasons as plain words, from SGLang's JSON text ('["length"]', or objects with a "type") or a list."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw) if raw.startswith(("[", "{")) else [raw]
        except ValueError:
            raw = [raw]
    items = list(raw) if isinstance(raw, list) else [raw]
    words = (item.get("type") if isinstance(item, dict) else item for item in items)
    return [str(word) for word in words if word]


class Visit(NamedTuple):
    """One request on one engine: its root span and what the root alone says."""

    root: Span
    role: Role
    room: str | None


class Place(NamedTuple):
    """Where a span was made. Unknown parts are "" (role, worker, rank)."""

    role: Role
    worker: str
    clock: str
    rank: str
    attempt: int


class Visits:
    """Every visit of one request, and the place of each of its spans."""

    def __init__(self, mine: Sequence[Span], tree: Tree) -> None:
        self._tree = tree
        self.all: list[Visit] = []
        self.routers: list[Span] = []
        self._thread_of: dict[SpanKey, Span] = {}
        self._root_of: dict[SpanKey, Span] = {}
        self._walked: set[SpanKey] = set()
        self._places: dict[SpanKey, Place] = {}
        for span in mine:
            role = request_root(span)
            if role == "router":
                self.routers.append(span)
            elif role is not None:
                self.all.append(Visit(span, role, room_of(span)))
            self._walk_up(span)
        names = {span.name for span in mine}
        self.is_old_form = any(name.startswith(BOOTSTRAP_ROOM) for name in names) or bool(self.routers)
        self._attempt_of_room = _attempts(self.all)
        self._visit_of_root = {visit.root.key: visit for visit in self.all}
        self._host_of: dict[str, str] = {}
        self._tokenizer_of: dict[str, str] = {}
        for span in mine:
            if is_thread(span):
                self._note_thread(span)

    def _walk_up(self, span: Span) -> None:
        """Note the nearest thread and root at or above ``span``, and above everything on the way: linear over all."""
        chain: dict[SpanKey, Span] = {}
        above: Span | None = span
        while above is not None and above.key not in self._walked and above.key not in chain:
            chain[above.key] = above
            above = self._tree.parent(above)
        thread = self._thread_of.get(above.key) if above is not None else None
        root = self._root_of.get(above.key) if above is not None else None
        for key, link in reversed(chain.items()):
            self._walked.add(key)
            if request_root(link) is not None or link.name.startswith(SENDER):
                thread, root = None, link
            if is_thread(link):
                thread = link
            if thread is not None:
                self._thread_of[key] = thread
            if root is not None:
                self._root_of[key] = root

    def _note_thread(self, span: Span) -> None:
        role = self._role(span)
        host = span.attributes.get("host_id")
        root = self._root_of.get(span.key)
        owner = role or ("router" if root is not None and request_root(root) == "router" else "")
        if host and owner:
            self._host_of.setdefault(owner, str(host))
        if host and root is not None:
            self._host_of.setdefault(root.span_id, str(host))
        if role and "Tokenizer" in span.name:
            self._tokenizer_of.setdefault(role, worker_of(span))

    def _role(self, span: Span) -> Role:
        root = self._root_of.get(span.key)
        if root is not None:
            if root.name.startswith(SENDER):
                return "prefill"
            visit = self._visit_of_root.get(root.key)
            return visit.role if visit is not None else ""
        thread = self._thread_of.get(span.key)
        words = f"{thread.name if thread is not None else ''} {span.name}".lower()
        if "mooncake" in words or "prefill" in words:
            return "prefill"
        return "decode" if "decode" in words or "fake_output" in words else ""

    def _visit(self, span: Span, role: Role) -> Visit | None:
        """The visit ``span`` belongs to: its own root's, a sender's room's, else the only one of its role."""
        root = self._root_of.get(span.key)
        if root is not None and root.key in self._visit_of_root:
            return self._visit_of_root[root.key]
        of_role = [visit for visit in self.all if visit.role == role]
        if root is not None and (room := room_of(root)) is not None:
            of_role = [visit for visit in of_role if visit.room == room]
        return of_role[0] if len(of_role) == 1 else None

    def place(self, span: Span) -> Place:
        """Role, worker, clock, rank and attempt of ``span``."""
        known = self._places.get(span.key)
        if known is None:
            known = self._places[span.key] = self._find_place(span)
        return known

    def _find_place(self, span: Span) -> Place:
        role = self._role(span)
        visit = self._visit(span, role)
        root = self._root_of.get(span.key)
        thread = self._thread_of.get(span.key)
        # Every process of an engine has its own service.instance.id: the tokenizer's, which owns the root, names it.
        worker = worker_of(visit.root) if visit is not None else self._tokenizer_of.get(role, "")
        host = thread.attributes.get("host_id") if thread is not None else None
        if not host and root is not None:
            host = self._host_of.get(root.span_id)
        if not host:
            host = self._host_of.get(role or ("router" if root is not None else ""))
        room = visit.room if visit is not None else (room_of(root) if root is not None else None)
        return Place(
            role,
            worker,
            f"host:{host}" if host else clock_of(visit.root if visit is not None else span),
            rank_of(thread),
            self._attempt_of_room.get(room or "", 0),
        )

    def answering_root(self, span: Span) -> Span | None:
        """The root of the decode or unified visit ``span`` belongs to, if it is here."""
        visit = self._visit(span, self._role(span))
        return visit.root if visit is not None and visit.role != "prefill" else None

    def rooms_and_ranks(self, spans: Iterable[Span]) -> Iterator[tuple[Place, int, Span]]:
        """``spans`` by start with their number among those of the same role, attempt and rank."""
        numbers: dict[Place, int] = {}
        for span in sorted(spans, key=lambda s: (s.start_ns, s.span_id)):
            place = self.place(span)
            number = numbers.get(place, 0)
            numbers[place] = number + 1
            yield place, number, span

    def decode_first(self) -> list[Visit]:
        """All visits, the answering side first, then by start."""
        return sorted(self.all, key=lambda visit: (visit.role == "prefill", visit.root.start_ns, visit.root.span_id))

    @staticmethod
    def ttft_ns(root: Span) -> int | None:
        """The engine's own time to first token; a negative one is a fault of its clock and is unknown."""
        ttft = seconds_to_ns(root.attributes.get("gen_ai.latency.time_to_first_token"))
        return ttft if ttft is not None and ttft >= 0 else None

    @staticmethod
    def count(root: Span, name: str) -> int | None:
        """A token count on the root; negative counts are unknown."""
        number = as_int(root.attributes.get(name))
        return number if number is not None and number >= 0 else None


def rank_of(thread: Span | None) -> str:
    """The parallel rank of a thread span, e.g. "tp0" or "dp1 pp0 tp3"; "" if it says none."""
    if thread is None:
        return ""
    parts = ((name, as_int(thread.attributes.get(f"{name}_rank"))) for name in ("dp", "pp", "tp"))
    return " ".join(f"{name}{number}" for name, number in parts if number is not None)


def _attempts(visits: list[Visit]) -> dict[str, int]:
    """Room -> attempt. A retry has a new room and begins after the former one ended; overlapping rooms are the
    prompts of one batch and share an attempt."""
    spans_of_room: dict[str, list[int]] = {}
    for visit in visits:
        window = spans_of_room.setdefault(visit.room or "", [visit.root.start_ns, visit.root.end_ns])
        window[0] = min(window[0], visit.root.start_ns)
        window[1] = max(window[1], visit.root.end_ns)
    attempts: dict[str, int] = {}
    attempt, busy_until = -1, -1
    for room, (start_ns, end_ns) in sorted(spans_of_room.items(), key=lambda item: item[1]):
        if start_ns > busy_until:
            attempt += 1
        busy_until = max(busy_until, end_ns)
        attempts[room] = attempt
    return attempts
