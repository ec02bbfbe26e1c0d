"""How dead letters are printed: as rows, as one with all that it holds, and what a replay or a purge is about to do."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from agentic_trading.bus.topic import DEAD_LETTERS, DeadLetter
from agentic_trading.cli import output
from agentic_trading.cli.exits import say
from agentic_trading.operate import dead_letters
from agentic_trading.operate.choices import pluralize
from agentic_trading.worker.delivery import SendAge


def show_list(
    letters: Sequence[dead_letters.ListedLetter],
    scan: dead_letters.LetterScan,
    meant: dead_letters.LetterFilter,
    *,
    limit: int,
    as_json: bool,
) -> None:
    """Print the newest letters, the newest last, and how many there are of each reason."""
    reasons = dict(Counter(letter.reason for letter in letters).most_common())
    shown = letters[-limit:]
    if as_json:
        listed = [{**asdict(each), "copies": scan.copies[each.id]} for each in shown]
        left_out = len(letters) - len(shown)
        output.show_json({
            "letters": listed,
            "left_out": left_out,
            "reasons": reasons,
            "unreadable": scan.unreadable,
        })
        return
    if shown:
        output.print_table(_letter_table(shown))
    cut = f"; the newest {len(shown)} of {len(letters)}" if len(shown) < len(letters) else ""
    count = f"{pluralize(len(letters), 'dead letter')}: {output.counts(reasons)}{cut}"
    say(count if letters else _none_text(scan, meant))
    if scan.unreadable:
        say(f"{pluralize(scan.unreadable, 'message')} of {DEAD_LETTERS.name} cannot be read as a dead letter")


def _letter_table(letters: Sequence[dead_letters.ListedLetter]) -> output.FittedTable:
    """Return a row a letter, without the columns that would be empty."""
    columns: dict[str, Callable[[dead_letters.ListedLetter], str]] = {
        "id": lambda one: one.id,
        "time": lambda one: f"{one.time:%Y-%m-%d %H:%M:%S}",
        "reason": lambda one: one.reason,
        "from": lambda one: f"{one.source_topic}/{one.source_partition}/{one.position}",
        "envelope": lambda one: one.envelope_id or "-",
        "replay of": lambda one: one.replay_of or "-",
        "replayable": lambda one: "no" if one.problem else "yes",
    }
    filled = {name: cell for name, cell in columns.items() if any(cell(one) != "-" for one in letters)}
    return output.listing(letters, filled)


def _none_text(scan: dead_letters.LetterScan, meant: dead_letters.LetterFilter) -> str:
    """Return that no letter is meant, and what there is instead."""
    named = (("with this reason", meant.reason, scan.reasons), ("from this topic", meant.topic, scan.topics))
    for what, wanted, known in named:
        if wanted and known and wanted not in known:
            return f"no dead letters {what}; there are: {output.counts(known)}"
    return f"no dead letters of these; there are {len(scan.copies)}" if scan.copies else "no dead letters"


def show_one(letter: DeadLetter, copies: int, age: SendAge, *, as_json: bool) -> None:
    """Print all that a letter holds; its message as text, where it is text."""
    problem = dead_letters.replay_problem(letter, age)
    if as_json:
        output.show_json({**letter.model_dump(mode="json"), "copies": copies, "problem": problem})
        return
    output.print_table(output.facts(_facts(letter, copies, problem)))
    output.print_table(output.heading("headers"), output.facts(letter.headers.items()))
    output.print_table(output.heading("message"))
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
        ("replay of", dead_letters.replay_of(letter) or "-"),
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


def plan_text(plan: dead_letters.ReplayPlan) -> str:
    """Return what a replay is about to publish, and what it cannot."""
    topics = Counter(plan.letters.values())
    to = ", ".join(f"{number} to {topic}" for topic, number in sorted(topics.items()))
    what = "published as new envelopes" if plan.replay.again else "published as they were"
    lines = [
        f"{pluralize(len(plan.letters), 'message')} to be {what}: {to}" if to else "nothing to be replayed"
    ]
    if plan.came_back:
        lines.append(f"left out: {pluralize(plan.came_back, 'letter')} whose replay came back as a later one")
    return "\n".join([*lines, *output.capped([str(each) for each in plan.refused])])


def show_replayed(plan: dead_letters.ReplayPlan, *, as_json: bool) -> None:
    """Print what was published again, and what could not be."""
    refused: list[dict[str, Any]] = [{"id": each.letter_id, "problem": each.problem} for each in plan.refused]
    if as_json:
        output.show_json({"replayed": [*plan.letters], "refused": refused})
        return
    not_replayed = f"; not replayed: {len(refused)}" if refused else ""
    say(f"replayed: {pluralize(len(plan.letters), 'message')}{not_replayed}")


def purge_text(purge: dead_letters.Purge) -> str:
    """Return what a purge is about to delete."""
    if not purge.messages:
        return "nothing to be deleted"
    stays = f"; {purge.stays} as old stay behind newer ones" if purge.stays else ""
    what = pluralize(purge.messages, "message")
    return f"{what} of {DEAD_LETTERS.name} to be deleted for every reader{stays}; this cannot be undone"
