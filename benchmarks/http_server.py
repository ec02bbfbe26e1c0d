"""What a call through the HTTP server costs in CPU time, beside the embedded gateway and LiteLLM's proxy on the same stand-in.

Run: python -m benchmarks.http_server [--quick]. Exits with 1 if an answer was wrong, or if a bound does not hold in this run. A bound
compares the best of several interleaved rounds. The first run installs the proxy into an environment of its own.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Final

import aiohttp

from agentic_trading.services.local import HOST
from benchmarks.call_path import Row, contender, measure
from benchmarks.fleet import cpu_of
from benchmarks.gateways import Proxy, body_of, litellm_proxy
from benchmarks.http_server_ours import AT_ONCE, DURABILITIES, SETTLES_S, http_server
from benchmarks.http_stub import serving_process
from benchmarks.peers.contender import Measured, UnavailableError, versions
from benchmarks.peers.question import ANSWER
from benchmarks.peers.rounds import Round, stepped

EMBEDDED: Final = "benchmarks.http_server_ours"
MOST: Final = 0.15
"""The share of the proxy's CPU time that a call through the server takes at most."""
FIRST: Final = "first event"
MOST_ADDED: Final = 0.04
"""The share of the proxy's CPU time that the server adds to the embedded gateway at most."""


@dataclass(frozen=True)
class Asked:
    """A server of chat completions in a process of its own. A round's CPU is that of its process, without its caller's."""

    server: Proxy
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def round(self, way: str, count: int) -> Round:
        """Ask `count` times. `way` is `whole` or `events`, and how many at once. Events have the time to the first one."""
        form, callers = way.split("_")
        try:
            return asyncio.run(self._round(form == "events", int(callers), count))
        except* (aiohttp.ClientError, OSError, LookupError, ValueError) as e:
            raise UnavailableError(f"it broke: {e.exceptions[0]!r:.100}") from e

    async def _round(self, is_streamed: bool, callers: int, count: int) -> Round:  # noqa: FBT001 - private
        bodies = (
            json.dumps(body_of(number) | ({"stream": True} if is_streamed else {})) for number in self.numbers
        )
        headers = {"content-type": "application/json", **self.server.headers}
        url = f"http://{HOST}:{self.server.port}/v1/chat/completions"
        first_us: list[float] = []
        async with aiohttp.ClientSession(headers=headers) as session:

            async def is_right(_: str) -> bool:
                began = time.perf_counter()
                async with session.post(url, data=next(bodies)) as answered:
                    begun = await answered.content.readany()
                    first_us.append((time.perf_counter() - began) * 1e6)
                    raw = begun + await answered.content.read()
                return (_text_of_events(raw) if is_streamed else _text(raw)) == ANSWER

            await stepped(is_right, callers, callers, first=0)  # opens the connections
            before_ms = cpu_of(self.server.pid, with_children=True)
            one = await stepped(is_right, count, callers, first=0, finish=partial(asyncio.sleep, SETTLES_S))
            used_ms = cpu_of(self.server.pid, with_children=True) - before_ms
        stages_us = {FIRST: median(first_us)} if is_streamed else {}
        return replace(one, cpu_us=used_ms / count * 1e3, stages_us=stages_us)


def _text(raw: bytes) -> str:
    return str(json.loads(raw)["choices"][0]["message"]["content"])


