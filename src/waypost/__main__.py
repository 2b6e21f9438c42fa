"""`python -m waypost` is `waypost`."""

from waypost.cli import main

if __name__ == "__main__":
    main()
