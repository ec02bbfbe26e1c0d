"""`agentic-trading topics`: create and check the topics of a bus, and show consumer lag."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.options import AsJson, BusUrl, ConfigFile

app = typer.Typer(help="Create and check topics, and show consumer lag.", no_args_is_help=True)

T = TypeVar("T")

_LagRow = tuple[str | int | None, ...]

_NO_GROUP = "-"
_NONE_HAS_READ = "No group has read from this bus."

Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="N",
        min=1,
        max=1000,
        help="Partitions of each topic: the minimum on Kafka, a fixed number on Redis.  [default: 6 on Kafka, 16 on Redis]",
    ),
]
RetentionDays = Annotated[
    int | None,
    typer.Option(
        "--retention-days",
        metavar="N",
        min=1,
        max=3650,
        help="Minimum retention of messages. Kafka only.  [default: 7]",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        metavar="N",
        min=0,
        max=9,
        help="Copies of each message. 0 means one per server, at most three. Kafka only.  [default: 0]",
    ),
]
GroupNames = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Only this group. Can be repeated.")
]


@app.command("create", short_help="Create missing topics.")
def create_missing(
    *,
    config: ConfigFile = None,
    bus: BusUrl = None,
    partitions: Partitions = None,
    replicas: Replicas = None,
    retention_days: RetentionDays = None,
    as_json: AsJson = False,
) -> None:
    """Create missing topics, and wait until they can be written to. Existing topics are not changed.

    Exits with 1 if an existing topic does not have the number of partitions in --partitions.
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
        done = (
            f"Created {len(made)} of {len(topics)} topics: {', '.join(made)}."
            if made
            else f"All {len(topics)} topics exist already."
        )
        names = (
            f" Topics with another number of partitions: {len(otherwise)}. For details, run `topics check`."
        )
        say(done + (names if otherwise else ""))
    if otherwise:
        raise typer.Exit(ExitCode.FOUND_WRONG)


@app.command("check", short_help="Check that topics exist with the right settings.")
def check_all(
    *,
    config: ConfigFile = None,
    bus: BusUrl = None,
    partitions: Partitions = None,
    retention_days: RetentionDays = None,
    as_json: AsJson = False,
) -> None:
    """Check that all topics exist with the settings that the bus needs.

    Exits with 1 and lists the topics that are missing or have other settings.
    """
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
            "setting": lambda problem: problem.what,
            "value": lambda problem: problem.found,
            "required": lambda problem: problem.wanted,
        }
        print_table(listing(problems, columns))
    else:
        say(f"{len(topics)} topics OK")
    if problems:
        raise typer.Exit(ExitCode.FOUND_WRONG)


@app.command("lag", short_help="Show the lag of consumer groups.")
def show_lag(
    *, config: ConfigFile = None, bus: BusUrl = None, group: GroupNames = None, as_json: AsJson = False
) -> None:
    """Show the lag of consumer groups: on Kafka by topic and partition, on Redis by topic.

    On Redis, `waiting` counts messages that were not delivered yet, and `pending` delivered messages that are
    not finished. The group "-" stands for topics that no group has read.
    """
    loaded, topics = _loaded(config, bus)
    settings, is_redis = _settings(loaded), _is_redis(loaded)
    lags_of = _redis_lags if is_redis else _kafka_lags
    lags = lags_of(settings, topics, group or ())
    if unknown := sorted({*(group or ())} - {lag[0] for lag in lags}):
        known = sorted({str(lag[0]) for lag in lags_of(settings, topics, ())} - {_NO_GROUP})
        there = f"Known groups: {', '.join(known)}" if known else _NONE_HAS_READ
        stop(ExitCode.FOUND_WRONG, f"unknown group {unknown[0]}. {there}")
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
    """Print a row for each lag."""
    from agentic_trading.cli.output import print_table, rows, show_json, table

    if as_json:
        show_json([dict(zip(("group", "topic", *numbers), lag, strict=True)) for lag in lags])
    elif lags:
        cells = [tuple("-" if each is None else str(each) for each in lag) for lag in lags]
        print_table(rows(table("group", "topic", *numbers, right=tuple(numbers)), cells))
    else:
        say(_NONE_HAS_READ)


def _loaded(config: Path | None, bus: str | None) -> tuple[Any, Sequence[Any]]:
    """Return the configuration and its topics. Raises `OptionError` if there is no bus."""
    from agentic_trading.bus.topic import topics_with
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.settings import load_config

    loaded = load_config(config, flags={"bus": "--bus"}, bus={"url": bus} if bus else None)
    if loaded.bus.url is None:
        raise OptionError(
            "--bus", "missing", "kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration"
        )
    lanes = sorted({row.lane for row in loaded.providers.values()} - {""})
    return loaded, topics_with(lanes)


def _settings(loaded: Any) -> Any:
    """Return the connection settings of the bus."""
    from agentic_trading.platform.port_adapters import bus_settings_of

    return bus_settings_of(loaded)


def _is_redis(loaded: Any, *, replicas: int | None = None, retention_days: int | None = None) -> bool:
    """Return whether a bus is on Redis, where the options of Kafka are refused."""
    if loaded.bus.is_on_kafka:
        return False
    for option, value in (("--replicas", replicas), ("--retention-days", retention_days)):
        if value is not None:
            keeps = "Redis keeps every message until all groups have finished it."
            stop(ExitCode.BAD_INPUT, f"{option} requires a bus on Kafka. {keeps}")
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
