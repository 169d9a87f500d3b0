"""Sizes with which attention is tested.

Every axis has another prime size, so that no two of them can be confused. Rotary positions and groups of
heads need even widths; what they are tested with has EVEN in its name.
"""

BATCH, HEADS, Q_LEN, K_LEN, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13
EMBED_DIM, KDIM, VDIM = HEADS * HEAD_DIM, 17, 19
EVEN_HEAD_DIM = 10
EVEN_DIM = HEADS * EVEN_HEAD_DIM
