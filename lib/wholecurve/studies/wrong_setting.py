"""What is wrong with the settings of an engine or a server, in one line."""

from pydantic import BaseModel, ValidationError


def wrong_setting(error: ValidationError, options: type[BaseModel], owner: str) -> str:
    """The first thing that is wrong: the setting, what it is, what would be right. owner: "engine vllm"."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown setting {name!r} of {owner}; there is: {', '.join(options.model_fields)}"
    return f"setting {name!r} of {owner} is {first['input']!r}: {first['msg'].lower()}"
