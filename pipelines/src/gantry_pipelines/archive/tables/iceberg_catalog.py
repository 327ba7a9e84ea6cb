"""Where the Iceberg table of a topic is: its address, its catalog, and the errors of both as TableErrors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import pyarrow as pa
import requests
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import Config, merge_config

from gantry_pipelines.archive.settings import CatalogParameters
from gantry_pipelines.archive.tables.folder_catalog import DurableFileIO, FolderCatalog
from gantry_pipelines.archive.tables.model import REBUILD, TableRoot, TableUnavailable, one_line
from gantry_spec.pipelines.parts import CatalogKind

FOLDERS: Final = {
    CatalogKind.FOLDER: "_iceberg",
    CatalogKind.SQL: "_iceberg_sql",
    CatalogKind.REST: "_iceberg_rest",
}
"""The folder of the table in the root, one for each kind of catalog: the metadata that one kind deletes may be
in use by a table in another. Readers of the data files skip them, since their names begin with `_`."""

REST_TIMEOUTS_S: Final = (5.0, 30.0)
"""The limits of a connection to a REST catalog, and of the wait for its answer. A commit usually takes less than a
second; the archive waits meanwhile, and the next publication tries again."""

_S3_OPTIONS: Final = {
    "region": "s3.region",
    "force_virtual_addressing": "s3.force-virtual-addressing",
    "connect_timeout": "s3.connect-timeout",
    "request_timeout": "s3.request-timeout",
}
"""pyiceberg's names of the options in an archive's destination, except of the endpoint."""


def table_name_of(topic: str) -> str:
    """Return the name of a topic's table: `orders`, and `_x0025_RETRY_x0025_readers` for `%RETRY%readers`.

    Characters other than ASCII letters, digits, `-` and `_` become `_xHHHH_`, as in SQL/XML, which engines accept
    between quotation marks; so does a `_` that could be mistaken for such an escape.
    """
    return re.sub(r"_(?=x[0-9a-f]{4})|[^A-Za-z0-9_-]", lambda found: f"_x{ord(found[0]):04x}_", topic)


def address_of(root: TableRoot) -> str:
    """Return the root as an address with a scheme: Spark resolves a plain path in its default file system."""
    return root.address if "://" in root.address else f"file://{root.address}"


def has_usable_address(root: TableRoot) -> bool:
    """Return whether pyiceberg finds the root at its address: `#` and `?` would end the path."""
    return not set("#?") & set(root.address)


def location_of(root: TableRoot, kind: CatalogKind) -> str:
    """Return the address where a table should be; a REST catalog may choose another one."""
    return f"{address_of(root)}/{FOLDERS[kind]}"


def file_properties(root: TableRoot) -> dict[str, str]:
    """Return the properties of pyiceberg's files; keys of an object store come from the environment."""
    properties = {"py-io-impl": f"{DurableFileIO.__module__}.{DurableFileIO.__qualname__}"}
    properties |= {_S3_OPTIONS[name]: value for name, value in root.options.items() if name in _S3_OPTIONS}
    if endpoint := root.options.get("endpoint_override"):
        scheme = root.options.get("scheme", "https")
        properties["s3.endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    return properties


def open_catalog(root: TableRoot, parameters: CatalogParameters, *, is_read_only: bool = False) -> Catalog:
    """Connect to the catalog of a table. Settings of pyiceberg's own configuration apply too, for the name `gantry`.

    A read-only catalog changes nothing when it is opened, or when a table is loaded.
    """
    files = file_properties(root)
    if parameters.kind is CatalogKind.FOLDER:
        return FolderCatalog(location_of(root, parameters.kind), DurableFileIO(files), is_read_only=is_read_only)
    properties = {**files, "type": parameters.kind.value, **parameters.properties}
    if parameters.kind is CatalogKind.SQL:
        if is_read_only:
            properties["init_catalog_tables"] = "false"
        return load_catalog("gantry", **properties)
    configured: Any = merge_config(Config().get_catalog_config("gantry") or {}, dict(properties))
    if "uri" not in configured:
        raise ValueError("the REST catalog has no address: set tables.catalog.properties.uri")
    return _TimedRestCatalog("gantry", **configured)


@final
class _TimedRestCatalog(RestCatalog):
    """A REST catalog with time limits, which pyiceberg does not set: a server that never answers raises an error."""

    def _config_headers(self, session: requests.Session) -> None:
        """Set the limits of all requests. The constructor calls this before it asks for the first token."""
        super()._config_headers(session)
        send = session.send

        def send_in_time(request: requests.PreparedRequest, **options: Any) -> requests.Response:
            return send(request, **{**options, "timeout": options.get("timeout") or REST_TIMEOUTS_S})

        session.send = send_in_time  # type: ignore[method-assign]


def _foreign_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the libraries below; those of wrong settings are ValueError and ImportError."""
    own = [one for one in vars(iceberg_errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    common = (*own, pa.ArrowException, requests.RequestException, OSError, ValueError, ImportError)
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return common
    return (*common, SQLAlchemyError)


_FOREIGN_ERRORS: Final = _foreign_errors()


LOST_OR_DAMAGED: Final = (
    iceberg_errors.NoSuchTableError,
    iceberg_errors.ValidationError,
    FileNotFoundError,
    UnicodeDecodeError,
)
"""The errors of loading a table that does not exist, or whose metadata is lost or damaged."""


@contextmanager
def mapped_errors(root: TableRoot) -> Iterator[None]:
    """Raise TableUnavailable for errors of catalogs, storage and their libraries."""
    try:
        yield
    except _FOREIGN_ERRORS as error:
        text = (
            f"Iceberg table of topic {root.topic!r} in {root.address}: {one_line(f'{type(error).__name__}: {error}')}"
        )
        if isinstance(error, iceberg_errors.CommitFailedException):
            text = f"{text}; another writer has changed it"
        elif isinstance(error, LOST_OR_DAMAGED):
            text = f"{text}; if the next publication fails too, drop the table, and publish it again: {REBUILD}"
        raise TableUnavailable(text) from error
