"""Measures leaks: tiny models of any architecture, and documents packed against documents alone."""
