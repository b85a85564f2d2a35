"""Chunks of a body in chunked coding (RFC 9112, 7.1) that come one a read, told by their length.

So do most of a stream's: one event, one write, one read.  The number of bytes that came says what
their chunk's size line must be, if they are one whole chunk.  What differs from that, in a zero in
front or a capital letter, may be a chunk all the same: that is for a parser to say.
"""

from typing import Final

END: Final = b"\r\n"
MOST_BYTES: Final = 4_096  # far more than an event of text


def _head(num_bytes: int) -> bytes:
    """The size line of a chunk that has so many bytes with its frame."""
    for num_digits in (1, 2, 3):
        size = num_bytes - num_digits - 2 * len(END)
        if size > 0 and len(b"%x" % size) == num_digits:
            return b"%x%b" % (size, END)
    return bytes(MOST_BYTES)  # there is none: longer than whatever came


HEADS: Final = tuple(map(_head, range(MOST_BYTES)))  # by the number of bytes


def ends_with_whole(read: bytes, content: bytes) -> bool:
    """Whether what was read ends with the end of a chunk, of which all is ``content``.

    ``content``: what a parser gave of the last chunk in it.
    """
    return read.endswith(b"%x%b%b%b" % (len(content), END, content, END))
