"""`pdtrace export`: Perfetto or Parquet files.

Owns options and what is printed. The formats are in pdtrace.exporters.
"""

from __future__ import annotations

from pathlib import Path

import click

from pdtrace.cli.options import filter_options, source_options
from pdtrace.cli.output import print_json
from pdtrace.cli.sources import open_reader
from pdtrace.reader.contract import Filters


@click.command("export")
@click.option("--format", "form", type=click.Choice(["perfetto", "parquet"]), required=True)
@click.option("--id", "any_id", help="perfetto: the request to export, by any of its ids.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="perfetto: a file; parquet: a folder.")
@source_options
@filter_options
def command(
    form: str, any_id: str | None, out: Path, db: Path | None, url: str | None, as_json: bool, filters: Filters
) -> None:
    """Write files for other tools; prints the path written."""
    if form == "perfetto" and not any_id:
        raise click.UsageError("--format perfetto needs --id ID: the request to export")
    if form == "parquet" and any_id:
        raise click.UsageError("--id goes with --format perfetto; --format parquet takes the filters")
    with open_reader(db, url) as reader:
        if form == "perfetto":
            from pdtrace.api.encode import to_json
            from pdtrace.exporters import perfetto

            assert any_id is not None
            found = reader.request(any_id)
            if not found:
                raise click.ClickException(f"no request {any_id!r}; `pdtrace requests` lists the ids that are stored")
            out.write_bytes(to_json(perfetto.trace(found)))
        else:
            from pdtrace.exporters import parquet

            parquet.write(reader, filters, out)
    if as_json:
        print_json({"path": str(out)})
    else:
        print(out)
