"""The commands of the command line, one module each; a module ending in _text says how its result is shown."""
