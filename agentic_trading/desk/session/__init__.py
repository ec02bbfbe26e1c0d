"""Trading sessions: options, feeds, run, resume, replay and report."""
