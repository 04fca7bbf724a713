"""`python -m pdtrace` and the `pdtrace` script: the command line, or one line that says what to install for it.

Owns that line only: the base install, which engines import, has no command line. Commands are in pdtrace.cli.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Run the command line; exit status 1 where the extra that it needs is not installed."""
    if importlib.util.find_spec("click") is None:
        sys.exit("pdtrace: the command line is not part of the base install; pip install 'pdtrace[all]' brings it")
    from pdtrace.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
