# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=False
"""The compiled hot path: sends from the bytes of a connection into the log, its scan, pulls, and headers of gRPC.

It accepts only what it is sure about. A frame, a record or a value in an unusual form is left to the Python path, which
decides about it; what both accept, both store and answer byte for byte the same. The functions hold the GIL, each for
one pass over bytes that have arrived, or for one slice of the log.

    bytes of a read ---> SendBatch.take ---> sends of this turn     (the rest: SendBatch.add, from the Python path)
    sends -------------> SendBatch.pack ---> records, queue units   at the end of the turn
                         Keys.put ---------> index entries          when they are visible
                         encode_answers ---> replies
    the log -----------> LogScan ----------> checks, queue units, keys
    queue units -------> copy_records -----> the body of a pull
    header blocks -----> HeaderTable.read -> the headers of a gRPC call

Memory: a batch keeps the objects to whose bytes it points, and the text that it has built, as long as it lives. Sizes
are checked before bytes are read or written.
"""

from cpython.array cimport array, resize_smart
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeLatin1
from libc.stdint cimport INT32_MAX, INT32_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

from hmac import compare_digest

cdef extern from "crc32.h":
    void gantry_crc32_prepare() nogil
    uint32_t gantry_crc32(uint32_t value, const uint8_t* data, size_t size) nogil
    void gantry_prefetch(const void*) nogil

ctypedef const uint8_t* Bytes

gantry_crc32_prepare()


def crc32(data, uint32_t value=0):
    """Return the CRC-32 of ``data``, continued from ``value``, like zlib's ``crc32``."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return gantry_crc32(value, <Bytes>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


include "texts.pxi"
include "headers.pxi"
include "keys.pxi"
include "records.pxi"
include "sends.pxi"
include "scan.pxi"
include "fields.pxi"
