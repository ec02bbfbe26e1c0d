"""A small package of a user's own, installed as a folder on the path of modules: one module, and what it offers by entry points."""

from collections.abc import Mapping
from pathlib import Path

MODULE = '''
"""Orders of Acme, checked and shown."""

import json

from agentic_trading.llm import Violation

def check_order(envelope, text):
    size = json.loads(text)["size"]
    return [] if size <= 100 else [Violation(path="$.size", keyword="acme_limit", message="100 at most")]

def order_rule(envelope):
    return '{"size": 7}'

def acme_command(name: str = "all") -> None:
    """Show the orders of Acme."""
    print(f"orders of {name}")

def lines(event):
    return [f"desk {event.body['desk']}"] if event.kind == "acme.ordered" else None

def outcome(events):
    return "ordered"
'''
OFFERS: Mapping[str, str] = {
    "checks": "acme_order.v1 = acme_desk:check_order",
    "rules": "acme_order.v1 = acme_desk:order_rule",
    "renderers": "acme = acme_desk",
    "commands": "acme = acme_desk:acme_command",
}


def install_package(
    folder: Path, name: str = "acme-desk", module: str = MODULE, offers: Mapping[str, str] = OFFERS
) -> Path:
    """Install a package into a folder that has a place on `sys.path` or in PYTHONPATH, and return the folder."""
    stem = name.replace("-", "_")
    info = folder / f"{stem}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{stem}.py").write_text(module, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    groups = "".join(f"[agentic_trading.{group}]\n{line}\n\n" for group, line in offers.items())
    (info / "entry_points.txt").write_text(groups, encoding="utf-8")
    return folder
