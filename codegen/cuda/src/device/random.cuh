// Random words from a counter: Philox-4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). Element `i` has word `i % 4` of the block for the counter `(i / 4, stream, step)` and the key `seed`.

struct Words { u32 of[4]; };

// Word `at`, without an index into registers.
FN u32 pick(const Words& words, u32 at) {
  u32 low = at & 1 ? words.of[1] : words.of[0], high = at & 1 ? words.of[3] : words.of[2];
  return at & 2 ? high : low;
}

FN Words philox(u64 index, u32 stream, u64 step, u64 seed) {
  u32 a = (u32)index, b = (u32)(index >> 32) | (u32)(step >> 32) << 16, c = stream, d = (u32)step;
  u32 low = (u32)seed, high = (u32)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    u64 p = 0xd2511f53ULL * a, q = 0xcd9e8d57ULL * c;
    a = (u32)(q >> 32) ^ b ^ low;
    c = (u32)(p >> 32) ^ d ^ high;
    b = (u32)q;
    d = (u32)p;
    low += 0x9e3779b9u;
    high += 0xbb67ae85u;
  }
  return Words{{a, b, c, d}};
}

// `low + span * u` with `u` the upper 24 bits of a word as a fraction. Never fused, so that the bits are those of the CPU.
FN f32 uniform(u32 word, f64 low, f64 span) {
  return (f32)__dadd_rn(low, __dmul_rn(span, (f64)(word >> 8) / 16777216.0));
}

// One of two standard normal numbers from two words (Box and Muller, 1958).
FN f64 normal(u32 first, u32 second, bool odd) {
  f64 radius = sqrt(-2.0 * log(((f64)first + 0.5) / 4294967296.0));
  f64 angle = 6.283185307179586 * (((f64)second + 0.5) / 4294967296.0);
  return radius * (odd ? sin(angle) : cos(angle));
}
