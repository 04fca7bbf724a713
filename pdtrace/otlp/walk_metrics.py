"""An ExportMetricsServiceRequest, in any encoding whose fields Leaves can read, to Points.

Owns the walk over resource, scope, metric and data point. Does not aggregate, convert temporality or compute rates.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pdtrace.model import Point, Value
from pdtrace.otlp.faults import INT64_MAX, BadField, shown
from pdtrace.otlp.leaves import Leaves

_Kind = Literal["gauge", "sum", "histogram", "exponential_histogram", "summary"]
_KINDS: Final[tuple[_Kind, ...]] = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_NO_RECORDED_VALUE: Final = 1  # DataPointFlags, OTLP metrics.proto


def walk_metrics(request: Any, leaves: Leaves, *, received_ns: int) -> list[Point]:
    """Points of ``request`` in order; what cannot be kept is in ``leaves.faults``."""
    points: list[Point] = []
    for resource_metrics in request.resource_metrics or ():
        resource = leaves.attributes(resource_metrics.resource.attributes) if resource_metrics.resource else {}
        for scope_metrics in resource_metrics.scope_metrics or ():
            scope = leaves.text(scope_metrics.scope.name, "a scope name") if scope_metrics.scope else ""
            for metric in scope_metrics.metrics or ():
                for point in _points(metric, leaves):
                    point.scope = scope
                    point.resource = resource
                    point.received_ns = received_ns
                    points.append(point)
    return points


def _points(metric: Any, leaves: Leaves) -> list[Point]:
    name = leaves.text(metric.name, "a metric name")
    kind = next((k for k in _KINDS if leaves.present(metric, k)), None)
    if kind is None:
        return []
    body = getattr(metric, kind)
    if not name:
        leaves.faults.add("point", "a metric must have a name", count=len(body.data_points or ()))
        return []
    unit = leaves.text(metric.unit, "a unit")
    points = []
    for raw in body.data_points or ():
        try:
            point = _point(raw, name, kind, unit, leaves)
            if kind in ("sum", "histogram", "exponential_histogram"):
                point.temporality = leaves.enum(body.aggregation_temporality, "AGGREGATION_TEMPORALITY_")
            point.monotonic = kind == "sum" and bool(body.is_monotonic)
        except BadField as fault:
            leaves.faults.add("point", str(fault), f"metric {shown(name)}")
            continue
        points.append(point)
    return points


def _point(raw: Any, name: str, kind: _Kind, unit: str, leaves: Leaves) -> Point:
    time_ns, start_ns = leaves.integer(raw.time_unix_nano), leaves.integer(raw.start_time_unix_nano)
    if not 0 < time_ns <= INT64_MAX or not 0 <= start_ns <= INT64_MAX:
        raise BadField("data point times must be Unix nanoseconds below 2**63, and the time must be set")
    recorded = not leaves.integer(raw.flags) & _NO_RECORDED_VALUE
    value: float | int | None = None
    distribution: dict[str, Value] | None = None
    if kind in ("gauge", "sum"):
        value = _number(raw, leaves) if recorded else None
    elif recorded:
        distribution = _distribution(raw, kind, leaves)
    return Point(
        name, kind, unit, time_ns, start_ns, "", {}, leaves.attributes(raw.attributes or ()), value, distribution
    )


def _number(raw: Any, leaves: Leaves) -> float | int | None:
    if leaves.present(raw, "as_int"):
        return leaves.integer(raw.as_int)
    return leaves.number(raw.as_double) if leaves.present(raw, "as_double") else None


def _distribution(raw: Any, kind: _Kind, leaves: Leaves) -> dict[str, Value]:
    """count and sum, plus bounds/buckets, scale/offsets/buckets, or quantiles; absent optional numbers are None."""
    out: dict[str, Value] = {"count": leaves.integer(raw.count)}
    if kind == "summary":
        out["sum"] = leaves.number(raw.sum)
        out["quantiles"] = [[leaves.number(q.quantile), leaves.number(q.value)] for q in raw.quantile_values or ()]
        return out
    for field in ("sum", "min", "max"):
        out[field] = leaves.number(getattr(raw, field)) if leaves.present(raw, field) else None
    if kind == "histogram":
        out["bounds"] = [leaves.number(b) for b in raw.explicit_bounds or ()]
        out["buckets"] = [leaves.integer(c) for c in raw.bucket_counts or ()]
        if out["buckets"] and len(out["buckets"]) != len(out["bounds"]) + 1:
            raise BadField("a histogram must have one bucket more than bounds")
        return out
    out["scale"] = leaves.integer(raw.scale)
    out["zero_count"] = leaves.integer(raw.zero_count)
    out["zero_threshold"] = leaves.number(raw.zero_threshold)
    for side in ("positive", "negative"):
        buckets = getattr(raw, side) if leaves.present(raw, side) else None
        out[f"{side}_offset"] = leaves.integer(buckets.offset) if buckets else 0
        out[f"{side}_buckets"] = [leaves.integer(c) for c in buckets.bucket_counts or ()] if buckets else []
    return out
