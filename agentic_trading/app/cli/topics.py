"""`agentic-trading topics`: the topics of a bus are made, checked, and the lag of each group is shown."""

import asyncio
from collections.abc import Coroutine, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

import typer

from agentic_trading.app.cli.exits import ExitCode, ended_as_by_ctrl_c, say, stop
from agentic_trading.app.cli.log_selection import AsJson

app = typer.Typer(help="The topics of a Kafka or a Redis: create, check, lag.", no_args_is_help=True)

T = TypeVar("T")

BusUrl = Annotated[
    str,
    typer.Option(
        "--bus",
        metavar="URL",
        help="kafka://HOST:PORT, several with commas between; redis://HOST:PORT/DB, rediss://… or unix://PATH.",
    ),
]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="N",
        min=1,
        max=1000,
        help="How many of each topic: on Kafka at least (6), on Redis exactly and for good (16).",
    ),
]
RetentionDays = Annotated[
    int | None,
    typer.Option(
        "--retention-days",
        metavar="N",
        min=1,
        max=3650,
        help="How long messages are kept, at least (7); Kafka only.",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        metavar="N",
        min=0,
        max=9,
        help="Copies of each message; 0: three, or one a server of fewer. Kafka only.",
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", metavar="NAME", help="What the keys of the bus begin with; Redis only.")
]
GroupNames = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Only this group; may be repeated.")
]


@app.command("create")
def create_missing(
    *,
    bus: BusUrl,
    partitions: Partitions = None,
    replicas: Replicas = None,
    retention_days: RetentionDays = None,
    namespace: Namespace = "agentic",
    as_json: AsJson = False,
) -> None:
    """Make the topics that are missing; those that are there stay as they are. Ends when each can be written to."""
    from agentic_trading.app.cli.output import show_json

    if _is_redis(bus, replicas=replicas, retention_days=retention_days):
        from agentic_trading.bus.topic import TOPICS

        made = _run(_redis_topics(bus, namespace, partitions).create(TOPICS))
    else:
        from agentic_trading.bus.brokers.kafka.admin import create_topics
        from agentic_trading.bus.brokers.kafka.connection import settings_of

        plans = _kafka_plans(partitions, retention_days)
        made = _run(create_topics(settings_of(bus), plans, replicas=replicas or 0))
    if as_json:
        show_json({"created": made})
    else:
        say(f"created: {', '.join(made) or 'nothing; all topics were there'}")


@app.command("check")
def check_all(
    *,
    bus: BusUrl,
    partitions: Partitions = None,
    retention_days: RetentionDays = None,
    namespace: Namespace = "agentic",
    as_json: AsJson = False,
) -> None:
    """Hold the topics against what the bus needs; exit 1 and a line for each that is missing or set up otherwise."""
    from agentic_trading.app.cli.output import print_table, rows, show_json, table
    from agentic_trading.bus.topic import TOPICS

    if _is_redis(bus, retention_days=retention_days):
        problems = _run(_redis_topics(bus, namespace, partitions).check(TOPICS))
    else:
        from agentic_trading.bus.brokers.kafka.admin import check_topics
        from agentic_trading.bus.brokers.kafka.connection import settings_of

        problems = _run(check_topics(settings_of(bus), _kafka_plans(partitions, retention_days)))
    if as_json:
        show_json(problems)
    elif problems:
        cells = [(each.topic, each.what, each.found, each.wanted) for each in problems]
        print_table(rows(table("topic", "what", "is", "needed"), cells))
    else:
        say(f"right: {len(TOPICS)} topics")
    if problems:
        raise typer.Exit(ExitCode.FOUND_WRONG)


@app.command("lag")
def show_lag(
    *, bus: BusUrl, group: GroupNames = None, namespace: Namespace = "agentic", as_json: AsJson = False
) -> None:
    """Print what each group has not done: on Kafka by topic and partition, on Redis by topic, waiting and handed out."""
    if _is_redis(bus):
        from agentic_trading.bus.topic import TOPICS

        behind = _run(_redis_topics(bus, namespace, None).lag(TOPICS, group or ()))
        counted = [(each.group, each.topic, each.waiting, each.in_flight) for each in behind]
        _show(counted, ("waiting", "pending"), as_json=as_json)
        return
    from agentic_trading.bus.brokers.kafka.admin import group_lags
    from agentic_trading.bus.brokers.kafka.connection import settings_of

    names = [plan.name for plan in _kafka_plans(None, None)]
    lags = _run(group_lags(settings_of(bus), names, group or ()))
    cells = [(each.group, each.topic, each.partition, each.committed, each.end, each.lag) for each in lags]
    _show(cells, ("partition", "committed", "end", "lag"), as_json=as_json)


def _show(lags: Sequence[tuple[str | int, ...]], numbers: Sequence[str], *, as_json: bool) -> None:
    """Print a row a lag: its group, its topic, and its numbers."""
    from agentic_trading.app.cli.output import print_table, rows, show_json, table

    if as_json:
        show_json([dict(zip(("group", "topic", *numbers), lag, strict=True)) for lag in lags])
    else:
        cells = [tuple(map(str, lag)) for lag in lags]
        print_table(rows(table("group", "topic", *numbers, right=tuple(numbers)), cells))


def _is_redis(bus: str, *, replicas: int | None = None, retention_days: int | None = None) -> bool:
    """Return whether a bus is on Redis; an option that has no meaning there ends the command, as does a missing library."""
    if bus.partition("://")[0] in {"redis", "rediss", "unix"}:
        for option, value in (("--replicas", replicas), ("--retention-days", retention_days)):
            if value is not None:
                keeps = "a Redis keeps every message until all groups have finished it"
                stop(ExitCode.BAD_INPUT, f"{option} is for a bus on Kafka; {keeps}")
        return True
    if find_spec("aiokafka") is None:
        needs = "this needs aiokafka, which is not installed"
        stop(ExitCode.BAD_INPUT, f"{needs}; run pip install 'agentic-trading[kafka]'")
    return False


def _redis_topics(bus: str, namespace: str, partitions: int | None) -> Any:
    from agentic_trading.bus.brokers.redis.connection import redis_settings_of
    from agentic_trading.bus.brokers.redis.redis import RedisTopics

    given = {} if partitions is None else {"partitions": partitions}
    return RedisTopics(redis_settings_of(bus, namespace=namespace, **given))


def _kafka_plans(partitions: int | None, retention_days: int | None) -> Any:
    from agentic_trading.bus.brokers.kafka.admin import PARTITIONS, RETENTION_DAYS, planned_topics

    return planned_topics(
        partitions=partitions or PARTITIONS, retention_days=retention_days or RETENTION_DAYS
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    from agentic_trading.app.settings import start

    start()
    with ended_as_by_ctrl_c():
        return asyncio.run(work)
