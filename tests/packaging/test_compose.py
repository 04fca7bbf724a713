"""The container files: what can be checked without a container engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml", reason="pyyaml is not installed (extra dev)")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


def test_every_service_is_checked_and_confined(services: dict[str, Any]) -> None:
    assert set(services) == {"service", "dashboard", "collectors"}
    for name, service in services.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name


def test_ports_are_published_on_this_machine_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)


def test_the_store_is_on_a_volume(services: dict[str, Any]) -> None:
    assert services["service"]["volumes"] == ["data:/data"]
    database = services["service"]["command"][services["service"]["command"].index("--db") + 1]
    assert database.startswith("/data/")


def test_the_image_runs_as_nobody_special() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]
    assert "constraints.txt" in "".join(lines)


def test_commands_have_the_options_that_are_used(services: dict[str, Any]) -> None:
    from click.testing import CliRunner

    from pdtrace.cli.main import pdtrace

    for name in ("service", "dashboard"):
        command, *arguments = services[name]["command"]
        text = CliRunner().invoke(pdtrace, [command, "--help"]).output
        for option in (a for a in arguments if a.startswith("--")):
            assert re.search(rf"(^|[\s,]){option}\b", text), f"pdtrace {command} has no {option}"
