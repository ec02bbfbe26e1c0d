"""Prometheus scrapes the workers of the compose file. Alerts and the page of metrics name the metrics that a worker has."""

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.platform.config import BusConfig, LogConfig, PlatformConfig, ProviderConfig
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.worker import WorkerProcess
from tests.infra.test_compose import ROOT, SERVICES, WORKERS, mounts, on_the_host, options_of, parsed

FOLDER = ROOT / "infra/prometheus"
PROMETHEUS: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
ALARMS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
OPERATE = ROOT / "docs/operate"
METRICS = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")

every_alarm = pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm["alert"])


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """Return the metrics of a worker that serves in memory, with an outbox, a log that is shipped, and signing keys."""
    keys = tmp_path_factory.mktemp("keys")
    (keys / "desk-a").mkdir()
    (keys / "desk-a" / "1").write_bytes(b"k" * 32)
    config = PlatformConfig(
        name="w",
        principals_folder=keys,
        sign_as="desk-a",
        folder=tmp_path_factory.mktemp("log"),
        log=LogConfig(sealed_command="true"),
        bus=BusConfig(url="kafka://127.0.0.1:9"),
        providers={"rules": ProviderConfig()},
    )

    async def asked() -> bytes:
        async with Platform(config, Ports(broker=MemoryBroker())) as platform:
            return await WorkerProcess(config, 1.0, "serving", _platform=platform).metrics()

    return list(text_string_to_metric_families(asyncio.run(asked()).decode()))


@pytest.fixture(scope="module")
def figures(families: list[Metric]) -> dict[str, set[tuple[str, str]]]:
    """Return the labels of each metric, with their values."""
    samples = [sample for family in families for sample in family.samples]
    return {
        name: {label for sample in samples if sample.name == name for label in sample.labels.items()}
        for name in {sample.name for sample in samples}
    }


def selectors(expression: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the figures that an expression selects, each with the labels that it asks for by equality."""
    for name, labels in re.findall(r"\b(agentic_\w+|up)\b(?:\{([^}]*)\})?", expression):
        yield name, re.findall(r'(\w+)="([^"]*)"', labels)


@every_alarm
def test_alarms_use_existing_metrics(alarm: dict[str, Any], figures: dict[str, set[tuple[str, str]]]) -> None:
    named = list(selectors(alarm["expr"]))

    assert named
    for name, labels in named:
        known = {("job", each["job_name"]) for each in PROMETHEUS["scrape_configs"]}
        assert name == "up" or name in figures
        assert set(labels) <= known | figures.get(name, set())


def rows_under(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading of the page of metrics, as texts without backticks."""
    section = METRICS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows]


def test_metrics_page_lists_every_metric_with_type_and_labels(families: list[Metric]) -> None:
    documented = {
        (name, kind, frozenset(filter(None, labels.split(", "))))
        for name, kind, labels, *_ in rows_under("Metrics")
    }

    assert documented == {
        (sample.name, family.type, frozenset(sample.labels))
        for family in families
        for sample in family.samples
    }
    assert all(all(row[:2]) and all(row[3:]) for row in rows_under("Metrics"))


def test_metrics_page_lists_every_label_value(figures: dict[str, set[tuple[str, str]]]) -> None:
    documented = {(label, value) for label, value, *_ in rows_under("Label values")}

    assert documented == {
        (label, value)
        for labels in figures.values()
        for label, value in labels
        if label not in {"group", "topic"}
    }


@every_alarm
def test_alarms_have_severity_and_page(alarm: dict[str, Any]) -> None:
    page = Path(alarm["annotations"]["page"])

    assert alarm["labels"]["severity"] in {"page", "ticket"}
    assert alarm["annotations"]["summary"]
    assert f"`{alarm['alert']}`" in (ROOT / page).read_text(encoding="utf-8").partition("\n\n")[2]
    assert f"]({page.name})" in (OPERATE / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [*sorted(OPERATE.glob("*.md")), ROOT / "infra/README.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_page_commands_are_valid(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    commands = re.findall(r"^(agentic-trading .*)$", blocks, re.MULTILINE)
    commands += re.findall(r"`(agentic-trading [^`\n]*)`", text)

    for command in commands:
        words = shlex.split(re.split(r" > | \|\| ", command)[0], comments=True)[1:]
        if words[-1] != "run":  # the name of a command, without what it needs
            options_of(words)


def test_every_page_is_in_the_index() -> None:
    index = (OPERATE / "README.md").read_text(encoding="utf-8")

    assert [
        page.name
        for page in OPERATE.glob("*.md")
        if page.name != "README.md" and f"]({page.name})" not in index
    ] == []


def test_prometheus_scrapes_workers_and_loads_rules() -> None:
    [scraped] = PROMETHEUS["scrape_configs"]
    ports = {name: parsed(name)["http"].rpartition(":")[2] for name in WORKERS}

    assert scraped["static_configs"][0]["targets"] == [f"{name}:{port}" for name, port in ports.items()]
    assert ("./infra/prometheus", "/etc/prometheus") in mounts("prometheus")
    assert [on_the_host("prometheus", Path(file)) for file in PROMETHEUS["rule_files"]] == [
        FOLDER / "alerts.yml"
    ]
    assert len({alarm["alert"] for alarm in ALARMS}) == len(ALARMS)
    assert all(set(alarm) <= {"alert", "expr", "for", "labels", "annotations"} for alarm in ALARMS)
    assert SERVICES["prometheus"]["restart"] == "unless-stopped"
