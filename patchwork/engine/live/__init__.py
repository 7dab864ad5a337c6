"""Functions of this process: found, checked, given new code and their own back."""
