"""A Reader over the query API of a running service.

Owns addresses, paging and the sentences for what can go wrong on the way. The answers are the service's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import orjson

from pdtrace.reader.contract import BadQuestion, Filters, Row

#: Rows per request while paging; the API allows at most 10,000.
PAGE_ROWS: Final = 5_000

#: Uids of one question for details.
DETAILS_ROWS: Final = 500


class ServiceProblem(RuntimeError):
    """The service could not be asked or refused the question; the text says what would be right."""


class HttpReader:
    """Read access through http://HOST:PORT of ``pdtrace serve``. Thread-safe; close it or use ``with``."""

    def __init__(self, url: str, *, timeout_s: float = 30.0, client: httpx.Client | None = None) -> None:
        """``client`` replaces the connection, e.g. by one that calls the application in this process."""
        self.url = url.rstrip("/")
        try:
            self._client = client or httpx.Client(base_url=self.url, timeout=timeout_s)
        except (httpx.InvalidURL, ValueError) as problem:
            raise ServiceProblem(f"{url!r} is no URL ({problem}); give one like http://127.0.0.1:4320") from problem

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def requests(
        self,
        filters: Filters,
        *,
        order_by: str = "t0",
        descending: bool = False,
        offset: int = 0,
        search: str | None = None,
    ) -> list[Row]:
        """See Reader. Without a limit, pages until everything is here; a row that moves between pages comes once.

        Raises:
            BadQuestion: An unknown order, mode or outcome, or a negative offset or limit.
            ServiceProblem: The service did not answer.
        """
        if offset < 0 or (filters.limit is not None and filters.limit < 0):
            raise BadQuestion("offset and limit cannot be negative; use 0 or more")
        asked = _query(filters) | _given(order_by=order_by, descending=str(descending).lower(), q=search)
        rows: dict[str, Row] = {}
        left = filters.limit
        while left is None or left > 0:
            size = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
            page = self._get("/v1/requests", asked | {"offset": str(offset), "limit": str(size)})
            rows.update((row["uid"], row) for row in page)
            if len(page) < size:
                break
            offset += size
            left = None if left is None else left - size
        return list(rows.values())

    def request(self, any_id: str) -> list[Row]:
        """See Reader."""
        if not any_id:
            return []
        found = self._get(f"/v1/requests/{quote(any_id, safe='')}", {}, missing={"requests": []})
        rows: list[Row] = found["requests"]
        return rows

    def details(self, uids: Sequence[str]) -> list[Row]:
        """See Reader."""
        # In several questions: a thousand uids would make a URL that servers refuse.
        parts = [uids[start : start + DETAILS_ROWS] for start in range(0, len(uids), DETAILS_ROWS)]
        rows = [row for part in parts for row in self._rows("/v1/details", {"uids": ",".join(part)})]
        return sorted(rows, key=lambda row: (row["t0_ns"], row["uid"]))

    def spans(self, uid: str) -> list[Row]:
        """See Reader."""
        return self._rows(f"/v1/requests/{quote(uid, safe='')}/spans", {}, missing=[])

    def ttft(self, by: Sequence[str], filters: Filters) -> list[Row]:
        """See Reader."""
        return self._rows("/v1/ttft", _query(filters) | _given(by=",".join(by), limit=filters.limit))

    def ledger(self, filters: Filters) -> Row:
        """See Reader."""
        return self._row("/v1/ledger", _query(filters))

    def live(self, filters: Filters, *, window_s: int = 300, bucket_s: int = 5) -> Row:
        """See Reader."""
        return self._row("/v1/live", _query(filters) | _given(window_s=window_s, bucket_s=bucket_s))

    def facets(self, filters: Filters) -> Row:
        """See Reader."""
        return self._row("/v1/facets", _query(filters))

    def doctor(self) -> Row:
        """See Reader."""
        return self._row("/v1/doctor", {})

    def _row(self, path: str, query: dict[str, str]) -> Row:
        answer: Row = self._get(path, query)
        return answer

    def _rows(self, path: str, query: dict[str, str], missing: list[Row] | None = None) -> list[Row]:
        answer: list[Row] = self._get(path, query, missing)
        return answer

    def _get(self, path: str, query: dict[str, str], missing: Any = None) -> Any:
        try:
            response = self._client.get(path, params=query)
        except httpx.TimeoutException as problem:
            raise ServiceProblem(
                f"{self.url} did not answer in time; ask for less, or look at its /readyz"
            ) from problem
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            why = str(problem) or type(problem).__name__
            raise ServiceProblem(
                f"no pdtrace service answers at {self.url} ({why}); start one with `pdtrace serve`, or use --db FILE"
            ) from problem
        if response.status_code == 404 and missing is not None and b'"error"' in response.content:
            return missing
        if response.status_code == 400:
            raise BadQuestion(_reason(response))
        if response.status_code != 200:
            raise ServiceProblem(f"{self.url}{path}: {_reason(response)}")
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError as problem:
            raise ServiceProblem(
                f"{self.url}{path} did not answer in JSON; is this the query API (port 4320) of pdtrace?"
            ) from problem


def _query(filters: Filters) -> dict[str, str]:
    """The filter bar as query parameters, without its limit."""
    return _given(
        since=filters.since_ns,
        until=filters.until_ns,
        run=filters.run,
        model=filters.model,
        mode=filters.mode,
        outcome=filters.outcome,
        prefill_worker=filters.prefill_worker,
        decode_worker=filters.decode_worker,
    )


def _given(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None and value != ""}


def _reason(response: httpx.Response) -> str:
    try:
        return str(orjson.loads(response.content)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"HTTP {response.status_code}; is this the query API (port 4320) of pdtrace?"
