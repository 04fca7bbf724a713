"""NVIDIA Dynamo 1.5.1: which spans and records are Dynamo's, and who reads which of them.

Owns recognition only. The front end, the routing and the request trace are read in the three dynamo_* modules beside it.

Source of every name: captures of a real front end, router and mocker workers, version 1.5.1. Dynamo's Resource holds
nothing but ``service.name``, which operators choose freely, so spans are recognised by name and attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdtrace.dialects import dynamo_frontend, dynamo_request_trace, dynamo_routing
from pdtrace.dialects.contract import Tree
from pdtrace.model import Identity, Key, Log, Reading, Record, Role, Span

NAME: Final = "dynamo"

#: Spans that only make sense below a span that names the request. ``completions*`` wrap /v1/completions (_batch for a
#: list of prompts: read in lib/llm/src/http/service/openai.rs); the four others are steps of kv_router.select_worker.
_INNER: Final = frozenset(
    {
        "completions",
        "completions_batch",
        "completions_single",
        "kv_router.compute_block_hashes",
        "kv_router.compute_seq_hashes",
        "kv_router.find_matches",
        "kv_router.schedule",
    }
)
#: Only POST starts an inference; probes and model listings are GET.
_PROBE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: The router asks a worker's KV index through the same request plane; there is no user behind it.
_KV_QUERY_PREFIX: Final = "worker_kv_query_source_"

_INNER_IDENTITY: Final = Identity(NAME, "inner")
_NOISE: Final = Identity(NAME, "noise")


class DynamoDialect:
    """Spans, request-trace lines and request-trace log records of NVIDIA Dynamo."""

    name: str = NAME
    blind_spots: tuple[str, ...] = (
        "Prefill queue, prefill and the hold of the KV are one opaque span on P (handle_payload).",
        "The handoff has no span; the request trace's transfer estimate bounds it above, and only in sequential mode.",
        "Decode queue and first step cannot be told apart on D.",
        "The prefix hit that P really had is not reported per request; Dynamo's cached_tokens is the prediction.",
        "Spans carry no host: each worker and each front end service name counts as a clock of its own.",
        "Without spans (traceparent flag 00) only the request trace remains, which holds no user-visible TTFT.",
    )

    def identify(self, span: Span) -> Identity | None:
        """The part ``span`` plays, from its name and attributes alone."""
        name = span.name
        if name == "handle_payload":
            return _identify_payload(span)
        if name == "http-request":
            return _identify_http(span)
        if name == "kv_router.route_request":
            role = dynamo_routing.role_of_phase(span.attributes.get("phase"))
            return Identity(NAME, "leg", _request_keys(span), role)
        if name == "kv_router.select_worker":
            return Identity(NAME, "stage")
        if name in _INNER:
            return _INNER_IDENTITY
        return None

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Append legs, envelopes and routing first, then what the front end says of the whole request."""
        dynamo_routing.read(mine, tree, out)
        dynamo_frontend.read(mine, tree, out)

    def record_from_log(self, log: Log) -> Record | None:
        """The request-trace record in an OTLP log of scope ``dynamo.request_trace``."""
        return dynamo_request_trace.from_log(log)

    def record_keys(self, record: Record) -> tuple[Key, ...] | None:
        """A request-trace record joins on Dynamo's own request id (a uuid)."""
        if record.kind != dynamo_request_trace.KIND:
            return None
        return (Key("request_id", record.key),)

    def read_record(self, record: Record, out: Reading) -> None:
        """Append what one request-trace record says."""
        dynamo_request_trace.read(record, out)


def _identify_http(span: Span) -> Identity | None:
    attributes = span.attributes
    if "uri" not in attributes and "request_id" not in attributes:
        return None  # somebody else's span of that name
    if str(attributes.get("method")) in _PROBE_METHODS:
        return _NOISE
    return Identity(NAME, "edge", _request_keys(span, "x_request_id"), edge="frontend")


def _identify_payload(span: Span) -> Identity | None:
    attributes = span.attributes
    if "instance_id" not in attributes:
        return None
    if str(attributes.get("endpoint", "")).startswith(_KV_QUERY_PREFIX):
        return _NOISE
    # A component is an operator's name for a pool; only `prefill` is Dynamo's own word for a role. `backend` serves
    # both decode and aggregated workers: the phase of the calling leg decides.
    role: Role = "prefill" if attributes.get("component") == "prefill" else ""
    return Identity(NAME, "worker", _request_keys(span), role)


def _request_keys(span: Span, *more: str) -> tuple[Key, ...]:
    names = ("request_id", *more)
    return tuple(Key("request_id", str(span.attributes[name])) for name in names if span.attributes.get(name))
