#: The one place that says which Waypost this is; the package's metadata is made from it.
__version__ = "0.1.0"
