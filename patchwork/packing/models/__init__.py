"""What models are made of: families, mixers, kernels, attention, adapters; known by name or by structure."""
