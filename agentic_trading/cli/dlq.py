"""`agentic-trading dlq`: list, show, replay and purge the dead letters of a bus."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, confirm, say, stop
from agentic_trading.cli.options import AsJson, BusUrl, ConfigFile, loaded_with_bus, moment_in

app = typer.Typer(help="List, show, replay and purge dead letters.", no_args_is_help=True)

T = TypeVar("T")

OfReason = Annotated[
    str, typer.Option("--reason", metavar="WORD", help="Only letters with this reason, such as decode.")
]
OfTopic = Annotated[
    str, typer.Option("--topic", metavar="NAME", help="Only letters from this topic, such as llm.events.")
]
Since = Annotated[
    str,
    typer.Option("--since", metavar="TIME", help="Only letters since this time or age, such as 12h."),
]
Newest = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="List only the newest N letters.")]
LetterId = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id of a letter from `dlq list`, or its first 8 or more characters."),
]
LetterIds = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Full ids of letters.")]
Raw = Annotated[bool, typer.Option("--raw", help="Print only the bytes of the message.")]
EachLetter = Annotated[bool, typer.Option("--all", help="All letters.")]
Again = Annotated[
    bool,
    typer.Option(
        "--again", help="Send a new envelope. It runs and is charged even if the old one was charged."
    ),
]
SignAs = Annotated[
    str, typer.Option("--sign-as", metavar="NAME", help="The principal that signs the envelopes of --again.")
]
Before = Annotated[
    str,
    typer.Option("--before", metavar="TIME", help="Only letters older than this time or age, such as 7d."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.command("list", short_help="List dead letters.")
def list_letters(
    *,
    bus: BusUrl = None,
    config: ConfigFile = None,
    reason: OfReason = "",
    topic: OfTopic = "",
    since: Since = "",
    limit: Newest = 100,
    as_json: AsJson = False,
) -> None:
    """List dead letters, newest last, and count them by reason."""
    from agentic_trading.bus.topic import Broker
    from agentic_trading.cli.dlq_tables import show_list
    from agentic_trading.operate.dead_letters import LetterFilter, LetterScan, ListedLetter

    meant = LetterFilter(reason=reason, topic=topic, since=moment_in("--since", since) if since else None)
    scan = LetterScan()

    async def found(broker: Broker) -> list[ListedLetter]:
        async with aclosing(scan.letters(broker, meant)) as letters:
            return sorted(
                [ListedLetter.of(letter, age) async for letter in letters], key=lambda each: each.time
            )

    loaded = loaded_with_bus(config, bus)
    age = _age_of(loaded)
    show_list(_on_bus(loaded, found), scan, meant, limit=limit, as_json=as_json)


@app.command("show", short_help="Show one dead letter.")
def show_letter(
    *,
    letter_id: LetterId,
    bus: BusUrl = None,
    config: ConfigFile = None,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its reason, source, headers and message, and whether it can be replayed."""
    from agentic_trading.cli.dlq_tables import show_one
    from agentic_trading.operate.dead_letters import UnknownLetterError, letter_of

    loaded = loaded_with_bus(config, bus)
    try:
        letter, copies = _on_bus(loaded, lambda broker: letter_of(broker, letter_id))
    except UnknownLetterError as e:
        stop(ExitCode.FOUND_WRONG, str(e))
    if raw:
        _write_raw(letter.raw)
    else:
        show_one(letter, copies, _age_of(loaded), as_json=as_json)


