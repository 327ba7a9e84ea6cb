# Header blocks of HTTP/2 (RFC 7541): see `gantry_proxy.http2.hpack`, which has the same in Python.

cdef enum:
    NO_SYMBOL = -1
    NO_CODE = -2
    STATIC_FIELDS = 62
    FIELD_OVERHEAD = 32

cdef struct Step:
    int16_t symbol
    uint8_t node

cdef Step HUFFMAN_STEPS[256][16]        # by node and four bits, of which at most one symbol follows
cdef bint IS_HUFFMAN_END[256]

def prepare_huffman(list nodes not None, ends):
    """Take the tree of the Huffman code, with what follows each node, and the nodes at which a text may end."""
    cdef int node, bits, shift, at, symbol
    for node in range(len(nodes)):
        IS_HUFFMAN_END[node] = node in ends
        for bits in range(16):
            at, symbol = node, NO_SYMBOL
            for shift in (3, 2, 1, 0):
                at = nodes[at][bits >> shift & 1] if symbol != NO_CODE else 0
                if at <= 0:
                    symbol, at = -1 - at if at else NO_CODE, 0
            HUFFMAN_STEPS[node][bits].symbol, HUFFMAN_STEPS[node][bits].node = symbol, at

cdef str huffman_text(Bytes at, Py_ssize_t size):
    cdef bytearray text = bytearray(2 * size)
    cdef uint8_t* into = text
    cdef Py_ssize_t place, written = 0
    cdef Step step
    step.node = 0
    for place in range(2 * size):
        step = HUFFMAN_STEPS[step.node][at[place >> 1] & 0xF if place & 1 else at[place >> 1] >> 4]
        if step.symbol >= 0:
            into[written] = <uint8_t>step.symbol
            written += 1
        elif step.symbol == NO_CODE:
            raise ValueError("a text contains the code of its end")
    if not IS_HUFFMAN_END[step.node]:
        raise ValueError("a text ends within a code")
    return PyUnicode_DecodeLatin1(<char*>into, written, NULL)

cdef class HeaderTable:
    """The table of one connection: see the class of this name in `gantry_proxy.http2.hpack`."""

    cdef tuple static
    cdef list added
    cdef readonly Py_ssize_t size
    cdef int64_t size_limit, size_max
    cdef Bytes at, end                  # of the block that is read

    def __init__(self, tuple static not None, Py_ssize_t size_max):
        if len(static) != STATIC_FIELDS:
            raise ValueError(f"{len(static)} static fields")
        self.static, self.added, self.size, self.size_limit, self.size_max = static, [], 0, size_max, size_max

    def read(self, bytes block not None, int fields_max):
        """Return the fields of a block, at most one more than ``fields_max``. Raises ValueError."""
        cdef list found = []
        cdef tuple field
        cdef uint8_t first
        self.at = <Bytes>PyBytes_AS_STRING(block)
        self.end = self.at + PyBytes_GET_SIZE(block)
        while self.at < self.end and len(found) <= fields_max:
            first = self.at[0]
            if first >= 0x80:
                found.append(self.find(self.number(0x7F)))
            elif first >= 0x40:
                field = self.literal(0x3F)
                found.append(field)
                self.added.append(field)
                self.evict(len(<str>field[0]) + len(<str>field[1]) + FIELD_OVERHEAD)
            elif first < 0x20:
                found.append(self.literal(0x0F))
            elif found:
                raise ValueError("the size of the table changes within a block")
            else:
                self.size_max = self.number(0x1F)
                if self.size_max > self.size_limit:
                    raise ValueError(f"a table of {self.size_max} bytes, at most {self.size_limit}")
                self.evict(0)
        return found

    cdef int evict(self, Py_ssize_t more) except -1:
        """Count what was added, and remove the oldest fields until the rest fits."""
        cdef Py_ssize_t count = 0
        self.size += more
        while self.size > self.size_max:
            self.size -= len(self.added[count][0]) + len(self.added[count][1]) + FIELD_OVERHEAD
            count += 1
        del self.added[:count]
        return 0

    cdef tuple find(self, int64_t index):
        cdef int64_t place = len(self.added) - 1 - (index - STATIC_FIELDS)
        if index == 0 or place < 0:
            raise ValueError(f"index {index}")
        return self.static[index] if index < STATIC_FIELDS else self.added[place]

    cdef tuple literal(self, int mask):
        cdef int64_t index = self.number(mask)
        name = self.text() if index == 0 else self.find(index)[0]
        return name, self.text()

    cdef int64_t number(self, int mask) except -1:
        cdef int64_t value = self.at[0] & mask
        cdef int shift = 0
        self.at += 1
        if value < mask:
            return value
        while self.at < self.end and shift < 35:
            value += <int64_t>(self.at[0] & 0x7F) << shift
            self.at, shift = self.at + 1, shift + 7
            if (self.at - 1)[0] < 0x80:
                return value
        raise ValueError("a number is too large, or cut short")

    cdef str text(self):
        cdef Bytes start
        cdef int64_t size
        if self.at >= self.end:
            raise ValueError("a text is missing")
        start = self.at
        size = self.number(0x7F)
        if size > self.end - self.at:
            raise ValueError("a text is longer than its block")
        self.at += size
        if start[0] >= 0x80:
            return huffman_text(self.at - size, size)
        return PyUnicode_DecodeLatin1(<char*>self.at - size, size, NULL)
