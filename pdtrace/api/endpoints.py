"""The questions the API answers, one entry each: path, parameters, what is asked of the reader, shape of the answer.

Owns the list; routes and the OpenAPI document are both made from it. Does not speak HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pdtrace.api.parameters import FILTERS, Parameter, filters
from pdtrace.exporters import perfetto
from pdtrace.reader.contract import Reader
from pdtrace.reader.local import ORDERS

DEFAULT_LIMIT: Final = 1_000
MAX_LIMIT: Final = 10_000

Values = dict[str, Any]


class NotFound(LookupError):
    """Nothing is stored under the id that was asked for; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path below /v1."""

    path: str  #: with {name} for path parameters
    summary: str
    schema: str  #: name of the answer's schema in schemas/openapi/answers.json
    answer: Callable[[Reader, Values], Any]  #: values: all path and query parameters, checked
    parameters: tuple[Parameter, ...] = ()
    rows: bool = False  #: the answer is a list of rows, so an Arrow stream can be asked for
    may_miss: bool = False  #: the path names something that may not exist

    @property
    def path_parameters(self) -> tuple[str, ...]:
        """Names in braces."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


def _requests(reader: Reader, values: Values) -> Any:
    return reader.requests(
        filters(values, values["limit"]),
        order_by=values["order_by"],
        descending=values["descending"],
        offset=values["offset"],
        search=values["q"],
    )


def _request(reader: Reader, values: Values) -> Any:
    found = reader.request(values["id"])
    if not found:
        raise NotFound(f"no request {values['id']!r}; give a uid, request id, alias or trace id that is stored")
    return {"requests": found}


def _details(reader: Reader, values: Values) -> Any:
    return reader.details(values["uids"])


def _spans(reader: Reader, values: Values) -> Any:
    spans = reader.spans(values["uid"])
    if not spans and not reader.request(values["uid"]):
        raise NotFound(f"no request with uid {values['uid']!r}; /v1/requests lists uids")
    return spans


def _perfetto(reader: Reader, values: Values) -> Any:
    found = [row for row in reader.request(values["uid"]) if row["uid"] == values["uid"]]
    if not found:
        raise NotFound(f"no request with uid {values['uid']!r}; /v1/requests lists uids")
    return perfetto.trace(found)


def _ttft(reader: Reader, values: Values) -> Any:
    return reader.ttft(values["by"], filters(values, values["limit"]))


def _live(reader: Reader, values: Values) -> Any:
    return reader.live(filters(values), window_s=values["window_s"], bucket_s=values["bucket_s"])


_LIMIT = Parameter("limit", "integer", "At most this many rows.", default=DEFAULT_LIMIT, minimum=1, maximum=MAX_LIMIT)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "/v1/requests",
        "One row per request.",
        "requests",
        _requests,
        (
            *FILTERS,
            _LIMIT,
            Parameter("offset", "integer", "Rows to leave out first.", default=0),
            Parameter("order_by", "string", "A fact, or the time charged to a stage.", choices=ORDERS, default="t0"),
            Parameter("descending", "boolean", "Largest first; unknowns stay last.", default=False),
            Parameter("q", "string", "A request id, alias, trace id or uid, or the beginning of one (4 characters)."),
        ),
        rows=True,
    ),
    Endpoint("/v1/requests/{id}", "Every request with this id, in full.", "request", _request, may_miss=True),
    Endpoint(
        "/v1/details",
        "Several requests in full.",
        "details",
        _details,
        (Parameter("uids", "list", "Uids, separated by commas; at most 1,000.", default=()),),
        rows=True,
    ),
    Endpoint("/v1/requests/{uid}/spans", "The raw spans of one request.", "spans", _spans, rows=True, may_miss=True),
    Endpoint(
        "/v1/requests/{uid}/perfetto", "One request as Perfetto trace events.", "perfetto", _perfetto, may_miss=True
    ),
    Endpoint(
        "/v1/ttft",
        "TTFT and its mean decomposition per group.",
        "ttft",
        _ttft,
        (
            Parameter(
                "by",
                "list",
                "Dimensions, separated by commas: prefill_worker, decode_worker, link, model, mode, run, outcome, minute, "
                "bucket:SECONDS; none = one group over all.",
                default=(),
            ),
            *FILTERS,
            Parameter("limit", "integer", "At most this many groups.", minimum=1),
        ),
        rows=True,
    ),
    Endpoint(
        "/v1/ledger",
        "Offered requests by outcome.",
        "ledger",
        lambda reader, values: reader.ledger(filters(values)),
        FILTERS,
    ),
    Endpoint(
        "/v1/live",
        "The last minutes in buckets, and what is in flight.",
        "live",
        _live,
        (
            *FILTERS,
            Parameter("window_s", "integer", "Length looked at, seconds.", default=300, minimum=1, maximum=86_400),
            Parameter("bucket_s", "integer", "Length of a bucket, seconds.", default=5, minimum=1, maximum=3_600),
        ),
    ),
    Endpoint(
        "/v1/facets",
        "Values that the filters can take.",
        "facets",
        lambda reader, values: reader.facets(filters(values)),
        FILTERS,
    ),
    Endpoint("/v1/doctor", "What can be believed and what is missing.", "doctor", lambda reader, _: reader.doctor()),
)
