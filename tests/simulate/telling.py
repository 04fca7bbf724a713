"""Stories drawn by hand, told and read back: what the emitter tests and the round trip share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pdtrace.importers.records import dynamo_request_trace
from pdtrace.model import Batch
from pdtrace.otlp.decode import decode
from pdtrace.pipeline import Pipeline
from pdtrace.reader.contract import Filters
from pdtrace.reader.local import LocalReader
from pdtrace.simulate.emit import MemorySink, make_emitter
from pdtrace.simulate.emit.visits import Visit, visits_of
from pdtrace.simulate.story import ClusterFacts, Doing, HostFacts, RouteChoice, Story, WorkerFacts
from pdtrace.stages import STAGES
from pdtrace.store.duckdb import DuckDBStore

START_NS = 1_796_000_000_000_000_000
Row = dict[str, Any]

CLUSTER = ClusterFacts(
    hosts={name: HostFacts(0, 0.0, START_NS) for name in ("edge", "node-0", "node-1")},
    workers={
        "router-0": WorkerFacts("router", "edge", "router", 0, "", 1),
        "p0": WorkerFacts("prefill", "node-0", "prefill", 2, "H100", 2),
        "p1": WorkerFacts("prefill", "node-0", "prefill", 2, "H100", 2),
        "d0": WorkerFacts("decode", "node-1", "decode", 2, "H100", 2),
        "d1": WorkerFacts("decode", "node-1", "decode", 2, "H100", 2),
    },
)
_LINE = re.compile(r"^\s*(?P<stage>\w+)\s+(?P<start>[\d.]+)\s*-\s*(?P<end>[\d.]+)\s*(?P<rest>.*)$")


def ms(value: float) -> int:
    """Milliseconds of a drawing as true time."""
    return START_NS + round(value * 1e6)


def draw(drawing: str, *, outcome: str = "ok", request_id: str = "r1", number: int = 0, **known: Any) -> Story:
    """A story from lines ``stage start - end @worker attempt=1 side=source !what failed``, times in ms.

    ``req`` is the front end's interval and ``token`` (start = end) the first token. What a drawing does not say is said
    by keyword.
    """
    doings: list[Doing] = []
    container: tuple[int, int] | None = None
    token_ns = None
    for line in drawing.strip().splitlines():
        match = _LINE.match(line)
        assert match is not None, line
        start_ns, end_ns = ms(float(match["start"])), ms(float(match["end"]))
        if match["stage"] == "token":
            token_ns = start_ns
            continue
        said, _, failed = match["rest"].partition("!")
        options = dict(re.findall(r"(\w+)=(\S+)", said))
        found = re.search(r"@([\w-]+)", said)
        worker = found[1] if found else "router-0"
        stage = "container" if match["stage"] == "req" else match["stage"]
        if stage == "container":
            container = start_ns, end_ns
        host = CLUSTER.workers[worker].host
        doing = Doing(stage, start_ns, end_ns, worker, host, int(options.pop("attempt", 0)), failed=failed)
        doing.rank, doing.chunk, doing.side = (options.pop(key, "") for key in ("rank", "chunk", "side"))
        doing.detail = {key: int(value) if value.isdigit() else value for key, value in options.items()}
        doings.append(doing)
    assert container is not None
    story = Story(
        request_id=request_id,
        number=number,
        model="tiny-llama",
        run="drawn",
        frontend="router-0",
        frontend_host="edge",
        arrival_ns=container[0],
        first_token_ns=token_ns,
        end_ns=container[1],
        outcome=outcome,
        mode="sequential",
        input_tokens=1000,
        output_tokens=3 if token_ns is not None else 0,
        cached_tokens=None,
        prefill_worker="p0",
        decode_worker="d0",
        doings=doings,
        http_status=200 if outcome in ("ok", "ok_fallback") else None,
    )
    if token_ns is not None:
        story.token_times_ns = [token_ns, token_ns + 5_000_000, token_ns + 10_000_000]
    for name, value in known.items():
        setattr(story, name, value)
    return story


def choose(story: Story, chosen: str, at: float, stage: str = "prefill", attempt: int = 0) -> Story:
    """Add a decision between p0 and p1 (or d0 and d1), of which the first was believed to have 640 tokens."""
    candidates = ["p0", "p1"] if stage == "prefill" else ["d0", "d1"]
    nothing = [0.0, 0.0]
    story.choices.append(
        RouteChoice(stage, "events", candidates, [640, 0] if stage == "prefill" else [0, 0], [1.0, 2.0], nothing, nothing,
                    nothing, 64, chosen, "lowest_cost", ms(at), attempt, [640, 0])
    )  # fmt: skip
    return story


SEQUENTIAL = """
req           0 - 200
router_queue  3 - 5
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 60    @p0  prompt_tokens=1000 cached_tokens=640
route        61 - 62
decode_queue 63 - 68    @d0
handoff      68 - 80    @d0  side=destination src=p0 dst=d0 bytes=160000
decode_queue 80 - 85    @d0
first_token  85 - 93    @d0
token        94 - 94
decode       93 - 150   @d0
kv_hold      60 - 80    @p0
"""

OVERLAPPED = """
req           0 - 200
route         5 - 6
prefill_queue 7 - 12    @p0
bootstrap    12 - 17    @p0
prefill      17 - 60    @p0  prompt_tokens=1000 cached_tokens=640
handoff      30 - 66    @p0  side=source src=p0 dst=d0 bytes=160000
decode_queue  7 - 17    @d0
decode_queue 66 - 85    @d0
first_token  85 - 93    @d0
token        94 - 94
decode       93 - 150   @d0
"""


# --------------------------------------------------------------------------------------------------------- told


def tell(dialect: str, stories: Iterable[Story], cluster: ClusterFacts = CLUSTER, seed: int = 1) -> MemorySink:
    """The telemetry of ``stories`` in one dialect."""
    sink = MemorySink()
    emitter = make_emitter(dialect, sink, cluster, seed)
    for story in stories:
        emitter.emit(story)
    emitter.close()
    return sink


def batch_of(sink: MemorySink) -> Batch:
    """What a sink took, as the receivers decode it."""
    whole = Batch()
    for signal, body in sink.bodies:
        batch = decode(signal, body, encoding="protobuf", received_ns=0, where="test")
        assert batch.rejections == []
        whole.spans += batch.spans
        whole.logs += batch.logs
    whole.records = [dynamo_request_trace(line) for line in sink.lines]
    return whole


def read_back(batch: Batch) -> list[Row]:
    """Every request that pdtrace makes of ``batch``, in full, by arrival."""
    store = DuckDBStore(":memory:")
    try:
        pipeline = Pipeline(store)
        pipeline.add(batch)
        pipeline.derive()
        assert pipeline.failures == 0
        reader = LocalReader(store)
        uids = [row["uid"] for row in reader.requests(Filters())]
        rows = [row for first in range(0, len(uids), 500) for row in reader.details(uids[first : first + 500])]
        return sorted(rows, key=lambda row: (row["window"][0], row["request_id"]))
    finally:
        store.close()


# -------------------------------------------------------------------------------------------------------- truth


class Piece(NamedTuple):
    """A section: in true time for the truth, in stamps for an answer."""

    stage: str
    start_ns: int
    end_ns: int


def true_pieces(story: Story, until_ns: int) -> list[Piece]:
    """Sections of a story from its arrival on, charged instant by instant straight from the definitions."""
    doings = [d for d in story.doings if d.stage in STAGES[:11] and d.end_ns > d.start_ns]
    cuts = {story.arrival_ns, until_ns}
    for doing in doings:
        cuts |= {at for at in (doing.start_ns, doing.end_ns) if story.arrival_ns < at < until_ns}
    bounds = sorted(cuts)
    pieces: list[Piece] = []
    for low, high in itertools.pairwise(bounds):
        present = {d.stage for d in doings if d.start_ns <= low and d.end_ns >= high}
        stage = next((stage for stage in STAGES if stage in present), "container")
        if pieces and pieces[-1].stage == stage:
            pieces[-1] = pieces[-1]._replace(end_ns=high)
        else:
            pieces.append(Piece(stage, low, high))
    fine = [at for at, piece in enumerate(pieces) if piece.stage != "container"]
    if not fine:
        return [piece._replace(stage="unattributed") for piece in pieces]
    named = []
    for at, piece in enumerate(pieces):
        if piece.stage == "container":
            piece = piece._replace(stage="ingress" if at < fine[0] else "egress" if at > fine[-1] else "relay")
        named.append(piece)
    return named


def overlaps(answer: Iterable[Piece], truth: Iterable[Piece]) -> Iterator[tuple[str, str, int, int]]:
    """(stage answered, true stage, from, to) for every stretch of time in which neither changes."""
    truth = list(truth)
    for piece in answer:
        for true in truth:
            low, high = max(piece.start_ns, true.start_ns), min(piece.end_ns, true.end_ns)
            if low < high:
                yield piece.stage, true.stage, low, high


#: Nobody is blamed: the front end has the request, or nobody is known to.
UNKNOWN = frozenset(("ingress", "relay", "egress", "unattributed"))
_OPAQUE_SIDE = {"prefill_opaque": ("prefill", "aggregated"), "decode_opaque": ("decode",)}


def is_right(answered: str, true: str, low_ns: int, high_ns: int, visits: list[Visit], warnings: Iterable[str]) -> bool:
    """Whether an answer names the true stage, or a coarser one that the definitions (section 2) allow for it.

    - front end and unattributed: coarser than everything
    - an opaque envelope: the request was inside that side's worker (or on a call to one that sent no span)
    - D's queue, with the warning that it may hold the transfer: the handoff to that D
    """
    if answered == true or answered in UNKNOWN:
        return True
    if answered in _OPAQUE_SIDE:
        inside = [visit for visit in visits if visit.role in _OPAQUE_SIDE[answered]]
        if "worker_sent_no_span" in warnings and any(v.called_ns <= low_ns and high_ns <= v.left_ns for v in inside):
            return True
        return any(visit.start_ns <= low_ns and high_ns <= visit.end_ns for visit in inside)
    if answered == "decode_queue" and true == "handoff" and "may_hold_transfer" in warnings:
        return any(visit.role == "decode" and visit.start_ns <= low_ns < visit.end_ns for visit in visits)
    return False


def wrongs(story: Story, row: Row, cluster: ClusterFacts = CLUSTER) -> list[tuple[str, str, int]]:
    """(stage answered, true stage, ns) wherever an answer is wrong inside the true window. Clocks must show true time."""
    pieces = [Piece(*piece) for piece in row["section_list"] or row["section_list_to_end"]]
    until_ns = story.first_token_ns or story.end_ns or max(doing.end_ns for doing in story.doings)
    visits = visits_of(story, cluster)
    truth = true_pieces(story, until_ns)
    return [
        (answered, true, high - low)
        for answered, true, low, high in overlaps(pieces, truth)
        if not is_right(answered, true, low, high, visits, row["warnings"])
    ]
