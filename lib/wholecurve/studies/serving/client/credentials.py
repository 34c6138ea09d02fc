"""Keys of servers. They come from the environment, and go into one header and nowhere else."""

import os

from wholecurve.errors import UserError


def api_key_from(env_name: str) -> str:
    """The key in an environment variable; UserError where it is not set, empty, or cannot be sent in a header."""
    key = os.environ.get(env_name, "").strip()
    if not key:
        raise UserError(f"environment variable {env_name}: not set; it must hold the server's API key")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"environment variable {env_name}: not a key that a header can carry (printable ASCII only)")
    return key
