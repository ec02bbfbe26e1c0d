"""Texts that nobody thought of: a coverage-guided fuzzer, or a mutator of our own, over everything that reads answers.

Run: python benchmarks/fuzz.py [--quick] [--seconds N]. Exits with 1, and shows the text, if one raises what it must not, takes
too long, is read by strict and lossless differently, gives a number that does not stand in it, or is accepted against its
schema. The first run installs the fuzzer into an environment of its own; where there is none, the mutator takes over.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz_target import Tally, check, prepare, seeds
from benchmarks.peers.contender import ROOT, UnavailableError, environment, versions

MAX_BYTES = 4_096
SWOLLEN_BYTES = 100_000
ONE_IN = 400
"""How many texts of the mutator there are to a swollen one."""
QUICK_S = 15
GRACE_S = 60
"""How much longer than told the fuzzer may take to end."""
_PIECES = (
    b"{", b"}", b"[", b"]", b'"', b"'", b",", b":", b"`", b"```", b"\n", b" ", b"\\", b"\\u", b"//", b"/*", b"*/", b"#", b"...",
    b"1", b"0.1", b"-", b"e9", b"True", b"null", b"NaN", b"\xc2\xa0", b"\xe2\x80\x9c", b"\xed\xa0\x80", b'"qty":', b"BUY",
)  # fmt: skip


@dataclass(frozen=True)
class Fuzzed:
    """What a fuzzer found: nothing, where `found` is empty."""

    fuzzer: str
    seconds: float
    tally: Tally
    found: str


def by_coverage(seconds: int, python: Path) -> Fuzzed:
    """Let atheris choose the texts, by the branches that they reach."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, note = Path(folder) / "corpus", Path(folder) / "tally.json"
        corpus.mkdir()
        for number, seed in enumerate(seeds()):
            (corpus / f"{number:03}").write_bytes(seed)
        command: list[str | Path] = [python, "-m", "benchmarks.peers.atheris.target", note, corpus]
        start = time.monotonic()
        ended = subprocess.run(  # noqa: S603 - a program of this repository
            [*command, *_options(seconds, folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds + GRACE_S,
            errors="replace",
            check=False,
        )
        tally = Tally(**json.loads(note.read_text(encoding="utf-8"))) if note.exists() else Tally()
        found = _told(ended.stderr + ended.stdout) if ended.returncode else ""
        return Fuzzed(
            f"atheris ({versions('atheris').split(',')[0]})", time.monotonic() - start, tally, found
        )


def _options(seconds: int, folder: str) -> list[str]:
    return [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-artifact_prefix={folder}/",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=0",
    ]


def _told(output: str) -> str:
    lines = output.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if "Uncaught Python exception" in line), -12)
    return "\n".join(line[:2_500] for line in lines[first:][:40]) or "it ended without a word"


def by_chance(seconds: float, seed: int) -> Fuzzed:
    """Change seeds byte by byte, and what was accepted of that again; the same seed tries the same texts."""
    chance, tally, start = chance_of(seed), Tally(), time.monotonic()
    corpus = list(seeds())
    found = ""
    while not found and time.monotonic() - start < seconds:
        data = mutated(chance.choice(corpus), chance)
        if chance.randrange(ONE_IN) == 0:
            data = swollen(data, chance)
        before = tally.lossless + tally.read
        try:
            check(data, tally)
        except Exception as e:  # noqa: BLE001 - whatever it is, it is what was looked for
            found = f"{type(e).__name__}: {e!s:.2000}\n{data!r:.4000}"
        if tally.lossless + tally.read > before and len(corpus) < 2_000:
            corpus.append(data)
    return Fuzzed("a mutator of our own", time.monotonic() - start, tally, found)


def chance_of(seed: int) -> random.Random:
    """Return chance that repeats itself."""
    return random.Random(seed)  # noqa: S311 - it guards nothing


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Change a text in one to four places: a byte lost, a piece put in, a part repeated, cut off or moved."""
    for _ in range(chance.randint(1, 4)):
        at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
        data = chance.choice((
            data[:at] + data[at + 1 :],
            data[:at] + chance.choice(_PIECES) + data[at:],
            data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            data[:to] + data[at:],
            data[:at],
            data[at:to] + data[:at] + data[to:],
        ))
    return data[:MAX_BYTES]


def swollen(data: bytes, chance: random.Random) -> bytes:
    """Repeat a part until it is large: work that grows faster than the text then shows."""
    at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    part = data[at:to] or chance.choice(_PIECES)
    return data[:at] + part * (SWOLLEN_BYTES // len(part)) + data[to:]


def fuzzed(seconds: int) -> Sequence[Fuzzed]:
    """Fuzz with what there is; the mutator always takes a look as well."""
    by_hand = max(2, seconds // 8)
    try:
        return [by_coverage(seconds - by_hand, environment("atheris")), by_chance(by_hand, seed=1)]
    except UnavailableError as e:
        print(f"atheris: {e.reason}; all the time goes to the mutator.")
        return [by_chance(seconds, seed=1)]


def main() -> int:
    """Print the table; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=int, default=120, help="how long to go on (default: 120)")
    arguments.add_argument("--quick", action="store_true", help=f"{QUICK_S} seconds")
    given = arguments.parse_args()
    prepare()
    rows = fuzzed(QUICK_S if given.quick else given.seconds)
    print(
        f"\n{'':<28}{'seconds':>8}{'texts':>10}{'strict':>9}{'lossless':>9}{'read':>8}{'slowest us a byte':>19}  found"
    )
    for row in rows:
        tally = row.tally
        print(
            f"{row.fuzzer:<28}{row.seconds:>8.0f}{tally.inputs:>10,}{tally.strict:>9,}{tally.lossless:>9,}{tally.read:>8,}"
            f"{tally.slowest_us_a_byte:>19.1f}  {'SOMETHING' if row.found else 'nothing'}"
        )
    for row in rows:
        if row.found:
            print(f"\n{row.fuzzer}:\n{row.found}")
    return 1 if any(row.found for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
