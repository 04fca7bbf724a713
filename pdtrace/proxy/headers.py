"""What a proxy does to headers and addresses on the way: hop-by-hop ones stay, forwarding ones are added.

Owns that and nothing else. Source: RFC 9110, section 7.6 (message forwarding); X-Forwarded-* as every proxy sends them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import httpx

Header = tuple[bytes, bytes]

_HOP_BY_HOP: Final = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip


class BadUpstream(ValueError):
    """The upstream's address cannot be used; the text says why and what one looks like."""


def parse_upstream(text: str) -> httpx.URL:
    """An upstream's base address: ``http://host:port`` with an optional path in front of every request's own.

    Raises:
        BadUpstream: It is none.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError, TypeError) as problem:
        raise BadUpstream(f"{text!r} is no address ({problem}); one looks like http://127.0.0.1:8000") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise BadUpstream(f"{text!r} is no http or https address; one looks like http://127.0.0.1:8000")
    if url.query or url.fragment or url.userinfo:
        raise BadUpstream(f"{text!r} has a query, a fragment or a password, which an upstream cannot have")
    return url


def upstream_url(upstream: httpx.URL, scope: dict[str, Any]) -> httpx.URL:
    """Where a request goes: path and query as they came, not decoded and encoded again."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    before = upstream.raw_path.rstrip(b"/")
    return upstream.copy_with(raw_path=before + path.partition(b"?")[0] + (b"?" + query if query else b""))


def request_headers(scope: dict[str, Any]) -> list[Header]:
    """The client's headers for the upstream; Host is the HTTP client's to set, and `Expect` was answered here."""
    came: list[Header] = [(name.lower(), value) for name, value in scope["headers"]]
    kept = _without_hops(came, drop=(b"host", b"expect", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"))
    known = dict(came)
    client = (scope.get("client") or ("",))[0].encode()
    through = b", ".join(part for part in (known.get(b"x-forwarded-for", b""), client) if part)
    host = known.get(b"x-forwarded-host") or known.get(b"host", b"")
    scheme = known.get(b"x-forwarded-proto") or scope.get("scheme", "http").encode()
    added = ((b"x-forwarded-for", through), (b"x-forwarded-host", host), (b"x-forwarded-proto", scheme))
    return kept + [(name, value) for name, value in added if value]


def response_headers(raw: Iterable[Header]) -> list[Header]:
    """The upstream's headers for the client."""
    return _without_hops([(name.lower(), value) for name, value in raw], drop=())


def _without_hops(headers: list[Header], drop: Iterable[bytes]) -> list[Header]:
    named = {
        name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")
    }  # a connection header names further headers of this hop
    unwanted = _HOP_BY_HOP | named | set(drop)
    return [(name, value) for name, value in headers if name not in unwanted]
