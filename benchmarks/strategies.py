"""Compare one strategy here, in nautilus_trader and in backtesting.py: their orders must be equal.

Run: `python -m benchmarks.strategies`. `examples/channel.py` and its counterparts in `benchmarks/peers/` trade the shipped bars.
Exits with 1 if the times and sides of their orders differ. The first run installs the peers, each into an environment of its
own.
"""

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from agentic_trading.desk.market.samples import SAMPLES, packed_bytes, unpacked
from benchmarks.peers.contender import PEERS, ROOT, UnavailableError, peer, versions

DATA = "btcusdt-5m"
NAMES = ("nautilus_trader", "backtesting")
STRATEGIES = {"agentic_trading": ROOT / "examples/channel.py"} | {
    name: PEERS / name / "channel.py" for name in NAMES
}

Decisions = list[list[str]]
"""The times and sides of orders, in order."""


def ours(folder: Path) -> Decisions:
    """Run `examples/channel.py` into a folder, and return its decisions."""
    out = folder / "session"
    program = [sys.executable, "-c", "from agentic_trading.cli.main import main; main()"]
    run = ["run", "--data", DATA, "--provider", "rules", "--agent", "channel:Channel", "--out", str(out)]
    subprocess.run([*program, *run], cwd=ROOT / "examples", check=True, capture_output=True)  # noqa: S603 - ours
    lines = [json.loads(line) for line in (out / "decisions.jsonl").read_bytes().splitlines()]
    return [
        [line["as_of"].replace("Z", "+00:00"), line["body"]["side"]]
        for line in lines
        if line.get("kind") == "order.submitted"
    ]


def theirs(name: str, folder: Path) -> Decisions:
    """Return the decisions of a peer. Raises `UnavailableError` if it cannot be installed."""
    bars = folder / f"{DATA}.csv"
    bars.write_bytes(unpacked(SAMPLES[DATA], packed_bytes(SAMPLES[DATA])))
    with peer(name) as contender:
        decided: Decisions = json.loads(contender.ask(str(bars)))
        return decided


def code_lines(path: Path) -> int:
    """Return the lines of a strategy that are neither blank, comments nor docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            del node.body[0]
    return len(ast.unparse(tree).replace("\n\n", "\n").splitlines())


def main() -> int:
    """Print the table. Return 1 if the orders of a peer differ."""
    broken = 0
    with tempfile.TemporaryDirectory(prefix="strategies-") as folder:
        decided = ours(Path(folder))
        print(f"{'':44}{'lines':>6}  orders")
        print(f"{'agentic_trading':44}{code_lines(STRATEGIES['agentic_trading']):>6}  {len(decided)}")
        for name in NAMES:
            try:
                same = theirs(name, Path(folder)) == decided
            except UnavailableError as e:
                print(f"{name:44}{'':>6}  {e.reason}")
                continue
            broken |= not same
            orders = "the same" if same else "OTHERS"
            print(f"{versions(name):44}{code_lines(STRATEGIES[name]):>6}  {orders}")
    return broken


if __name__ == "__main__":
    sys.exit(main())
