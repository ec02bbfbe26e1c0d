"""A ledger, claims and controls on a real Redis that asks for TLS and a user with few rights."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentic_trading.governance.errors import LedgerUnavailableError
from agentic_trading.llm.errors import LLMError
from agentic_trading.platform import BusConfig, LedgerConfig, Platform, PlatformConfig, Ports, TenantConfig
from agentic_trading.platform.port_adapters import claims_of
from agentic_trading.worker.claim import Claim, ClaimKey
from agentic_trading.worker.claims.redis import RedisClaimStore
from tests import redis_server
from tests.certificates import make_certificates
from tests.platform.calls import BUDGET_USD, asked, envelope, scripted

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
    pytest.mark.skipif(
        shutil.which("redis-server") is None and not redis_server.REQUIRED,
        reason="redis-server is not installed, and the one of the tests speaks no TLS",
    ),
]
PASSWORD = "a-password-that-nothing-shows"  # noqa: S105 - of a server that lives as long as a test
RIGHTS = "on >{password} ~agentic:* &* +@all -@admin -@dangerous +config|get +info"


@dataclass(frozen=True)
class Secured:
    """Where the encrypted port is, and the authority of its certificate."""

    port: int
    ca_file: Path

    def url(self, *, user: str = "worker", password: str = PASSWORD, ca_file: bool = True) -> str:
        behind = f"?ssl_ca_certs={self.ca_file}" if ca_file else ""
        return f"rediss://{user}:{password}@127.0.0.1:{self.port}{behind}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    port = redis_server._free_port()
    options = (
        *redis_server.SAFE,
        "--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(folder / "ca.pem"),
        "--tls-cert-file", str(folder / "server.pem"), "--tls-key-file", str(folder / "server.key"),
        "--user", "worker", *RIGHTS.format(password=PASSWORD).split(),
    )  # fmt: skip
    with redis_server.own_server("redis", options=options):
        yield Secured(port, folder / "ca.pem")


def config(url: str, folder: Path | None = None) -> PlatformConfig:
    tenants = {"default": TenantConfig(budget_usd=BUDGET_USD)}
    return PlatformConfig(folder=folder, ledger=LedgerConfig(url=url), tenants=tenants)


async def test_tls_user_with_few_rights_pays_calls(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = config(secured.url(), tmp_path)

    async with Platform(made, Ports(providers={"scripted": scripted()})) as platform:
        failures = await asked(platform, envelope(1), envelope(2))
        spent = platform.statistics().ledger.charged_nusd

    assert failures == [None, None]
    assert spent > 0
    texts = [
        repr(made),
        str(made.public_values()),
        caplog.text,
        (tmp_path / "interactions.jsonl").read_text("utf-8"),
    ]
    assert [text for text in texts if PASSWORD in text] == []


async def test_claims_are_kept_over_tls(secured: Secured) -> None:
    made = config(secured.url()).model_copy(update={"bus": BusConfig(url="kafka://127.0.0.1:1")})
    claims = await asyncio.to_thread(claims_of, made)
    await claims.begin()

    claim = await claims.claim(ClaimKey("acme", "e-1"), "content")
    await claims.aclose()

    assert isinstance(claims, RedisClaimStore)
    assert isinstance(claim, Claim)


@pytest.mark.parametrize(
    "wrong",
    [{"password": "another"}, {"user": "nobody"}, {"ca_file": False}],
    ids=["password", "user", "authority"],
)
async def test_failed_login_error_hides_password(secured: Secured, wrong: dict[str, str | bool]) -> None:
    url = secured.url(**wrong)  # type: ignore[arg-type]  # each is of the type of its own

    with pytest.raises((LedgerUnavailableError, LLMError)) as refused:
        async with Platform(config(url)):
            pass

    assert "another" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["redis://host?ssl_ca_certs=a", "rediss://host?ssl_cert_reqs=none", "rediss://host?x"]
)
def test_ledger_url_accepts_only_tls_options(url: str) -> None:
    with pytest.raises(ValueError, match="rediss accepts only ssl_ca_certs, ssl_certfile, ssl_keyfile"):
        PlatformConfig(ledger=LedgerConfig(url=url))
