"""Formats of message bodies: values to bytes and back, counting values, conversion between formats."""
