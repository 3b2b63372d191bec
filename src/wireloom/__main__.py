"""`python -m wireloom` is the command `wireloom`."""

from wireloom.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
