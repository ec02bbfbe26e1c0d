"""Every code block of README and docs works: Python and shell run, files parse, commands have their options."""

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from tests import redis_server
from tests.pages import BLOCKS, KAFKA, REDIS, Block, blocks_of, write_files
from tests.whole_program import whole_program

RUNS_ALWAYS = ("docs/start/install.md", "docs/start/first-call.md")
"""Pages whose shell runs in `make test`. Shell of the other pages runs in `make soak`, because it takes minutes."""
CLONE = "README.md"
"""The page whose shell installs the project, so that it runs in a fresh clone only."""
USAGE_ERROR: Any = typer.BadParameter.__base__
LANGUAGES = {"python", "sh", "sql", "toml", "json", "jsonl", "text", "ini", ""}
"""`sql` runs in `tests/audit/test_auditor_page.py`. `text` and blocks without a language are output or pictures."""


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.fixture
def page_redis() -> Iterator[str]:
    with redis_server.running(redis_server.servers()[0]) as url:
        yield url


def at(request: pytest.FixtureRequest, text: str, needs: str) -> str:
    """Return `text` with the addresses of test servers, which are started if `needs` names them."""
    if "redis" in needs:
        # A server of the page's own, because workers of other tests stay in reports of a shared one.
        url = request.getfixturevalue("page_redis")
        text = text.replace(f"{REDIS}/0", url).replace(REDIS, url.removesuffix("/0"))
    if "kafka" in needs:
        # A server of the page's own, because other tests create the same topics with other settings.
        text = text.replace(
            KAFKA.removeprefix("kafka://"), request.getfixturevalue("own_kafka").bootstrap_servers
        )
    return text


