"""The kernels that the real package writes in Triton."""
