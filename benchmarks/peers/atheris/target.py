"""The coverage-guided fuzzer's side: one input after the other into `check`, until the time is up or a promise breaks."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["agentic_trading.structured"]):
    from benchmarks.fuzz_target import Tally, check, prepare

EVERY = 200
"""Inputs between two notes of what was seen: libFuzzer ends the process without a word."""


def main() -> None:
    """Fuzz as the arguments of libFuzzer say; the first argument is the file for the tally."""
    prepare()
    tally, note = Tally(), Path(sys.argv[1])

    def one(data: bytes) -> None:
        check(data, tally)
        if tally.inputs % EVERY == 0:
            note.write_text(tally.spelled(), encoding="utf-8")

    atheris.Setup([sys.argv[0], *sys.argv[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
