"""A replay, told: the same, or where it first was not."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from agentic_trading.app.cli.output import facts, printable, unbroken
from agentic_trading.app.replay import ReplayReport
from agentic_trading.app.plural import pluralize


def comparison(report: ReplayReport) -> RenderableType:
    """Return the verdict, what it rests on, and the first difference if there is one."""
    verdict = (
        Text("identical, byte for byte", "bold green") if report.identical else Text("different", "bold red")
    )
    return Group(
        verdict,
        unbroken("record", f"sha256:{report.recorded_digest}"),
        unbroken("replay", f"sha256:{report.digest}"),
        facts(_grounds(report)),
    )


def _grounds(report: ReplayReport) -> Iterator[tuple[str, str]]:
    yield "session", f"{report.session_id}, run {report.run_number}"
    yield "fed", f"{report.bars:,} bars with {report.workers} workers, network blocked"
    yield (
        "answers",
        (
            f"{pluralize(report.answered, 'call')} answered from the record · "
            f"{pluralize(report.misses, 'attempt')} not on record · "
            f"{report.unused:,} on record and not asked for"
        ),
    )
    if report.first_difference is not None:
        yield "first difference", printable(report.first_difference)
    for change in report.request_changes:
        yield "because of", printable(change)
