"""ticker: events, requests and pings, each a line that a person can read and a body of any bytes."""

from wireloom_ticker.protocol import TICKER, TickerSettings

__all__ = ["TICKER", "TickerSettings"]
