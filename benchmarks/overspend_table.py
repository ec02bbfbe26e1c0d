"""What a run on a budget has come to, what must hold of it, and how it is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.overspend_fleet import Ran
from benchmarks.peers.load import NANO, Load, billed_as


@dataclass(frozen=True)
class Invoice:
    """What the stub has billed: the amounts of each call, of which there should be one."""

    amounts: Mapping[str, Sequence[int]]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(map(sum, self.amounts.values()))

    @property
    def twice(self) -> int:
        """How many calls were made more than once."""
        return sum(len(amounts) > 1 for amounts in self.amounts.values())

    def of(self, call: str) -> int:
        """Return what a call was billed."""
        return sum(self.amounts.get(call, ()))

    @classmethod
    def read(cls, text: str, load: Load) -> "Invoice":
        """Read the lines of one load."""
        amounts: dict[str, list[int]] = {}
        for line in text.splitlines():
            name, call, nusd = line.split()
            if name == load.name:
                amounts.setdefault(call, []).append(int(nusd))
        return cls(amounts)


@dataclass(frozen=True)
class Books:
    """What our ledger says at the end: spent with what is in doubt, still held, and each call in doubt."""

    spent: int
    held: int
    in_doubt: Mapping[str, int]


@dataclass
class Row:
    """One contender with one load."""

    title: str
    load: Load
    budget_nusd: int
    ran: Ran = field(default_factory=Ran)
    invoice: Invoice = field(default_factory=lambda: Invoice({}))
    books: Books | None = None
    unavailable: str = ""

    @property
    def overspend(self) -> int:
        """By how much the bill passes the budget."""
        return max(0, self.invoice.total - self.budget_nusd)

    @property
    def unspent(self) -> int:
        """What is left of the budget; for ours what is in doubt counts as spent, since it may have been."""
        spent = self.invoice.total if self.books is None else self.books.spent
        return max(0, self.budget_nusd - spent)

    def count(self, outcome: str) -> int:
        """Count the calls that ended so."""
        return sum(told.outcome == outcome for told in self.ran.answers.values())

    @property
    def waits_ms(self) -> list[float]:
        """How long those waited who did, in order."""
        return sorted(told.waited_ms for told in self.ran.told if told.waited_ms)

    @property
    def held_by_used(self) -> float:
        """What was set aside for calls that were paid, over what they cost; 0 where it is not known."""
        paid = [told for told in self.ran.told if told.outcome == "paid" and told.reserved_nusd]
        used = sum(told.nusd for told in paid)
        return sum(told.reserved_nusd for told in paid) / used if used else 0.0


def problems(row: Row) -> list[str]:
    """Return which of our promises a row breaks."""
    books = row.books
    assert books is not None
    found = []
    if row.overspend:
        found.append(f"overspent {usd(row.overspend)}")
    if row.count("refused") and row.unspent >= row.load.most_nusd:
        found.append(f"refused calls with {usd(row.unspent)} unspent")
    if books.held:
        found.append(f"{usd(books.held)} still held when every lease was over")
    if row.invoice.twice:
        found.append(f"{row.invoice.twice} calls were made twice")
    if row.count("broke"):
        broken = next(told.why for told in row.ran.told if told.outcome == "broke")
        found.append(f"{row.count('broke')} calls broke: {broken}")
    difference = books.spent - row.invoice.total
    listed = sum(nusd - row.invoice.of(call) for call, nusd in books.in_doubt.items())
    if difference != listed:
        found.append(f"ledger - invoice is {difference} nano-USD, what is in doubt explains {listed}")
    wrong = sum(
        told.outcome == "paid" and told.nusd != row.invoice.of(billed_as(f"call-{told.call}", told.attempts))
        for told in row.ran.told
    )
    if wrong:
        found.append(f"{wrong} callers were told another cost than the invoice has")
    return found


def usd(nusd: int) -> str:
    """Spell an amount in dollars, to the nano-dollar."""
    return f"{nusd / NANO:.9f} USD" if nusd % 10**4 else f"{nusd / NANO:.4f} USD"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that so great a share does not pass; 0 for none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def print_rows(rows: Sequence[Row]) -> None:
    """Print the rows of one load."""
    print(
        f"{'':<40}{'paid':>7}{'refused':>9}{'bill':>12}{'overspend':>12}{'unspent':>10}{'waited':>8}"
        f"{'p50 ms':>8}{'p99 ms':>8}{'held/used':>11}{'seconds':>9}"
    )
    for row in rows:
        if row.unavailable:
            print(f"{row.title:<40}  {row.unavailable}")
            continue
        waits = row.waits_ms
        print(
            f"{row.title:<40}{len(row.invoice.amounts):>7,}{row.count('refused'):>9,}"
            f"{row.invoice.total / NANO:>12.4f}{row.overspend / NANO:>12.4f}{row.unspent / NANO:>10.4f}"
            f"{len(waits):>8,}{percentile(waits, 0.5):>8.0f}{percentile(waits, 0.99):>8.0f}"
            f"{row.held_by_used:>11.2f}{row.ran.seconds:>9.1f}"
        )


def print_books(row: Row) -> None:
    """Print how our ledger and the invoice agree, and every call in doubt."""
    books = row.books
    assert books is not None
    invoiced = sum(row.invoice.of(call) for call in books.in_doubt)
    listed = sum(books.in_doubt.values())
    print(
        f"\n{row.load.name}: ledger {usd(books.spent)}, invoice {usd(row.invoice.total)}, difference "
        f"{books.spent - row.invoice.total} nano-USD; {len(books.in_doubt)} calls in doubt: charged {usd(listed)}, "
        f"of which the invoice has {usd(invoiced)}: {listed - invoiced} nano-USD."
    )
    for call, nusd in sorted(books.in_doubt.items(), key=lambda one: float(one[0].partition("-")[2])):
        billed = row.invoice.of(call)
        print(f"  {call:<12} charged {usd(nusd)}, invoice {usd(billed) if billed else 'nothing'}")
    again = sum(told.asked - 1 for told in row.ran.told)
    print(
        f"  {row.ran.kills} processes killed, {row.ran.hit} calls hit; {row.ran.restarts} restarts of the server, "
        f"{again} asks repeated; {row.count('taken')} calls left to a delivery that did not end, "
        f"{sum(told.attempts > 1 for told in row.ran.told)} calls tried again."
    )
