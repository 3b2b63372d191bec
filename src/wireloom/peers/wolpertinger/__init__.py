"""Components of wolpertinger: classes with typed methods that peers can call, and typed calls."""
