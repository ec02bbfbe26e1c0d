"""The policy file says who may do what; every mistake in it is named by table and key, and opens no door."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.control_stores.file import read_stored
from agentic_trading.governance.errors import PolicyError
from agentic_trading.governance.limiter import Deployment, RateLimits
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.policy import Policy, Principal, read_policy
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.limits import LLMBudget, RetryPolicy
from tests.build import envelope
from tests.governance.asking import ask

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "policy.md"
EXAMPLE = PAGE.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
SHORTEST = '[principals.desk-a]\ntenants = ["acme"]\nmodels = ["anthropic/*"]\n'
RATE = '[[rates]]\nprovider = "anthropic"\nmodel = "m"\nconcurrent = 8\n'


def policy(tmp_path: Path, text: str) -> Policy:
    """Load a policy of this text."""
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return Policy.load(path)


def mistake(tmp_path: Path, text: str) -> PolicyError:
    """Return the error that loading this text ends in."""
    with pytest.raises(PolicyError) as caught:
        policy(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "policy.toml"))
    return caught.value


def of_desk_a(**changes: Any) -> LLMEnvelope:
    """Return an envelope that the example lets desk-a have run."""
    fields: dict[str, Any] = {
        "tenant_id": "acme",
        "agent_id": "cmt-1",
        "workflow": EnvelopeWorkflow.ANALYSIS,
        "budget": LLMBudget(max_output_tokens=4096, thinking_budget=0),
    }
    return envelope(**{**fields, **changes})


def refusal(rules: Policy, principal: str = "desk-a", **changes: Any) -> str:
    """Return why an envelope of desk-a with these changes must not run; empty if it may."""
    reason = rules.problem(principal, of_desk_a(**changes))
    assert reason is None or (reason.category, reason.recoverable) == (FailureKind.NOT_ALLOWED, False)
    return reason.description if reason else ""


def test_manual_example_is_a_valid_policy(tmp_path: Path) -> None:
    rules = policy(tmp_path, EXAMPLE)

    assert refusal(rules) == ""
    assert rules.keys == {"desk-a": ("desk-a-2026",), "research": ("research",)}
    assert rules.limits("desk-a") == (
        Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=500_000_000),
        Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=2 * 10**9),
        Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=25 * 10**9),
        Limit(ScopeKind.PRINCIPAL, ANY, Window.DAY, nusd=100 * 10**9),
        Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=500),
    )
    assert rules.limits("research") == ()
    assert rules.rates == {
        Deployment(LLMProvider.ANTHROPIC, "claude-sonnet-5-5"): RateLimits(50, 40_000, 8),
        Deployment(LLMProvider.OPENAI, "qwen3-8b"): RateLimits(concurrent=2),
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tenant_id": "other"}, "tenant 'other'; allowed: acme (principals.desk-a.tenants in policy.toml)"),
        ({"tenant_id": "acme "}, "tenant 'acme '; allowed: acme (principals.desk-a.tenants in policy.toml)"),
        ({"agent_id": "fill-1"}, "agent 'fill-1'; allowed: cmt-* (principals.desk-a.agents in policy.toml)"),
        ({"agent_id": "CMT-1"}, "agent 'CMT-1'; allowed: cmt-* (principals.desk-a.agents in policy.toml)"),
        (
            {"agent_id": "", "agent_type": "analyst"},
            "agent 'analyst'; allowed: cmt-* (principals.desk-a.agents in policy.toml)",
        ),
        (
            {"workflow": EnvelopeWorkflow.PLANNING},
            "workflow 'planning'; allowed: analysis, execution (principals.desk-a.workflows in policy.toml)",
        ),
        (
            {"model": "gpt-5"},
            "model 'anthropic/gpt-5'; allowed: anthropic/claude-*, rules/* (principals.desk-a.models in policy.toml)",
        ),
        (
            {"provider": LLMProvider.OPENAI},
            "model 'openai/claude-sonnet-5-5'; allowed: anthropic/claude-*, rules/* (principals.desk-a.models in policy.toml)",
        ),
        (
            {"tools_allowed": ["shell"]},
            "tool 'shell'; allowed: none (principals.desk-a.tools in policy.toml)",
        ),
        (
            {"budget": LLMBudget(max_output_tokens=8192, thinking_budget=1)},
            "8193 output tokens, thinking included; allowed: at most 8192 (principals.desk-a.highest.output_tokens in policy.toml)",
        ),
        (
            {"priority": 11},
            "priority 11; allowed: at most 10 (principals.desk-a.highest.priority in policy.toml)",
        ),
        (
            {"retry_policy": RetryPolicy(attempt_timeout_s=121)},
            "121 s for an attempt; allowed: at most 120 (principals.desk-a.highest.attempt_timeout_s in policy.toml)",
        ),
    ],
)
def test_refusal_names_allowed_values(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert refusal(policy(tmp_path, EXAMPLE), **changes) == f"principal 'desk-a' may not use {said}"


@pytest.mark.parametrize("principal", ["", "desk-b", "DESK-A", "*", "[d]esk-a"])
def test_unlisted_principal_is_denied(tmp_path: Path, principal: str) -> None:
    rules = policy(tmp_path, EXAMPLE)

    assert "is unknown" in refusal(rules, principal)
    with pytest.raises(KeyError):
        rules.limits(principal)


def test_wildcard_tenants_exclude_the_platform(tmp_path: Path) -> None:
    rules = policy(tmp_path, SHORTEST.replace('"acme"', '"*"'))

    assert refusal(rules, tenant_id="whoever") == ""
    assert "is the platform itself" in refusal(rules, tenant_id="*")


def test_raised_cap_is_checked_against_ceiling(tmp_path: Path) -> None:
    rules = policy(tmp_path, EXAMPLE)

    assert rules.problem("desk-a", of_desk_a(), max_tokens=8192) is None
    assert rules.problem("desk-a", of_desk_a(), max_tokens=8193) is not None


def test_tools_are_allowed_by_name(tmp_path: Path) -> None:
    rules = policy(tmp_path, f'{SHORTEST}tools = ["quote"]\n')

    assert refusal(rules, tools_allowed=["quote"]) == ""
    assert refusal(rules, tools_allowed=["quote", "order"]).endswith(
        "tool 'order'; allowed: quote (principals.desk-a.tools in policy.toml)"
    )


def test_omitted_fields_are_unlimited_except_tools(tmp_path: Path) -> None:
    rules = policy(tmp_path, SHORTEST)

    for workflow in EnvelopeWorkflow:
        assert refusal(rules, workflow=workflow, agent_id="whoever") == ""
    assert rules.limits("desk-a") == ()
    assert "tool" in refusal(rules, tools_allowed=["quote"])


def test_policy_ceilings_fit_a_request(tmp_path: Path) -> None:
    limits = policy(tmp_path, EXAMPLE).limits("desk-a")

    assert ask(1, principal="desk-a", limits=limits).limits == limits


def test_policy_without_principals_allows_everything(tmp_path: Path) -> None:
    for rules in (Policy(), policy(tmp_path, RATE)):
        assert refusal(rules, "", model="whatever", tools_allowed=["shell"]) == ""
        assert rules.limits("") == ()
        assert rules.keys == {}
        assert "platform" in refusal(rules, tenant_id="*")


@pytest.mark.parametrize(
    "pattern", ["openai*/*", "open*/gpt-*", "loc?l/*", "rule[s]/*", "anthropic*/claude-*", "*/*"]
)
def test_provider_patterns_near_names_are_accepted(tmp_path: Path, pattern: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(SHORTEST.replace("anthropic/*", pattern))

    principals = read_policy(file).principals

    assert principals is not None
    assert principals["desk-a"].models == (pattern,)


@pytest.mark.parametrize(
    ("text", "where", "found", "allowed"),
    [
        ("", "", "neither principals nor rates", "one of them"),
        ("x", "", "invalid TOML", "a TOML file"),
        ("[a]\n[a]", "", "invalid TOML", "a TOML file"),
        ("principals = 3", "principals", "3", "[principals.NAME]"),
        ("[principals]", "principals", "{}", "one table or more"),
        ("[principal.desk-a]", "principal", "an unknown key", "principals, rates"),
        ("principals.desk-a = 3", "principals.desk-a", "3", "a table with key, tenants"),
        ('[principals."des k"]\ntenants = ["a"]\nmodels = ["rules/*"]', "principals.'des k'", "'des k'", "letters"),
        (SHORTEST.replace("tenants", "tenant"), "principals.desk-a.tenant", "an unknown key", "key, tenants"),
        ("[principals.a]\nmodels = ['rules/*']", "principals.a.tenants", "nothing", "ids of tenants"),
        ("[principals.a]\ntenants = ['a']", "principals.a.models", "nothing", "patterns of at most 256"),
        (SHORTEST.replace('["acme"]', "[]"), "principals.desk-a.tenants", "[]", "one or more"),
        (SHORTEST.replace('["acme"]', '"acme"'), "principals.desk-a.tenants", "'acme'", "ids of tenants"),
        (SHORTEST.replace('"acme"', "7"), "principals.desk-a.tenants[1]", "7", "ids of tenants"),
        (SHORTEST.replace('"acme"', '"acme*"'), "principals.desk-a.tenants[1]", "'acme*'", '"*" for all tenants'),
        (SHORTEST.replace('"acme"', '"a", "a"'), "principals.desk-a.tenants", "['a', 'a']", "one or more different"),
        (SHORTEST.replace("anthropic/*", "*"), "principals.desk-a.models[1]", "'*'", "Built-in providers: anthropic"),
        (SHORTEST.replace("anthropic/*", "antropic/*"), "principals.desk-a.models[1]", "'antropic/*'", "anthropic,"),
        (SHORTEST.replace("anthropic/*", "rules/"), "principals.desk-a.models[1]", "'rules/'", "patterns"),
        (SHORTEST.replace("anthropic/*", "antropic*/*"), "principals.desk-a.models[1]", "'antropic*/*'", "anthropic,"),
        (f"{SHORTEST}agents = ['']", "principals.desk-a.agents[1]", "''", "patterns of at most 256"),
        (f"{SHORTEST}agents = []", "principals.desk-a.agents", "[]", "one or more"),
        (f"{SHORTEST}workflows = ['trading']", "principals.desk-a.workflows[1]", "'trading'", "analysis, planning"),
        (f"{SHORTEST}workflows = []", "principals.desk-a.workflows", "[]", "one or more"),
        (f"{SHORTEST}tools = [1]", "principals.desk-a.tools[1]", "1", "names of tools"),
        (f"{SHORTEST}key = '../x'", "principals.desk-a.key[1]", "'../x'", "letters, digits"),
        (f"{SHORTEST}highest = 1", "principals.desk-a.highest", "1", "a table with usd_per_call"),
        (f"{SHORTEST}highest.usd = '1'", "principals.desk-a.highest.usd", "an unknown key", "usd_per_call, usd_per"),
        (f"{SHORTEST}highest.nusd_per_call = 1", "principals.desk-a.highest.nusd_per_call", "an unknown", "usd_per"),
        *(
            (f"{SHORTEST}highest.usd_per_call = {bad}", "principals.desk-a.highest.usd_per_call", found, "dollars as text")
            for bad, found in (
                ("0.5", "0.5"), ("'-1'", "'-1'"), ("-1", "-1"), ("true", "True"), ("'1e3'", "'1e3'"), ("nan", "nan"),
                ("'0.0000000001'", "'0.0000000001'"), ("'9007200'", "'9007200'"), ("'\u0661'", "'\u0661'"), ("'1 USD'", "'1 USD'"),
                ("2026-01-01", "datetime.date"),
            )
        ),
        *(
            (f"{SHORTEST}highest.calls_per_agent_day = {bad}", "principals.desk-a.highest.calls_per_agent_day", bad, "from 0")
            for bad in ("-1", "1.0", "9007199254740993", "'5'")
        ),
        (f"{SHORTEST}highest.output_tokens = 0", "principals.desk-a.highest.output_tokens", "0", "from 1"),
        (f"{SHORTEST}highest.output_tokens = true", "principals.desk-a.highest.output_tokens", "True", "from 1"),
        (f"{SHORTEST}highest.priority = 1.5", "principals.desk-a.highest.priority", "1.5", "whole number"),
        *(
            (f"{SHORTEST}highest.attempt_timeout_s = {bad}", "principals.desk-a.highest.attempt_timeout_s", found, "at most 3600")
            for bad, found in (("0", "0"), ("3601", "3601"), ("true", "True"), ("nan", "nan"), ("'60'", "'60'"))
        ),
        (SHORTEST.replace("acme", "*") + "highest.usd_per_day = 1", "principals.desk-a.highest.usd_per_day",
         "a ceiling per tenant together with tenants = ['*']", "tenants by id"),
        (f"{SHORTEST}[principals.b]\nkey = 'desk-a'\ntenants = ['a']\nmodels = ['rules/*']",
         "principals.b.key", "'desk-a', which is the key of 'desk-a'", "a separate key"),
        ("rates = 3", "rates", "3", "[[rates]]"),
        ("rates = [3]", "rates[1]", "3", "a table with provider, model"),
        (RATE + RATE, "rates[2]", "anthropic/m again", "one table per model"),
        (RATE.replace("concurrent = 8", ""), "rates[1]", "no rate", "at least one"),
        (RATE.replace("8", "0"), "rates[1].concurrent", "0", "from 1"),
        (RATE.replace("8", "99999999999"), "rates[1].concurrent", "99999999999", "to 10000000000"),
        (RATE.replace("8", "8.0"), "rates[1].concurrent", "8.0", "whole number"),
        (RATE.replace("concurrent", "parallel"), "rates[1].parallel", "an unknown key", "provider, model, requests"),
        (RATE.replace("anthropic", "antropic"), "rates[1].provider", "'antropic'", "anthropic, openai, local"),
        (RATE.replace('"m"', '"claude-*"'), "rates[1].model", "'claude-*'", "the id of one model"),
        (RATE.replace('model = "m"', ""), "rates[1].model", "nothing", "the id of one model"),
    ],
)  # fmt: skip
def test_invalid_policy_names_table_and_key(
    tmp_path: Path, text: str, where: str, found: str, allowed: str
) -> None:
    error = mistake(tmp_path, text)

    assert error.where == where
    assert error.found.startswith(found)
    assert allowed in error.allowed


def test_manual_shows_actual_error_message(tmp_path: Path) -> None:
    error = mistake(tmp_path, EXAMPLE.replace("anthropic/claude-*", "antropic/*"))

    assert f"```text\n{error}\n```".replace(f"{tmp_path}/", "") in PAGE.read_text(encoding="utf-8")


def test_manual_controls_document_can_be_read() -> None:
    document = PAGE.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]

    assert read_stored(document.encode(), "the manual").version == 2


def test_unreadable_policy_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe4"')
    for name, found in (
        ("no.toml", "an unreadable file"),
        ("", "an unreadable file"),
        ("latin.toml", "an unreadable file (not UTF-8: byte 6)"),
    ):
        with pytest.raises(PolicyError, match=re.escape(str(tmp_path / name))) as caught:
            Policy.load(tmp_path / name)
        assert caught.value.found.startswith(found)


@pytest.mark.parametrize(
    ("usd", "nusd"), [('"0"', 0), ('"0.50"', 500_000_000), ("2", 2 * 10**9), ('"0.000000001"', 1)]
)
def test_dollars_are_parsed_exactly(tmp_path: Path, usd: str, nusd: int) -> None:
    rules = policy(tmp_path, f"{SHORTEST}highest.usd_per_call = {usd}\n")

    assert rules.limits("desk-a") == (Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=nusd),)


@given(name=st.text(max_size=12))
def test_tenant_names_outside_list_are_refused(name: str) -> None:
    allowed = ("acme", "other")
    rules = Policy({"a": Principal(tenants=allowed, models=("anthropic/*",))})

    assert (rules.problem("a", envelope(tenant_id=name)) is None) == (name in allowed)
