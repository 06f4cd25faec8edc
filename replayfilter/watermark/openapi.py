"""Builds the server's OpenAPI document from the table of routes and the structs of the API."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from replayfilter import __version__
from replayfilter.watermark import api
from replayfilter.watermark.routes import ROUTES, Route

_ERRORS = {
    400: "The request is malformed",
    401: "The token is missing or wrong",
    404: "There is no such application, stage or partition",
    409: "This stage or origin can't be changed by request",
    413: "The body is too long, or there are too many origins",
    503: "This server is a standby: send the request to the active one, or again later",
}


def openapi_document() -> dict[str, Any]:
    """The document, in the format of OpenAPI 3.1."""
    types = [api.ErrorBody, *(type_ for route in ROUTES for type_ in (route.response, route.body) if type_)]
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
            "description": "Times are microseconds since the epoch; null means not known yet.",
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
            "name": name, "in": "query", "required": parameter.required, "schema": parameter.schema,
            "description": parameter.description,
        }
        for name, parameter in route.query.items()
    ]  # fmt: skip
    error_content = _content(references[api.ErrorBody])
    statuses = {*route.errors, 503} | (set() if route.open else {401})
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.operation_id,
        "parameters": in_path + in_query,
        "security": [] if route.open else [{"token": []}],
        "responses": {
            "200": {"description": "Success", "content": _content(references[route.response])},
            **{
                str(status): {"description": _ERRORS[status], "content": error_content}
                for status in sorted(statuses)
            },
        },
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": _content(references[route.body])}
    return operation


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
