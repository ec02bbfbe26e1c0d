"""What HTTP to a provider costs in CPU time: our own sessions, and the vendors' SDKs, on the same server.

Run: python -m benchmarks.http_session [--quick]. Exits with 1 if an answer was wrong, or if a session costs more than a
fifth of the SDK of its vendor in the same run, one call at a time or 16 at once. The first run installs the SDKs,
each into an environment of its own.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.http_stub import VENDORS, serving
from benchmarks.peers.contender import Contender, UnavailableError, peer, versions
from benchmarks.peers.rounds import Round

MOST = 0.2
CALLERS = (1, 16)


@dataclass
class Row:
    """A session, the whole adapter and the SDK of one vendor with so many callers: their rounds, in this order."""

    vendor: str
    callers: int
    rounds: tuple[list[Round], list[Round], list[Round]] = field(default_factory=lambda: ([], [], []))

    def measure(self, ours: Contender, sdk: Contender, count: int, *, backwards: bool) -> None:
        """Add a round of each."""
        ways = [
            (ours, f"{self.vendor}_session_{self.callers}"),
            (ours, f"{self.vendor}_adapter_{self.callers}"),
            (sdk, f"call_{self.callers}"),
        ]
        for (contender, way), rounds in sorted(
            zip(ways, self.rounds, strict=True), key=lambda pair: pair[0][1], reverse=backwards
        ):
            rounds.append(contender.round(way, count))

    def us(self, which: int) -> float:
        return median(one.cpu_us for one in self.rounds[which])

    def share(self, which: int) -> float:
        """Return the median of the shares of the SDK's cost, round by round: neighbours disturb both alike."""
        pairs = zip(self.rounds[which], self.rounds[2], strict=True)
        return median(one.cpu_us / sdk.cpu_us for one, sdk in pairs)

    @property
    def wrong(self) -> int:
        return sum(one.wrong for rounds in self.rounds for one in rounds)


def measure(rounds: int, count: int) -> list[Row]:
    """Return the rows, measured in interleaved rounds, of which the first warms up."""
    rows = [Row(vendor, callers) for vendor in VENDORS for callers in CALLERS]
    with ExitStack() as stack:
        os.environ["HTTP_STUB"] = stack.enter_context(serving())
        ours = stack.enter_context(Contender("benchmarks.http_ours", Path(sys.executable)))
        sdks = {vendor: stack.enter_context(peer(f"{vendor}_sdk")) for vendor in VENDORS}
        for number in range(rounds + 1):
            for row in rows:
                row.measure(ours, sdks[row.vendor], count, backwards=number % 2 == 1)
    for row in rows:
        for measured in row.rounds:
            del measured[:1]
    return rows


def judged(rows: list[Row]) -> bool:
    """Print the table and what was promised; return whether all of it holds."""
    print(
        f"\n{'CPU us a call':<28}{'session':>9}{'adapter':>9}{'SDK':>9}{'session/SDK':>13}{'adapter/SDK':>13}"
    )
    for row in rows:
        costs = "".join(f"{row.us(which):>9,.0f}" for which in range(3))
        print(
            f"{row.vendor + f', {row.callers} at once':<28}{costs}{row.share(0):>13.2f}{row.share(1):>13.2f}"
        )
    holds = True
    for row in rows:
        holds &= row.share(0) <= MOST
        verdict = "holds" if row.share(0) <= MOST else "DOES NOT HOLD"
        print(
            f"At most {MOST} of the SDK, {row.vendor}, {row.callers} at once: {row.share(0):.2f}, {verdict}"
        )
    wrong = sum(row.wrong for row in rows)
    print(f"Wrong answers: {wrong}")
    return holds and wrong == 0


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 short rounds instead of 9 long ones")
    rounds, count = (3, 320) if arguments.parse_args().quick else (9, 1_600)
    try:
        rows = measure(rounds, count)
    except UnavailableError as e:
        print(e.reason, file=sys.stderr)
        return 1
    print(f"{rounds} rounds of {count:,} calls each, interleaved; medians. Question 3 KB, answer 1.5 KB.")
    print("SDKs: " + "; ".join(versions(f"{vendor}_sdk") for vendor in VENDORS))
    return 0 if judged(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
