"""One meter: sends acknowledged readings to the hub, and goes on when the hub comes back after a crash.

Run as `python -m examples.demo.meter URL NUMBER COUNT`; prints how many readings were acknowledged so far.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import wireloom

WINDOW = 256
TOPICS = {number: f"energy/meters/{number}" for number in (1, 2, 3, 4)}
"""In hsp 16-bit numbers stand for topics; hub and meters know these from their configuration."""


async def send_readings(url: str, meter: int, count: int) -> None:
    """Every reading is acknowledged, after it is safe on the hub's disk, before the next window is sent."""
    topic = TOPICS[meter]
    told = time.monotonic()
    again = wireloom.Backoff(from_start=True)
    async with wireloom.connect(url, topics=TOPICS, resend=True, reconnect=again) as hub:
        for first in range(0, count, WINDOW):
            window = range(first, min(first + WINDOW, count))
            await asyncio.gather(
                *(hub.publish(topic, {"meter": meter, "n": n, "kwh": n / 1000}, ack=True, timeout=60) for n in window)
            )
            if time.monotonic() - told > 0.2:
                told = time.monotonic()
                print(window.stop, flush=True)
    print(count, flush=True)


if __name__ == "__main__":
    # Real meters are machines of their own; here they must not take the processor from hub and Spark.
    os.nice(10)
    asyncio.run(send_readings(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
