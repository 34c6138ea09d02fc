"""What a scripted server is started with."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wholecurve.errors import UserError
from wholecurve.files import read_json
from wholecurve.studies.serving.proof.script import Script


class Setup(BaseModel):
    """A request picks its script by ``script`` in its body: a name of ``named``, or a whole script.

    One without takes the next of ``in_order`` while there are any, and ``default`` after them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: Script = Script()
    named: dict[str, Script] = {}
    in_order: tuple[Script, ...] = ()
    model: str = "scripted"
    max_model_len: Annotated[int, Field(ge=1)] = 1_000_000
    api_key: str | None = Field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0


def read_setup(path: Path | None, host: str, port: int) -> Setup:
    """A set-up from a JSON file (None: all defaults), listening where it is told.

    UserError names the file and the first field that is wrong; host and port are no fields of a file.
    """
    document = read_json(path) if path is not None else {}
    for name in ("host", "port"):
        if name in document:
            raise UserError(f"{path}: {name}: is given on the command line (--{name})")
    try:
        return Setup(**document, host=host, port=port)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