@app.command("replay", short_help="Publish dead messages to their topics again.")
def replay_letters(
    *,
    letter_ids: LetterIds = None,
    bus: BusUrl = None,
    config: ConfigFile = None,
    reason: OfReason = "",
    every: EachLetter = False,
    again: Again = False,
    sign_as: SignAs = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Publish messages unchanged to their source topics again, after you confirm.

    A completed envelope does not run again. Its answer is published again. With --again, a new envelope is
    sent, which is caused by the old one and is charged. An envelope that was sent more than 8 days ago needs
    --again.
    """
    from agentic_trading.cli.dlq_tables import plan_text, show_replayed
    from agentic_trading.operate.dead_letters import LetterFilter, Replay, ReplayPlan, UnknownLetterError

    ids = letter_ids or []
    if [bool(ids), bool(reason), every].count(True) != 1:
        stop(ExitCode.BAD_INPUT, "select letters with exactly one of: ids, --reason WORD, --all")
    if sign_as and not again:
        stop(ExitCode.BAD_INPUT, "--sign-as requires --again. An unchanged message keeps its signature.")
    loaded = loaded_with_bus(config, bus)
    signer = _signer(sign_as, loaded) if sign_as else None
    replay = Replay(again=again, signer=signer, age=_age_of(loaded))
    meant = LetterFilter(ids=ids, reason=reason)
    try:
        plan = _on_bus(loaded, lambda broker: ReplayPlan.of(broker, replay, meant))
    except UnknownLetterError as e:
        stop(ExitCode.FOUND_WRONG, str(e))
    say(plan_text(plan), err=True)
    if plan.letters:
        confirm("the replay", yes=yes, otherwise="replay canceled. No message was published.")
        plan = _on_bus(loaded, plan.publish)
    show_replayed(plan, as_json=as_json)
    if plan.refused:
        raise typer.Exit(ExitCode.FOUND_WRONG)


@app.command("purge", short_help="Delete dead letters for all readers.")
def purge_letters(
    *,
    bus: BusUrl = None,
    config: ConfigFile = None,
    before: Before = "",
    every: EachLetter = False,
    yes: Yes = False,
) -> None:
    """Delete dead letters before a time, or all of them, for all readers, after you confirm.

    Single letters cannot be deleted, because a topic can only be cut at its start.
    """
    from agentic_trading.cli.dlq_tables import purge_text
    from agentic_trading.operate.choices import pluralize
    from agentic_trading.operate.dead_letters import Purge

    if before and every:
        stop(ExitCode.BAD_INPUT, "--before and --all cannot be used together")
    if not before and not every:
        stop(ExitCode.BAD_INPUT, "select letters with --before TIME or --all")
    time = moment_in("--before", before) if before else None
    loaded = loaded_with_bus(config, bus)
    purge = _on_bus(loaded, lambda broker: Purge.before(broker, time))
    say(purge_text(purge), err=True)
    if purge.messages:
        confirm("the purge", yes=yes, otherwise="purge canceled. No message was deleted.")
        _on_bus(loaded, purge.run)
    say(f"Deleted {pluralize(purge.messages, 'message')}.")


def _on_bus(loaded: Any, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run `work` on the broker of a configuration and return its result."""
    from agentic_trading.platform.port_adapters import broker_of

    async def opened() -> T:
        async with aclosing(await asyncio.to_thread(broker_of, loaded)) as broker:
            return await work(broker)

    return run_async(opened())


def _age_of(loaded: Any) -> Any:
    """Return the age limit of the workers of a configuration."""
    from agentic_trading.governance.rules import SIMULATED
    from agentic_trading.worker.delivery import SendAge

    return SendAge(is_created_at_simulated=loaded.mode in SIMULATED)


def _signer(principal: str, loaded: Any) -> Any:
    """Return the signer of a principal. Raises `OptionError` if the configuration has no key for it."""
    from agentic_trading.bus.signing import Signer
    from agentic_trading.governance.policy import Policy
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.signing_keys import signing_keys_of

    policy = Policy.load(loaded.policy) if loaded.policy is not None else None
    keys = signing_keys_of(loaded.principals_folder, policy) if loaded.principals_folder is not None else {}
    if principal not in keys:
        allowed = ", ".join(keys) or "none, because the configuration has no principals_folder"
        raise OptionError("--sign-as", repr(principal), allowed)
    return Signer(principal, *keys[principal])


def _write_raw(raw: bytes) -> None:
    """Write the bytes of a message, unless standard output is a terminal."""
    if sys.stdout.isatty():
        stop(
            ExitCode.BAD_INPUT,
            "--raw prints bytes that may control a terminal. Redirect the output to a file or a program.",
        )
    sys.stdout.buffer.write(raw)
    sys.stdout.flush()
