"""The OpenAPI document against the routes and against real answers."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from pdtrace.api.app import Backend, make_app
from pdtrace.api.arrow import ARROW
from pdtrace.api.endpoints import ENDPOINTS
from pdtrace.outcomes import OUTCOMES
from tests.reader.requests import T0

#: A path of every endpoint, as a caller would ask it.
ASKED = {
    "/v1/requests": "/v1/requests?limit=10",
    "/v1/requests/{id}": "/v1/requests/one",
    "/v1/details": "/v1/details?uids=one,two,nobody",
    "/v1/requests/{uid}/spans": "/v1/requests/one/spans",
    "/v1/requests/{uid}/perfetto": "/v1/requests/one/perfetto",
    "/v1/ttft": "/v1/ttft?by=model,minute",
    "/v1/ledger": "/v1/ledger",
    "/v1/live": f"/v1/live?since={T0}&until={T0 + 10**10}",
    "/v1/facets": "/v1/facets",
    "/v1/doctor": "/v1/doctor",
    "/healthz": "/healthz",
    "/readyz": "/readyz",
    "/openapi.json": "/openapi.json",
}


@pytest.fixture
def document(api: TestClient) -> dict[str, Any]:
    loaded: dict[str, Any] = api.get("/openapi.json").json()
    return loaded


def test_the_document_lists_exactly_the_routes(document: dict[str, Any]) -> None:
    routes = {route.path.replace(":path", "") for route in make_app(Backend()).routes if isinstance(route, Route)}
    assert set(document["paths"]) == routes


@pytest.mark.parametrize("path", ASKED)
def test_answers_match_their_schema(api: TestClient, document: dict[str, Any], path: str) -> None:
    schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    answer = api.get(ASKED[path])
    assert answer.status_code == 200, answer.text
    whole = {"$ref": schema["$ref"], "components": document["components"]} if "$ref" in schema else schema
    jsonschema.validate(answer.json(), whole, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("path", ["/v1/requests?x=1", "/v1/requests/nobody", "/v1/nothing"])
def test_errors_match_their_schema(api: TestClient, document: dict[str, Any], path: str) -> None:
    answer = api.get(path)
    assert answer.status_code in (400, 404)
    jsonschema.validate(answer.json(), document["components"]["schemas"]["error"])


def test_every_schema_is_one_and_every_reference_resolves(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for endpoint in ENDPOINTS:
        assert endpoint.schema in document["components"]["schemas"]
        content = document["paths"][endpoint.path]["get"]["responses"]["200"]["content"]
        assert (ARROW in content) is endpoint.rows


def test_a_wrong_answer_would_be_noticed(api: TestClient, document: dict[str, Any]) -> None:
    whole = {"$ref": "#/components/schemas/requests", "components": document["components"]}
    rows = api.get("/v1/requests").json()
    rows[0]["ttft_ns"] = "120 ms"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(rows, whole, cls=jsonschema.Draft202012Validator)


def test_the_ledgers_schema_names_every_outcome(document: dict[str, Any]) -> None:
    properties = document["components"]["schemas"]["ledger"]["properties"]
    assert [name for name in properties if name in OUTCOMES] == list(OUTCOMES)


def test_parameters_are_documented_with_their_bounds(document: dict[str, Any]) -> None:
    parameters = {p["name"]: p for p in document["paths"]["/v1/requests"]["get"]["parameters"]}
    assert parameters["limit"]["schema"] == {
        "type": "integer", "format": "int64", "minimum": 1, "maximum": 10_000, "default": 1_000,
    }  # fmt: skip
    assert parameters["outcome"]["schema"]["enum"] == list(OUTCOMES)
