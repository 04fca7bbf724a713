"""Fragments to requests: grouping, normalisation, clocks, windows, outcomes, in one pure function.

Owns everything between a dialect's reading and a charged request. Stores nothing.
"""

from pdtrace.assemble.draft import Limits
from pdtrace.assemble.request import derive, identify, keys_of_record

__all__ = ["Limits", "derive", "identify", "keys_of_record"]
