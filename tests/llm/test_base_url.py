"""An address may stand in messages: it holds no secret."""

from collections.abc import Callable
from functools import partial

import pytest

from agentic_trading.app.options import OptionError, check_url
from agentic_trading.llm.provider import check_address, fault_of


@pytest.mark.parametrize("address", ["http://127.0.0.1:8080", "https://host/v1", "http://[::1]:1/v1/"])
def test_a_plain_address_is_taken_as_it_is(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "me:secret@host",
        "http://h/?key=secret",
        "http://h/#secret",
        "http://[::1",
        "http://h:0",
        "http://h:secret@",
        "ftp://me:secret@h",
    ],
)
def test_another_one_is_refused_without_a_secret_in_it(address: str) -> None:
    with pytest.raises(ValueError, match="allowed is") as refused:
        check_address(address)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("http://host", ""),
        ("http://@host", "secret"),
        ("http://me@host", "secret"),
        ("http://:word@host", "secret"),
        ("http://host?x", "no_address"),
        ("ftp://host", "no_address"),
    ],
)
def test_an_option_and_an_adapter_refuse_the_same_addresses(address: str, fault: str) -> None:
    def refused(check: Callable[[str], object]) -> bool:
        try:
            check(address)
        except ValueError:
            return True
        return False

    assert fault_of(address) == fault
    assert refused(check_address) is refused(partial(check_url, "--base-url")) is bool(fault)


def test_an_option_shows_no_secret_of_a_query() -> None:
    with pytest.raises(OptionError) as refused:
        check_url("--base-url", "http://host?key=secret")

    assert "secret" not in str(refused.value)
