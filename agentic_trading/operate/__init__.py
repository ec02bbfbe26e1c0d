"""Where everything is put together: settings, wiring, telemetry, the command line."""
