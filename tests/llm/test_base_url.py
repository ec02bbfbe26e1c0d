"""An address may stand in messages: it holds no secret."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from agentic_trading.llm.provider import check_address, fault_of
from agentic_trading.platform.config import ProviderConfig


@pytest.mark.parametrize("address", ["http://127.0.0.1:8080", "https://host/v1", "http://[::1]:1/v1/"])
def test_plain_url_is_accepted_unchanged(address: str) -> None:
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
def test_invalid_url_error_hides_secret(address: str) -> None:
    with pytest.raises(ValueError, match="Allowed: ") as refused:
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
def test_option_and_adapter_agree_on_urls(address: str, fault: str) -> None:
    def refused(check: Callable[[str], object]) -> bool:
        try:
            check(address)
        except ValueError:
            return True
        return False

    assert fault_of(address) == fault
    assert refused(check_address) is bool(fault)
    if fault:
        with pytest.raises(ValidationError):
            ProviderConfig(base_url=address)
    else:
        assert ProviderConfig(base_url=address).base_url == address


def test_config_error_hides_query_secret() -> None:
    with pytest.raises(ValidationError) as refused:
        ProviderConfig(base_url="http://host?key=secret")

    assert "secret" not in str(refused.value)
