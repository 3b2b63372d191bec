"""Packet captures made by anybody, put together to the streams of our protocols. No Spark in here."""
