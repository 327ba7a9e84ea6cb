"""The OpenAPI document as a page without scripts, fonts or anything else from elsewhere.

A network of brokers has no such thing, and a page that loads it from strangers would be one more way in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head><body><h1>{title}</h1>
<p>The document itself: <a href="/openapi.json">/openapi.json</a></p>
"""


def docs_page(document: Mapping[str, Any]) -> str:
    """One section for each endpoint."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [_HEAD.format(title=title)]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(path, method, operation)
    return "".join([*parts, "</body></html>"])


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section><h2><code>{escape(method.upper())} {escape(path)}</code></h2>"
    text = operation.get("description") or operation.get("summary") or ""
    yield f"<p>{escape(text)}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "<table><tr><th>parameter</th><th>in</th><th>meaning</th></tr>"
        for one in parameters:
            name, place, meaning = (escape(str(one.get(key, ""))) for key in ("name", "in", "description"))
            yield f"<tr><td><code>{name}</code></td><td>{place}</td><td>{meaning}</td></tr>"
        yield "</table>"
    yield "<ul>"
    for code, answer in operation.get("responses", {}).items():
        yield f"<li>{escape(code)}: {escape(answer.get('description', ''))}</li>"
    yield "</ul></section>"
