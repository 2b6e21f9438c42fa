"""What a reader of the source is told."""


class SourceError(Exception):
    """The read cannot be done; the text says why, and what to do."""


class Unreachable(SourceError):
    """The broker did not answer, also not after a while."""