def run(command: Sequence[str], folder: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    places = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # noqa: TID251 - of a program
    return subprocess.run(
        command, cwd=folder, env=dict(os.environ) | places, input=given, capture_output=True, text=True, check=False  # noqa: TID251
    )  # fmt: skip


def test_every_block_has_a_known_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


# Blocks run in forks of one process, because the import of the package takes longer than most blocks.
RUN_BLOCKS = """
import json, os, sys, traceback, types
import agentic_trading as at
for name in at.__all__:
    getattr(at, name)
for place, folder, text in json.load(sys.stdin):
    if os.fork() == 0:
        os.chdir(folder)
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        failed = True
        try:
            exec(compile(text, place, "exec"), vars(main))
            failed = False
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(failed)
    if os.wait()[1]:
        sys.exit(place)
"""
RUN_PYTHON = [block for block in of("python") if not (block.file or block.not_run)]


NEEDS = {
    block.page: " ".join(one.needs for one in RUN_PYTHON if one.page == block.page) for block in RUN_PYTHON
}
SERVERS = [page for page, needs in sorted(NEEDS.items()) if needs.strip()]
# The other pages share one process, because its import takes longer than the blocks of most pages.
TOGETHER = [[page] for page in SERVERS] + [sorted(NEEDS.keys() - {*SERVERS})]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pages", TOGETHER, ids=lambda pages: pages[0])
def test_python_blocks_run_without_warnings(
    pages: Sequence[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    blocks = [block for block in RUN_PYTHON if block.page in pages]
    folders = [str(tmp_path / str(number)) for number in range(len(blocks))]
    for block, folder in zip(blocks, folders, strict=True):
        write_files(block.page, Path(folder))
    texts = [at(request, block.text, block.needs) for block in blocks]
    rows = list(zip(map(str, blocks), folders, texts, strict=True))

    ended = run([sys.executable, "-W", "error", "-c", RUN_BLOCKS], tmp_path, json.dumps(rows))

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout or not any("print(" in block.text for block in blocks)


@pytest.mark.parametrize("text", ["1 / 0", "import os; os.abort()", "import warnings; warnings.warn('old')"])
def test_failing_python_block_is_found(text: str, tmp_path: Path) -> None:
    ended = run(
        [sys.executable, "-W", "error", "-c", RUN_BLOCKS], tmp_path, json.dumps([("page:1", ".", text)])
    )

    assert (ended.returncode, ended.stderr.endswith("page:1\n")) == (1, True)


@pytest.mark.parametrize("block", [one for one in of("python") if one.file or one.not_run], ids=str)
def test_python_block_imports_resolve(block: Block) -> None:
    imports = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.ImportFrom)]

    missing = [
        f"{node.module}.{alias.name}"
        for node in imports
        if (node.module or "").startswith("agentic_trading")
        for alias in node.names
        if not hasattr(importlib.import_module(node.module or ""), alias.name)
    ]
    assert missing == []


@pytest.mark.parametrize("block", [*of("json"), *of("jsonl"), *of("toml"), *of("ini")], ids=str)
def test_data_block_parses(block: Block) -> None:
    if block.language in {"toml", "ini"}:
        assert tomllib.loads(block.text)
    else:
        texts = block.text.splitlines() if block.language == "jsonl" else [block.text]
        assert all(json.loads(text) is not None for text in texts)


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of the program in a shell text, without redirections and comments."""
    text = re.sub(r"<<'(\w+)'\n.*?^\1$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        for operator, words in groupby(lexer, lambda word: set(word) <= set("();<>|&")):
            call = [] if operator else list(words)
            programs = [place for place, word in enumerate(call) if word.endswith("agentic-trading")]
            if programs:
                yield call[programs[0] + 1 :]


@cache
def program() -> TyperGroup:
    return whole_program()


def problem_of(words: Sequence[str]) -> str:
    """Return why the program would not accept these arguments, or an empty text. Values are not read."""
    command: Any = program()
    rest, parent = list(words), None
    while isinstance(command, TyperGroup):
        if not rest or rest[0] not in command.commands:
            return "" if rest and rest[0].startswith("--") else f"no command {rest[:1]}"
        parent = command.context_class(command, parent=parent)
        command = command.commands[rest.pop(0)]
    try:
        command.make_parser(command.context_class(command, parent=parent)).parse_args(rest)
    except USAGE_ERROR as e:
        return str(e)
    return ""


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_shell_block_calls_known_commands(block: Block) -> None:
    assert {shlex.join(words): why for words in command_lines(block.text) if (why := problem_of(words))} == {}


def test_unknown_command_and_option_are_found() -> None:
    text = "agentic-trading run --fast\nx=$(.venv/bin/agentic-trading fly) # agentic-trading no\n"

    assert [problem_of(words) for words in command_lines(text)] == [
        "No such option: --fast",
        "no command ['fly']",
    ]


def shell_pages() -> Iterator[object]:
    for page in sorted({block.page for block in of("sh")} - {CLONE}):
        marks = [] if page in RUNS_ALWAYS else [pytest.mark.soak]
        if any(not block.not_run for block in of("sh") if block.page == page):
            yield pytest.param(page, marks=marks)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", list(shell_pages()))
def test_shell_blocks_of_page_run_in_order(page: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shell = [block for block in of("sh") if block.page == page and not block.not_run]
    write_files(page, tmp_path)
    text = at(request, "".join(block.text for block in shell), " ".join(block.needs for block in shell))

    ended = run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{text}"],
        tmp_path,
    )

    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert "Traceback" not in ended.stderr


def test_directives_of_a_block_are_read(tmp_path: Path) -> None:
    page = tmp_path / "planted.md"
    page.write_text(
        "<!-- file: a.json -->\n```json\n{}\n```\n<!-- needs: redis -->\n```sh\nrun\n```\n"
        "<!-- not run: it asks a paid model -->\n```python\nx\n```\n```text\ny\n```\n",
        encoding="utf-8",
    )

    found = [(one.language, one.text, one.file, one.needs, one.not_run) for one in blocks_of(page)]

    assert found == [
        ("json", "{}\n", "a.json", "", ""),
        ("sh", "run\n", "", "redis", ""),
        ("python", "x\n", "", "", "it asks a paid model"),
        ("text", "y\n", "", "", ""),
    ]
    assert [block for block in BLOCKS if block.not_run and len(block.not_run) < 10] == []
