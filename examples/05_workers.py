"""Run workers in processes of their own. They share a bus and a budget on a Redis.

agentic-trading services start redis          # prints AGENTIC_LEDGER_URL=redis://...
python examples/05_workers.py redis://...
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

import agentic_trading as at

FILE = """
bus = {{ url = "{url}", namespace = "example" }}
ledger = {{ url = "{url}" }}
providers.scripted.options = {{ answers = {answers} }}
tenants.default = {{ budget_usd = "5", window = "day" }}
"""


class Trend(BaseModel):
    """The form of the answers."""

    direction: str


async def ask(config: at.PlatformConfig) -> None:
    """Ask eight questions at once. One of the workers answers each."""
    async with at.remote_gateway(config) as gateway, asyncio.TaskGroup() as group:
        for number in range(8):
            call = gateway.decide(f"Judge symbol {number}.", output=Trend, model="scripted/scripted-1")
            group.create_task(call).add_done_callback(lambda done: print(done.result()))


def main(url: str) -> None:
    """Create the topics, start two workers, ask, and stop the workers."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "agentic-trading.toml"
        file.write_text(FILE.format(url=url, answers=json.dumps(['{"direction": "up"}'] * 8)))
        program = str(Path(sys.executable).with_name("agentic-trading"))
        subprocess.run([program, "topics", "create"], cwd=folder, check=True)
        command = [program, "worker", "--http", "127.0.0.1:0", "--name"]
        workers = [subprocess.Popen([*command, name], cwd=folder) for name in ("w1", "w2")]
        try:
            asyncio.run(ask(at.load_config(file)))
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


if __name__ == "__main__":
    main(sys.argv[1])
