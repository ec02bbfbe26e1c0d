"""Prometheus scrapes the workers of the compose file. Alerts and the page of metrics name the metrics that a worker has."""

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from typer.exceptions import TyperException
from typing_extensions import override

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.status_feed import BudgetStatus, MemoryStatusFeed
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform.config import BusConfig, LogConfig, PlatformConfig, ProviderConfig, TenantConfig
from agentic_trading.platform.metrics import FIGURES
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.worker import WorkerProcess
from tests.infra.test_compose import ROOT, SERVICES, WORKERS, mounts, on_the_host, options_of, parsed
from tests.platform.calls import SMALL_USD, asked, envelope
from tools.monitoring import COLUMNS, DASHBOARD, PANELS, Panel, generated, outdated, with_table

FOLDER = ROOT / "infra/prometheus"
ABSENT = {
    "agentic_budget_exhausted_timestamp_seconds",  # of a forecast, which needs minutes of samples
    *(f"agentic_budget_{amount}_tokens" for amount in ("limit", "spent", "held", "in_doubt")),
}
"""Metrics of no worker here. `test_prometheus_server.py` has them."""

OF_THE_HTTP_SERVER = {"agentic_http_requests"}
"""Metrics that only `serve` has. The tests of the server have them."""

PROMETHEUS: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
ALARMS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
OPERATE = ROOT / "docs/operate"
METRICS = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
BUDGET_LABELS = {"scope", "window"}

every_alarm = pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm["alert"])


class CountedStatusFeed(MemoryStatusFeed):
    """A feed that tells when a worker has reported a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = asyncio.Event()

    @override
    async def publish(self, status: BudgetStatus) -> None:
        """Keep the status."""
        await super().publish(status)
        if status.counters:
            self.counted.set()


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """Return the metrics of a worker that has served in memory, with an outbox, a log that is shipped, signing keys and budgets."""
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
        tenants={"default": TenantConfig(budget_usd=SMALL_USD, calls=100)},
    )
    texts = ['```json\n{"a": 1}\n```', "no answer"]

    async def calls() -> bytes:
        told = CountedStatusFeed()
        providers = {"scripted": ScriptedProvider(texts)}
        ports = Ports(
            broker=MemoryBroker(), providers=providers, statuses=told, controls=MemoryControlStore()
        )
        async with Platform(config, ports) as platform:
            await asked(platform, *map(envelope, range(3)))
            process = WorkerProcess(config, 1.0, "serving", _platform=platform)
            await told.counted.wait()
            return await process.metrics()

    return list(text_string_to_metric_families(asyncio.run(calls()).decode()))


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
        assert name == "up" or name in figures or name in ABSENT
        assert {label for label in labels if label[0] not in BUDGET_LABELS} <= known | figures.get(
            name, set()
        )


def test_worker_has_every_metric_of_the_list(families: list[Metric]) -> None:
    found = {family.name: family for family in families if family.samples}

    assert set(FIGURES) - set(found) == ABSENT | OF_THE_HTTP_SERVER
    assert set(found) <= set(FIGURES)
    for name, family in found.items():
        figure = FIGURES[name]
        labels = {*figure.labels, *(["le"] if figure.type == "histogram" else [])}
        assert family.type == figure.type
        assert all(set(sample.labels) in (labels, set(figure.labels)) for sample in family.samples)


def rows_under(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading of the page of metrics, as texts without backticks."""
    section = METRICS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows]


def test_metrics_page_lists_every_metric_with_type_and_labels() -> None:
    documented = {
        name: (kind, list(filter(None, labels.split(", "))))
        for name, kind, labels, *_ in rows_under("Metrics")
    }

    assert documented == {figure.shown_name: (figure.type, [*figure.labels]) for figure in FIGURES.values()}
    assert all(all(row[:2]) and all(row[3:]) for row in rows_under("Metrics"))


