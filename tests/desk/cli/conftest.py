"""The commands of the desk are tested as those of the gateway are."""

from tests.cli.conftest import _own_place, command, session  # noqa: F401 - its fixtures
