"""The page of the errors, `docs/reference/errors.md`; `python -m benchmarks.errors_page` writes it, and a test compares it."""

import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import agentic_trading
from agentic_trading.errors import TradingError
from benchmarks.api_page import PUBLIC, ROOT

PAGE: Final = ROOT / "docs" / "reference" / "errors.md"

HEAD: Final = """# Errors

Every error that the package raises on purpose derives from `TradingError`. A failed call is not an exception: it is a `NoDecision`, or an answer that is not `actionable`, with a `FailureKind` in `failure.category`.
`answer.result.raise_for_failure()` turns it into an exception. This page is generated: `python -m benchmarks.errors_page`.

```python
import agentic_trading as at

try:
    at.load_config("missing.toml")
except at.ConfigError as e:
    for problem in e.problems:
        print(problem.origin, problem.found)
```

On the command line, an error is one line on standard error, `Error: …`, and an [exit code](cli.md#exit-codes).
"""

NOTES: Final[Mapping[str, tuple[str, str]]] = {
    "TradingError": ("never itself", "catch it to catch every error of the package"),
    "MissingExtraError": (
        "a feature needs a package of an extra that is not installed",
        "install the extra in the message, such as `agentic-trading[desk]`",
    ),
    "AgentFailedError": (
        "a handler of an agent raised an error in a backtest. It is on record as `agent.failed`",
        "correct the agent at `place`",
    ),
    "DeskError": (
        "an agent used its desk in an invalid way",
        "correct the agent. The message has the allowed use",
    ),
    "OrderRefusedError": (
        "an exchange refuses an order or a bar. Its state is unchanged",
        "correct `rule`. The session records it as `order.denied` and continues",
    ),
    "MarketError": ("never itself", "catch it for errors in market data"),
    "BarFormatError": ("a text is not a bar", "correct the row at `line` of the source"),
    "BarSequenceError": (
        "a bar is earlier than the bar before it, or repeats it with other values",
        "correct the order of the source at `line`",
    ),
    "ConfigError": ("a configuration is invalid", "correct each of its `problems`"),
    "LLMError": ("never itself", "catch it for calls, ledger, policy and log"),
    "LLMCallError": (
        "`raise_for_failure()` of a failed call. See `LLMBudgetExhaustedError` and `LLMResponseValidationError` for two of the reasons",
        "read `reason`. Make no decision from this call",
    ),
    "LLMBudgetExhaustedError": (
        "`raise_for_failure()`: a budget has less left than the call may cost",
        "raise the limit, or wait for the next window",
    ),
    "LLMResponseValidationError": (
        "`raise_for_failure()`: the answer cannot be read, or must not be acted on",
        "read the violations. Simplify the schema or the question",
    ),
    "EnvelopeValidationError": ("an envelope breaks rules", "correct the fields in the message"),
    "LookAheadError": (
        "evidence or context was not available at `as_of`",
        "remove it, or correct its `available_at`",
    ),
    "ProviderError": (
        "an attempt failed at the provider. Adapters raise it",
        "in an adapter: set `kind` and `sent`, which decide about retry and charge",
    ),
    "UnknownModelError": (
        "a table has no row for a model",
        "add the row ([use your own model](../how-to/use-your-own-model.md))",
    ),
    "LedgerError": (
        "the ledger was used in an invalid way, or has failed",
        "for `LedgerUnavailableError`: [restore the server](../operate/ledger-unavailable.md)",
    ),
    "StoreError": ("a log cannot be read or written", "check the path, its rights and the disk"),
    "StoreLockedError": ("another process writes to the log", "end it, or use another folder"),
    "RecordError": ("a record cannot be kept. The log accepts others", "correct the record"),
    "RecordConflictError": (
        "another record has the same id",
        "use a new id for each record. The first one is unchanged",
    ),
    "BusError": (
        "a message cannot be sent, received or read",
        "for `BusUnavailableError`: check the servers, then retry",
    ),
    "AnswerNotKeptError": (
        "the answer of an earlier call is lost, and a new call could be paid twice",
        "resume with the log that has the answer (`--answers-from`)",
    ),
    "ResumeError": ("a trace cannot be resumed as requested", "use a value from the message"),
    "UnknownRecordError": ("a log has no record with this id", "check the id, the log and the tenant"),
    "QueryError": ("a query for records is wrong", "use an allowed filter and time"),
    "FrameLibraryError": ("the library of a data frame is not installed", "run the command in the message"),
    "AmbiguousIdError": ("several ids start with the same prefix", "use more characters of the id"),
    "NetworkBlockedError": (
        "code uses the network during a replay",
        "remove the network access from the code",
    ),
    "ParserException": ("`read_json` cannot read a text", "read `stage` and `errors`"),
    "PlanningError": ("never itself", "catch it for strategies, their parameters and their code"),
    "GenerationFailedError": ("no answer was a valid set of parameters", "ask again, or use another model"),
    "FamilyError": ("a strategy family of a package cannot be used", "change its class as in the message"),
    "NotOfferedError": (
        "the data cannot serve any of the requested families",
        "choose another family or other data. `withheld` has the reasons",
    ),
    "TemplateError": ("a template cannot be rendered", "correct the template or its parameters"),
    "UnknownFamilyError": ("the name of a strategy family is unknown", "use a name from the message"),
}
"""Per public class: when it is raised, and what to do."""


