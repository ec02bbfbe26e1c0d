"""Real answers of small models through `parse --jsonl`: nothing accepted that its schema does not hold for."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

DATA = Path(__file__).parents[1] / "data"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
PROGRAM = Path(sys.executable).parent / "agentic-trading"
RECORDS = [json.loads(line) for line in (DATA / "real_outputs.jsonl").read_bytes().splitlines()]
VALIDATORS = {
    file.stem: jsonschema_rs.validator_for(json.loads(file.read_bytes()), validate_formats=True)
    for file in (DATA / "schemas").glob("*.json")
}
MODES = ("native", "lossless")

Read = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A record, and what came of it."""

pytestmark = pytest.mark.timeout(60)  # each is a program of its own


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def lines(mode: str) -> list[str]:
    """Return what `parse --jsonl` writes for all records, each named by its place."""
    asked = [{"id": place, **record} for place, record in enumerate(RECORDS)]
    done = subprocess.run(
        [PROGRAM, "parse", "--jsonl", "--mode", mode, "--schemas", DATA / "schemas"],
        input="".join(f"{json.dumps(record)}\n" for record in asked),
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def read(lines: list[str]) -> list[Read]:
    """Return each record with its answer."""
    answers = [json.loads(line) for line in lines]
    assert [answer["id"] for answer in answers] == list(range(len(RECORDS)))
    return list(zip(RECORDS, answers, strict=True))


def test_every_record_has_a_schema() -> None:
    assert len(RECORDS) == 45
    assert {record["schema"] for record in RECORDS} == set(VALIDATORS)


def test_accepted_values_pass_independent_validator(
    read: list[Read],
) -> None:
    accepted = [(record, answer["value"]) for record, answer in read if answer["ok"]]

    assert accepted
    assert [value for record, value in accepted if not VALIDATORS[record["schema"]].is_valid(value)] == []


def test_rejected_records_have_stage_and_reason(
    read: list[Read],
) -> None:
    rejected = [answer for _, answer in read if not answer["ok"]]

    assert [answer for answer in rejected if not answer["stage"] or not answer["errors"]] == []
    assert "usage" not in {answer["stage"] for answer in rejected}


def test_truncated_answers_are_never_accepted(read: list[Read]) -> None:
    stages = {answer.get("stage") for record, answer in read if record["stop_reason"] == "max_tokens"}

    assert stages == {"truncated"}


def test_accepted_numbers_appear_in_the_answer(lines: list[str]) -> None:
    for record, line in zip(RECORDS, lines, strict=True):
        _, is_accepted, value = line.partition('"value":')
        numbers = numbers_at_the_start_of(value) if is_accepted else []

        assert [number for number in numbers if number not in record["raw"]] == []


def numbers_at_the_start_of(text: str) -> list[str]:
    """Return the numbers of the JSON document with which a text begins, as they are spelled."""
    spelled: list[str] = []

    def seen(number: str) -> str:
        spelled.append(number)
        return number

    json.JSONDecoder(parse_float=seen, parse_int=seen).raw_decode(text)
    return spelled


def test_documented_acceptance_counts_match(mode: str, read: list[Read]) -> None:
    asked = Counter(record["model"] for record, _ in read)
    accepted = Counter(record["model"] for record, answer in read if answer["ok"])
    told = DOCUMENT.read_text(encoding="utf-8")

    for model, number in asked.items():
        row = next(line for line in told.splitlines() if line.startswith(f"| `{model}` | {number} |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2 + MODES.index(mode)] == str(accepted[model])
