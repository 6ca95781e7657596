"""Thin layers over torch's own parts: devices, precision, optimisers, and (later) processes."""
