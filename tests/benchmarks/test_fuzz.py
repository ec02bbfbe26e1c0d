"""The fuzzer's check holds for what it starts from, and notices what it should."""

import pytest

from benchmarks import fuzz_target
from benchmarks.fuzz import MAX_BYTES, SWOLLEN_BYTES, by_chance, chance_of, mutated, swollen
from benchmarks.fuzz_target import BrokenPromiseError, Tally, check, seeds


def test_promises_hold_for_all_seeds() -> None:
    tally = Tally()

    for seed in seeds():
        check(seed, tally)

    assert tally.inputs == len(list(seeds()))
    assert tally.strict > 0
    assert tally.lossless >= tally.strict
    assert tally.read > 0


def test_mutator_finds_no_fault_and_is_repeatable() -> None:
    first, second = chance_of(7), chance_of(7)

    assert by_chance(0.2, seed=7).found == ""
    assert [mutated(b'{"a":1}', first) for _ in range(50)] == [mutated(b'{"a":1}', second) for _ in range(50)]


def test_mutated_texts_stay_small_swollen_texts_large() -> None:
    chance = chance_of(1)

    assert all(len(mutated(b"x" * 5_000, chance)) <= MAX_BYTES for _ in range(50))
    assert all(len(swollen(b'{"a":[1]}', chance)) > SWOLLEN_BYTES / 2 for _ in range(20))


def test_invented_number_is_detected() -> None:
    fuzz_target._check_numbers({"a": [1, True, None, 0]}, '{"a":[1,true,null,0]}')

    with pytest.raises(BrokenPromiseError, match="does not stand"):
        fuzz_target._check_numbers({"a": 10}, '{"a": 1}')


def test_slow_text_is_detected() -> None:
    def slow() -> int:
        return sum(range(20_000_000))

    with pytest.raises(BrokenPromiseError, match="for 3 characters"):
        fuzz_target._timed(slow, "[1]", Tally())
