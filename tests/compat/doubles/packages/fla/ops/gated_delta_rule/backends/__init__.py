"""What else may take the call of the kernel."""
