"""The types of the compiled module, with which the sources are checked whether or not it is built."""

SOURCES_HASH: str
"""The hash of the sources from which the module was built; the build appends it to the source."""

def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC-32 of ``data``, continued from ``value``, like ``zlib.crc32``."""
