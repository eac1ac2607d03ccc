"""From a parallel corpus to a machine-translation model in use."""

__version__ = "0.1.0"
