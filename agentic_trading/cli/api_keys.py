"""`agentic-trading api-keys`: the keys of agents that call the HTTP server."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import typer

from agentic_trading.cli.exits import say
from agentic_trading.cli.options import AsJson, ConfigFile

app = typer.Typer(help="Create and revoke keys of agents that call the HTTP server.", no_args_is_help=True)

MOST_GRACE_DAYS: Final = 30

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Tenant of the calls.")]
AgentId = Annotated[str, typer.Option("--agent", metavar="ID", help="Agent id of the calls.")]
Workflow = Annotated[
    str | None,
    typer.Option(
        "--workflow",
        metavar="NAME",
        help="Workflow of the calls: analysis, planning or general.  [default: general]",
    ),
]
ActingAs = Annotated[
    str | None,
    typer.Option(
        "--principal",
        metavar="NAME",
        help="Principal of the policy that the key acts as. Required if the policy names principals.",
    ),
]
Aliases = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="ALIAS=PROVIDER/MODEL",
        help="A model that the key may use, and its name in requests. Can be repeated.  "
        "[default: every served model, as PROVIDER/MODEL]",
    ),
]
MaxOutputTokens = Annotated[
    int | None,
    typer.Option(
        "--max-output-tokens",
        metavar="N",
        help="Output tokens of an attempt. A request for more is lowered.  [default: 16384]",
    ),
]
UsdPerCall = Annotated[
    str | None, typer.Option("--usd-per-call", metavar="USD", help="US dollars of a call with its retries.")
]
UsdPerTrace = Annotated[
    str | None, typer.Option("--usd-per-trace", metavar="USD", help="US dollars of a trace.")
]
CallsPerTrace = Annotated[
    int | None, typer.Option("--calls-per-trace", metavar="N", help="Calls of a trace.")
]
AttemptTimeout = Annotated[
    float | None,
    typer.Option("--attempt-timeout-s", metavar="SECONDS", help="Time limit of an attempt.  [default: 300]"),
]
ParkSeconds = Annotated[
    float | None,
    typer.Option(
        "--park-s",
        metavar="SECONDS",
        help="Longest wait of a call for money that other calls hold.  [default: 20]",
    ),
]
JsonSchema = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="MODE",
        help="Answers to a request with a schema: pass, validate, or reask after a rejected one.  [default: validate]",
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        metavar="MODE",
        help="Streams: whole, after the answer is on record, or through, as the provider sends it.  [default: whole]",
    ),
]
RecordsEvents = Annotated[
    bool,
    typer.Option("--records-events", help="Allow the key to record events, such as orders and fills."),
]
Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="TIME",
        help="End of the key: a time such as 2027-01-31, or a duration such as 90d. UTC.  [default: never]",
    ),
]
Grace = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="DURATION",
        help=f"Time for which earlier secrets stay valid, from 0s to {MOST_GRACE_DAYS}d.",
        show_default=True,
    ),
]


@app.command("create", short_help="Create a key, and print its secret once.")
def create_api_key(
    *,
    name: KeyName,
    tenant: Tenant,
    agent: AgentId,
    workflow: Workflow = None,
    principal: ActingAs = None,
    model: Aliases = None,
    max_output_tokens: MaxOutputTokens = None,
    usd_per_call: UsdPerCall = None,
    usd_per_trace: UsdPerTrace = None,
    calls_per_trace: CallsPerTrace = None,
    attempt_timeout_s: AttemptTimeout = None,
    park_s: ParkSeconds = None,
    json_schema: JsonSchema = None,
    stream: Stream = None,
    records_events: RecordsEvents = False,
    expires: Expires = None,
    config: ConfigFile = None,
) -> None:
    """Create a key, and print its secret on standard output. The secret is not stored, so keep it.

    The key is added to api-keys.toml, next to the configuration file. Servers accept it within two seconds.
    """
    from agentic_trading.cli.settings import configured
    from agentic_trading.clock import SystemClock
    from agentic_trading.server.api_keys import ApiKeyFile, api_keys_file

    loaded, now = configured(config), SystemClock().now()
    given = {
        "tenant": tenant,
        "agent": agent,
        "workflow": workflow,
        "principal": principal,
        "models": _targets(model) if model else None,
        "max_output_tokens": max_output_tokens,
        "usd_per_call": usd_per_call,
        "usd_per_trace": usd_per_trace,
        "calls_per_trace": calls_per_trace,
        "attempt_timeout_s": attempt_timeout_s,
        "park_s": park_s,
        "json_schema": json_schema,
        "stream": stream,
        "records_events": records_events or None,
        "expires": _end(expires, now) if expires is not None else None,
    }
    key, secret = _checked_key(
        name, now, {field: value for field, value in given.items() if value is not None}, loaded
    )
    file = ApiKeyFile(api_keys_file(config))
    file.add(key)
    say(f"Created API key {name} in {file.path}. Its secret is not shown again:", err=True)
    say(secret)


@app.command("list", short_help="List all keys, without secrets.")
def list_api_keys(*, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List all keys with their rights and ceilings, also expired and revoked ones. Secrets are not stored."""
    from agentic_trading.cli import output
    from agentic_trading.cli.settings import start
    from agentic_trading.clock import SystemClock
    from agentic_trading.server.api_keys import ApiKeyFile, api_keys_file

    start()
    file, now = ApiKeyFile(api_keys_file(config)), SystemClock().now()
    keys = list(file.read().values())
    if as_json:
        output.show_json([_json_row(key, now) for key in keys])
    elif keys:
        columns = {
            "name": lambda key: key.name,
            "state": lambda key: _state_text(key, now),
            "tenant": lambda key: key.tenant,
            "agent": lambda key: key.agent,
            "workflow": lambda key: str(key.workflow),
            "principal": lambda key: key.principal or "-",
            "models": lambda key: (
                ", ".join(f"{alias}={to}" for alias, to in key.models.items()) or "all served"
            ),
            "ceilings": _ceilings_text,
        }
        output.print_table(output.listing(keys, columns))
    else:
        say(
            f"There are no API keys in {file.path}. Create one with: agentic-trading api-keys create",
            err=True,
        )


