"""Whatever happens to calls in whatever order, the ledger on a server is the sum of them."""

from functools import partial

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contracts.ledger_machine import machine
from tests.contracts.ledger_on_redis import on_redis


def test_ledger_equals_sum_of_calls(redis_url: str) -> None:
    few = settings(max_examples=settings().max_examples // 4, stateful_step_count=25)

    run_state_machine_as_test(machine(partial(on_redis, redis_url)), settings=few)
