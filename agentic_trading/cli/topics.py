"""`agentic-trading topics`: the topics of a bus are made, checked, and the lag of each group is shown."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.options import AsJson, BusUrl, ConfigFile

app = typer.Typer(help="The topics of a Kafka or a Redis: create, check, lag.", no_args_is_help=True)

T = TypeVar("T")

_LagRow = tuple[str | int | None, ...]

_NO_GROUP = "-"
_NONE_HAS_READ = "no group has read from this bus"

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
GroupNames = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Only this group; may be repeated.")
]


@app.command("create", short_help="Make the topics that are missing.")
def create_missing(
    *,
    config: ConfigFile = None,
    bus: BusUrl = None,
    partitions: Partitions = None,
    replicas: Replicas = None,
    retention_days: RetentionDays = None,
    as_json: AsJson = False,
) -> None:
    """Make the topics that are missing; those that are there stay as they are. Ends when each can be written to.

    Exit 1 where topics that were there have other numbers of partitions than --partitions.
    """
    from agentic_trading.cli.output import show_json

    loaded, topics = _loaded(config, bus)
    settings = _settings(loaded)
    if _is_redis(loaded, replicas=replicas, retention_days=retention_days):
        on_redis = _redis_topics(settings, partitions)
        made = _run(on_redis.create(topics))
        problems = _run(on_redis.check(topics)) if partitions else []
    else:
        from agentic_trading.bus.brokers.kafka.admin import check_topics, create_topics

        plans = _kafka_plans(topics, settings, partitions, retention_days)
        made = _run(create_topics(settings, plans, replicas=replicas or 0))
        problems = _run(check_topics(settings, plans)) if partitions else []
    otherwise = [each.topic for each in problems if each.what == "partitions"]
    if as_json:
        show_json({"created": made, "set_up_otherwise": otherwise})
    else:
        done = f"created: {', '.join(made) or 'nothing; all topics were there'}"
        names = f"; {len(otherwise)} of them are set up otherwise: topics check names them"
        say(done + (names if otherwise else ""))
    if otherwise:
        raise typer.Exit(ExitCode.FOUND_WRONG)


@app.command("check", short_help="Say which topics are missing or set up otherwise.")
def check_all(
    *,
    config: ConfigFile = None,
    bus: BusUrl = None,
    partitions: Partitions = None,
    retention_days: RetentionDays = None,
    as_json: AsJson = False,
) -> None:
    """Hold the topics against what the bus needs; exit 1 and a line for each that is missing or set up otherwise."""
    from agentic_trading.cli.output import listing, print_table, show_json

    loaded, topics = _loaded(config, bus)
    settings = _settings(loaded)
    if _is_redis(loaded, retention_days=retention_days):
        problems = _run(_redis_topics(settings, partitions).check(topics))
    else:
        from agentic_trading.bus.brokers.kafka.admin import check_topics

        problems = _run(check_topics(settings, _kafka_plans(topics, settings, partitions, retention_days)))
    if as_json:
        show_json(problems)
    elif problems:
        columns: dict[str, Callable[[Any], str]] = {
            "topic": lambda problem: problem.topic,
            "what": lambda problem: problem.what,
            "is": lambda problem: problem.found,
            "needed": lambda problem: problem.wanted,
        }
        print_table(listing(problems, columns))
    else:
        say(f"right: {len(topics)} topics")
    if problems:
        raise typer.Exit(ExitCode.FOUND_WRONG)


@app.command("lag", short_help="Print what each group has not done.")
def show_lag(
    *, config: ConfigFile = None, bus: BusUrl = None, group: GroupNames = None, as_json: AsJson = False
) -> None:
    """Print what each group has not done: on Kafka by topic and partition, on Redis by topic, waiting and handed out.

    Messages that no group has read are those of the group "-".
    """
    loaded, topics = _loaded(config, bus)
    settings, is_redis = _settings(loaded), _is_redis(loaded)
    lags_of = _redis_lags if is_redis else _kafka_lags
    lags = lags_of(settings, topics, group or ())
    if unknown := sorted({*(group or ())} - {lag[0] for lag in lags}):
        known = sorted({str(lag[0]) for lag in lags_of(settings, topics, ())} - {_NO_GROUP})
        there = f"known are {', '.join(known)}" if known else _NONE_HAS_READ
        stop(ExitCode.FOUND_WRONG, f"no group is called {unknown[0]}; {there}")
    _show(
        lags,
        ("waiting", "pending") if is_redis else ("partition", "committed", "end", "lag"),
        as_json=as_json,
    )


def _kafka_lags(settings: Any, topics: Sequence[Any], groups: Sequence[str]) -> Sequence[_LagRow]:
    from agentic_trading.bus.brokers.kafka.admin import group_lags

    return [
        (
            each.group or _NO_GROUP,
            each.topic,
            each.partition,
            each.committed if each.group else None,
            each.end,
            each.lag,
        )
        for each in _run(group_lags(settings, [topic.name for topic in topics], groups))
    ]


def _redis_lags(settings: Any, topics: Sequence[Any], groups: Sequence[str]) -> Sequence[_LagRow]:
    behind = _run(_redis_topics(settings, None).lag(topics, groups))
    return [(each.group or _NO_GROUP, each.topic, each.waiting, each.in_flight) for each in behind]


def _show(lags: Sequence[_LagRow], numbers: Sequence[str], *, as_json: bool) -> None:
    """Print a row a lag: its group, its topic, and its numbers."""
    from agentic_trading.cli.output import print_table, rows, show_json, table

    if as_json:
        show_json([dict(zip(("group", "topic", *numbers), lag, strict=True)) for lag in lags])
    elif lags:
        cells = [tuple("-" if each is None else str(each) for each in lag) for lag in lags]
        print_table(rows(table("group", "topic", *numbers, right=tuple(numbers)), cells))
    else:
        say(_NONE_HAS_READ)


def _loaded(config: Path | None, bus: str | None) -> tuple[Any, Sequence[Any]]:
    """Return the configuration that names a bus, and the topics of that bus."""
    from agentic_trading.bus.topic import topics_with
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.settings import load_config

    loaded = load_config(config, flags={"bus": "--bus"}, bus={"url": bus} if bus else None)
    if loaded.bus.url is None:
        raise OptionError(
            "--bus", "left out", "kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration"
        )
    lanes = sorted({row.lane for row in loaded.providers.values()} - {""})
    return loaded, topics_with(lanes)


def _settings(loaded: Any) -> Any:
    """Return the connection settings of the bus."""
    from agentic_trading.platform.port_adapters import bus_settings_of

    return bus_settings_of(loaded)


def _is_redis(loaded: Any, *, replicas: int | None = None, retention_days: int | None = None) -> bool:
    """Return whether a bus is on Redis; an option that has no meaning there ends the command."""
    if loaded.bus.is_on_kafka:
        return False
    for option, value in (("--replicas", replicas), ("--retention-days", retention_days)):
        if value is not None:
            keeps = "a Redis keeps every message until all groups have finished it"
            stop(ExitCode.BAD_INPUT, f"{option} is for a bus on Kafka; {keeps}")
    return True


def _redis_topics(settings: Any, partitions: int | None) -> Any:
    from agentic_trading.bus.brokers.redis.redis import RedisTopics

    return RedisTopics(settings if partitions is None else replace(settings, partitions=partitions))


def _kafka_plans(topics: Any, settings: Any, partitions: int | None, retention_days: int | None) -> Any:
    from agentic_trading.bus.brokers.kafka.admin import PARTITIONS, RETENTION_DAYS, plan_of

    return plan_of(
        topics,
        max_message_bytes=settings.max_message_bytes,
        partitions=partitions or PARTITIONS,
        retention_days=retention_days or RETENTION_DAYS,
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    from agentic_trading.cli.settings import start

    start()
    return run_async(work)
