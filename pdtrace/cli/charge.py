"""`pdtrace charge FILE`: the charging rule alone, for other tools.

Owns reading lines and printing lines. The rule and the checks of a line are pdtrace.charge's.
"""

from __future__ import annotations

from typing import TextIO

import click

from pdtrace.cli.output import print_json_lines


@click.command("charge")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--json", "as_json", is_flag=True, help="Accepted for symmetry: the output is always JSON lines.")
def command(file: TextIO, as_json: bool) -> None:
    """Charge the activities of each JSON line of FILE ("-" is stdin); prints a JSON line each."""
    del as_json
    from pdtrace.charge import charge_json

    print_json_lines(charge_json(file))
