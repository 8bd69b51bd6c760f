/* x Wᵀ + b for a few rows of x, at the speed of memory: the weights are read once, in order, for all
   rows. MKL and oneDNN read them again for each row, or copy them first.

   x R K, w N K, b N or 0, add R N or 0 (which is added too), y R N; K is a multiple of 64. Compiled
   by native.py on the machine that runs it; the plain forms are those of products.py and layer.py. */

#include <math.h>
#include <stdint.h>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(64), aligned(4)));
#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float half __attribute__((vector_size(32)));
typedef float quarter __attribute__((vector_size(16)));

INLINE float total(vec v) {
    half h = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
             __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    quarter q = __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
    return (q[0] + q[2]) + (q[1] + q[3]);
}

/* `wide` outputs from n on, of all rows */
INLINE void outputs(const float *x, const float *w, const float *b, const float *add, float *y, long n,
                    long N, long K, const int rows, const int wide) {
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
        for (int j = 0; j < wide; j++) {
            long at = r * N + n + j;
            y[at] = total(sums[r][j]) + (b ? b[n + j] : 0) + (add ? add[at] : 0);
        }
}

/* of all rows, eight at a time: each number of rows has a loop of its own, whose sums stay in
   registers */
#define ROWS_OF(work, wide)                                                                        \
    long r = 0;                                                                                    \
    for (; r + 8 <= R; r += 8) work(8, wide);                                                      \
    switch (R - r) {                                                                               \
    case 1: work(1, wide); break;                                                                  \
    case 2: work(2, wide); break;                                                                  \
    case 3: work(3, wide); break;                                                                  \
    case 4: work(4, wide); break;                                                                  \
    case 5: work(5, wide); break;                                                                  \
    case 6: work(6, wide); break;                                                                  \
    case 7: work(7, wide); break;                                                                  \
    }

void few_fp32(const float *x, const float *w, const float *b, const float *add, float *y, long R,
              long N, long K, long threads) {
    const int wide = R <= 2 ? 8 : R <= 4 ? 4 : 3; /* as many as registers hold */
    long whole = N / wide;
#define FLOATS(rows, wide)                                                                         \
    outputs(x + r * K, w, b, add ? add + r * N : 0, y + r * N, n, N, K, rows, wide)
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long i = 0; i < whole; i++) {
        long n = i * wide;
        if (wide == 8) {
            long r = 0;
            if (R == 1) FLOATS(1, 8); else FLOATS(2, 8);
        } else if (wide == 4) {
            long r = 0;
            if (R == 3) FLOATS(3, 4); else FLOATS(4, 4);
        } else { ROWS_OF(FLOATS, 3) }
    }
    for (long n = whole * wide; n < N; n++) { ROWS_OF(FLOATS, 1) }
}

/* Bytes 1 … 255 around 128 of each row of x, and what they are multiples of. Of `pairs` the second
   row of bytes, in 254ths of the first, is what that leaves over. */
typedef int ivec __attribute__((vector_size(64), aligned(4)));
static void round_rows(const float *x, uint8_t *q, float *scale, long R, long K, long pairs,
                       long threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && R > 16)
    for (long r = 0; r < R; r++) {
        const float *row = x + r * K;
        ivec tops = {0};
        for (long k = 0; k < K; k += LANES) { /* without their signs, floats are ordered as ints */
            ivec size = *(const ivec *)(row + k) & 0x7fffffff, more = size > tops;
            tops = (size & more) | (tops & ~more);
        }
        int most = 0;
        for (int i = 0; i < LANES; i++) most = tops[i] > most ? tops[i] : most;
        float top;
        __builtin_memcpy(&top, &most, sizeof top);
        float unit = (top > 1e-12f ? top : 1e-12f) * (1.0f / 127);
        uint8_t *restrict mine = q + (r << pairs) * K;
        if (!pairs)
            for (long k = 0; k < K; k++) mine[k] = (uint8_t)((int)rintf(row[k] / unit) + 128);
        else
            for (long k = 0; k < K; k++) {
                float many = row[k] / unit, first = rintf(many);
                mine[k] = (uint8_t)((int)first + 128);
                mine[K + k] = (uint8_t)((int)rintf((many - first) * 254) + 128);
            }
        scale[r] = unit;
    }
}

