"""A document of orders as it is stored: JSON that people can read."""

from pydantic import TypeAdapter, ValidationError

from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.errors import ControlsUnreadableError

_DOCUMENT = TypeAdapter(TenantControls)


def stored(controls: TenantControls) -> bytes:
    """Return a document's JSON; amounts are whole nano-dollars, tokens and calls."""
    return _DOCUMENT.dump_json(controls, indent=2, exclude_none=True) + b"\n"


def read_stored(raw: bytes, where: str) -> TenantControls:
    """Read what `stored` made; raises `ControlsUnreadableError`, which names `where`, for anything else."""
    try:
        controls = TenantControls.model_validate_json(raw)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "document"
        raise ControlsUnreadableError(where, f"{place}: {first['msg']}") from e
    if controls.version == 0:
        raise ControlsUnreadableError(where, "version: is not there or 0; what was written is 1 and more")
    return controls
