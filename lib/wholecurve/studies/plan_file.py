"""A plan file: YAML that holds a mapping, and the one line that says what is wrong with it."""

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from wholecurve.errors import UserError
from wholecurve.runs.provenance import hardware

Checked = TypeVar("Checked", bound=BaseModel)


def native_dtype(cpu_features: list[str]) -> str:
    """ "bfloat16" where the CPU multiplies it natively, else "float32": emulated bfloat16 is slower than float32."""
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(cpu_features) else "float32"


def read_document(path: Path) -> dict:
    """The mapping in a YAML file, `dtype: auto` replaced by what this CPU multiplies natively; else UserError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such plan file") from None
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a YAML file ({reason})") from None
    if isinstance(document, dict) and document.get("dtype") == "auto":
        document["dtype"] = native_dtype(hardware()["cpu_features"])
    if not isinstance(document, dict):
        raise UserError(f"{path}: a plan is a mapping of fields, this file holds {type(document).__name__}")
    return document


def validated(model: type[Checked], document: dict, where: object) -> Checked:
    """The document as a plan; UserError says `where`, the first field that is wrong, and what is wrong with it."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise UserError(f"{where}: {first_error(error)}") from None


_IN_WORDS = {
    "extra_forbidden": "unknown field",
    "list_type": "a list is needed",
    "dict_type": "a mapping of fields is needed",
    "model_type": "a mapping of fields is needed",
    "model_attributes_type": "a mapping of fields is needed",
}


def first_error(error: ValidationError) -> str:
    """The first error of a validation as `field: message`, and how many more there are."""
    # A field that is written wrongly is unknown and missing at once: the first of the two says what to do.
    errors = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"])
    message = _IN_WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    if first["type"].startswith("union_tag"):
        known = str(first["ctx"].get("expected_tags", "")).replace("'", "")
        message = f"its kind is needed{'; there is: ' + known if known else ''}"
    if (
        first["type"] not in ("missing", "extra_forbidden", "union_tag_not_found")
        and where
        and not isinstance(first["input"], dict)
    ):
        message += f" (it is {first['input']!r})"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where + ': ' if where else ''}{message}{more}"
