"""The file in which whoever signs keeps its account: `accessKey` and `secretKey`, as in RocketMQ's `tools.yml`.

Secrets come from files, never from arguments or settings: those are logged, shown to other users of the machine, and
answered to whoever may ask for a configuration.
"""

from pathlib import Path
from typing import Final

from gantry_access.accounts import read_document
from gantry_access.errors import AccessFileError
from gantry_wire.signatures import Credentials

_KNOWN: Final = frozenset({"accessKey", "secretKey", "securityToken"})
FILE_BYTES_MAX: Final = 64 * 1024


def read_credentials(path: Path | str) -> Credentials:
    """The account in a file. Raises AccessFileError that names the file and what is wrong with it."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise AccessFileError(f"cannot read {path}: {error.strerror}") from error
    try:
        if len(data) > FILE_BYTES_MAX:
            raise AccessFileError("is too large for a file of credentials")
        return _credentials(data)
    except AccessFileError as error:
        raise AccessFileError(f"{path}: {error}") from error


def _credentials(data: bytes) -> Credentials:
    document = read_document(data)
    unknown = sorted(set(document) - _KNOWN)
    if unknown:
        raise AccessFileError(f"unknown field {unknown[0][:64]!r}; known are {', '.join(sorted(_KNOWN))}")
    values: dict[str, str] = {}
    for name, value in document.items():
        if value is None:
            continue
        if not isinstance(value, str):
            raise AccessFileError(f"{name} is a text")
        values[name] = value
    for name in ("accessKey", "secretKey"):
        if not values.get(name):
            raise AccessFileError(f"{name} is missing")
    return Credentials(values["accessKey"], values["secretKey"], values.get("securityToken"))
