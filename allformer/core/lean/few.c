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
