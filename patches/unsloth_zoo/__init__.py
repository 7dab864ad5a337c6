"""Patches of unsloth_zoo."""
