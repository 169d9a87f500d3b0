"""torch's own random numbers on a CPU: its generator, and how it makes uniform and normal numbers."""

from __future__ import annotations

import random
from math import cos, log, log1p, pi, sin, sqrt


class Generator:
    """A Mersenne twister that is seeded as torch seeds its own."""

    def __init__(self, device="cpu"):
        self.manual_seed(67280421310721)  # torch's own choice

    def manual_seed(self, seed):
        """Restart from a seed, and return the generator."""
        self._seed, self._twister, state = int(seed), random.Random(), [int(seed) % 2**32]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) % 2**32)
        return self.set_state(((3, (*state, 624), None), None))

    def initial_seed(self):
        """Return the seed."""
        return self._seed

    def get_state(self):
        """Return what `set_state` needs to continue from here."""
        return self._twister.getstate(), self._normal

    def set_state(self, state):
        """Continue from where `get_state` was called."""
        self._twister.setstate(state[0])
        self._normal = state[1]
        return self

    def whole(self, count):
        """Return an int from 0 up to count."""
        bits = self._twister.getrandbits(32)
        return (bits << 32 | self._twister.getrandbits(32) if count > 1 << 32 else bits) % count

    def uniforms(self, count, double=False):
        """Return numbers from 0 up to 1, with the precision of float64 or float32."""
        bits, span = (53, 1 << 64) if double else (24, 1 << 32)
        return [self.whole(span) % 2**bits / 2**bits for _ in range(count)]

    def exponentials(self, count):
        """Return exponentially distributed numbers."""
        return [-log1p(-x) for x in self.uniforms(count, double=True)]

    def normals(self, count, double=False):
        """Return standard normal numbers (Box and Muller, 1958): 16 at a time, or few in pairs."""
        if count < 16:
            return [self._one_normal() for _ in range(count)]
        numbers = self.uniforms(count, double)
        for start in range(0, count - 15, 16):
            self._turn(numbers, start)
        if count % 16:  # the last 16 are drawn again
            numbers[-16:] = self.uniforms(16, double)
            self._turn(numbers, count - 16)
        return numbers

    @staticmethod
    def _turn(numbers, start):
        for i in range(start, start + 8):
            radius, angle = sqrt(-2 * log(1 - numbers[i])), 2 * pi * numbers[i + 8]
            numbers[i], numbers[i + 8] = radius * cos(angle), radius * sin(angle)

    def _one_normal(self):
        kept, self._normal = self._normal, None
        if kept is None:
            turn, share = self.uniforms(2, double=True)
            radius = sqrt(-2 * log1p(-share))
            kept, self._normal = radius * cos(2 * pi * turn), radius * sin(2 * pi * turn)
        return kept


default_generator = Generator()
