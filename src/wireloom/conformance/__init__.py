"""Runs the conformance cases of a protocol against any peer. Each protocol defines its own cases."""
