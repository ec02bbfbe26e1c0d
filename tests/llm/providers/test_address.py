"""An address may stand in messages: it holds no secret."""

import pytest

from agentic_trading.llm.providers.address import checked_address


@pytest.mark.parametrize("address", ["http://127.0.0.1:8080", "https://host/v1", "http://[::1]:1/v1/"])
def test_a_plain_address_is_taken_as_it_is(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize(
    "address",
    ["", "host", "me:secret@host", "http://h/?key=secret", "http://h/#secret", "http://[::1", "http://h:0"],
)
def test_another_one_is_refused_without_a_secret_in_it(address: str) -> None:
    with pytest.raises(ValueError, match="allowed is http") as refused:
        checked_address(address)

    assert "secret" not in str(refused.value)
