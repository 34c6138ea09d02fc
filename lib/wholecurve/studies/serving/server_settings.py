"""What a plan may say of a server, checked against the servers and profiles that there are."""

from typing import Any


def require_server(where: str, name: str) -> None:
    """ValueError where there is no server of that name."""
    from wholecurve.studies.serving.servers import SERVERS

    if name not in SERVERS:
        raise ValueError(f"{where}: there is no server {name!r}; there is: {', '.join(SERVERS)}")


def check_profile(where: str, name: str) -> None:
    """ValueError where there is no profile of that name."""
    from wholecurve.studies.serving.client.profiles import PROFILES

    if name not in PROFILES:
        raise ValueError(f"{where}: there is no profile {name!r}; there is: {', '.join(PROFILES)}")


def check_settings(where: str, server: str, settings: dict[str, Any]) -> None:
    """ValueError where the server has no such setting, or not with such a value."""
    from wholecurve.studies.serving.servers import parse_server_options

    try:
        parse_server_options(server, settings)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
