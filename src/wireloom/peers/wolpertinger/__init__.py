"""Components of wolpertinger: classes whose typed methods peers can call, and typed calls."""
