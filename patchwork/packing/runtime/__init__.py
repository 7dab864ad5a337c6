"""What happens in a packed call: its documents are read, carried to each mixer, and kept apart."""
