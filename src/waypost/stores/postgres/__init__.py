"""PostgreSQL: many brokers, one database. DESIGN.md has the picture."""

from .store import PostgresStore

__all__ = ["PostgresStore"]
