"""Strategy families of installed packages in a session: named for a run, and again to resume or replay it."""

from agentic_trading.desk.planning.errors import UnknownFamilyError
from agentic_trading.desk.planning.families import GROUP, load_family
from agentic_trading.desk.planning.params import FAMILIES, Family, families_in_use, family_terms
from agentic_trading.desk.session.options import plan_on_record
from agentic_trading.operate.choices import listed
from agentic_trading.operate.session_folder import RunManifest
from agentic_trading.platform.errors import OptionError


def named_family(name: str) -> Family:
    """Use the family of `--family` in this process, and return its name. Blocks, and imports its package.

    Raises:
        OptionError: If no installed package has the family. Also the other errors of `load_family`.

    """
    if not name:
        return name
    try:
        return load_family(name).family
    except UnknownFamilyError as e:
        allowed = f"{listed(e.allowed)}. For another one, install a package with an entry point in {GROUP}"
        raise OptionError("--family", repr(name), allowed) from e


def own_family(manifest: RunManifest) -> str:
    """Return the family of a run's plans, or an empty text for a shipped one or a run without plans."""
    plan = plan_on_record(manifest)
    return "" if plan is None or plan.family in FAMILIES else plan.family


def refuse_other_family(family: str, manifest: RunManifest) -> None:
    """Raise `OptionError` if `family` is not that of a run's plans.

    It may be empty for a shipped family only, because a manifest never chooses code.
    """
    plan, run = plan_on_record(manifest), f"run {manifest.run_number}"
    before = "" if plan is None else plan.family
    if family != before and (family or own_family(manifest)):
        allowed = (
            f"{before}, because {run} was made with it" if before else f"no family, because {run} has no plan"
        )
        raise OptionError("--family", repr(family) if family else "left out", allowed)
    if family not in {"", *families_in_use()}:
        raise OptionError("--family", repr(family), listed(families_in_use()))


def family_changes(manifest: RunManifest) -> tuple[str, ...]:
    """Return a warning if the source of an own family has changed since its run."""
    plan = plan_on_record(manifest)
    if plan is None or not own_family(manifest):
        return ()
    now, before = family_terms(plan.family).source_sha256, plan.source_sha256
    if now == before:
        return ()
    run = f"run {manifest.run_number} (sha256 {now[:12]}, was {before[:12]})"
    return (f"the source of the family {plan.family} is not that of {run}. Decisions may differ",)
