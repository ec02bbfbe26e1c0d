"""What logs, ledger, topic and invoice say after a run of `chaos.py`, and which promises that breaks."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos_provider import Billed

Attempt = tuple[str, int]
"""The key of a call, and the number of an attempt at it."""

TAKEN_ELSEWHERE = "taken_elsewhere"
"""The reason of a letter for an envelope that another worker has sent and whose claim was forgotten."""

_ATTEMPTS = {"attempt.dispatched": "dispatched", "attempt.unsent": "unsent", "attempt.answered_late": "late"}


@dataclass(frozen=True, slots=True)
class Sent:
    """An envelope as it was put on the bus: the key of its call, and who runs it in which order."""

    call: str
    envelope_id: str
    trace: str
    workflow: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """An interaction as it stands in a log. Two logs may have the same one; they then say the same."""

    interaction_id: str
    envelope_id: str
    attempt: int
    step: str
    failure: str
    in_doubt: bool
    nusd: int


@dataclass(frozen=True, slots=True)
class Booked:
    """A charge as the ledger has it: `state` is `settled` or `in_doubt`."""

    call: str
    attempt: int
    state: str
    nusd: int


@dataclass
class Logs:
    """What the logs of all workers say. `dispatched` were about to be sent, `unsent` were taken back, `late` answered too late."""

    recorded: list[Recorded] = field(default_factory=list)
    dispatched: set[Attempt] = field(default_factory=set)
    unsent: set[Attempt] = field(default_factory=set)
    late: set[Attempt] = field(default_factory=set)
    records: int = 0

    def add(self, line: bytes) -> None:
        """Take in one line of a log."""
        self.records += 1
        record = json.loads(line)
        if "interaction_id" in record:
            result = record["result"]
            self.recorded.append(
                Recorded(
                    record["interaction_id"],
                    record["envelope"]["envelope_id"],
                    result["attempt_number"],
                    result["next_step"],
                    (result.get("failure") or {}).get("category", ""),
                    result["in_doubt"],
                    result["cost_nusd"],
                )
            )
        elif record["kind"] in _ATTEMPTS:
            _, call, attempt = record["body"]["reservation_id"].rsplit(":", 2)
            among: set[Attempt] = getattr(self, _ATTEMPTS[record["kind"]])
            among.add((call, int(attempt)))

    @property
    def interactions(self) -> set[str]:
        """The ids of all interactions."""
        return {each.interaction_id for each in self.recorded}

    @property
    def finished(self) -> set[str]:
        """The ids of envelopes that have a last attempt."""
        return {each.envelope_id for each in self.recorded if each.step == "final"}


@dataclass
class Evidence:
    """Everything that is known after a run; `topic` are the ids of interactions on the topic of records, None where there is none.

    Where the Redis of claims and ledger `was_set_back`, a worker may get an envelope that another one has sent, or finished, and whose
    claim is gone. It gives that up unsent: its letter is the end of one that has none, and no second end of one that has.
    Envelopes in `unkept` have an answer that could not be kept with its claim, and that its worker put on record all the same: if that
    is killed before the claims are back, its successor finds a doubt, and ends the envelope in a way of its own (decision 37).
    """

    sent: Sequence[Sent]
    logs: Logs
    invoice: Sequence[Billed]
    booked: Sequence[Booked]
    spent: int = 0
    held: int = 0
    letters: Mapping[str, str] = field(default_factory=dict)
    replies: Mapping[str, str] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    topic: frozenset[str] | None = None
    exits: Sequence[int] = ()
    was_set_back: bool = False
    unkept: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.calls = {each.envelope_id: each for each in self.sent}
        self.by_call = {each.call: each for each in self.sent}
        self.recorded: dict[str, dict[int, list[Recorded]]] = defaultdict(lambda: defaultdict(list))
        for each in self.logs.recorded:
            self.recorded[each.envelope_id][each.attempt].append(each)
        self.billed: dict[str, list[Billed]] = defaultdict(list)
        for line in self.invoice:
            self.billed[line.call].append(line)

    def was_given_up_unsent(self, envelope_id: str) -> bool:
        """Whether the letter of an envelope says that its claim was forgotten."""
        return self.was_set_back and self.letters.get(envelope_id, "").startswith(TAKEN_ELSEWHERE)

    def may_end_twice(self, envelope_id: str) -> bool:
        """Whether a successor had to find a doubt where an end is on record: the claim could not have it, or had it and was set back."""
        if envelope_id in self.unkept or not self.was_set_back:
            return envelope_id in self.unkept
        attempts = self.recorded.get(envelope_id, {}).values()
        return any(
            len(set(same)) > 1 and any(each.in_doubt and each.failure == "shutdown" for each in same)
            for same in attempts
        )

    def attempts_of(self, call: str) -> Mapping[int, Sequence[Recorded]]:
        """Return what is on record of a call, by attempt."""
        return self.recorded.get(self.by_call[call].envelope_id, {})


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, and where it is broken; `shown` is what stands in the table beside it."""

    promise: str
    shown: str
    broken: Sequence[str] = ()