/* The same for a product of many rows that is another's: torch needs six passes for it. */
void few_round(const float *x, uint8_t *q, float *scale, long R, long K, long threads) {
    round_rows(x, q, scale, R, K, 0, threads);
}

/* What that product gave, times the scale of its row, and b and `add` to it, where it lies. */
void few_scale(float *y, const float *scale, const float *b, const float *add, long R, long N,
               long threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long r = 0; r < R; r++) {
        float *restrict row = y + r * N;
        const float unit = scale[r], *more = add ? add + r * N : 0;
        if (b && more)
            for (long n = 0; n < N; n++) row[n] = row[n] * unit + b[n] + more[n];
        else if (b || more) {
            const float *one = b ? b : more;
            for (long n = 0; n < N; n++) row[n] = row[n] * unit + one[n];
        } else
            for (long n = 0; n < N; n++) row[n] *= unit;
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

/* Of `rows` rows of bytes; where they are `pairs`, a row of x is two of them, its digits. */
INLINE void eight(const uint8_t *q, const float *seen, const int8_t *w, const float *scale,
                  const int *sum, const float *b, const float *add, float *y, long n, long N, long K,
                  const int rows, const int wide, const int pairs) {
    int out[8 * 8];
    dots(q, w + n * K, out, K, rows, wide);
    for (int r = 0; r < rows >> pairs; r++)
        for (int j = 0; j < wide; j++) {
            const int *found = out + (r << pairs) * 8 + j;
            float exact = (float)(found[0] - 128 * sum[n + j]);
            if (pairs) exact += (float)(found[8] - 128 * sum[n + j]) * (1.0f / 254);
            float whole = exact * scale[n + j] * seen[r] + (b ? b[n + j] : 0);
            y[r * N + n + j] = whole + (add ? add[r * N + n + j] : 0);
        }
}

/* In eight bits: w has `scale` (N) and `sum` (N, of its bytes); x is rounded to one digit of eight
   bits, or (`pairs`, 0 or 1) to two. All its bytes lie on the stack. */
void few_int8(const float *x, const int8_t *w, const float *scale, const int *sum, const float *b,
              const float *add, float *y, long rows, long N, long K, long pairs, long threads) {
    const long R = rows << pairs;
    uint8_t spare[R * K];
    float seen[rows];
    const int wide = R <= 2 ? 8 : R <= 4 ? 4 : 3;
    long whole = N / wide;
    round_rows(x, spare, seen, rows, K, pairs, threads);
#define BYTES(rows, wide)                                                                          \
    eight(spare + r * K, seen + (r >> pairs), w, scale, sum, b, add ? add + (r >> pairs) * N : 0,  \
          y + (r >> pairs) * N, n, N, K, rows, wide, pairs)
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long i = 0; i < whole; i++) {
        long n = i * wide;
        if (wide == 8) {
            long r = 0;
            if (R == 1) BYTES(1, 8); else BYTES(2, 8);
        } else if (wide == 4) {
            long r = 0;
            if (R == 3) BYTES(3, 4); else BYTES(4, 4);
        } else { ROWS_OF(BYTES, 3) }
    }
    for (long n = whole * wide; n < N; n++) { ROWS_OF(BYTES, 1) }
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

/* a + b, where lanes of both stand in turn, n at a time, each with its neighbours added */
#define LANE(i, n) ((i) & (n) ? (i) - (n) + LANES : (i))
#define EACH(n, more)                                                                              \
    LANE(0, n) + more, LANE(1, n) + more, LANE(2, n) + more, LANE(3, n) + more, LANE(4, n) + more, \
    LANE(5, n) + more, LANE(6, n) + more, LANE(7, n) + more, LANE(8, n) + more, LANE(9, n) + more, \
    LANE(10, n) + more, LANE(11, n) + more, LANE(12, n) + more, LANE(13, n) + more,                \
    LANE(14, n) + more, LANE(15, n) + more
#define MIX(a, b, n)                                                                               \
    (__builtin_shufflevector(a, b, EACH(n, 0)) + __builtin_shufflevector(a, b, EACH(n, n)))

/* the totals of sixteen vectors, side by side */
INLINE vec totals(vec *v) {
    for (int i = 0; i < 8; i++) v[i] = MIX(v[2 * i], v[2 * i + 1], 1);
    for (int i = 0; i < 4; i++) v[i] = MIX(v[2 * i], v[2 * i + 1], 2);
    for (int i = 0; i < 2; i++) v[i] = MIX(v[2 * i], v[2 * i + 1], 4);
    return MIX(v[0], v[1], 8);
}

INLINE vec larger(vec a, vec b) {
    ivec more = a > b;
    return (vec)(((ivec)a & more) | ((ivec)b & ~more));
}

INLINE float highest(vec v) {
    float top = v[0];
    for (int i = 1; i < LANES; i++) top = v[i] > top ? v[i] : top;
    return top;
}

/* The columns that a query sees, and the first of them again until vectors are whole. */
INLINE long seen(const float *bias, int *at, long C) {
    long n = 0;
    for (long c = 0; c < C; c++) { /* others are another copy's, or padding */
        at[n] = (int)c;
        n += !bias || bias[c] != -INFINITY;
    }
    for (long i = n; i % LANES; i++) at[i] = at[0];
    return n;
}

/* softmax(q·k) v of one query over the n columns `at` of keys and values of D each; s is room for
   their scores, rounded up to whole vectors. */
INLINE void look(const float *q, const float *keys, const float *values, const float *bias, const int *at,
                 float *out, float *s, const long D, long n, float scale) {
    long end = (n + LANES - 1) / LANES * LANES;
    vec tops = (vec){0} - INFINITY, mass = {0};
    for (long i = 0; i < end; i += LANES) {
        vec sums[LANES];
        for (int j = 0; j < LANES; j++) {
            const float *key = keys + at[i + j] * D;
            sums[j] = *(const vec *)q * *(const vec *)key;
            for (long d = LANES; d < D; d += LANES) sums[j] += *(const vec *)(q + d) * *(const vec *)(key + d);
        }
        *(vec *)(s + i) = totals(sums) * scale;
        if (bias)
            for (int j = 0; j < LANES; j++) s[i + j] += bias[at[i + j]];
        tops = larger(*(vec *)(s + i), tops); /* what stands there again changes nothing */
    }
    float top = highest(tops);
    for (long i = n; i < end; i++) s[i] = -INFINITY;
    for (long i = 0; i < end; i += LANES) {
        vec part = exponential(*(vec *)(s + i) - top);
        *(vec *)(s + i) = part;
        mass += part;
    }
    float all = 1 / total(mass);
    for (long d = 0; d < D; d += 4 * LANES) { /* sums of odd and of even columns: none waits long */
        vec sums[2][4] = {0};
        const int parts = D - d < 4 * LANES ? (int)((D - d) / LANES) : 4;
        for (long i = 0; i < end; i += 2)
            for (int odd = 0; odd < 2; odd++)
                for (int k = 0; k < parts; k++)
                    sums[odd][k] += s[i + odd] * *(const vec *)(values + at[i + odd] * D + d + k * LANES);
        for (int k = 0; k < parts; k++) *(vec *)(out + d + k * LANES) = (sums[0][k] + sums[1][k]) * all;
    }
}

/* M queries of each of A sources look at C columns. q: A·M rows `step` apart, H heads of D in each;
   keys and values A G, `room` columns of D, of which C are there; bias A·G J·M C, or A·G C for all
   queries (`alike`), or 0; out A·M H·D. Scores lie on the stack. */
void few_look(const float *q, const float *keys, const float *values, const float *bias, float *out,
              long A, long M, long H, long G, long D, long C, long room, long step, long alike,
              float scale, long threads) {
    long J = H / G, wide = (C + LANES - 1) / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long i = 0; i < A * G; i++) {
        float s[wide];
        int at[wide + 1];
        const float *k = keys + i * room * D, *v = values + i * room * D;
        long n = 0;
        for (long j = 0; j < J; j++)
            for (long m = 0; m < M; m++) {
                long row = i / G * M + m, head = i % G * J + j;
                const float *mine = bias ? bias + (alike ? i : i * J * M + j * M + m) * C : 0;
                if ((bias && !alike) || j + m == 0) n = seen(mine, at, C);
                const float *asks = q + row * step + head * D;
                float *to = out + (row * H + head) * D;
                if (D == 64)
                    look(asks, k, v, mine, at, to, s, 64, n, scale);
                else
                    look(asks, k, v, mine, at, to, s, D, n, scale);
            }
    }
}

