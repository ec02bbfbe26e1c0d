"""The program configures its log for the whole process; a test that runs it gives back what was there before."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def logging_kept() -> Iterator[None]:
    """Leave logging as it is now, whatever the block configures."""
    before, handlers = structlog.get_config(), logging.getLogger().handlers
    try:
        yield
    finally:
        structlog.configure(**before)
        logging.getLogger().handlers = handlers
