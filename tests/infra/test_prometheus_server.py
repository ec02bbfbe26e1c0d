"""A real Prometheus scrapes two workers: the names of rules and dashboard exist, and an alert fires."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm import EnvelopeBuilder, LLMProvider
from tests import redis_server
from tests.flows.fleet import command, make_topics
from tests.infra.test_prometheus import ABSENT
from tests.prometheus_server import RunningPrometheus, program, prometheus, until
from tests.worker_processes import worker
from tools.monitoring import ALERTS, PANELS, RULES, Panel

pytestmark = pytest.mark.timeout(120)
HERE = Path(__file__).parent
NAME = re.compile(r"\b(?:agentic_\w+|up)\b(?!\")")
FAST_RULES = re.sub(r"for: \w+", "for: 1s", RULES.read_text(encoding="utf-8"))
ANSWERS = ", ".join(["'''{\"a\": 1}'''"] * 60)


def submitted(config: Path, numbers: range) -> None:
    """Have the workers run calls, and wait for their answers."""
    file = config.with_name("envelopes.jsonl")
    built = [
        EnvelopeBuilder().for_general().with_instructions("Advise.").with_context({"n": n})
        .with_provider(LLMProvider.SCRIPTED, "scripted-1").build()
        for n in numbers
    ]  # fmt: skip
    file.write_bytes(b"\n".join(each.wire for each in built))
    assert command("submit", file, "--config", config, "--wait") == ExitCode.DONE


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPrometheus]:
    """Give a Prometheus that scrapes two workers. They have spent at a pace that exhausts their budget in minutes."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    config = folder / "fleet.toml"
    with redis_server.own_server("valkey") as redis:
        config.write_text(
            f'mode = "paper"\nack_after = "stream"\n[bus]\nurl = "{redis.url}"\n[ledger]\nurl = "{redis.url}"\n'
            f"[providers.scripted]\noptions = {{ answers = [{ANSWERS}] }}\n"
            '[tenants.default]\nbudget_usd = "0.2"\n[log]\nsealed_command = "true"\n',
            encoding="utf-8",
        )
        make_topics(config)
        words = ("--config", str(config))
        with worker(folder / "logs", "w1", *words) as one, worker(folder / "logs", "w2", *words) as other:
            workers = (one, other)
            addresses = [running.url.removeprefix("http://") for running in workers if running.is_ready()]
            tokens = (
                "budget",
                "set",
                "tenant",
                "*",
                "--per",
                "day",
                "--tokens",
                "10000000",
                "--ledger",
                redis.url,
            )
            assert command(*tokens, "--why", "test") == ExitCode.DONE
            with prometheus(folder, FAST_RULES, {"agentic-workers": addresses}) as server:
                submitted(config, range(2))
                until(lambda: server.series("agentic_budget_spent_usd > 0") or None, "spent budget")
                submitted(config, range(2, 40))
                yield server


def test_every_name_of_rules_and_dashboard_exists(scraped: RunningPrometheus) -> None:
    named = {
        name
        for expression in (*(alert.expr for alert in ALERTS), *(panel.expr for panel in PANELS))
        for name in NAME.findall(expression)
    } | ABSENT

    def known() -> set[str] | None:
        found = set(scraped.ask("label/__name__/values"))
        return found if named <= found else None

    assert len(named) > 20
    assert until(known, f"series for all of {sorted(named)}") >= named
    assert len(scraped.series("agentic_worker_ready == 1")) == 2


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panel_has_series(panel: Panel, scraped: RunningPrometheus) -> None:
    expression = panel.expr.replace("$tenant", ".*")

    assert until(lambda: scraped.series(expression) or None, panel.title)


def test_alert_of_exhaustion_fires(scraped: RunningPrometheus) -> None:
    firing = 'ALERTS{alertname="BudgetRunsOut",alertstate="firing"}'

    [alert, *_] = until(lambda: scraped.series(firing) or None, "firing alert")

    labels = {name: alert["metric"][name] for name in ("tenant", "scope", "id", "window", "severity")}
    assert labels == {
        "tenant": "default",
        "scope": "tenant",
        "id": "default",
        "window": "none",
        "severity": "page",
    }


def test_workers_agree_on_balances_of_shared_ledger(scraped: RunningPrometheus) -> None:
    def balances() -> list[float] | None:
        spent = scraped.series('agentic_budget_spent_usd{scope="tenant"}')
        charged = scraped.series('sum(agentic_ledger_usd_total{kind="charged"})')
        values = [round(float(one["value"][1]), 9) for one in (*spent, *charged)]
        return values if len(values) == 3 and len(set(values)) == 1 else None  # once both were scraped

    assert until(balances, "equal balances")[0] > 0


def test_rules_are_valid_for_prometheus() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout


def test_alerts_fire_in_order_in_simulated_time() -> None:
    tested = subprocess.run(
        [program("promtool"), "test", "rules", str(HERE / "alerts_test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_budget_alert_has_a_simulation() -> None:
    simulated = (HERE / "alerts_test.yml").read_text(encoding="utf-8")

    budgets = [alert.name for alert in ALERTS if alert.group == "agentic-budgets"]
    assert len(budgets) == 9
    assert [name for name in budgets if f"alertname: {name}\n        exp_alerts" not in simulated] == []
