"""pdtrace: where did this time to first token go, and what would fix it?

Importing this package is cheap on purpose: engines and routers import it in their own process.
"""

__version__ = "0.1.0"
