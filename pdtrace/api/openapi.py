"""The OpenAPI 3.1 document of the query API, made from the list of endpoints.

Owns the document's form. Paths and parameters come from endpoints.py, the shapes of answers from
schemas/openapi/answers.json.
"""

from __future__ import annotations

import json
from typing import Any

from pdtrace import __version__
from pdtrace.api.arrow import ARROW
from pdtrace.api.encode import JSON
from pdtrace.api.endpoints import ENDPOINTS, Endpoint
from pdtrace.api.parameters import Parameter
from pdtrace.schemas import schema_text

Document = dict[str, Any]


def document() -> Document:
    """The whole document."""
    paths: Document = {endpoint.path: {"get": _operation(endpoint)} for endpoint in ENDPOINTS}
    paths["/healthz"] = {"get": _plain("The process is alive.", _ok(JSON, {"$ref": "#/components/schemas/status"}))}
    ready = _ok(JSON, {"$ref": "#/components/schemas/status"}) | {"503": _problem("The store is not open yet.")}
    paths["/readyz"] = {"get": _plain("The store is open and the write-ahead log is replayed.", ready)}
    paths["/metrics"] = {"get": _plain("Prometheus text about this process.", _ok("text/plain", {"type": "string"}))}
    paths["/openapi.json"] = {"get": _plain("This document.", _ok(JSON, {"type": "object"}))}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pdtrace query API",
            "version": __version__,
            "description": "Times are integer Unix nanoseconds, durations integer nanoseconds unless a name says "
            "otherwise; null is unknown. Lists of rows also come as an Arrow IPC stream "
            f"(Accept: {ARROW}), in which lists and objects are JSON text (field metadata encoding=json).",
        },
        "paths": paths,
        "components": {"schemas": json.loads(schema_text("openapi/answers.json"))},
    }


def _operation(endpoint: Endpoint) -> Document:
    responses = _ok(JSON, {"$ref": f"#/components/schemas/{endpoint.schema}"})
    if endpoint.rows:
        responses["200"]["content"][ARROW] = {"schema": {"type": "string", "format": "binary"}}
    responses["400"] = _problem("A parameter or value that this path does not take.")
    if endpoint.may_miss:
        responses["404"] = _problem("Nothing is stored under this id.")
    responses["503"] = _problem("The service is starting.")
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in endpoint.path_parameters
    ]
    return _plain(endpoint.summary, responses) | {
        "operationId": endpoint.path.removeprefix("/v1/").replace("/", "_").replace("{", "").replace("}", ""),
        "parameters": in_path + [_parameter(parameter) for parameter in endpoint.parameters],
    }


def _parameter(parameter: Parameter) -> Document:
    schema: Document = {"type": "string" if parameter.kind == "list" else parameter.kind}
    if parameter.kind == "integer":
        schema |= {"format": "int64", "minimum": parameter.minimum, "maximum": parameter.maximum}
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.default not in (None, ()):
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": "query", "description": parameter.text, "schema": schema}


def _plain(summary: str, responses: Document) -> Document:
    return {"summary": summary, "responses": responses}


def _ok(media_type: str, schema: Document) -> Document:
    return {"200": {"description": "The answer.", "content": {media_type: {"schema": schema}}}}


def _problem(text: str) -> Document:
    return {"description": text, "content": {JSON: {"schema": {"$ref": "#/components/schemas/error"}}}}
