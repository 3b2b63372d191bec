"""`make demo`: a small energy company, a hub, a crash, and the tables that come out."""
