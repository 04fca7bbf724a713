"""Transfers between workers: who shares what with whom, and when the last byte is there.

Owns bandwidth. Latency and what a transfer means are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from pdtrace.simulate.cluster import Links
from pdtrace.simulate.loop import Loop


class _Part:
    """What transfers pass through: a NIC's one direction, a host's NVLink, one link between two hosts."""

    __slots__ = ("bytes_per_ns", "flows", "free_ns")

    def __init__(self, gb_per_s: float) -> None:
        self.bytes_per_ns = gb_per_s
        self.flows: dict[Flow, None] = {}
        self.free_ns = 0


class Flow:
    """One transfer in progress."""

    __slots__ = ("_call", "_left_bytes", "_parts", "_rate", "_since_ns", "generation", "subject")

    def __init__(self, left_bytes: int, parts: list[_Part], call: Callable[[Any, int], None], subject: Any) -> None:
        self.generation = 0
        self.subject = subject
        self._left_bytes = float(left_bytes)
        self._parts = parts
        self._rate = 0.0
        self._since_ns = 0
        self._call = call


class Network:
    """All transfers of one simulation."""

    def __init__(self, links: Links, loop: Loop) -> None:
        self._links = links
        self._loop = loop
        self._parts: dict[tuple[str, ...], _Part] = {}
        self._paths: dict[tuple[str, str], str] = {}

    def path(self, source: str, destination: str) -> str:
        """How one host reaches another: `nvlink`, `rdma` or `tcp`."""
        if source == destination:
            return "nvlink"
        return self._paths.get((source, destination), self._links.path)

    def gb_per_s(self, source: str, destination: str) -> float:
        """What the data sheet says, as a router would expect it: no contention, no fault."""
        return self._links.nvlink_gb_per_s if source == destination else self._links.nic_gb_per_s

    def start(
        self, source: str, destination: str, amount_bytes: int, call: Callable[[Any, int], None], subject: Any
    ) -> Flow:
        """Begin a transfer now; ``call(subject, end_ns)`` when its last byte is through."""
        now_ns = self._loop.now_ns
        flow = Flow(amount_bytes, self._between(source, destination), call, subject)
        if self._links.sharing == "fifo":
            rate = min(part.bytes_per_ns for part in flow._parts)
            end_ns = max(now_ns, *(part.free_ns for part in flow._parts)) + ceil(amount_bytes / rate)
            for part in flow._parts:
                part.free_ns = end_ns
            self._loop.at(end_ns, self._through, flow)
            return flow
        flow._since_ns = now_ns
        for part in flow._parts:
            part.flows[flow] = None
        self._share(flow._parts, now_ns)
        return flow

    def stop(self, flow: Flow) -> None:
        """Give a transfer up. In `fifo` its place on the NIC stays taken."""
        flow.generation += 1
        for part in flow._parts:
            part.flows.pop(flow, None)
        self._share(flow._parts, self._loop.now_ns)

    def change_link(self, source: str, destination: str, gb_per_s: float, path: str) -> None:
        """From now on one link between two hosts is no faster than this, whatever their NICs can do."""
        self._paths[source, destination] = path
        link = self._parts.get(("link", source, destination))
        if link is None:
            link = self._parts["link", source, destination] = _Part(gb_per_s)
            out = self._part("out", source)
            for flow in [f for f in self._part("in", destination).flows if f in out.flows]:
                flow._parts.append(link)
                link.flows[flow] = None
        link.bytes_per_ns = gb_per_s
        self._share([link], self._loop.now_ns)

    def _between(self, source: str, destination: str) -> list[_Part]:
        if source == destination:
            return [self._part("nvlink", source)]
        parts = [self._part("out", source), self._part("in", destination)]
        link = self._parts.get(("link", source, destination))
        return parts if link is None else [*parts, link]

    def _part(self, kind: str, host: str) -> _Part:
        part = self._parts.get((kind, host))
        if part is None:
            speed = self._links.nvlink_gb_per_s if kind == "nvlink" else self._links.nic_gb_per_s
            part = self._parts[kind, host] = _Part(speed)
        return part

    def _share(self, parts: list[_Part], now_ns: int) -> None:
        """Each transfer gets an equal share of every part it passes, and is as fast as the smallest of its shares."""
        for flow in {flow: None for part in parts for flow in part.flows}:
            rate = min(part.bytes_per_ns / len(part.flows) for part in flow._parts)
            if rate != flow._rate:
                flow._left_bytes = max(0.0, flow._left_bytes - flow._rate * (now_ns - flow._since_ns))
                flow._since_ns, flow._rate = now_ns, rate
                flow.generation += 1
                self._loop.at(now_ns + ceil(flow._left_bytes / rate), self._through, flow)

    def _through(self, flow: Flow, end_ns: int) -> None:
        self.stop(flow)
        flow._call(flow.subject, end_ns)
