"""llm-d's gateway and sidecar spans, drawn after the published P/D trace and the source."""

import json
from pathlib import Path

import pytest

from pdtrace.assemble import derive
from pdtrace.dialects.llmd import LlmdDialect
from pdtrace.model import Key, Span

MS = 1_000_000
T0 = 1_796_074_641_000_000_000
CASES = Path(__file__).parents[4] / "shared" / "cases" / "cases.jsonl"
SIDECAR = "llm-d-inference-scheduler/pkg/sidecar/proxy"
EPP = "llm-d-inference-scheduler/epp/extproc"


class Sheet:
    """Spans of one trace, ms from T0."""

    def __init__(self):
        self.spans = []

    def add(
        self, name, start_ms, end_ms, parent=None, *, scope=SIDECAR, service="decode-sidecar", kind=2, **attributes
    ):
        status = attributes.pop("status", 0)
        span = Span(
            trace_id="7" * 32,
            span_id=f"{len(self.spans) + 1:016x}",
            parent_id=parent.span_id if parent else "",
            name=name,
            kind=kind,
            start_ns=T0 + round(start_ms * MS),
            end_ns=T0 + round(end_ms * MS),
            scope=scope,
            resource={"service.name": service},
            status=status,
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
        )
        self.spans.append(span)
        return span

    def vllm(self, start_ms, end_ms, parent, service, **attributes):
        named = {"gen_ai__request__id": "chatcmpl-uuid1-0", **attributes}
        return self.add("llm_request", start_ms, end_ms, parent, scope="vllm.tracing.otel", service=service, **named)


def published(*, prefill_engine=True):
    """
    gateway.request             0 - 3146
      orchestration             0 - 0.295
      pd_proxy                  4 - 3146
        prefill                 4 - 53.9      (P llm_request 5 - 52.7)
          decode               54 - 3146      parent is the prefill span, which it outlives
            D llm_request      55 - 3146      ttft 343, queue 322
    """
    sheet = Sheet()
    gateway = sheet.add("gateway.request", 0, 3146, scope=EPP, service="epp")
    sheet.add("gateway.request_orchestration", 0, 0.295, gateway, scope=EPP, service="epp", target_model="m")
    proxy = sheet.add("llm_d.pd_proxy.POST /v1/chat/completions", 4, 3146, gateway, http__response__status_code=200)
    forward = sheet.add("forward_request", 4, 3146, proxy)
    prefill = sheet.add(
        "prefill",
        4,
        53.9,
        forward,
        llm_d__pd_proxy__connector="nixlv2",
        llm_d__pd_proxy__prefill_target="10.0.0.1:8000",
    )
    call = sheet.add("HTTP POST", 4.05, 53.85, prefill, kind=3, scope="otelhttp", url__path="/v1/chat/completions")
    if prefill_engine:
        usage = {"gen_ai__usage__prompt_tokens": 2071, "gen_ai__usage__completion_tokens": 1}
        sheet.vllm(5, 52.7, call, "vllm-prefill", **usage)
    decode = sheet.add("decode", 54, 3146, prefill, llm_d__pd_proxy__true_ttft_ms=50.0)
    call = sheet.add("HTTP POST", 54.05, 3146, decode, kind=3, scope="otelhttp", url__path="/v1/chat/completions")
    sheet.vllm(
        55,
        3146,
        call,
        "vllm-decode",
        gen_ai__latency__time_to_first_token=0.343,
        gen_ai__latency__time_in_queue=0.322,
        gen_ai__latency__time_in_model_prefill=0.021,
        gen_ai__usage__completion_tokens=200,
    )
    return sheet.spans


def case(name):
    if not CASES.is_file():
        pytest.skip(f"the shared cases are not beside this checkout: {CASES}")
    return next(c for c in map(json.loads, CASES.read_text().splitlines()) if c["id"] == name)


def test_the_published_trace_end_to_end():
    (request,) = derive(published())
    assert request.ttft_ns == 398 * MS  # not 50 (true_ttft_ms), not 343 (D's own)
    assert request.ttft_basis == "frontend"
    assert (request.mode, request.outcome) == ("sequential", "ok")
    assert request.section_totals() == {
        "route": 295_000,
        "relay": 4_705_000 + 2_300_000,  # on to the sidecar and P; then P answered and D not yet called
        "prefill_opaque": 47_700_000,  # P's engine reported no durations: never called prefill
        "decode_queue": 322 * MS,
        "first_token": 21 * MS,
    }


def test_true_ttft_is_the_time_to_decode_dispatch_and_its_disagreement_shows():
    (request,) = derive(published())
    claim = next(claim for claim in request.ttft_claims if claim.name == "llmd_true_ttft")
    assert (claim.ttft_ns, claim.measures) == (50 * MS, "time to decode dispatch")
    assert request.ttft_ns - claim.ttft_ns == 348 * MS