def checks_of(evidence: Evidence) -> list[Check]:
    """Return every promise with what was found."""
    return [
        _one_end_each(evidence),
        _logs_agree(evidence),
        _nothing_after_the_end(evidence),
        _no_attempt_twice(evidence),
        _again_only_with_a_reason(evidence),
        _no_order_again(evidence),
        _every_bill_on_record(evidence),
        _ledger_is_the_invoice(evidence),
        _nothing_held(evidence),
        _order_of_traces(evidence),
        _every_reply(evidence),
        _topic_has_all(evidence),
        _workers_ended(evidence),
    ]


def _one_end_each(evidence: Evidence) -> Check:
    none, several, lettered, beside, unkept = [], [], 0, 0, 0
    for envelope_id, sent in evidence.calls.items():
        attempts = evidence.recorded.get(envelope_id, {})
        finals = {each.interaction_id for one in attempts.values() for each in one if each.step == "final"}
        reason = evidence.letters.get(envelope_id)
        lettered += reason is not None
        is_no_end = bool(finals) and evidence.was_given_up_unsent(envelope_id)
        beside += is_no_end
        ends = len(finals) + (bool(reason) and not is_no_end)
        if ends == 0:
            none.append(
                f"{sent.call} has no end" + (" but a letter without a reason" if reason == "" else "")
            )
        elif ends > 1 and evidence.may_end_twice(envelope_id):
            unkept += 1
        elif ends > 1:
            several.append(f"{sent.call} has {ends} ends")
    shown = (
        f"{len(evidence.calls):,} / {len(evidence.calls) - len(none) - len(several):,} / "
        f"{len(none)} / {len(several)} ({lettered} dead letters{f', {beside} beside an end' * bool(beside)}"
        f"{f', {unkept} in doubt by their claims' * bool(unkept)})"
    )
    return Check("envelopes / with exactly one end / none / several", shown, [*none, *several])


def _logs_agree(evidence: Evidence) -> Check:
    copies, broken = 0, []
    for attempts in evidence.recorded.values():
        for same in attempts.values():
            copies += len(same) - 1
            if len(set(same)) > 1 and not evidence.may_end_twice(same[0].envelope_id):
                one, other = list(dict.fromkeys(same))[:2]
                broken.append(
                    f"{evidence.calls[one.envelope_id].call} attempt {one.attempt}: {_said(one)}, and {_said(other)}"
                )
    total = len(evidence.logs.interactions)
    return Check("interactions over all logs (copies, which agree)", f"{total:,} ({copies})", broken)


def _said(one: Recorded) -> str:
    return f"{one.failure or 'answered'}{' in doubt' if one.in_doubt else ''} for {one.nusd}, then {one.step or 'nothing'}"


