"""Reading of a file with a secret that several processes share, such as a key of a mounted Secret."""

from gantry_remoting.small_file import read_small_file


def read_secret(path: str, setting: str, risk: str) -> bytes:
    """Return the secret in a file, without white space around it. Raises OSError that names the setting.

    ``risk`` is what an empty secret would allow. The call waits for the disk, so it runs in a thread.
    """
    try:
        secret = read_small_file(path).strip()
    except OSError as error:
        raise OSError(f"cannot read {setting}={path}: {error.strerror}") from error
    if not secret:
        raise OSError(f"cannot use {setting}={path}: the file is empty, and {risk}; write the secret into it")
    return secret
