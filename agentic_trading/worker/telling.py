"""An unexpected error in one line, for logs and records."""


def told(e: Exception) -> str:
    """Say what was raised and where; a formatted traceback would read files on the loop."""
    last = e.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" ({last.tb_frame.f_code.co_qualname}, line {last.tb_lineno})" if last else ""
    return f"{type(e).__name__}: {e}{where}"