def _nothing_after_the_end(evidence: Evidence) -> Check:
    broken = []
    for envelope_id, attempts in evidence.recorded.items():
        ends = [number for number, same in attempts.items() if any(each.step == "final" for each in same)]
        if ends and max(attempts) > min(ends) and not evidence.may_end_twice(envelope_id):
            broken.append(
                f"{evidence.calls[envelope_id].call} ended with {min(ends)} and has {max(attempts)}"
            )
    return Check("attempts after the end", str(len(broken)), broken)


def _no_attempt_twice(evidence: Evidence) -> Check:
    counts = Counter((line.call, line.attempt) for line in evidence.invoice)
    broken = [
        f"{call} attempt {number}: {times} times" for (call, number), times in counts.items() if times > 1
    ]
    return Check(
        "requests at the provider / attempts sent twice", f"{len(evidence.invoice):,} / {len(broken)}", broken
    )


def _again_only_with_a_reason(evidence: Evidence) -> Check:
    reasons: Counter[str] = Counter()
    broken = []
    for call, lines in evidence.billed.items():
        for line in sorted(lines, key=lambda line: line.attempt)[:-1]:
            why = _why_again(evidence, line)
            if why:
                reasons[why] += 1
            else:
                broken.append(
                    f"{call} was called again after attempt {line.attempt}, which has no failure on record"
                )
    shown = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items())) or "none"
    return Check("called again, after", shown, broken)


def _why_again(evidence: Evidence, line: Billed) -> str:
    same = evidence.attempts_of(line.call).get(line.attempt, ())
    failed = {each.failure for each in same if each.failure} - {"shutdown"}
    if failed:
        return min(failed)
    return "doubt" if any(each.in_doubt for each in same) else ""


def _no_order_again(evidence: Evidence) -> Check:
    broken = []
    for call, lines in evidence.billed.items():
        if evidence.by_call[call].workflow == "execution":
            broken += [
                f"{call} attempt {line.attempt} was {line.outcome}, and it was called again"
                for line in sorted(lines, key=lambda line: line.at)[:-1]
                if line.outcome != "refused"
            ]
    return Check("executions called again after a call that may have run", str(len(broken)), broken)


def _every_bill_on_record(evidence: Evidence) -> Check:
    known = evidence.logs.late | {
        (evidence.calls[each.envelope_id].call, each.attempt) for each in evidence.logs.recorded
    }
    unknown = [line for line in evidence.invoice if line.nusd and (line.call, line.attempt) not in known]
    given_up = [
        line
        for line in unknown
        if evidence.was_given_up_unsent(evidence.by_call[line.call].envelope_id)
        and (line.call, line.attempt) in evidence.logs.dispatched
    ]
    broken = [
        f"{line.call} attempt {line.attempt} was billed {line.nusd}"
        for line in unknown
        if line not in given_up
    ]
    shown = (
        f"{len(broken)}{f' ({len(given_up)} that were given up are dispatched on record)' * bool(given_up)}"
    )
    return Check("billed requests without a record", shown, broken)