/* R queries look at columns that lie in pages of `page` slots: row r sees the first lengths[r] of the
   P pages table[r]. q: rows `step` apart, H heads of D; keys and values: slots G D; out R H·D. */
void few_pages(const float *q, const float *keys, const float *values, const int64_t *table,
               const int64_t *lengths, float *out, long R, long H, long G, long D, long P, long page,
               long step, float scale, long threads) {
    long J = H / G;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long i = 0; i < R * G; i++) {
        long r = i / G, first = i % G * D, n = lengths[r], wide = (n + LANES - 1) / LANES * LANES;
        float s[wide];
        int at[wide];
        for (long c = 0; c < n; c++)
            at[c] = (int)((table[r * P + c / page] * page + c % page) * G);
        for (long c = n; c < wide; c++) at[c] = at[0];
        for (long j = 0; j < J; j++) {
            long head = (i % G * J + j) * D;
            const float *asks = q + r * step + head, *k = keys + first, *v = values + first;
            float *to = out + r * H * D + head;
            if (D == 64)
                look(asks, k, v, 0, at, to, s, 64, n, scale);
            else
                look(asks, k, v, 0, at, to, s, D, n, scale);
        }
    }
}

/* Keys and values of M new tokens of each source go into the columns from `past` on: k and v are
   A·M rows, `kstep` and `vstep` apart, G heads of D in each. */
