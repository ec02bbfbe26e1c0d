"""Output of `dlq`: lists, details, plans and results."""

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
    """Print the newest letters, newest last, and the count by reason."""
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
    cut = f" (the newest {len(shown)} are listed)" if len(shown) < len(letters) else ""
    count = f"{pluralize(len(letters), 'dead letter')}: {output.counts(reasons)}{cut}"
    say(count if letters else _none_text(scan, meant))
    if scan.unreadable:
        say(f"{pluralize(scan.unreadable, 'message')} in {DEAD_LETTERS.name} cannot be read as a dead letter")


def _letter_table(letters: Sequence[dead_letters.ListedLetter]) -> output.FittedTable:
    """Return a table of letters, without empty columns."""
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
    """Return the message for an empty list, with the letters that a filter has excluded."""
    named = (("with this reason", meant.reason, scan.reasons), ("from this topic", meant.topic, scan.topics))
    for what, wanted, known in named:
        if wanted and known and wanted not in known:
            return f"No dead letters {what}. Existing letters: {output.counts(known)}"
    return f"No matching dead letters ({len(scan.copies)} in total)." if scan.copies else "No dead letters."


def show_one(letter: DeadLetter, copies: int, age: SendAge, *, as_json: bool) -> None:
    """Print a letter. Its message is printed if it is text."""
    problem = dead_letters.replay_problem(letter, age)
    if as_json:
        output.show_json({**letter.model_dump(mode="json"), "copies": copies, "problem": problem})
        return
    output.print_table(output.facts(_facts(letter, copies, problem)))
    output.print_table(output.heading("Headers"), output.facts(letter.headers.items()))
    output.print_table(output.heading("Message"))
    text = _text_of(letter.raw)
    say(
        text
        if text is not None
        else f"  {pluralize(len(letter.raw), 'byte')} that are not text (--raw prints them)"
    )
    if len(letter.raw) < letter.raw_size:
        say(f"  The letter has only the first {len(letter.raw)} of {letter.raw_size} bytes.", err=True)


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
    """Return a message as text, or None if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def plan_text(plan: dead_letters.ReplayPlan) -> str:
    """Return the messages that a replay will publish, and those that it cannot."""
    topics = Counter(plan.letters.values())
    to = ", ".join(f"{number} to {topic}" for topic, number in sorted(topics.items()))
    what = "published as new envelopes" if plan.replay.again else "published unchanged"
    lines = [
        f"{pluralize(len(plan.letters), 'message')} to be {what}: {to}" if to else "No message to replay."
    ]
    if plan.came_back:
        lines.append(f"skipped: {pluralize(plan.came_back, 'letter')} whose replay is a later dead letter")
    return "\n".join([*lines, *output.capped([str(each) for each in plan.refused])])


def show_replayed(plan: dead_letters.ReplayPlan, *, as_json: bool) -> None:
    """Print how many messages were replayed, and how many were not."""
    refused: list[dict[str, Any]] = [{"id": each.letter_id, "problem": each.problem} for each in plan.refused]
    if as_json:
        output.show_json({"replayed": [*plan.letters], "refused": refused})
        return
    not_replayed = f" {len(refused)} not replayed." if refused else ""
    say(f"Replayed {pluralize(len(plan.letters), 'message')}.{not_replayed}")


def purge_text(purge: dead_letters.Purge) -> str:
    """Return the messages that a purge will delete."""
    if not purge.messages:
        return "No message to delete."
    stays = (
        f" {purge.stays} more are old enough but stay, because they follow newer ones." if purge.stays else ""
    )
    what = pluralize(purge.messages, "message")
    return f"{what} in {DEAD_LETTERS.name} will be deleted for all readers.{stays} This cannot be undone."
