"""How dead letters are printed: as rows, as one with all that it holds, and what a replay or a purge is about to do."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentic_trading.app.cli.exits import say
from agentic_trading.app.cli.output import capped, counts, facts, heading, print_table, rows, show_json, table
from agentic_trading.app.dead_letters import LetterScan, ListedLetter, Purge, ReplayPlan, replay_problem
from agentic_trading.app.options import pluralize
from agentic_trading.bus.topic import DEAD_LETTERS, DeadLetter


def show_list(letters: Sequence[ListedLetter], scan: LetterScan, *, limit: int, as_json: bool) -> None:
    """Print the newest letters, the newest last, and how many there are of each reason."""
    reasons = dict(Counter(letter.reason for letter in letters).most_common())
    shown = letters[-limit:]
    if as_json:
        listed = [{**asdict(each), "copies": scan.copies[each.id]} for each in shown]
        left_out = len(letters) - len(shown)
        show_json({
            "letters": listed,
            "left_out": left_out,
            "reasons": reasons,
            "unreadable": scan.unreadable,
        })
        return
    if shown:
        cells = [
            (
                each.id,
                f"{each.time:%Y-%m-%d %H:%M:%S}",
                each.reason,
                f"{each.source_topic}/{each.source_partition}/{each.position}",
                each.envelope_id or "-",
                "no" if each.problem else "yes",
            )
            for each in shown
        ]
        print_table(rows(table("id", "time", "reason", "from", "envelope", "replayable"), cells))
    cut = f"; the newest {len(shown)} of {len(letters)}" if len(shown) < len(letters) else ""
    say(f"{pluralize(len(letters), 'dead letter')}: {counts(reasons)}{cut}" if letters else "no dead letters")
    if scan.unreadable:
        say(f"{pluralize(scan.unreadable, 'message')} of {DEAD_LETTERS.name} cannot be read as a dead letter")


def show_one(letter: DeadLetter, copies: int, *, as_json: bool) -> None:
    """Print all that a letter holds; its message as text, where it is text."""
    problem = replay_problem(letter)
    if as_json:
        show_json({**letter.model_dump(mode="json"), "copies": copies, "problem": problem})
        return
    print_table(facts(_facts(letter, copies, problem)))
    print_table(heading("headers"), facts(letter.headers.items()))
    print_table(heading("message"))
    text = _text_of(letter.raw)
    say(
        text
        if text is not None
        else f"  {pluralize(len(letter.raw), 'byte')} that are no text; --raw prints them"
    )
    if len(letter.raw) < letter.raw_size:
        say(f"  these are {len(letter.raw)} of {letter.raw_size} bytes", err=True)


def _facts(letter: DeadLetter, copies: int, problem: str) -> Sequence[tuple[str, str]]:
    return [
        ("id", letter.id),
        ("reason", letter.reason),
        ("detail", letter.detail or "-"),
        ("time", letter.time.isoformat()),
        ("from", f"{letter.source_topic}, partition {letter.source_partition}, position {letter.position}"),
        ("deliveries", f"{letter.deliveries}"),
        ("key", letter.key or "-"),
        ("envelope", letter.envelope_id or "-"),
        ("trace", letter.trace_id or "-"),
        ("size", pluralize(letter.raw_size, "byte")),
        ("sha256", letter.raw_sha256),
        ("copies", f"{copies}"),
        ("replayable", f"no: {problem}" if problem else "yes"),
    ]


def _text_of(raw: bytes) -> str | None:
    """Return a message as text, if it is one."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def plan_text(plan: ReplayPlan) -> str:
    """Return what a replay is about to publish, and what it cannot."""
    topics = Counter(plan.letters.values())
    to = ", ".join(f"{number} to {topic}" for topic, number in sorted(topics.items()))
    what = "published as new envelopes" if plan.replay.again else "published as they were"
    lines = [
        f"{pluralize(len(plan.letters), 'message')} to be {what}: {to}" if to else "nothing to be replayed"
    ]
    return "\n".join([*lines, *capped([str(each) for each in plan.refused])])


def show_replayed(plan: ReplayPlan, *, as_json: bool) -> None:
    """Print what was published again, and what could not be."""
    refused: list[dict[str, Any]] = [{"id": each.letter_id, "problem": each.problem} for each in plan.refused]
    if as_json:
        show_json({"replayed": [*plan.letters], "refused": refused})
        return
    not_replayed = f"; not replayed: {len(refused)}" if refused else ""
    say(f"replayed: {pluralize(len(plan.letters), 'message')}{not_replayed}")


def purge_text(purge: Purge) -> str:
    """Return what a purge is about to delete."""
    if not purge.messages:
        return "nothing to be deleted"
    stays = f"; {purge.stays} as old stay behind newer ones" if purge.stays else ""
    what = pluralize(purge.messages, "message")
    return f"{what} of {DEAD_LETTERS.name} to be deleted for every reader{stays}; this cannot be undone"