void few_keep(const float *k, const float *v, float *keys, float *values, long A, long M, long G,
              long D, long past, long room, long kstep, long vstep) {
    for (long i = 0; i < A * G; i++)
        for (long m = 0; m < M; m++) {
            long row = i / G * M + m, head = i % G * D, to = (i * room + past + m) * D;
            __builtin_memcpy(keys + to, k + row * kstep + head, D * sizeof(float));
            __builtin_memcpy(values + to, v + row * vstep + head, D * sizeof(float));
        }
}

/* Of each row of x, R V: the largest of each `WIDE` numbers in order, R P; the largest of all, R; and
   log Σ e^(x − largest), R. */
#define WIDE 64
INLINE vec top_of(const float *x) {
    const vec *v = (const vec *)x;
    return larger(larger(v[0], v[1]), larger(v[2], v[3]));
}

void few_tops(const float *x, float *tops, float *top, float *mass, long R, long V, long threads) {
    long whole = V / WIDE, P = (V + WIDE - 1) / WIDE;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long r = 0; r < R; r++) {
        const float *row = x + r * V;
        float rest[WIDE], *mine = tops + r * P, high = -INFINITY;
        for (int i = 0; i < WIDE; i++) rest[i] = whole * WIDE + i < V ? row[whole * WIDE + i] : -INFINITY;
        for (long p = 0; p < P; p++) {
            mine[p] = highest(top_of(p < whole ? row + p * WIDE : rest));
            high = mine[p] > high ? mine[p] : high;
        }
        vec sums[4] = {0};
        for (long p = 0; p < P; p++)
            for (int i = 0; i < 4; i++)
                sums[i] += exponential(((const vec *)(p < whole ? row + p * WIDE : rest))[i] - high);
        top[r] = high;
        mass[r] = logf(total((sums[0] + sums[1]) + (sums[2] + sums[3])));
    }
}
