"""`pdtrace charge FILE`: the charging rule alone, for other tools.

Owns reading lines and printing lines. The rule and the checks of a line are pdtrace.charge's.
"""

from __future__ import annotations

from typing import TextIO

import click

from pdtrace.cli.output import print_json


@click.command("charge")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--json", "as_json", is_flag=True, help="Accepted for symmetry: the output is always JSON lines.")
def command(file: TextIO, as_json: bool) -> None:
    """Charge the activities of each JSON line of FILE ("-" is stdin); prints a JSON line each.

    In: {id, window: [t0, t1], activities: [{stage, start, end}]}, integers of any one unit.
    Out: {id, sections: [[stage, start, end], ...], hidden: {stage: length}}.
    """
    del as_json
    from pdtrace.charge.lines import BadLine, charge_lines

    bad: list[BadLine] = []
    lines = 0
    try:
        for charged in charge_lines(file):
            lines += 1
            if isinstance(charged, BadLine):
                bad.append(charged)
            else:
                print_json(charged)
    except UnicodeDecodeError as problem:
        raise click.ClickException(f"a line after line {lines} is not UTF-8 ({problem.reason}); JSON must be") from None
    if bad:
        raise click.ClickException(f"{len(bad)} of {lines} lines were not charged; the first: {bad[0]}")
