"""Waypost: a durable message broker that starts with one command and speaks plain HTTP."""

from waypost.version import __version__

__all__ = ["__version__"]
