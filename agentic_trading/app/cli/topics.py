"""`agentic-trading topics`: the topics of a Kafka are made, checked, and the lag of each group is shown."""

import asyncio
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

import typer

from agentic_trading.app.cli.exits import ExitCode, ended_as_by_ctrl_c, say, stop
from agentic_trading.app.cli.log_selection import AsJson

app = typer.Typer(help="The topics of a Kafka: create, check, lag.", no_args_is_help=True)

T = TypeVar("T")

BusUrl = Annotated[
    str, typer.Option("--bus", metavar="URL", help="kafka://HOST:PORT, several with commas between.")
]
Partitions = Annotated[
    int, typer.Option("--partitions", metavar="N", min=1, max=1000, help="How many of each topic, at least.")
]
RetentionDays = Annotated[
    int,
    typer.Option(
        "--retention-days", metavar="N", min=1, max=3650, help="How long messages are kept, at least."
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        "--replicas",
        metavar="N",
        min=0,
        max=9,
        help="Copies of each message; 0: three, or one a server of fewer.",
    ),
]
GroupNames = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Only this group; may be repeated.")
]


@app.command("create")
def create_missing(
    *,
    bus: BusUrl,
    partitions: Partitions = 6,
    replicas: Replicas = 0,
    retention_days: RetentionDays = 7,
    as_json: AsJson = False,
) -> None:
    """Make the topics that are missing; those that are there stay as they are. Ends when each can be written to."""
    _require_client()
    from agentic_trading.app.cli.output import show_json
    from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
    from agentic_trading.bus.brokers.kafka.connection import settings_of

    plans = planned_topics(partitions=partitions, retention_days=retention_days)
    made = _run(create_topics(settings_of(bus), plans, replicas=replicas))
    if as_json:
        show_json({"created": made})
    else:
        say(f"created: {', '.join(made) or 'nothing; all topics were there'}")


@app.command("check")
def check_all(
    *, bus: BusUrl, partitions: Partitions = 6, retention_days: RetentionDays = 7, as_json: AsJson = False
) -> None:
    """Hold the topics against what the bus needs; exit 1 and a line for each that is missing or set up otherwise."""
    _require_client()
    from agentic_trading.app.cli.output import print_table, rows, show_json, table
    from agentic_trading.bus.brokers.kafka.admin import check_topics, planned_topics
    from agentic_trading.bus.brokers.kafka.connection import settings_of

    plans = planned_topics(partitions=partitions, retention_days=retention_days)
    problems = _run(check_topics(settings_of(bus), plans))
    if as_json:
        show_json(problems)
    elif problems:
        cells = [(each.topic, each.what, each.found, each.wanted) for each in problems]
        print_table(rows(table("topic", "what", "is", "needed"), cells))
    else:
        say(f"right: {len(plans)} topics")
    if problems:
        raise typer.Exit(ExitCode.FOUND_WRONG)


@app.command("lag")
def show_lag(*, bus: BusUrl, group: GroupNames = None, as_json: AsJson = False) -> None:
    """Print what each group has not done, by topic and partition; a group that never committed is not there."""
    _require_client()
    from agentic_trading.app.cli.output import print_table, rows, show_json, table
    from agentic_trading.bus.brokers.kafka.admin import group_lags, planned_topics
    from agentic_trading.bus.brokers.kafka.connection import settings_of

    names = [plan.name for plan in planned_topics()]
    lags = _run(group_lags(settings_of(bus), names, group or ()))
    if as_json:
        show_json([
            {
                "group": each.group, "topic": each.topic, "partition": each.partition,
                "committed": each.committed, "end": each.end, "lag": each.lag,
            }
            for each in lags
        ])  # fmt: skip
        return
    cells = [
        (each.group, each.topic, *map(str, (each.partition, each.committed, each.end, each.lag)))
        for each in lags
    ]
    numbers = ("partition", "committed", "end", "lag")
    print_table(rows(table("group", "topic", *numbers, right=numbers), cells))


def _require_client() -> None:
    if find_spec("aiokafka") is None:
        needs = "this needs aiokafka, which is not installed"
        stop(ExitCode.BAD_INPUT, f"{needs}; run pip install 'agentic-trading[kafka]'")


def _run(work: Coroutine[Any, Any, T]) -> T:
    from agentic_trading.app.settings import start

    start()
    with ended_as_by_ctrl_c():
        return asyncio.run(work)
