"""Draw a request, get native spans: the notation of every interval test.

    req        0 - 100
      prefill 10 - 50   @P0
      handoff 50 - 60   @P0>D0
      first_token 60 - 100 @D0 attempt=1 !transport_error

Times are ms after START_NS. ``req`` is the front end's span; other words are stages. ``@P0`` names the worker (P.. prefill,
D.. decode, A.. aggregated), ``a>b`` source and destination. ``end -`` (nothing after the dash) is a span still open.
``!text`` is an error status. ``key=value`` sets attempt, rank, trace, parent, id (pdtrace.request.id), host.
"""

from __future__ import annotations

import hashlib
import re

from pdtrace.model import Span

START_NS = 1_796_000_000_000_000_000
_LINE = re.compile(r"^\s*(?P<word>\w+)\s+(?P<start>-?[\d.]+)\s*-\s*(?P<end>-?[\d.]+)?(?P<rest>.*)$")
_ROLES = {"P": "prefill", "D": "decode", "A": "aggregated", "R": "router"}


def ms(value: float) -> int:
    """Milliseconds of a drawing as ns."""
    return round(value * 1e6)


def spans(drawing: str, *, trace: str = "t", request_id: str | None = "r1", **root: object) -> list[Span]:
    """Native spans of one drawn request; ``root`` are extra attributes of the request span."""
    drawn: list[Span] = []
    for number, line in enumerate(line for line in drawing.splitlines() if line.strip()):
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"not a drawn interval: {line!r}")
        drawn.append(_span(match, number, trace, request_id, root))
    return drawn


def _span(match: re.Match[str], number: int, trace: str, request_id: str | None, root: dict[str, object]) -> Span:
    rest = match["rest"]
    options = dict(re.findall(r"(\w+)=(\S+)", rest))
    trace = options.get("trace", trace)
    word = match["word"]
    attributes: dict[str, object] = {}
    request_id = options.get("id", request_id)
    if request_id is not None and request_id != "-":
        attributes["pdtrace.request.id"] = request_id
    worker = re.search(r"@(\w+)(?:>(\w+))?(?:/(\w+))?", rest)
    resource: dict[str, object] = {"service.name": "frontend"}
    if worker:
        owner = worker[3] or worker[1]
        resource = {"service.name": "engine", "service.instance.id": owner}
        resource["pdtrace.worker.role"] = _ROLES[owner[0]]
        if worker[2]:
            attributes |= {"pdtrace.handoff.src": worker[1], "pdtrace.handoff.dst": worker[2]}
    if "host" in options:
        resource["host.name"] = options["host"]
    if "gpus" in options:
        resource["pdtrace.worker.gpus"] = int(options["gpus"])
    if word == "req":
        attributes |= root
    else:
        attributes["pdtrace.attempt"] = int(options.get("attempt", 0))
    if "rank" in options:
        attributes["pdtrace.handoff.rank"] = int(options["rank"])
    error = re.search(r"!(.+)$", rest)
    name = "pdtrace.request" if word == "req" else f"pdtrace.{word}"
    return Span(
        trace_id=hashlib.md5(trace.encode(), usedforsecurity=False).hexdigest(),
        span_id=hashlib.md5(f"{trace}/{number}/{word}/{match['start']}".encode(), usedforsecurity=False).hexdigest()[
            :16
        ],
        parent_id="",
        name=name,
        kind=2 if word == "req" else 1,
        start_ns=START_NS + ms(float(match["start"])),
        end_ns=START_NS + ms(float(match["end"])) if match["end"] else 0,
        scope="pdtrace",
        resource=resource,
        attributes=attributes,
        status=2 if error else 0,
        status_message=error[1].strip() if error else "",
    )


def totals_ms(sections: dict[str, int]) -> dict[str, float]:
    """Section totals in ms, for comparison with a drawing."""
    return {stage: value / 1e6 for stage, value in sections.items()}
