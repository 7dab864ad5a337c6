"""What is installed here: distributions, modules, and why an import fails."""
