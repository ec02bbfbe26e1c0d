"""Prometheus reads the workers of the compose file, and every alarm speaks of figures that a worker has and has its page."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agentic_trading.app.worker import WorkerProcess
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.platform import Platform, Ports
from tests.infra.test_compose import ROOT, SERVICES, WORKERS, mounts, on_the_host, parsed

FOLDER = ROOT / "infra/prometheus"
PROMETHEUS: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
ALARMS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
OPERATE = ROOT / "docs/operate"

every_alarm = pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm["alert"])