def classes() -> Sequence[type[TradingError]]:
    """Return every error of the package except private ones, sorted by name."""
    for module in pkgutil.walk_packages(agentic_trading.__path__, "agentic_trading."):
        importlib.import_module(module.name)
    found, stack = {TradingError}, [TradingError]
    while stack:
        for below in stack.pop().__subclasses__():
            if below not in found and below.__module__.startswith("agentic_trading."):
                found.add(below)
                stack.append(below)
    return sorted((one for one in found if one.__name__[0] != "_"), key=lambda one: one.__name__)


def homes() -> Mapping[type, str]:
    """Return the public module that each public error is imported from: the first one on the page of the API."""
    found: dict[type, str] = {}
    for name in PUBLIC:
        module = importlib.import_module(name)
        for public in module.__all__:
            thing = getattr(module, public)
            if inspect.isclass(thing) and issubclass(thing, TradingError):
                found.setdefault(thing, name)
    return found


def tree() -> str:
    """Return the classes as a drawn tree, public ones with a star."""
    below: dict[type, list[type]] = defaultdict(list)
    public = homes()
    for one in classes():
        if one is not TradingError:
            below[next(base for base in one.__mro__[1:] if issubclass(base, TradingError))].append(one)

    def lines(one: type, before: str) -> list[str]:
        drawn = []
        for number, child in enumerate(below[one], start=1):
            is_last = number == len(below[one])
            others = [base.__name__ for base in child.__bases__ if not issubclass(base, TradingError)]
            note = f" ({', '.join(others)})" if others else ""
            star = " *" if child in public else ""
            drawn.append(f"{before}{'└── ' if is_last else '├── '}{child.__name__}{note}{star}")
            drawn += lines(child, before + ("    " if is_last else "│   "))
        return drawn

    return "\n".join(["TradingError *", *lines(TradingError, "")])


def errors_page() -> str:
    """Return the page: the tree of all classes, and the notes about the public ones by module."""
    public = homes()
    sections = ""
    for module in PUBLIC:
        names = [one.__name__ for one in classes() if public.get(one) == module]
        if not names:
            continue
        rows = "".join(f"| `{name}` | {NOTES[name][0]} | {NOTES[name][1]} |\n" for name in names)
        sections += f"\n### {module}\n\n| error | raised when | remedy |\n|---|---|---|\n{rows}"
    return (
        f"{HEAD}\n## Tree\n\n`*` marks public classes: you can import them, and they stay. Catch other classes by their public base. "
        "Built-in bases are in brackets.\n\n"
        f"```text\n{tree()}\n```\n\n## Public errors\n\nA class is listed under the first public module that has it.\n{sections}"
    )


if __name__ == "__main__":
    PAGE.write_text(errors_page(), encoding="utf-8")
