"""An unexpected error in one line, for logs and records."""

from pydantic import ValidationError


def describe_error(e: Exception) -> str:
    """Say what was raised and where; a formatted traceback would read files on the loop.

    Of a `ValidationError` only places and kinds are told: its own words repeat what was validated, which may be an
    answer.
    """
    last = e.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" ({last.tb_frame.f_code.co_qualname}, line {last.tb_lineno})" if last else ""
    return f"{type(e).__name__}: {_said(e)}{where}"


def _said(e: Exception) -> str:
    if not isinstance(e, ValidationError):
        return str(e)
    errors = e.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['type']}" for error in errors)
