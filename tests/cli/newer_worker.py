"""A worker of a newer release, which knows a field more: run by its path, with a copy of the package in front of ours."""

import asyncio
import re
import shutil
import sys
from contextlib import aclosing
from pathlib import Path

from agentic_trading.llm.envelope import LLMEnvelope
from tests import kafka_server
from tests.gateway import gateway

PACKAGE = Path(__file__).parents[2] / "agentic_trading"
ANSWER = '{"action":"wait","size":2}'


def newer_package(folder: Path) -> Path:
    """Copy the package into `folder`, with an envelope that has a field `venue_hint` more; return the folder."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    source = folder / PACKAGE.name / "llm" / "envelope.py"
    newer, changes = re.subn(
        r"^( +)subject: str = \"\"$",
        r'\g<0>\n\1venue_hint: str = ""',
        source.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert changes == 1
    source.write_text(newer, encoding="utf-8")
    return folder


async def serve(servers: str) -> None:
    """Serve until standard input ends."""
    assert "venue_hint" in LLMEnvelope.model_fields
    async with aclosing(kafka_server.broker(servers)) as broker, asyncio.TaskGroup() as group:
        pool = gateway(lambda _request: ANSWER, broker=broker).pool
        group.create_task(pool.run())
        await asyncio.to_thread(sys.stdin.read)
        pool.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