@app.command("revoke", short_help="Revoke a key.")
def revoke_api_key(*, name: KeyName, config: ConfigFile = None) -> None:
    """Revoke a key with all its secrets. Servers refuse it within two seconds. Calls in flight continue."""
    from agentic_trading.cli.settings import start
    from agentic_trading.clock import SystemClock
    from agentic_trading.server.api_keys import ApiKeyFile, api_keys_file

    start()
    file = ApiKeyFile(api_keys_file(config))
    key = file.revoke(name, SystemClock().now())
    say(
        f"Revoked API key {name} at {key.revoked:%Y-%m-%d %H:%M:%S} UTC. Servers refuse it within two seconds."
    )


@app.command("rotate", short_help="Give a key a new secret.")
def rotate_api_key(*, name: KeyName, grace: Grace = "1h", config: ConfigFile = None) -> None:
    """Give a key a new secret, and print it on standard output. Earlier secrets stay valid for --grace.

    After a leak, use --grace 0s.
    """
    from agentic_trading.cli.settings import start
    from agentic_trading.clock import SystemClock
    from agentic_trading.server.api_keys import ApiKeyFile, api_keys_file

    start()
    now, period = SystemClock().now(), _grace(grace)
    file = ApiKeyFile(api_keys_file(config))
    _, secret = file.rotate(name, now, period)
    ends = (
        f"Earlier secrets end at {now + period:%Y-%m-%d %H:%M:%S} UTC"
        if period
        else "Earlier secrets are invalid"
    )
    say(f"Rotated API key {name} in {file.path}. {ends}. The new secret is not shown again:", err=True)
    say(secret)


