"""The server's OpenAPI document, made from its table of routes and the structs they take and give."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from replayfilter import __version__
from replayfilter.watermark import api
from replayfilter.watermark.server import ROUTES, Route

_REFUSALS = {
    400: "The request is not as it must be",
    401: "No token, or a wrong one",
    404: "No such stage or partition",
    409: "Not possible for this stage or origin",
    413: "Too long a body, or too many origins",
    503: "This server stands by: ask the active one, or ask again",
}


def document() -> dict[str, Any]:
    """The document, as OpenAPI 3.1."""
    types = [api.Fault, *(kind for route in ROUTES for kind in (route.answer, route.body) if kind)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    references = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "replayfilter watermark server",
            "version": __version__,
            "description": "Times are microseconds since the epoch; null: not known yet.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, references: dict[type, dict[str, Any]]) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    in_query = [
        {
            "name": name, "in": "query", "required": each.required, "schema": each.schema,
            "description": each.meaning,
        }
        for name, each in route.query.items()
    ]  # fmt: skip
    refusals = {*route.refusals, 503} | (set() if route.open else {401})
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{route.handler.__name__}"
        + ("_of_stage" * ("stage}/" in route.path)),
        "parameters": in_path + in_query,
        "security": [] if route.open else [{"token": []}],
        "responses": {
            "200": {"description": "Done", "content": _content(references[route.answer])},
            **{
                str(status): {"description": _REFUSALS[status], "content": _content(references[api.Fault])}
                for status in sorted(refusals)
            },
        },
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": _content(references[route.body])}
    return operation


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
