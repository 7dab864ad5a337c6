"""The framework: rewrite installed Python functions with structural anchors, all or nothing. Knows nothing of packing."""
