"""Wireloom: five lightweight messaging protocols, one API."""
