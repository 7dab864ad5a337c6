"""Patches against releases that are not installed: which there are, where their sources lie, and whether each patch fits."""
