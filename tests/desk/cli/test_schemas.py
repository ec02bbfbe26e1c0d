"""`schemas` writes the published files and says whether they still are those of the models."""

from pathlib import Path

from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.cli.schema_files import published_files
from tests.cli.conftest import Command


def test_what_is_written_passes_the_check(command: Command) -> None:
    written = command("schemas", "write")

    checked = command("schemas", "check")

    assert {Path(line).name for line in written.out.splitlines()} == set(published_files())
    assert checked.code == ExitCode.DONE
    assert f"{len(published_files())} files in schemas" in checked.out


def test_a_file_that_differs_is_named(command: Command) -> None:
    command("schemas", "write", "--dir", "api")
    Path("api/event.v1.json").unlink()

    ended = command("schemas", "check", "--dir", "api")

    assert ended.code == ExitCode.FOUND_WRONG
    assert "api/event.v1.json is missing" in ended.err
    assert "Error: the schemas in api are not those of the models" in ended.err
    assert "agentic-trading schemas write --dir api" in ended.err
