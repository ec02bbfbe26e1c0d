"""What a command does first: read the settings, set up the program's own log."""

from agentic_trading.app.settings import Settings, load_settings
from agentic_trading.app.telemetry import configure_logging


def start() -> Settings:
    """Return the settings, and have the log look as they say; raises `SettingsError` for a wrong variable."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    return settings
