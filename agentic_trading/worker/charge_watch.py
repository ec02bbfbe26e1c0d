"""What follows from a charge: words without a price are reported once, a model that bills too much is halted."""

from dataclasses import dataclass, field

from agentic_trading.cancellation import run_shielded
from agentic_trading.clock import SystemClock
from agentic_trading.governance.admission_decisions import Admitted, Charge
from agentic_trading.governance.commands import AddHalt, apply_command, store_raised_halts
from agentic_trading.governance.controls_document import (
    ControlStore,
    Halt,
    HaltRegistry,
    HaltScope,
    TenantControls,
    event_of,
)
from agentic_trading.governance.prices import price_advice
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.limits import NANO
from agentic_trading.logger import get_logger
from agentic_trading.worker.error_boundary import log_and_continue
from agentic_trading.worker.recorder import Recorder

log = get_logger()

GATEWAY = "gateway"
"""The operator of a halt that no person gave."""


@dataclass(slots=True)
class ChargeWatch:
    """Looks at each charge of this process.

    A bill above its reservation shows that reservations of that model do not bound its bills. The model is halted for
    the tenant until an operator resumes it; calls in flight end as they are, so that their bills are known. Without
    `controls` the halt holds until the process ends.
    """

    halts: HaltRegistry
    controls: ControlStore | None
    recorder: Recorder
    _reported: set[tuple[str, str]] = field(default_factory=set)

    async def note(
        self, envelope: LLMEnvelope, admission: Admitted, charge: Charge, bill_problem: str = ""
    ) -> None:
        """Report and halt what follows from a charge, also if the caller is cancelled meanwhile."""
        model = f"{admission.capability.provider}/{admission.capability.model}"
        if charge.unpriced and self._is_new(model, charge.unpriced):
            log.warning(
                "charged_at_reservation",
                model=model,
                word=charge.unpriced,
                add=price_advice(model, charge.unpriced),
            )
        if bill_problem and self._is_new(model, bill_problem):
            log.warning("bill_not_read", model=model, reason=bill_problem)
        if charge.overbilled:
            await run_shielded(self._halt(envelope.tenant_id, model, admission, charge))

    def _is_new(self, model: str, text: str) -> bool:
        is_new = (model, text) not in self._reported
        self._reported.add((model, text))
        return is_new

    async def _halt(self, tenant: str, model: str, admission: Admitted, charge: Charge) -> None:
        billed, reserved = (charge.bill_nusd or 0) / NANO, admission.amount.nusd / NANO
        why = (
            f"the server billed {billed:.6f} USD for a call for which {reserved:.6f} were set aside; check the prices of "
            "the model, then resume it"
        )
        halt = Halt(
            scope=HaltScope.MODEL,
            id=model,
            by=GATEWAY,
            why=why,
            at=SystemClock().now(),
            spares_in_flight=True,
        )
        if not self.halts.raise_halt(tenant, halt):
            return
        log.error("model_halted", tenant=tenant, model=model, reason=why)
        with log_and_continue("halt_not_stored", tenant=tenant, model=model):
            if self.controls is not None:
                actions = await store_raised_halts(self.controls, self.halts, tenant)
            else:
                command = AddHalt(halt.scope, halt.id, halt.spares_in_flight)
                halted = apply_command(TenantControls(), command, by=halt.by, why=halt.why, at=halt.at)
                actions = list(halted.actions)
            for action in actions:
                await self.recorder.keep_event(event_of(tenant, action))
