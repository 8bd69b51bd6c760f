/* softmax(Q Kᵀ · scale) V of whole rows, where every query looks at every key, or (`causal`) none
   behind its own place.

   Q B T H D, K and V B S G D, of which the D numbers lie in order, and all else by strides; out
   B T H D in order; D is a multiple of 16. Compiled by core/library.py on the machine that runs it,
   for registers of 512 bits: of the 32 there are, 24 sum a tile of 6 queries by 64 numbers. The plain
   form is core/attend.py. */

#include <math.h>
#include <omp.h>
#include <string.h>

typedef float vec __attribute__((vector_size(64), aligned(4)));
typedef int ivec __attribute__((vector_size(64), aligned(4)));
#define LANES 16
#define TALL 6 /* rows of a tile */
#define WIDE 4 /* vectors of a tile */
#define PANEL (WIDE * LANES)
#define BLOCK 24  /* queries together: their scores and a head's keys and values fit a core's cache */
#define CHUNK 128 /* keys whose values are read for all of them from the nearest one */
#define INLINE static inline __attribute__((always_inline))

/* out += a b: `rows` of a with `last` numbers in each, `last` rows of b with `wide` vectors in each;
   `begin`: out = a b */
INLINE void tile(const float *a, long astep, const float *b, long bstep, float *out, long step,
                 long last, int begin, const int rows, const int wide) {
    vec sums[TALL][WIDE];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++)
            sums[r][j] = begin ? (vec){0} : *(const vec *)(out + r * step + j * LANES);
    for (long k = 0; k < last; k++) {
        vec part[WIDE];
        for (int j = 0; j < wide; j++) part[j] = *(const vec *)(b + k * bstep + j * LANES);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < wide; j++) sums[r][j] += a[r * astep + k] * part[j];
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++) *(vec *)(out + r * step + j * LANES) = sums[r][j];
}

#define TILE(rows, wide) tile(a, astep, b, bstep, out, step, last, begin, rows, wide)
#define ROWS_OF(wide)                                                                              \
    switch (rows) {                                                                                \
    case 1: TILE(1, wide); break;                                                                  \
    case 2: TILE(2, wide); break;                                                                  \
    case 3: TILE(3, wide); break;                                                                  \
    case 4: TILE(4, wide); break;                                                                  \
    case 5: TILE(5, wide); break;                                                                  \
    default: TILE(6, wide);                                                                        \
    }

/* the same where a tile is not whole */
static void edge(const float *a, long astep, const float *b, long bstep, float *out, long step,
                 long last, int begin, long rows, long wide) {
    switch (wide) {
    case 1: ROWS_OF(1) break;
    case 2: ROWS_OF(2) break;
    case 3: ROWS_OF(3) break;
    default: ROWS_OF(4)
    }
}

/* the same of up to BLOCK rows */
static void tiles(const float *a, long astep, const float *b, long bstep, float *out, long step,
                  long last, int begin, long rows, long wide) {
    for (long r = 0; r < rows; r += TALL, a += TALL * astep, out += TALL * step) {
        if (rows - r >= TALL && wide == WIDE) TILE(TALL, WIDE);
        else edge(a, astep, b, bstep, out, step, last, begin, rows - r < TALL ? rows - r : TALL, wide);
    }
}

/* e^x, within 2 units of the last place where x ≤ 0: 2^n · e^r with |r| ≤ ln 2 / 2 */
INLINE vec exponential(vec x) {
    ivec low = x < -87.0f; /* so small that it is nothing */
    x = (vec)(((ivec)x & ~low) | ((ivec)((vec){0} - 87.0f) & low));
    vec n = x * 1.44269504f + 12582912.0f - 12582912.0f; /* 1.5 · 2²³: what is behind the point goes */
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vec grown = p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
    return (vec)((ivec)grown & ~low);
}

/* A row of S scores becomes e^(scale (s − top)), zeros behind it; gives their sum. */
static float weigh(float *s, long S, long end, float scale) {
    for (long c = S; c < end; c++) s[c] = -INFINITY;
    vec tops = *(const vec *)s;
    for (long c = LANES; c < end; c += LANES) {
        vec seen = *(const vec *)(s + c);
        ivec more = seen > tops;
        tops = (vec)(((ivec)seen & more) | ((ivec)tops & ~more));
    }
    float top = tops[0];
    for (int i = 1; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
    vec mass = {0};
    for (long c = 0; c < end; c += LANES) {
        vec part = exponential((*(const vec *)(s + c) - top) * scale);
        *(vec *)(s + c) = part;
        mass += part;
    }
    float all = 0;
    for (int i = 0; i < LANES; i++) all += mass[i];
    return all;
}

/* Of a head: keys by panels of 64, D rows in each, zeros behind S; values one behind the other */
static void pack(const float *k, const float *v, float *keys, float *values, long S, long end, long D,
                 long kstep, long vstep) {
    for (long c = 0; c < end; c += PANEL) {
        float *panel = keys + c * D;
        for (long d = 0; d < D; d++)
            for (long i = 0; i < PANEL; i++) panel[d * PANEL + i] = c + i < S ? k[(c + i) * kstep + d] : 0;
    }
    for (long c = 0; c < S; c++) memcpy(values + c * D, v + c * vstep, D * sizeof(float));
}

/* Strides of q, k and v: from row to row of the batch, head to head, token to token. `room` is for
   B·G·2·end·D numbers, `scores` for threads·BLOCK·end, where `end` is S rounded up to panels. */
void whole_rows(const float *q, const float *k, const float *v, float *out, float *room, float *scores,
                const long *qs, const long *ks, const long *vs, long B, long T, long S, long H, long G,
                long D, long causal, float scale, long threads) {
    long end = (S + PANEL - 1) / PANEL * PANEL, size = 2 * end * D, each = (T + BLOCK - 1) / BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *s = scores + omp_get_thread_num() * BLOCK * end;
#pragma omp for schedule(static)
        for (long i = 0; i < B * G; i++)
            pack(k + i / G * ks[0] + i % G * ks[1], v + i / G * vs[0] + i % G * vs[1], room + i * size,
                 room + i * size + end * D, S, end, D, ks[2], vs[2]);
#pragma omp for schedule(static)
        for (long i = 0; i < B * H * each; i++) {
            long b = i / each / H, h = i / each % H, t = i % each * BLOCK;
            long rows = T - t < BLOCK ? T - t : BLOCK;
            const float *asks = q + b * qs[0] + h * qs[1] + t * qs[2];
            const float *keys = room + (b * G + h / (H / G)) * size, *values = keys + end * D;
            float *gets = out + ((b * T + t) * H + h) * D;
            long seen = causal && t + rows < S ? t + rows : S, last = (seen + PANEL - 1) / PANEL * PANEL;
            for (long c = 0; c < last; c += PANEL)
                tiles(asks, qs[2], keys + c * D, PANEL, s + c, end, D, 1, rows, WIDE);
            float mass[BLOCK];
            for (long r = 0; r < rows; r++)
                mass[r] = weigh(s + r * end, causal && t + r < S ? t + r + 1 : S, last, scale);
            for (long c = 0; c < seen; c += CHUNK)
                for (long d = 0; d < D; d += PANEL)
                    tiles(s + c, end, values + c * D + d, D, gets + d, H * D,
                          seen - c < CHUNK ? seen - c : CHUNK, c == 0, rows,
                          D - d < PANEL ? (D - d) / LANES : WIDE);
            for (long r = 0; r < rows; r++)
                for (long d = 0; d < D; d += LANES) *(vec *)(gets + r * H * D + d) *= 1 / mass[r];
        }
    }
}
