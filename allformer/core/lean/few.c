/* x Wᵀ + b for a few rows of x, at the speed of memory: the weights are read once, in order, for all
   rows. MKL and oneDNN read them again for each row, or copy them first.

   x R K, w N K, b N or 0, y R N; K is a multiple of 64, R at most 8. Compiled by native.py on the
   machine that runs it. */

#include <math.h>
#include <stdint.h>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(64), aligned(4)));
#define LANES 16
#define INLINE static inline __attribute__((always_inline))

INLINE float total(vec v) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += v[i];
    return s;
}

/* `wide` outputs from n on, of all rows */
INLINE void outputs(const float *x, const float *w, const float *b, float *y, long n, long N, long K,
                    const int rows, const int wide) {
    vec sums[8][8];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++) sums[r][j] = (vec){0};
    for (long k = 0; k < K; k += LANES) {
        vec part[8];
        for (int j = 0; j < wide; j++) {
            part[j] = *(const vec *)(w + (n + j) * K + k);
            __builtin_prefetch(w + (n + wide + j) * K + k);
        }
        for (int r = 0; r < rows; r++) {
            vec seen = *(const vec *)(x + r * K + k);
            for (int j = 0; j < wide; j++) sums[r][j] += seen * part[j];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++) y[r * N + n + j] = total(sums[r][j]) + (b ? b[n + j] : 0);
}

INLINE void all_outputs(const float *x, const float *w, const float *b, float *y, long N, long K,
                        long threads, const int rows, const int wide) {
    long whole = N / wide;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long i = 0; i < whole; i++) outputs(x, w, b, y, i * wide, N, K, rows, wide);
    for (long n = whole * wide; n < N; n++) outputs(x, w, b, y, n, N, K, rows, 1);
}

void few_fp32(const float *x, const float *w, const float *b, float *y, long R, long N, long K,
              long threads) {
    switch (R) { /* each its own loop, whose sums stay in registers */
    case 1: all_outputs(x, w, b, y, N, K, threads, 1, 8); break;
    case 2: all_outputs(x, w, b, y, N, K, threads, 2, 8); break;
    case 3: all_outputs(x, w, b, y, N, K, threads, 3, 4); break;
    case 4: all_outputs(x, w, b, y, N, K, threads, 4, 4); break;
    case 5: all_outputs(x, w, b, y, N, K, threads, 5, 3); break;
    case 6: all_outputs(x, w, b, y, N, K, threads, 6, 3); break;
    case 7: all_outputs(x, w, b, y, N, K, threads, 7, 3); break;
    case 8: all_outputs(x, w, b, y, N, K, threads, 8, 3); break;
    }
}

/* Bytes 1 … 255 around 128 of each row of x, and what they are multiples of. */
static void round_rows(const float *x, uint8_t *q, float *scale, long R, long K) {
    for (long r = 0; r < R; r++) {
        const float *row = x + r * K;
        float top = 1e-12f;
        for (long k = 0; k < K; k++) {
            float size = fabsf(row[k]);
            top = size > top ? size : top;
        }
        scale[r] = top * (1.0f / 127);
        for (long k = 0; k < K; k++) q[r * K + k] = (uint8_t)((int)rintf(row[k] / scale[r]) + 128);
    }
}

#ifdef __AVX512VNNI__
INLINE void dots(const uint8_t *q, const int8_t *w, int *out, long K, const int rows, const int wide) {
    __m512i sums[8][8];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++) sums[r][j] = _mm512_setzero_si512();
    for (long k = 0; k < K; k += 64) {
        __m512i part[8];
        for (int j = 0; j < wide; j++) {
            part[j] = _mm512_loadu_si512(w + j * K + k);
            __builtin_prefetch(w + (wide + j) * K + k);
        }
        for (int r = 0; r < rows; r++) {
            __m512i seen = _mm512_loadu_si512(q + r * K + k);
            for (int j = 0; j < wide; j++) sums[r][j] = _mm512_dpbusd_epi32(sums[r][j], seen, part[j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++) out[r * 8 + j] = _mm512_reduce_add_epi32(sums[r][j]);
}
#else
INLINE void dots(const uint8_t *q, const int8_t *w, int *out, long K, const int rows, const int wide) {
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++) {
            int sum = 0;
            for (long k = 0; k < K; k++) sum += (int)q[r * K + k] * (int)w[j * K + k];
            out[r * 8 + j] = sum;
        }
}
#endif

INLINE void eight(const uint8_t *q, const float *seen, const int8_t *w, const float *scale,
                  const int *sum, const float *b, float *y, long n, long N, long K, const int rows,
                  const int wide) {
    int out[8 * 8];
    dots(q, w + n * K, out, K, rows, wide);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < wide; j++) {
            float exact = (float)(out[r * 8 + j] - 128 * sum[n + j]);
            y[r * N + n + j] = exact * scale[n + j] * seen[r] + (b ? b[n + j] : 0);
        }
}

