"""Programs in processes of their own, which may be killed.

Each is forked from a process that has loaded what they run: that takes most of a second, and the fork a hundredth.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([
    "agentic_trading.cli.commands", "agentic_trading.cli.main",
    "agentic_trading.desk.cli.summary", "agentic_trading.cli.budget_tables",
    "agentic_trading.desk.session.run", "agentic_trading.desk.session.preflight", "agentic_trading.desk.session.replay",
    "agentic_trading.llm.providers.openai.provider",
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: its exit code or the negative signal, and what it wrote."""

    code: int
    out: str
    err: str


def ended(
    program: Callable[..., object],
    *given: Any,
    folder: Path,
    env: Mapping[str, str] = MappingProxyType({}),
    stdin: str = "",
) -> Ended:
    """Run `program` with the environment `env`, and wait until its process has ended.

    What it reads and writes on its standard streams lies in `folder`.
    """
    (folder / "said.in").write_text(stdin, encoding="utf-8")
    process = FORKS.Process(target=_run, args=(program, given, folder, dict(env)))
    process.start()
    process.join()
    assert process.exitcode is not None
    out, err = ((folder / name).read_text(encoding="utf-8") for name in ("said.out", "said.err"))
    return Ended(process.exitcode, out, err)


def _run(
    program: Callable[..., object], given: tuple[Any, ...], folder: Path, env: Mapping[str, str]
) -> None:
    for fd, name in ((1, "said.out"), (2, "said.err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    sys.stdin = (folder / "said.in").open(encoding="utf-8")
    os.environ.clear()  # noqa: TID251 - that of a program of its own
    os.environ.update(env)  # noqa: TID251 - that of a program of its own
    program(*given)
