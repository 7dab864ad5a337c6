"""In which colour is a state shown?"""

COLOURS = {"pending": "green", "applied": "green", "native": "cyan", "failed": "bold red", "skipped": "yellow", "absent": "dim"}
