"""How a quantized row lies in memory: groups of 32 inputs, one after the other.

A group is int8 codes[32], float32 scale, float32 sum of the codes.  x is about scale * code; the
scale is the largest |x| / 127, so codes are -127 to 127.  One scale for a whole row would be set by
its few largest values and drown the others.
"""

from typing import Final

GROUP_SIZE: Final = 32
SCALE_OFFSET_BYTES: Final = GROUP_SIZE
SUM_OFFSET_BYTES: Final = GROUP_SIZE + 4
GROUP_BYTES: Final = GROUP_SIZE + 8
LARGEST_CODE: Final = 127.0
