"""The charging rule, hidden time and what-if savings: pure, integers in and out.

Owns the arithmetic of definitions section 2. Knows no spans, no engines, no storage.
"""

from pdtrace.charge.rule import Activities, Charged, charge
from pdtrace.charge.whatif import is_chain, savings, savings_of_chain

__all__ = ["Activities", "Charged", "charge", "is_chain", "savings", "savings_of_chain"]
