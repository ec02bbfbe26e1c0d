"""Agents of the user: found by their import path, and named again for a replay."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pydantic import ValidationError

from agentic_trading.canonical import canonical_bytes, exact_bytes
from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.agents.analyst import CmtAgent
from agentic_trading.desk.agents.planner import PlannerAgent
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.samples import PANELS
from agentic_trading.desk.planning.params import PlanTerms
from agentic_trading.files import NoTomlError, UnreadableFileError, read_toml
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.operate.session_folder import AgentOnRecord, RunManifest
from agentic_trading.platform.adapters import imported_module
from agentic_trading.platform.errors import OptionError

SHIPPED: Final = ("cmt", "planner")
"""The names of the shipped agents: the analyst of markets, and the planner of many stocks."""

_ALLOWED: Final = (
    f"{', '.join(SHIPPED)}, or MODULE:CLASS with a class of `agentic_trading.desk.Agent`, in an installed "
    "package or a file of the working directory"
)


@dataclass(frozen=True, slots=True)
class OwnAgent:
    """An agent of the user.

    Attributes:
        path: Its import path, such as `breakout:Breakout`.
        agent_class: Its class.
        config: Its configuration. None if no file was given, so that a resumed run keeps its own.
        source_sha256: The hash of the source of its module. Empty if the module has no file.

    """

    path: str
    agent_class: type[Agent]
    config: Mapping[str, Any] | None
    source_sha256: str

    def create(self) -> Agent:
        """Return a new agent for one session.

        Raises:
            OptionError: If the class refuses the configuration, or has a wrong timeframe.

        """
        try:
            agent = self.agent_class(**(self.config or {}))
        except Exception as e:  # the class is the user's, and may raise anything
            was = f"not accepted by {self.path}: {type(e).__name__}: {e}"
            raise OptionError("--agent-config", was, "settings that the class accepts") from e
        wanted = [each for each in (agent.timeframe, *agent.timeframes) if each]
        if unknown := [each for each in wanted if each not in list(Timeframe)]:
            allowed = ", ".join(Timeframe)
            raise OptionError("--agent", f"{self.path} with the timeframe {unknown[0]!r}", allowed)
        return agent

    def offline_rule(self) -> Callable[[LLMEnvelope], str]:
        """Return its answers with `--provider rules`."""
        # Another instance, so that an answer cannot depend on the state of the agent, and so on the order of answers.
        agent = self.create()

        def answer(envelope: LLMEnvelope) -> str:
            given = agent.offline(envelope)
            return given if isinstance(given, str) else exact_bytes(given).decode()

        return answer

    @property
    def workflows(self) -> tuple[EnvelopeWorkflow, ...]:
        """The workflows whose models it asks."""
        execution = (EnvelopeWorkflow.EXECUTION,) if self.agent_class.fills == "model" else ()
        return tuple(dict.fromkeys((*self.agent_class.workflows, *execution)))

    @property
    def on_record(self) -> AgentOnRecord:
        """The agent as a manifest keeps it."""
        return AgentOnRecord(path=self.path, config=self.config or {}, source_sha256=self.source_sha256)

    @property
    def id_parts(self) -> tuple[str, str]:
        """The parts of a session id: path and configuration."""
        return self.path, canonical_bytes(self.config or {}).decode()


GivenConfig = Path | Mapping[str, Any] | None
"""The configuration of an agent: a TOML file, or its values."""


def load_agent(path: str, config: GivenConfig = None) -> OwnAgent:
    """Import the class of an agent. The working directory is searched too. Runs the code of its module.

    Raises:
        OptionError: If there is no such class, or it refuses the configuration.

    """
    module_name, colon, class_name = path.partition(":")
    if not (module_name and colon and class_name):
        raise OptionError("--agent", repr(path), _ALLOWED)
    try:
        module = imported_module(module_name)
    except Exception as e:  # so is its module
        raise OptionError(
            "--agent", f"{path!r}, whose module raised {type(e).__name__}: {e}", _ALLOWED
        ) from e
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Agent)):
        was = "missing in its module" if found is None else "not a subclass of Agent"
        raise OptionError("--agent", f"{path!r}, which is {was}", _ALLOWED)
    return own_agent(path, found, config, module)


def own_agent(path: str, agent_class: type[Agent], config: GivenConfig, module: ModuleType) -> OwnAgent:
    """Return the agent of a class in an imported module. `path` is the import path for a replay.

    Raises:
        OptionError: If the class refuses the configuration.

    """
    file = getattr(module, "__file__", None)
    source = Path(file).read_bytes() if file else b""
    own = OwnAgent(path, agent_class, _config_in(config), sha256(source).hexdigest() if source else "")
    own.create()
    return own


def named_agent(path: str, config: GivenConfig, data: tuple[str, ...]) -> OwnAgent | None:
    """Return the agent of `--agent`, or None for the shipped agent of the data.

    Raises:
        OptionError: If a shipped agent cannot trade the data, or `load_agent` raises.

    """
    if path and path not in SHIPPED:
        return load_agent(path, config)
    if config is not None:
        raise OptionError("--agent-config", config, "a file together with --agent MODULE:CLASS")
    fitting = SHIPPED[bool(data) and data[0] in PANELS]
    if path and path != fitting:
        raise OptionError("--agent", f"{path}, and the data is {','.join(data)}", f"{fitting} for this data")
    return None


def shipped_agent(data: str, plan: PlanTerms | None = None) -> PlannerAgent | CmtAgent:
    """Return the shipped agent for data: the planner for a sample of many stocks, else the analyst."""
    return PlannerAgent(plan=plan or PlanTerms()) if data in PANELS else CmtAgent()


def agent_of_run(own: OwnAgent | None, manifest: RunManifest, option: str = "--agent") -> OwnAgent | None:
    """Return the agent that made a run, with the configuration of the run.

    A manifest never chooses code: an agent of the user must be named again.

    Raises:
        OptionError: If another agent, or another configuration, is given than that of the run.

    """
    recorded = manifest.agent
    path, before = own.path if own else "", recorded.path if recorded else ""
    if path != before:
        run = f"run {manifest.run_number} was made by it"
        allowed = (
            f"{option} {before}, because {run}" if before else f"no {option}, because a shipped agent made it"
        )
        raise OptionError(option, repr(path) if path else "left out", allowed)
    if own is None or recorded is None:
        return None
    if own.config is not None and canonical_bytes(own.config) != canonical_bytes(recorded.config):
        allowed = f"{dict(recorded.config)}, because run {manifest.run_number} was started with it"
        raise OptionError("--agent-config", repr(dict(own.config)), allowed)
    return replace(own, config=dict(recorded.config))


def source_changes(own: OwnAgent | None, manifest: RunManifest) -> tuple[str, ...]:
    """Return a warning if the source of an agent has changed since its run."""
    if own is None or manifest.agent is None or own.source_sha256 == manifest.agent.source_sha256:
        return ()
    now, before = own.source_sha256[:12], manifest.agent.source_sha256[:12]
    run = f"run {manifest.run_number} (sha256 {now}, was {before})"
    return (f"the source of {own.path} is not that of {run}. Decisions may differ",)


def _config_in(given: GivenConfig) -> Mapping[str, Any] | None:
    if given is None:
        return None
    try:
        config = read_toml(given) if isinstance(given, Path) else given
        # A date is refused, because a manifest would give it back as text.
        return dict(AgentOnRecord(path="", config=config, source_sha256="").config)
    except (OSError, UnreadableFileError, NoTomlError, ValidationError) as e:
        allowed = "a TOML file of texts, numbers, truth values, lists and tables"
        raise OptionError("--agent-config", f"{given} ({e})", allowed) from e