def _text_of_events(raw: bytes) -> str:
    datas = [line.removeprefix(b"data: ") for line in raw.splitlines() if line.startswith(b"data: {")]
    choices = [choice for data in datas for choice in json.loads(data)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@contextmanager
def started(name: str) -> Generator[Measured]:
    """Start a server; `name` is that of a row's contender."""
    match name.split():
        case ["serve", durability, *through]:
            server: AbstractContextManager[Proxy] = http_server(durability, "through" if through else "whole")
        case ["litellm_proxy"]:
            server = litellm_proxy()
        case _:
            server = stand_in()
    with server as proxy:
        yield Asked(proxy)


@contextmanager
def stand_in() -> Generator[Proxy]:
    """Run the stand-in for the vendor."""
    with serving_process() as (address, pid):
        yield Proxy(int(address.rpartition(":")[2]), pid)


def start(name: str) -> AbstractContextManager[Measured]:
    """Return the contender of a row; raises `UnavailableError` where it cannot run."""
    return contender(name) if name == EMBEDDED else started(name)


def rows() -> dict[str, Row]:
    """Return what is measured, by a short name."""
    table = {}
    for callers in AT_ONCE:
        at = f"{callers} at once"
        for log in DURABILITIES:
            table[f"server_{log}_{callers}"] = Row(
                f"server, log {log}, {at}", f"serve {log}", f"whole_{callers}"
            )
            table[f"embedded_{log}_{callers}"] = Row("  embedded gateway", EMBEDDED, f"{log}_{callers}")
        table[f"proxy_{callers}"] = Row(f"LiteLLM's proxy, {at}", "litellm_proxy", f"whole_{callers}")
        table[f"stand_in_{callers}"] = Row(f"the stand-in alone, {at}", "stand_in", f"whole_{callers}")
    most = AT_ONCE[-1]
    for callers, logs in ((most, DURABILITIES), (1, DURABILITIES[:1])):
        at = f"{callers} at once, events"
        for log in logs:
            table[f"events_{log}_{callers}"] = Row(
                f"server, log {log}, {at}", f"serve {log}", f"events_{callers}"
            )
        table[f"through_events_{callers}"] = Row(
            f"server, passed through, {at}", f"serve {DURABILITIES[0]} through", f"events_{callers}"
        )
        table[f"proxy_events_{callers}"] = Row(f"LiteLLM's proxy, {at}", "litellm_proxy", f"events_{callers}")
        table[f"stand_in_events_{callers}"] = Row(
            f"the stand-in alone, {at}", "stand_in", f"events_{callers}"
        )
    return table


def print_costs(table: Mapping[str, Row]) -> None:
    """Print what each costs, at best and in the middle, and the share of the proxy's cost."""
    print(f"\n{'':<40}{'best CPU us':>12}{'median':>9}{'of the proxy':>14}")
    for name, row in table.items():
        if row.unavailable:
            print(f"{row.title:<40}  {row.unavailable}")
            continue
        kind, callers = ("proxy_events" if "events" in name else "proxy"), name.rpartition("_")[2]
        proxy = table[f"{kind}_{callers}"]
        share = "" if proxy.unavailable else f"{row.best_us / proxy.best_us:>14.3f}"
        print(f"{row.title:<40}{row.best_us:>12,.0f}{row.cpu_us:>9,.0f}{share}")


def print_first_events(table: Mapping[str, Row]) -> None:
    """Print the wall time to the first event of each stream: the median of a round, at best."""
    print(f"\n{'wall time to the first event':<45}{'best median us':>15}")
    for row in table.values():
        if waits := [one.stages_us[FIRST] for one in row.rounds if FIRST in one.stages_us]:
            print(f"{row.title:<45}{min(waits):>15,.0f}")


def holds(table: Mapping[str, Row]) -> bool:
    """Print the bounds; return whether all hold and no answer was wrong."""
    kept = True
    for callers in AT_ONCE:
        proxy_us = table[f"proxy_{callers}"].best_us
        for durability in DURABILITIES:
            server_us, embedded_us = (
                table[f"{kind}_{durability}_{callers}"].best_us for kind in ("server", "embedded")
            )
            for title, us, most in (
                ("server", server_us, MOST),
                ("server - embedded", server_us - embedded_us, MOST_ADDED),
            ):
                share = us / proxy_us
                kept &= share <= most
                verdict = "holds" if share <= most else "DOES NOT HOLD"
                print(
                    f"{title}, {durability}, {callers} at once: at most {most:.2f} of the proxy: {share:.3f}, {verdict}"
                )
    wrong = sum(one.wrong for row in table.values() for one in row.rounds)
    print(f"Wrong answers: {wrong}")
    return kept and wrong == 0


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 short rounds instead of 7 long ones")
    rounds, count = (3, 160) if arguments.parse_args().quick else (7, 480)
    table = rows()
    with serving_process() as (os.environ["HTTP_STUB"], _):
        measure([*table.values()], rounds, count, start)
    print(
        f"{rounds} rounds of {count:,}, interleaved. Question 3 KB, answer 1.5 KB. {versions('litellm_proxy')}"
    )
    print_costs(table)
    print_first_events(table)
    print()
    if broken := [f"{row.title.strip()}: {row.unavailable}" for row in table.values() if row.unavailable]:
        print("; ".join(broken), file=sys.stderr)
        return 1
    return 0 if holds(table) else 1


if __name__ == "__main__":
    sys.exit(main())