def test_the_calls_stand_for_a_silent_p_and_give_the_sections_of_the_case():
    wanted = case("ttft-llmd-real-capture")["expected_sections_ms"]
    (request,) = derive(published(prefill_engine=False))
    totals = {stage: ns / MS for stage, ns in request.section_totals().items()}
    assert totals["prefill_opaque"] == pytest.approx(wanted["prefill"])  # P is silent: opaque, as long as the call
    assert totals["decode_queue"] == wanted["decode_queue"]
    assert totals["first_token"] == wanted["first_token"]
    # The case has one container from 0; here the gateway's own 0.295 ms of routing are known too.
    assert totals["route"] == pytest.approx(0.295)
    rest = totals.get("ingress", 0) + totals["relay"] + totals["route"]
    assert rest == pytest.approx(wanted["ingress"] + wanted["relay"])


def test_p_and_d_inherit_their_roles_from_the_calls_above_them():
    (request,) = derive(published())
    roles = {a.worker: a.role for a in request.activities if a.dialect == "vllm"}
    assert roles == {"vllm-prefill": "prefill", "vllm-decode": "decode"}
    assert request.input_tokens == 2071


def test_a_failed_prefill_call_that_d_made_good_is_a_fallback():
    """
    pd_proxy  0 - 500
      prefill 1 - 20    ERROR, HTTP 500
      D      25 - 500   ttft 60   (no decode span: the sidecar gave the whole request to D)
    """
    sheet = Sheet()
    proxy = sheet.add("llm_d.pd_proxy.request", 0, 500, llm_d__pd_proxy__connector="nixlv2")
    sheet.add("llm_d.pd_proxy.prefill", 1, 20, proxy, status=2, llm_d__pd_proxy__prefill__status_code=500)
    sheet.vllm(
        25, 500, proxy, "vllm-decode", gen_ai__latency__time_to_first_token=0.06, gen_ai__usage__completion_tokens=9
    )
    (request,) = derive(sheet.spans)
    assert (request.outcome, request.ttft_ns) == ("ok_fallback", 85 * MS)
    assert request.decode_worker == "vllm-decode"


def test_disaggregation_not_used_is_prefill_on_decode():
    sheet = Sheet()
    proxy = sheet.add(
        "llm_d.pd_proxy.request",
        0,
        300,
        llm_d__pd_proxy__disaggregation_used=False,
        llm_d__pd_proxy__reason="no_prefill_header",
    )
    sheet.vllm(5, 300, proxy, "vllm-decode", gen_ai__latency__time_to_first_token=0.1)
    (request,) = derive(sheet.spans)
    assert request.mode == "prefill_on_decode"
    assert "handoff" not in request.section_totals()


def test_a_refused_target_failed_at_routing():
    sheet = Sheet()
    sheet.add("llm_d.pd_proxy.request", 0, 3, llm_d__pd_proxy__denied_target="10.9.9.9:1")
    (request,) = derive(sheet.spans)
    assert request.outcome == "failed_route"
    assert "10.9.9.9:1" in request.outcome_text


def test_concurrent_prefill_and_decode_are_overlapped():
    sheet = Sheet()
    proxy = sheet.add("llm_d.pd_proxy.request", 0, 300)
    prefill = sheet.add("llm_d.pd_proxy.prefill", 1, 2, proxy, llm_d__pd_proxy__prefill__async=True)
    sheet.add("llm_d.pd_proxy.decode", 1, 300, prefill, llm_d__pd_proxy__decode__concurrent_with_prefill=True)
    (request,) = derive(sheet.spans)
    assert request.mode == "overlapped"


@pytest.mark.parametrize(
    ("name", "scope", "attributes", "part"),
    [
        ("gateway.request", EPP, {}, "edge"),
        ("gateway.request_orchestration", EPP, {}, "stage"),
        ("llm_d.kv_cache.score_tokens", "llm-d-kv-cache", {}, "stage"),
        ("pick_disagg_profile", EPP, {}, "stage"),
        ("llm_d.pd_proxy.GET /health", "otelhttp", {}, "noise"),
        ("llm_d.pd_proxy.request", SIDECAR, {}, "edge"),
        ("llm_d.pd_proxy.prefill", SIDECAR, {}, "leg"),
        ("prefill", "anything", {"llm_d.pd_proxy.connector": "nixlv2"}, "leg"),
        ("prefill", "anything", {}, None),  # a short name alone is anybody's
        ("decode", "anything", {"x": 1}, None),
    ],
)
def test_what_is_llm_ds(name, scope, attributes, part):
    span = Span("1" * 32, "2" * 16, "", name, 2, 1, 2, scope, {}, attributes)
    identity = LlmdDialect().identify(span)
    assert (identity.part if identity else None) == part


def test_the_sidecars_uuid_and_the_callers_id_are_both_keys():
    leg = Span(
        "1" * 32, "2" * 16, "", "llm_d.pd_proxy.prefill", 2, 1, 2, SIDECAR, {}, {"llm_d.pd_proxy.request_id": "uuid1"}
    )
    scorer = Span(
        "1" * 32, "3" * 16, "", "llm_d.epp.scorer.prefix_cache", 1, 1, 2, EPP, {}, {"gen_ai.request.id": "x-9"}
    )
    dialect = LlmdDialect()
    assert dialect.identify(leg).keys == (Key("request_id", "uuid1"),)
    assert dialect.identify(scorer).keys == (Key("request_id", "x-9"),)
