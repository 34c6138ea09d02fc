"""Ports for servers that are started: free when they are given, and free again when the server has ended."""

import random
import socket
import threading
from pathlib import Path

from wholecurve.errors import UserError

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 20000, 32767  # below what Linux gives to outgoing connections, unless it is told otherwise
_given: set[int] = set()
_lock = threading.Lock()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        # connections that ended a moment ago are no obstacle to a server
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError:
            return False
    return True


def _candidates() -> range:
    """Ports that no outgoing connection takes: some servers need a minute before they listen on theirs."""
    try:
        first_outgoing = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first_outgoing = _HIGHEST + 1
    return range(_LOWEST, max(min(first_outgoing, _HIGHEST + 1), _LOWEST + 1000))


def take_port(host: str = "127.0.0.1") -> int:
    """A free port that no other caller in this process has; give it back with `give_back`."""
    candidates = list(_candidates())
    random.SystemRandom().shuffle(candidates)
    with _lock:
        for port in candidates:
            if port not in _given and is_free(port, host):
                _given.add(port)
                return port
    raise UserError(f"no free port on {host} between {min(candidates)} and {max(candidates)}")


def give_back(port: int) -> None:
    """The port may be taken again."""
    with _lock:
        _given.discard(port)