def _ledger_is_the_invoice(evidence: Evidence) -> Check:
    """Hold each charge against the bill of its attempt: what is settled equals it, what is in doubt is not below it."""
    bills: Counter[Attempt] = Counter()
    for line in evidence.invoice:
        bills[line.call, line.attempt] += line.nusd
    broken, in_doubt = [], 0
    booked = {(each.call, each.attempt): each for each in evidence.booked}
    for (call, attempt), each in booked.items():
        bill = bills[call, attempt]
        if each.state == "in_doubt":
            in_doubt += each.nusd - bill
        if each.nusd < bill if each.state == "in_doubt" else each.nusd != bill:
            broken.append(f"{call} attempt {attempt}: {each.state} at {each.nusd}, billed {bill}")
    broken += [
        f"{call} attempt {attempt}: billed {bill}, and the ledger does not know it"
        for (call, attempt), bill in bills.items()
        if bill and (call, attempt) not in booked
    ]
    if evidence.spent != sum(each.nusd for each in evidence.booked):
        broken.append(
            f"its counter is {evidence.spent}, its charges come to {sum(each.nusd for each in evidence.booked)}"
        )
    doubts = sum(each.state == "in_doubt" for each in evidence.booked)
    invoice = sum(line.nusd for line in evidence.invoice)
    if evidence.spent - in_doubt != invoice:
        broken.append(f"less what is in doubt it is {evidence.spent - in_doubt}, the invoice {invoice}")
    shown = f"{evidence.spent:,} - {in_doubt:,} ({doubts}) = {invoice:,}"
    return Check("ledger - what doubt adds (attempts) = invoice, nUSD", shown, broken)


def _nothing_held(evidence: Evidence) -> Check:
    broken = [f"{evidence.held} nUSD are held"] if evidence.held else []
    return Check("held in the ledger, nUSD", f"{evidence.held:,}", broken)


def _order_of_traces(evidence: Evidence) -> Check:
    """Hold the first requests of neighbours of a key, as the provider saw them, against the order in which they were sent."""
    first = {call: min(line.at for line in lines) for call, lines in evidence.billed.items()}
    last_of: dict[tuple[str, str], Sent] = {}
    broken, pairs = [], 0
    for sent in evidence.sent:
        if sent.call not in first:
            continue
        before = last_of.get((sent.trace, sent.workflow))
        last_of[sent.trace, sent.workflow] = sent
        if before is not None:
            pairs += 1
            if first[before.call] > first[sent.call]:
                broken.append(f"{sent.call} was sent before {before.call}")
    return Check("neighbours of a key out of order", f"{len(broken)} of {pairs:,}", broken)


def _every_reply(evidence: Evidence) -> Check:
    broken = []
    for envelope_id in evidence.asked:
        answer = evidence.replies.get(envelope_id)
        attempts = evidence.recorded.get(envelope_id, {})
        finals = {each.interaction_id for same in attempts.values() for each in same if each.step == "final"}
        if answer is None:
            broken.append(f"{evidence.calls[envelope_id].call} was asked, and got no answer")
        elif answer not in finals and envelope_id not in evidence.letters:
            broken.append(
                f"{evidence.calls[envelope_id].call} was answered {answer}, which is not its end on record"
            )
    return Check(
        "asked / answered with the end on record",
        f"{len(evidence.asked):,} / {len(evidence.asked) - len(broken):,}",
        broken,
    )


def _topic_has_all(evidence: Evidence) -> Check:
    if evidence.topic is None:
        return Check("interactions in logs = on the topic", "no topic of records")
    logs = evidence.logs.interactions
    broken = [f"{each} is in a log, not on the topic" for each in sorted(logs - evidence.topic)]
    broken += [f"{each} is on the topic, in no log" for each in sorted(evidence.topic - logs)]
    return Check("interactions in logs = on the topic", f"{len(logs):,} = {len(evidence.topic):,}", broken)


def _workers_ended(evidence: Evidence) -> Check:
    broken = [f"a worker ended with {code}" for code in evidence.exits if code]
    return Check(
        "workers that ended in good order",
        f"{len(evidence.exits) - len(broken)} of {len(evidence.exits)}",
        broken,
    )


def print_checks(checks: Iterable[Check], most: int = 8) -> bool:
    """Print a row for each promise, and below it the first places where it is broken; return whether all hold."""
    holds = True
    for check in checks:
        print(f"{'  ' if not check.broken else 'X '}{check.promise:<60}{check.shown:>50}")
        for line in check.broken[:most]:
            print(f"      {line}")
        if len(check.broken) > most:
            print(f"      and {len(check.broken) - most} more")
        holds &= not check.broken
    return holds