INLINE void all_eight(const uint8_t *q, const float *seen, const int8_t *w, const float *scale,
                      const int *sum, const float *b, float *y, long N, long K, long threads,
                      const int rows, const int wide) {
    long whole = N / wide;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long i = 0; i < whole; i++) eight(q, seen, w, scale, sum, b, y, i * wide, N, K, rows, wide);
    for (long n = whole * wide; n < N; n++) eight(q, seen, w, scale, sum, b, y, n, N, K, rows, 1);
}

/* In eight bits: w has `scale` (N) and `sum` (N, of its bytes); `spare` is room for R K bytes. */
void few_int8(const float *x, const int8_t *w, const float *scale, const int *sum, const float *b,
              float *y, uint8_t *spare, long R, long N, long K, long threads) {
    float seen[8];
    round_rows(x, spare, seen, R, K);
    switch (R) {
    case 1: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 1, 8); break;
    case 2: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 2, 8); break;
    case 3: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 3, 4); break;
    case 4: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 4, 4); break;
    case 5: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 5, 3); break;
    case 6: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 6, 3); break;
    case 7: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 7, 3); break;
    case 8: all_eight(spare, seen, w, scale, sum, b, y, N, K, threads, 8, 3); break;
    }
}

/* e^x, within 2 units of the last place where x ≤ 0: 2^n · e^r with |r| ≤ ln 2 / 2 */
typedef int ivec __attribute__((vector_size(64), aligned(4)));
INLINE vec exponential(vec x) {
    ivec low = x < -87.0f; /* so small that it is nothing */
    x = (vec)(((ivec)x & ~low) | ((ivec)(x * 0 - 87.0f) & low));
    ivec n;
    vec whole = x * 1.44269504f;
    for (int i = 0; i < LANES; i++) whole[i] = rintf(whole[i]);
    for (int i = 0; i < LANES; i++) n[i] = (int)whole[i];
    vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vec grown = p * (vec)((n + 127) << 23);
    return (vec)((ivec)grown & ~low);
}

/* softmax(q·k) v of one query: keys D C with rows `room` apart, values C D; s is room for C scores,
   rounded up to whole vectors. */
static void look(const float *q, const float *keys, const float *values, const float *bias, float *out,
                 float *s, long D, long C, long room, float scale) {
    long whole = C / LANES * LANES, end = (C + LANES - 1) / LANES * LANES;
    for (long c = 0; c < end; c++) s[c] = 0;
    for (long d = 0; d < D; d++) {
        const float *row = keys + d * room;
        for (long c = 0; c < whole; c += LANES) *(vec *)(s + c) += q[d] * *(const vec *)(row + c);
        for (long c = whole; c < C; c++) s[c] += q[d] * row[c];
    }
    float top = -INFINITY, sum = 0;
    for (long c = 0; c < C; c++) {
        s[c] = s[c] * scale + (bias ? bias[c] : 0);
        top = s[c] > top ? s[c] : top;
    }
    for (long c = C; c < end; c++) s[c] = -INFINITY;
    for (long c = 0; c < end; c += LANES) *(vec *)(s + c) = exponential(*(vec *)(s + c) - top);
    for (long c = 0; c < C; c++) sum += s[c];
    for (long d = 0; d < D; d++) out[d] = 0;
    for (long c = 0; c < C; c++) {
        float part = s[c] / sum;
        if (part != 0)
            for (long d = 0; d < D; d += LANES)
                *(vec *)(out + d) += part * *(const vec *)(values + c * D + d);
    }
}

/* M queries of each of A sources look at C columns. q: A·M rows `step` apart, H heads of D in each;
   keys A G D room, values A G room D; bias A·G J·M C, or A·G C for all queries (`alike`), or 0;
   out A·M H·D; s is room for A·G rows of scores, each C rounded up to whole vectors. */
void few_look(const float *q, const float *keys, const float *values, const float *bias, float *out,
              float *s, long A, long M, long H, long G, long D, long C, long room, long step,
              long alike, float scale, long threads) {
    long J = H / G, wide = (C + LANES - 1) / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long i = 0; i < A * G; i++)
        for (long j = 0; j < J; j++)
            for (long m = 0; m < M; m++) {
                long row = i / G * M + m, head = i % G * J + j;
                const float *mine = bias ? bias + (alike ? i : i * J * M + j * M + m) * C : 0;
                look(q + row * step + head * D, keys + i * D * room, values + i * room * D, mine,
                     out + (row * H + head) * D, s + i * wide, D, C, room, scale);
            }
}

/* Keys and values of M new tokens of each source go into the columns from `past` on: k and v are
   A·M rows `step` apart, G heads of D in each. */
void few_keep(const float *k, const float *v, float *keys, float *values, long A, long M, long G,
              long D, long past, long room, long step) {
    for (long i = 0; i < A * G; i++)
        for (long m = 0; m < M; m++) {
            long from = (i / G * M + m) * step + i % G * D;
            for (long d = 0; d < D; d++) {
                keys[(i * D + d) * room + past + m] = k[from + d];
                values[(i * room + past + m) * D + d] = v[from + d];
            }
        }
}
