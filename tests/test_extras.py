"""The packages of extras: each import names the extra if its package is not installed."""

import json
import re
import subprocess
import sys
import tomllib
from itertools import chain

import pytest

from agentic_trading.errors import EXTRAS, MissingExtraError, extra_named
from benchmarks.house import PACKAGE, ROOT

# Without garbage collection, which takes a part of the imports' time and frees nothing.
IMPORT_ALL = """
import gc, importlib, json, sys
gc.disable()
hidden, names = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(hidden))
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as e:
        print(type(e).__name__, name, e, sep=": ")
"""
REQUIRE_ALL = """
import json, sys
from agentic_trading.errors import require_extra
names = json.load(sys.stdin)
require_extra(*names)
print([name for name in names if name in sys.modules])
"""
CORE = ("anthropic-sdk", "kafka")
"""Former extras that are part of the core: their names stay valid, and bring nothing."""

PROGRAMS = {"agentic_trading.desk.planning.sandbox_child"}
"""Modules that are programs; the sandbox starts its child only with numpy."""


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=~!; ]", each, maxsplit=1)[0].lower().replace("_", "-") for each in wanted}

    assert names - {"agentic-trading"} - {pin.partition("==")[0] for pin in pins} == set()


def test_extras_match_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    extras = project["optional-dependencies"]
    assert set(EXTRAS.values()) == set(extras) - {"dev", *CORE}
    assert [extras[name] for name in CORE] == [[], []]
    assert {"aiokafka[zstd]>=0.14,<0.15", "anthropic[aiohttp]>=2.12,<3"} <= set(project["dependencies"])


@pytest.mark.timeout(120)
def test_import_without_extras_names_the_extra() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
    dotted = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    names = [name for name in dotted if name not in PROGRAMS]

    ended = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        input=json.dumps([sorted(EXTRAS), names]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    failed = ended.stdout.splitlines()
    assert [line for line in failed if not line.startswith(MissingExtraError.__name__)] == []
    assert any(line.endswith(str(MissingExtraError("numpy"))) for line in failed)


def test_installed_extra_is_accepted_without_import() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", REQUIRE_ALL],
        input=json.dumps(sorted(EXTRAS)),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )

    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def test_error_for_other_packages_is_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"), extra_named():
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401, PLC0415 - it must fail
