"""wholecurve: the whole performance curve of an inference engine, and what every multiplier on it is worth."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("wholecurve")
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"
