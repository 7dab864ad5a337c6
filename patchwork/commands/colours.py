"""The colour in which each state is shown."""

COLOURS = {"pending": "green", "applied": "green", "native": "cyan", "failed": "bold red", "skipped": "yellow", "absent": "dim"}
