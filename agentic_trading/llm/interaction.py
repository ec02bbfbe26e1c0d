"""An interaction: an envelope and the result of one attempt, as a record."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import orjson
from pydantic import Field

from agentic_trading.canonical import exact_value, utc_text
from agentic_trading.clock import SystemClock
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import DEFAULT_TENANT, LLMEnvelope
from agentic_trading.llm.errors import FailureReason
from agentic_trading.llm.fields import ON_RECORD, Moment, RevalidatedModel, lazy_property
from agentic_trading.llm.result import LLMResult, exact_object, has_number_to_lose

_system_clock = SystemClock()


def interaction_id(envelope_id: str, attempt_number: int, tenant_id: str = DEFAULT_TENANT) -> str:
    """Return the id of an attempt's interaction. It is the same for each recording."""
    # Tenants may use the same envelope ids. The default tenant is left out, so that its ids are still those
    # of releases without tenants.
    tenant = () if tenant_id == DEFAULT_TENANT else (tenant_id,)
    return derived_id("interaction", *tenant, envelope_id, attempt_number)


def reservation_id(tenant: str, key: str, attempt: int) -> str:
    """Return the reservation id of an attempt. Two tenants may use the same key."""
    # Escaped, because tenant `a:b` with key `c` would otherwise get the id of tenant `a` with key `b:c`.
    if "%" in tenant or ":" in tenant:
        tenant = tenant.replace("%", "%25").replace(":", "%3A")
    return f"{tenant}:{key}:{attempt}"


def _own_id(fields: dict[str, Any]) -> str:
    envelope: LLMEnvelope = fields["envelope"]
    return interaction_id(envelope.envelope_id, fields["result"].attempt_number, envelope.tenant_id)


class LLMInteraction(RevalidatedModel, frozen=True, extra="allow"):
    """An envelope and the result of one attempt.

    Every attempt has its own interaction.

    Attributes:
        interaction_id: Derived from tenant, envelope id and attempt number.
        stored_at: When the interaction was made.

    """

    follows: ClassVar[Mapping[str, frozenset[str]]] = {"interaction_id": frozenset({"envelope", "result"})}

    envelope: LLMEnvelope
    result: LLMResult
    interaction_id: str = Field(default_factory=_own_id)
    stored_at: Moment = Field(default_factory=_system_clock.now)

    @property
    def actionable(self) -> bool:
        """Whether you may act on the answer."""
        return self.result.actionable

    @property
    def failure(self) -> FailureReason | None:
        """The reason why there is no answer, or None."""
        return self.result.failure

    @property
    def trace_id(self) -> str:
        """The id of the decision chain."""
        return self.envelope.trace_id

    @lazy_property
    def wire(self) -> bytes:
        """The interaction as JSON for the bus and the log.

        The envelope's bytes are inserted unchanged.
        """
        extra = b""
        if self.model_extra:
            extra = orjson.dumps(self.model_extra)[1:-1] + b","
        return b'{"interaction_id":%b,"envelope":%b,"result":%b,%b"stored_at":"%b"}' % (
            orjson.dumps(self.interaction_id),
            self.envelope.wire,
            self.result.wire,
            extra,
            utc_text(self.stored_at).encode(),
        )

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read an interaction. Numbers in `parsed_output` stay exact.

        The envelope keeps its bytes if its checksum matches.

        Raises:
            ValueError: If the bytes are not an interaction. pydantic's `ValidationError` is one.

        """
        try:
            return cls._in_parts(raw)
        except (ValueError, TypeError, AttributeError):
            pass  # the whole is read below, because the bytes may be valid in another spelling than ours
        fields = orjson.loads(raw)
        result = fields.get("result") if isinstance(fields, dict) else None
        if isinstance(result, dict) and has_number_to_lose(result.get("parsed_output")):
            result["parsed_output"] = exact_object(exact_value(raw)["result"]["parsed_output"])
        return cls.model_validate(fields, context=ON_RECORD)

    @classmethod
    def _in_parts(cls, raw: bytes) -> Self:
        """Read the envelope and the rest apart. Raise if `wire` would write other bytes."""
        begin, end = raw.index(b"{", 1), raw.index(b"}", raw.index(b',"envelope_hash":"')) + 1
        rest = raw[:begin].removesuffix(b',"envelope":') + raw[end:]
        envelope, fields = LLMEnvelope.from_wire(raw[begin:end], context=ON_RECORD), orjson.loads(rest)
        if [*fields] != ["interaction_id", "result", "stored_at"] or not envelope.is_intact:
            raise ValueError("other members, or an envelope whose checksum does not match")
        if has_number_to_lose(fields["result"].get("parsed_output")):
            start, stop = rest.rindex(_OUTPUT) + len(_OUTPUT), rest.rindex(b'},"stored_at":"')
            fields["result"]["parsed_output"] = exact_object(exact_value(rest[start:stop]))
        return cls.model_validate({**fields, "envelope": envelope}, context=ON_RECORD)


_OUTPUT: Final = b',"parsed_output":'
