"""How long a provider is asked to keep the stable part of a request."""

from typing import Literal

PrefixTtl = Literal["", "5m", "1h"]
"""Five minutes or an hour; empty asks for no caching."""
