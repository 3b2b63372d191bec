"""Runs the conformance cases of a protocol against any peer. The cases themselves live with each protocol."""