def test_metrics_page_lists_every_label_value(figures: dict[str, set[tuple[str, str]]]) -> None:
    documented = {
        (label, value) for label, values, *_ in rows_under("Label values") for value in values.split(", ")
    }
    fixed = {"part", "end", "state", "step", "type", "unit", "workflow"}

    shown = {pair for labels in figures.values() for pair in labels}
    assert {pair for pair in shown if pair[0] in fixed} <= documented
    assert {
        (label, value) for label, value in documented if label in {"part", "end", "state", "step"}
    } <= shown
    assert {label for label, _ in shown} - {"group", "topic", "le", "scope", "id"} == {
        name for labels, *_ in rows_under("Label values") for name in labels.split(", ")
    }


def test_generated_files_are_current() -> None:
    assert outdated(generated()) == []


def test_changed_file_is_outdated(tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    same.write_text("a", encoding="utf-8")
    other.write_text("b", encoding="utf-8")

    assert outdated({same: "a", other: "a", tmp_path / "missing": "a"}) == [other, tmp_path / "missing"]


def test_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no table", encoding="utf-8")

    with pytest.raises(ValueError, match="has no line <!-- generated by tools"):
        with_table(page, "| a |")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panels_use_existing_metrics(panel: Panel) -> None:
    named = [name for name, _ in selectors(panel.expr)]

    assert named
    assert {re.sub("_bucket$", "", name) for name in named} <= {
        figure.shown_name for figure in FIGURES.values()
    }


def test_panels_fill_rows_of_the_dashboard() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]

    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels]
    assert len(set(places)) == len(panels) == len(PANELS)
    assert all(one["gridPos"]["x"] + one["gridPos"]["w"] <= COLUMNS for one in panels)


def test_panels_of_single_values_show_the_present() -> None:
    # Of a range, Grafana shows the last value, so a forecast that has ended would stay.
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]

    at_once = {one["type"]: one["targets"][0].get("instant", False) for one in panels}
    assert at_once == {"bargauge": True, "stat": True, "table": True, "timeseries": False}


@every_alarm
def test_alarms_have_severity_and_page(alarm: dict[str, Any]) -> None:
    page = Path(alarm["annotations"]["page"])

    assert alarm["labels"]["severity"] in {"page", "ticket", "note"}
    assert alarm["annotations"]["summary"]
    assert f"`{alarm['alert']}`" in (ROOT / page).read_text(encoding="utf-8").partition("\n\n")[2]
    assert f"]({page.name})" in (OPERATE / "README.md").read_text(encoding="utf-8")


def commands_in(text: str) -> list[list[str]]:
    """Return the words of the commands of ours on a page, without the program."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    commands = re.findall(r"^(agentic-trading .*)$", blocks, re.MULTILINE)
    commands += re.findall(r"`(agentic-trading [^`\n]*)`", text)
    split = [shlex.split(re.split(r" > | \|\| ", each)[0], comments=True)[1:] for each in commands]
    return [words for words in split if words[-1] != "run"]  # the name of a command, without what it needs


def wrong_commands_in(text: str) -> list[str]:
    """Return the commands of ours on a page that the program refuses, each with the reason."""
    wrong = []
    for words in commands_in(text):
        try:
            options_of(words)
        except (TyperException, ValueError) as e:
            wrong.append(f"{shlex.join(words)}: {e}")
    return wrong


PAGES = [*sorted(OPERATE.glob("*.md")), ROOT / "infra/README.md"]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if commands_in(page.read_text(encoding="utf-8"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_page_commands_are_valid(page: Path) -> None:
    assert wrong_commands_in(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("words", ["budget shwo", "budget show --tenants acme"])
def test_wrong_command_of_a_page_is_found(words: str) -> None:
    page = f"Run `agentic-trading {words}`, then:\n\n```sh\nagentic-trading budget show\n```\n"

    [wrong] = wrong_commands_in(page)

    assert wrong.startswith(f"{words}: ")


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
