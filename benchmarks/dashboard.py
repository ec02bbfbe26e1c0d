"""The dashboard on a long log: the server's CPU time of a page, at a million attempts and at ten thousand.

Run: python -m benchmarks.dashboard [--quick] [--folder FOLDER]. Writes two logs (`--quick`: 50,000 attempts and 5,000). Exits with 1 if a
page of the long log takes more than three times the CPU time of the short one. A page is its records, its view and its HTML. The part of
a request that is equal for all pages, such as HTTP, is left out, because it would make the ratios smaller. The logs stay in FOLDER.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Final

from agentic_trading.llm.stores.jsonl.segments import SEGMENT_BYTES
from agentic_trading.monitor.calls import CallsPage
from agentic_trading.monitor.page import DashboardPage, PageAnswer, PageRequest
from agentic_trading.monitor.render import rendered
from agentic_trading.monitor.server import Site
from agentic_trading.monitor.sources import SourceOptions, Sources, open_sources
from agentic_trading.monitor.traces import TracePage
from benchmarks.audit_store_log import WrittenLog, write_log

LONG, SHORT, QUICK_LONG, QUICK_SHORT = 1_000_000, 10_000, 50_000, 5_000
QUICK_SEGMENT_BYTES: Final = 5 << 19
"""Small segments, so that the long log has several."""
MOST: Final = 3.0
PAGES: Final = 120
"""Pages of each kind and log. Those of the two logs alternate."""

TRACE, CALLS = "trace, by its id", "calls, the first page"
JUDGED: Final = (TRACE, CALLS)


@dataclass(frozen=True, slots=True)
class OpenDashboard:
    """The pages of a log."""

    sources: Sources
    calls: CallsPage
    traces: TracePage
    ids: Sequence[str]

    def request(self, kind: str, number: int) -> tuple[DashboardPage, Mapping[str, str]]:
        """Return a page and the query of its address."""
        trace_id = self.ids[number % len(self.ids)]
        requests: Mapping[str, tuple[DashboardPage, Mapping[str, str]]] = {
            TRACE: (self.traces, {"id": trace_id}),
            "trace, by its first 8 characters": (self.traces, {"id": trace_id[:8]}),
            CALLS: (self.calls, {}),
            "failed calls of a model": (self.calls, {"model": "gpt-5-mini", "failure": "*"}),
            "calls with words that none has": (self.calls, {"grep": "no call has these words"}),
            "newest traces": (self.traces, {}),
        }
        return requests[kind]

    async def page_s(self, kind: str, number: int) -> float:
        """Return the CPU time of a page in seconds."""
        page, query = self.request(kind, number)
        site = Site((("/calls", "Calls"), ("/trace", "Trace")), page.name, self.sources.place)
        began = process_time()
        answer = await page.answer(PageRequest(page.paths[0], query=query))
        assert isinstance(answer, PageAnswer)
        html = rendered(
            answer.template, page=answer.page, site=site, layout="agentic_trading.monitor/base.html.j2"
        )
        took = process_time() - began
        assert answer.status == 200
        assert "bad-banner" not in html, html[:2000]
        return took


KINDS: Final = (
    TRACE,
    "trace, by its first 8 characters",
    CALLS,
    "failed calls of a model",
    "calls with words that none has",
    "newest traces",
)


def opened(sources: Sources, log: WrittenLog) -> OpenDashboard:
    """Return the pages of a log."""
    return OpenDashboard(
        sources, CallsPage(sources), TracePage(sources), [trace_id for trace_id, *_ in log.traces]
    )


async def measure(logs: Sequence[WrittenLog]) -> bool:
    """Print the table; return whether all bounds hold."""
    long, short = logs
    async with (
        open_sources(SourceOptions((Path(long.folder),))) as of_long,
        open_sources(SourceOptions((Path(short.folder),))) as of_short,
    ):
        both = (opened(of_long, long), opened(of_short, short))
        for kind in KINDS:  # the first pages build the index and import
            for each in both:
                await each.page_s(kind, 0)
        print(f"\n{'':<40}{long.lines:>14,}{short.lines:>12,} lines   ratio")
        holds = True
        for kind in KINDS:
            times: dict[int, list[float]] = {0: [], 1: []}
            for number, which in enumerate(islice(cycle((0, 1)), 2 * PAGES)):
                times[which].append(await both[which].page_s(kind, number // 2))
            slow, fast = (mean(times[which]) for which in (0, 1))
            is_judged, ratio = kind in JUDGED, slow / fast
            verdict = "" if not is_judged else f"at most {MOST}  {'holds' if ratio <= MOST else 'MISSED'}"
            holds &= not is_judged or ratio <= MOST
            print(
                f"{kind:<40}{1e3 * slow:>11.2f} ms{1e3 * fast:>9.2f} ms{ratio:>14.2f}  {verdict}", flush=True
            )
    return holds


def run(folder: Path, *, is_quick: bool) -> bool:
    """Write the logs, or take those in the folder, and measure."""
    sizes = (QUICK_LONG, QUICK_SHORT) if is_quick else (LONG, SHORT)
    segment_bytes = QUICK_SEGMENT_BYTES if is_quick else SEGMENT_BYTES
    logs = [write_log(folder / f"log-{size}", size, segment_bytes) for size in sizes]
    return asyncio.run(measure(logs))


def main() -> int:
    """Print the table; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--quick", action="store_true", help=f"{QUICK_LONG:,} attempts and {QUICK_SHORT:,}"
    )
    arguments.add_argument("--folder", type=Path, help="where the logs stay for the next run")
    given = arguments.parse_args()
    if given.folder is not None:
        return 0 if run(given.folder, is_quick=given.quick) else 1
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="runs") as folder:
        return 0 if run(Path(folder), is_quick=given.quick) else 1


if __name__ == "__main__":
    sys.exit(main())