def _checked_key(name: str, now: datetime, rights: Mapping[str, Any], loaded: Any) -> tuple[Any, str]:
    """Return a new key and its secret. Raises `ConfigError` with all wrong options."""
    from agentic_trading.governance.policy import Policy
    from agentic_trading.platform.errors import ConfigError, ConfigProblem
    from agentic_trading.platform.signing_keys import signing_keys_of
    from agentic_trading.server.api_keys import new_api_key, principal_problem, signing_problem

    key, secret = new_api_key(name, now, rights, option_of=_option)
    problems = []
    if key.tenant not in loaded.tenant_ids:
        allowed = f"{', '.join(loaded.tenant_ids)}, from the configuration"
        problems.append(ConfigProblem("--tenant", "", repr(key.tenant), allowed))
    policy = Policy.load(loaded.policy) if loaded.policy is not None else None
    if (problem := principal_problem(key, policy)) is not None:
        problems.append(ConfigProblem("--principal", "", *problem))
    else:
        folder = loaded.principals_folder
        signers = None if folder is None else signing_keys_of(folder, policy)
        if (problem := signing_problem(key, loaded.sign_as, signers)) is not None:
            problems.append(ConfigProblem("--principal", "", *problem))
    if problems:
        raise ConfigError(problems)
    return key, secret


def _option(field: str) -> str:
    names = {"name": "NAME", "models": "--model"}
    return names.get(field, f"--{field.replace('_', '-')}")


def _targets(options: Sequence[str]) -> dict[str, str]:
    """Return the models by alias. Raises `OptionError` for a wrong or repeated one."""
    from agentic_trading.platform.errors import OptionError

    targets: dict[str, str] = {}
    for option in options:
        alias, equals, target = option.partition("=")
        if not equals or alias in targets:
            was = f"{option!r:.200}" + (", whose alias is used twice" if equals else "")
            raise OptionError(
                "--model", was, "ALIAS=PROVIDER/MODEL, such as fast=openai/gpt-5-mini, each alias once"
            )
        targets[alias] = target
    return targets


def _end(text: str, now: datetime) -> datetime:
    """Return the time at which a key expires. Raises `OptionError` if it is not in the future."""
    from agentic_trading.clock import parse_duration, parse_moment
    from agentic_trading.platform.errors import OptionError

    allowed = "a time in the future: 2027-01-31, 2027-01-31T10:00Z, or a duration such as 12h or 90d"
    try:
        end = now + parse_duration(text)
    except OverflowError:
        raise OptionError("--expires", repr(text), allowed) from None
    except ValueError:
        try:
            end = parse_moment(text, now)
        except ValueError:
            raise OptionError("--expires", f"{text!r:.100}", allowed) from None
    if end <= now:
        raise OptionError("--expires", repr(text), allowed)
    return end


def _grace(text: str) -> timedelta:
    from agentic_trading.clock import parse_duration
    from agentic_trading.platform.errors import OptionError

    try:
        period = parse_duration(text)
    except ValueError:
        period = timedelta.max
    if period > timedelta(days=MOST_GRACE_DAYS):
        raise OptionError(
            "--grace", f"{text!r:.100}", f"a duration from 0s to {MOST_GRACE_DAYS}d, such as 1h"
        )
    return period


def _json_row(key: Any, now: datetime) -> dict[str, Any]:
    row = key.model_dump(mode="json", exclude={"sha256", "rotated"})
    until = key.earlier_until(now)
    earlier = None if until is None else until.isoformat().replace("+00:00", "Z")
    return {**row, "earlier_secrets_until": earlier, "state": key.state(now)}


def _state_text(key: Any, now: datetime) -> str:
    state = key.state(now)
    if state == "revoked":
        return f"revoked {key.revoked:%Y-%m-%d %H:%M}"
    texts = [state]
    if key.expires is not None:
        texts.append(f"{'since' if state == 'expired' else 'until'} {key.expires:%Y-%m-%d %H:%M}")
    if state == "valid" and (until := key.earlier_until(now)) is not None:
        texts.append(f"earlier secret until {until:%Y-%m-%d %H:%M}")
    return ", ".join(texts)


def _ceilings_text(key: Any) -> str:
    texts = [f"{key.max_output_tokens} output tokens"]
    texts += [] if key.usd_per_call is None else [f"{key.usd_per_call} USD a call"]
    texts += [] if key.usd_per_trace is None else [f"{key.usd_per_trace} USD a trace"]
    texts += [] if key.calls_per_trace is None else [f"{key.calls_per_trace} calls a trace"]
    return ", ".join(texts)
