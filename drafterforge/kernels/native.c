/* Inference on a CPU in float32 for few rows: linear layers, whose weights are read as bfloat16 if that is exact, and the
 * small operations between them.  Where the caller allows it, a processor with AVX512-BF16 multiplies in bfloat16, one
 * with AMX by its matrix unit.
 *
 * All results are batch-invariant: the order of a row's operations does not depend on the number of rows, so a token gets
 * the same bits in a tree and alone.  Weights are read once per call; each core takes a share of the output columns.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"
#if defined __FMA__ || defined __AVX512F__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

/* The compiler keeps vectors wider than the processor's registers in memory, which is ten times slower. */
#if defined __AVX512F__
#define LANES 16                   /* floats of a register */
#define REGISTERS 32
#elif defined __AVX__
#define LANES 8
#define REGISTERS 16
#elif defined __aarch64__
#define LANES 4
#define REGISTERS 32
#else
#define LANES 4
#define REGISTERS 16
#endif
#define PANEL (2 * LANES)          /* output columns that are computed together */
#define STEP (4 * PANEL)           /* bytes of a panel that are read together */
#if REGISTERS == 32
#define MOST_ROWS 12               /* rows of one tile; their sums fill the registers */
#define WIDE 4                     /* registers of sums for each of four queries */
#else
#define MOST_ROWS 6                /* so that no tile is BUSY */
#define WIDE 2
#endif
#define AHEAD 1024                 /* 4-byte numbers between weights read and weights prefetched, */
#define NEAR 256                   /* or this many, if the second-level cache was asked for them before, */
#define FAR 8192                   /* which is asked this many bytes ahead; see `ask` */
#define SOON 16                    /* slots between keys read and keys prefetched */
#define BUSY 8                     /* rows of a tile from which arithmetic takes longer than reading */
#define SMALL 40000                /* multiplications below which a second core does not pay */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t word __attribute__((may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* A number in every lane. */
INLINE vec spread(float number) { return number - (vec){0}; }

/* a b + c, rounded once if the processor can.  A compiler would fuse in some loops and not in others, and equal sums
 * would differ, so native.py forbids it (-ffp-contract=off). */
INLINE vec fused(vec a, vec b, vec c) {
#if defined __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined __FMA__
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined __aarch64__
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* ---- linear layers ------------------------------------------------------------------------------------------- */

/* Prefetches weights that are read later; each step reads STEP bytes of the panel.
 *
 * A single tile of few rows is limited by memory: it prefetches far ahead into the second-level cache, which takes more
 * requests than the first, and then into the first.  If several tiles read a panel, only the first would wait for
 * memory, so each prefetches a share of the next panel, `stride` bytes a step. */
INLINE void ask(const int rows, const uint32_t *w, const char *fetch, long stride) {
    const int alone = rows >= BUSY && stride == STEP;
    for (long line = 0; line < STEP; line += 64) {
        __builtin_prefetch((const char *)w + line + 4 * (alone ? AHEAD : NEAR));
        if (!alone) __builtin_prefetch(fetch + line, 0, 2);
    }
}

/* Products of `rows` inputs with one panel of weights; rows is a constant wherever this is inlined. */
INLINE void tile_half(const int rows, const float *x, long ldx, const uint32_t *w, long depth, const char *fetch,
                      long stride, vec sums[MOST_ROWS][2]) {
    vec acc[MOST_ROWS][2];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) acc[row][0] = acc[row][1] = (vec){0};
    for (long pair = 0; pair < depth / 2; pair++, w += PANEL, fetch += stride) {
        ask(rows, w, fetch, stride);
        const bits left = *(const bits *)w, right = *(const bits *)(w + LANES);
        const vec even0 = (vec)(left << 16), even1 = (vec)(right << 16);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            const vec value = spread(x[row * ldx + 2 * pair]);
            acc[row][0] = fused(value, even0, acc[row][0]);
            acc[row][1] = fused(value, even1, acc[row][1]);
        }
        const vec odd0 = (vec)(left & 0xffff0000u), odd1 = (vec)(right & 0xffff0000u);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            const vec value = spread(x[row * ldx + 2 * pair + 1]);
            acc[row][0] = fused(value, odd0, acc[row][0]);
            acc[row][1] = fused(value, odd1, acc[row][1]);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) sums[row][0] = acc[row][0], sums[row][1] = acc[row][1];
}

INLINE void tile_full(const int rows, const float *x, long ldx, const float *w, long depth, const char *fetch,
                      long stride, vec sums[MOST_ROWS][2]) {
    vec acc[MOST_ROWS][2];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) acc[row][0] = acc[row][1] = (vec){0};
    for (long at = 0; at < depth; at++, w += PANEL, fetch += stride) {
        ask(rows, (const uint32_t *)w, fetch, stride);
        const vec left = *(const vec *)w, right = *(const vec *)(w + LANES);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            const vec value = spread(x[row * ldx + at]);
            acc[row][0] = fused(value, left, acc[row][0]);
            acc[row][1] = fused(value, right, acc[row][1]);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) sums[row][0] = acc[row][0], sums[row][1] = acc[row][1];
}

typedef void tile_function(const float *x, long ldx, const void *w, long depth, const char *fetch, long stride,
                           vec sums[MOST_ROWS][2]);

#define TILES(n)                                                                                                   \
    static void half_##n(const float *x, long ldx, const void *w, long depth, const char *fetch, long stride,      \
                         vec sums[MOST_ROWS][2]) {                                                                 \
        tile_half(n, x, ldx, w, depth, fetch, stride, sums);                                                       \
    }                                                                                                              \
    static void full_##n(const float *x, long ldx, const void *w, long depth, const char *fetch, long stride,      \
                         vec sums[MOST_ROWS][2]) {                                                                 \
        tile_full(n, x, ldx, w, depth, fetch, stride, sums);                                                       \
    }
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
#if MOST_ROWS == 12
TILES(7) TILES(8) TILES(9) TILES(10) TILES(11) TILES(12)
#define WIDE_TILES(kind) , kind##_7, kind##_8, kind##_9, kind##_10, kind##_11, kind##_12
#else
#define WIDE_TILES(kind)
#endif

static tile_function *const HALF[] = {half_1, half_2, half_3, half_4, half_5, half_6 WIDE_TILES(half)};
static tile_function *const FULL[] = {full_1, full_2, full_3, full_4, full_5, full_6 WIDE_TILES(full)};

#if defined __AVX512BF16__ && defined __AVX512VL__ && defined __AVX512BW__
#define HAS_PAIRS 1
/* As `tile_half`, with inputs rounded by `round_rows`.  x: [rows, depth / 2] pairs, with row stride ldx. */
INLINE void tile_pairs(const int rows, const float *x, long ldx, const uint32_t *w, long depth, const char *fetch,
                       long stride, vec sums[MOST_ROWS][2]) {
    const word *pairs = (const word *)x;
    vec acc[MOST_ROWS][2];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) acc[row][0] = acc[row][1] = (vec){0};
    for (long pair = 0; pair < depth / 2; pair++, w += PANEL, fetch += stride) {
        ask(rows, w, fetch, stride);
        const __m512bh left = (__m512bh)_mm512_loadu_si512(w), right = (__m512bh)_mm512_loadu_si512(w + LANES);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            const __m512bh value = (__m512bh)_mm512_set1_epi32((int)pairs[row * ldx + pair]);
            acc[row][0] = (vec)_mm512_dpbf16_ps((__m512)acc[row][0], left, value);
            acc[row][1] = (vec)_mm512_dpbf16_ps((__m512)acc[row][1], right, value);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) sums[row][0] = acc[row][0], sums[row][1] = acc[row][1];
}

#define PAIR_TILES(n)                                                                                              \
    static void pairs_##n(const float *x, long ldx, const void *w, long depth, const char *fetch, long stride,     \
                          vec sums[MOST_ROWS][2]) {                                                                \
        tile_pairs(n, x, ldx, w, depth, fetch, stride, sums);                                                      \
    }
PAIR_TILES(1) PAIR_TILES(2) PAIR_TILES(3) PAIR_TILES(4) PAIR_TILES(5) PAIR_TILES(6)
PAIR_TILES(7) PAIR_TILES(8) PAIR_TILES(9) PAIR_TILES(10) PAIR_TILES(11) PAIR_TILES(12)
static tile_function *const PAIRS[] = {pairs_1, pairs_2, pairs_3, pairs_4, pairs_5, pairs_6 WIDE_TILES(pairs)};

/* x [rows, depth] rounded to pairs of bfloat16, the even one low: [rows, depth / 2].  depth is even. */
static void round_rows(const float *x, long ldx, uint32_t *pairs, long rows, long depth) {
    for (long row = 0; row < rows; row++, x += ldx, pairs += depth / 2)
        for (long at = 0; at < depth; at += LANES) {
            const __mmask16 used = depth - at < LANES ? (1u << (depth - at)) - 1 : 0xffff;
            const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(used, x + at));
            _mm256_mask_storeu_epi16((char *)pairs + 2 * at, used, (__m256i)rounded);
        }
}
#else
#define HAS_PAIRS 0
#define PAIRS HALF
static void round_rows(const float *x, long ldx, uint32_t *pairs, long rows, long depth) {
    (void)x, (void)ldx, (void)pairs, (void)rows, (void)depth;
}
#endif

#if defined __AVX512VNNI__ && defined __AVX512BW__ && defined __AVX512VL__
#define HAS_BYTES 1
/* As `tile_half`, with inputs from `quantise_rows` and weights of 8 bits, four of a column side by side.
 *
 * x: [rows, depth / 4] words, with row stride ldx.  sums: exact, of int32.  Inputs carry an offset of 128, so each sum is
 * too large by 128 times the sum of its column's weights, which `whole` subtracts. */
INLINE void tile_bytes(const int rows, const float *x, long ldx, const uint32_t *w, long depth, const char *fetch,
                       long stride, vec sums[MOST_ROWS][2]) {
    const word *quads = (const word *)x;
    __m512i acc[MOST_ROWS][2];
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) acc[row][0] = acc[row][1] = _mm512_setzero_si512();
    for (long quad = 0; quad < depth / 4; quad++, w += PANEL, fetch += stride) {
        ask(rows, w, fetch, stride);
        const __m512i left = _mm512_loadu_si512(w), right = _mm512_loadu_si512(w + LANES);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            const __m512i value = _mm512_set1_epi32((int)quads[row * ldx + quad]);
            acc[row][0] = _mm512_dpbusd_epi32(acc[row][0], value, left);
            acc[row][1] = _mm512_dpbusd_epi32(acc[row][1], value, right);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++) sums[row][0] = (vec)acc[row][0], sums[row][1] = (vec)acc[row][1];
}

#define BYTE_TILES(n)                                                                                              \
    static void bytes_##n(const float *x, long ldx, const void *w, long depth, const char *fetch, long stride,     \
                          vec sums[MOST_ROWS][2]) {                                                                \
        tile_bytes(n, x, ldx, w, depth, fetch, stride, sums);                                                      \
    }
BYTE_TILES(1) BYTE_TILES(2) BYTE_TILES(3) BYTE_TILES(4) BYTE_TILES(5) BYTE_TILES(6)
BYTE_TILES(7) BYTE_TILES(8) BYTE_TILES(9) BYTE_TILES(10) BYTE_TILES(11) BYTE_TILES(12)
static tile_function *const BYTES[] = {bytes_1, bytes_2, bytes_3, bytes_4, bytes_5, bytes_6 WIDE_TILES(bytes)};

/* Numbers of the sums of `tile_bytes`. */
INLINE vec whole(vec sums, const int32_t *offsets) {
    return (vec)_mm512_cvtepi32_ps(_mm512_sub_epi32((__m512i)sums, _mm512_loadu_si512(offsets)));
}

/* Rounds x [rows, depth] to bytes, x / step + 128, where a row's step is its largest magnitude / 127.  depth is a multiple
 * of 4.  steps: [rows]; NaN for a row that is not finite. */
static void quantise_rows(const float *x, uint8_t *bytes, float *steps, long rows, long depth) {
    for (long row = 0; row < rows; row++, x += depth, bytes += depth) {
        __m512 most = _mm512_setzero_ps(), spoilt = most; /* 0 x is NaN where x is not finite */
        for (long at = 0; at < depth; at += LANES) {
            const __mmask16 used = depth - at < LANES ? (1u << (depth - at)) - 1 : 0xffff;
            const __m512 part = _mm512_maskz_loadu_ps(used, x + at);
            most = _mm512_max_ps(most, _mm512_abs_ps(part));
            spoilt = _mm512_fmadd_ps(part, _mm512_setzero_ps(), spoilt);
        }
        const float largest = _mm512_reduce_max_ps(most), rest = _mm512_reduce_add_ps(spoilt);
        const int finite = rest == 0.f;
        const __m512 inverse = _mm512_set1_ps(finite && largest > 1e-30f ? 127.f / largest : 0.f);
        for (long at = 0; finite && at < depth; at += LANES) {
            const __mmask16 used = depth - at < LANES ? (1u << (depth - at)) - 1 : 0xffff;
            const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(used, x + at), inverse);
            const __m512i counts = _mm512_add_epi32(_mm512_cvtps_epi32(scaled), _mm512_set1_epi32(128));
            _mm512_mask_cvtepi32_storeu_epi8(bytes + at, used, counts);
        }
        steps[row] = finite ? largest / 127.f : NAN;
    }
}
#else
#define HAS_BYTES 0
#define BYTES HALF
INLINE vec whole(vec sums, const int32_t *offsets) {
    (void)offsets;
    return sums;
}
static void quantise_rows(const float *x, uint8_t *bytes, float *steps, long rows, long depth) {
    (void)x, (void)bytes, (void)steps, (void)rows, (void)depth;
}
#endif

#include "matrix.h"

/* Whether the processor multiplies pairs of bfloat16, and bytes. */
int df_has_pairs(void) { return HAS_PAIRS; }
int df_has_bytes(void) { return HAS_BYTES; }

/* Output columns that are packed together. */
int df_panel(void) { return PANEL; }

/* Weights [out, depth] to [out / PANEL, depth / 2, PANEL] pairs of bfloat16, the even one low; the rest is zero. */
void df_pack_half(const float *weight, uint32_t *packed, long out, long depth) {
    const word *source = (const word *)weight;
    for (long column = 0; column < (out + PANEL - 1) / PANEL * PANEL; column++) {
        uint32_t *into = packed + column / PANEL * PANEL * (depth / 2) + column % PANEL;
        for (long pair = 0; pair < depth / 2; pair++)
            into[pair * PANEL] = column < out ? source[column * depth + 2 * pair] >> 16 |
                                                    (source[column * depth + 2 * pair + 1] & 0xffff0000u)
                                              : 0;
    }
}

/* Weights [out, depth] to [out / PANEL, depth, PANEL]; the rest is zero. */
void df_pack_full(const float *weight, float *packed, long out, long depth) {
    for (long column = 0; column < (out + PANEL - 1) / PANEL * PANEL; column++) {
        float *into = packed + column / PANEL * PANEL * depth + column % PANEL;
        for (long at = 0; at < depth; at++) into[at * PANEL] = column < out ? weight[column * depth + at] : 0;
    }
}

/* Packed weights: of `size` 4 by `df_pack_full`, 2 by `df_pack_half`, or 1 by native.py.  paired: the inputs come from
 * `round_rows`; only with size 2.  With size 1 they come from `quantise_rows`.  matrix: the matrix unit multiplies. */
typedef struct {
    const void *packed;
    int size, paired, matrix;
    long depth;
} weights;

/* Sums of `count` inputs with panel `panel` of weights. */
INLINE void tile(const float *x, long ldx, weights w, long panel, const char *fetch, long stride, long count,
                 vec sums[][2]) {
    const void *from = (const char *)w.packed + panel * PANEL * w.depth * w.size;
    if (w.matrix) {
        multiply_matrices(x, ldx, from, w.depth * w.size / 4, w.size == 1, fetch, stride, count, sums);
        return;
    }
    tile_function *const *tiles = w.size == 1 ? BYTES : w.paired ? PAIRS : w.size == 2 ? HALF : FULL;
    tiles[count - 1](x, ldx, from, w.depth, fetch, stride, sums);
}

/* out[row] = weight x[row] (+ up low[row]) (+ bias) (+ added[row]); up.packed, bias and added may be null.
 *
 * experts: the rows are divided among as many, in order, each with an `up` of its own, up_stride bytes apart.
 * Of weights of size 1: steps [rows] of the inputs; scales and offsets of the columns, see `projection`. */
typedef struct {
    const float *x;
    long ldx;
    weights w;
    const float *steps, *scales;
    const int32_t *offsets;
    const float *low;
    weights up;
    long experts, up_stride;
    const float *bias, *added;
    float *out;
    long rows, columns;
} linear_loop;

static void linear_panels(const void *loop, long first_panel, long last_panel) {
    const linear_loop of = *(const linear_loop *)loop;
    const weights w = of.w, up = of.up;
    const float *x = of.x, *low = of.low, *bias = of.bias, *added = of.added;
    float *out = of.out;
    const long ldx = of.ldx, rows = of.rows, columns = of.columns, panel_bytes = PANEL * w.depth * w.size;
    const long most = w.matrix ? MATRIX_ROWS : MOST_ROWS, tiles = (rows + most - 1) / most;
    long prepared = 0; /* rows that the registers of the matrix unit are configured for; 0: not configured */
    for (long panel = first_panel; panel < last_panel; panel++) {
        const long first = panel * PANEL, width = columns - first < PANEL ? columns - first : PANEL;
        const char *from = (const char *)w.packed + panel * panel_bytes;
        for (long part = 0; part < tiles; part++) {
            const long start = part * rows / tiles, count = (part + 1) * rows / tiles - start;
            const char *fetch = from + (tiles == 1 ? FAR : panel_bytes + part * panel_bytes / tiles);
            vec sums[MATRIX_ROWS][2], more[MATRIX_ROWS][2];
            if (w.matrix && count != prepared) begin_matrices(count), prepared = count;
            tile(x + start * ldx, ldx, w, panel, fetch, STEP / tiles, count, sums);
            for (long row = 0; w.size == 1 && row < count; row++)
                for (int side = 0; side < 2; side++) {
                    const long column = first + side * LANES;
                    const vec scale = *(const vec *)(of.scales + column) * of.steps[start + row];
                    sums[row][side] = whole(sums[row][side], of.offsets + column) * scale;
                }
            for (long row = 0, end; up.packed && row < count; row = end) {
                const long expert = (start + row) * of.experts / rows, next = (expert + 1) * (rows / of.experts) - start;
                end = next < count ? next : count;
                if (end > row + MOST_ROWS) end = row + MOST_ROWS;
                weights own = up;
                own.packed = (const char *)up.packed + expert * of.up_stride;
                tile(low + (start + row) * up.depth, up.depth, own, panel, from, 0, end - row, more + row);
            }
            for (long row = 0; up.packed && row < count; row++)
                sums[row][0] += more[row][0], sums[row][1] += more[row][1];
            for (long row = 0; row < count; row++) {
                const float *sum = (const float *)sums[row];
                const long at = (start + row) * columns + first;
                for (long column = 0; column < width; column++) {
                    float value = sum[column];
                    if (bias) value += bias[first + column];
                    if (added) value += added[at + column];
                    out[at + column] = value;
                }
            }
        }
    }
    if (prepared) end_matrices();
}

static void linear(linear_loop loop, int threads) {
    const long panels = (loop.columns + PANEL - 1) / PANEL;
    share_loop(linear_panels, &loop, panels, loop.rows * loop.w.depth * loop.columns > SMALL ? threads : 1);
}

/* A linear layer of each of several experts, `each` of the first one's rows; their weights are `stride` bytes apart. */
typedef struct {
    linear_loop each;
    long stride;
} expert_loop;

static void linear_experts(const void *loop, long first, long last) {
    const expert_loop of = *(const expert_loop *)loop;
    for (long expert = first; expert < last; expert++) {
        linear_loop own = of.each;
        own.x += expert * own.rows * own.ldx, own.out += expert * own.rows * own.columns;
        own.w.packed = (const char *)own.w.packed + expert * of.stride;
        linear_panels(&own, 0, (own.columns + PANEL - 1) / PANEL);
    }
}

/* weight x (+ up down x) (+ bias), of packed weights; `down`, up and bias may be null.
 *
 * experts: the rows are divided among as many, in order, each with a `down` and an `up` of its own, strides of bytes apart.
 * size, down_size, up_size, matrix: see `weights`.  rounds: inputs are rounded to bfloat16; only with size 2.  Of size 1:
 * scales: of the weights of each column, to the end of the last panel; offsets: 128 times the sums of these weights. */
typedef struct {
    const void *packed, *down, *up;
    const float *bias, *scales;
    const int32_t *offsets;
    long depth, columns, rank, experts, down_stride, up_stride;
    int size, down_size, up_size, rounds, matrix;
} projection;

/* Numbers of scratch memory for each row: low [rank], and inputs that are rounded, with their step. */
INLINE long room(const projection *by) { return by->rank + by->depth / 2 + 1; }

static float *room_for(long numbers) {
    void *memory;
    return posix_memalign(&memory, 64, numbers * sizeof(float)) ? NULL : memory;
}

/* x: [rows, depth], contiguous.  added: [rows, columns] or null; it may be `out`.  scratch: `room` for each row. */
static void project(const projection *by, const float *x, const float *added, float *out, long rows, float *scratch,
                    int threads) {
    const long depth = by->depth;
    float *low = scratch, *steps = low + rows * by->rank, *inputs = steps + rows;
    const int matrix = by->matrix && (by->size > 1 || rows >= BUSY); /* sums of bytes are exact either way */
    linear_loop loop = {.x = x, .ldx = depth, .w = {by->packed, by->size, by->rounds, matrix, depth}, .scales = by->scales,
                        .offsets = by->offsets, .steps = steps, .bias = by->bias, .added = added, .out = out,
                        .rows = rows, .columns = by->columns};
    if (by->down) {
        const linear_loop each = {.x = x, .ldx = depth, .w = {by->down, by->down_size, 0, 0, depth}, .out = low,
                                  .rows = rows / by->experts, .columns = by->rank};
        if (by->experts == 1) linear(each, threads);
        else share_loop(linear_experts, &(expert_loop){each, by->down_stride}, by->experts,
                        rows * depth * by->rank > SMALL ? threads : 1);
        loop.low = low, loop.up = (weights){by->up, by->up_size, 0, 0, by->rank};
        loop.experts = by->experts, loop.up_stride = by->up_stride;
    }
    if (by->size == 1) {
        quantise_rows(x, (uint8_t *)inputs, steps, rows, depth);
        loop.x = inputs, loop.ldx = depth / 4;
    } else if (by->rounds) {
        round_rows(x, depth, (uint32_t *)inputs, rows, depth);
        loop.x = inputs, loop.ldx = depth / 2;
    }
    linear(loop, threads);
}

/* out[row] = projection of x[row] (+ added[row]); see `project`.  Returns 1 if memory ran out. */
int df_project(const projection *by, const float *x, const float *added, float *out, long rows, int threads) {
    float *scratch = room_for(rows * room(by));
    if (!scratch) return 1;
    project(by, x, added, out, rows, scratch, threads);
    free(scratch);
    return 0;
}

/* ---- small operations ---------------------------------------------------------------------------------------- */

/* e^x of each lane; 0 below -87. */
INLINE vec exponential(vec x) {
    const vec low = spread(-87.f), high = -low;
    const ints tiny = x < low;
    x = (vec)(((ints)x & ~(x > high)) | ((ints)high & (x > high)));
    x = (vec)(((ints)x & ~tiny) | ((ints)low & tiny));
    const vec shift = spread(12582912.f); /* 1.5 * 2^23: rounds to the nearest integer */
    const vec shifted = fused(x, spread(1.44269504f), shift), whole = shifted - shift;
    const vec rest = fused(whole, spread(-1.42860677e-6f), fused(whole, spread(-0.693145752f), x));
    vec power = fused(rest, spread(1.38888889e-3f), spread(8.33333333e-3f));
    power = fused(power, rest, spread(4.16666667e-2f));
    power = fused(power, rest, spread(1.66666667e-1f));
    power = fused(power, rest, spread(.5f));
    power = fused(power, rest, spread(1.f));
    power = fused(power, rest, spread(1.f));
    const ints raised = (ints)power + (((ints)shifted - 0x4b400000) << 23);
    return (vec)(raised & ~tiny);
}

INLINE float sum_of(vec x) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += x[lane];
    return total;
}

/* Whether any lane of x is above a number. */
INLINE int any_above(vec x, float number) {
    const ints more = x > number;
    int32_t found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= more[lane];
    return found != 0;
}

typedef struct {
    const float *logits;
    long width, count;
    float *values;
    int64_t *places;
} top_loop;

static void top_rows(const void *loop, long first, long last) {
    const top_loop *of = loop;
    const float *logits = of->logits;
    const long width = of->width, count = of->count;
    float *values = of->values;
    int64_t *places = of->places;
    for (long row = first; row < last; row++) {
        const float *in = logits + row * width;
        float *best = values + row * count;
        int64_t *where = places + row * count;
        long known = 0;
        for (long start = 0; start < width; start += LANES) {
            const long end = start + LANES < width ? start + LANES : width;
            const int whole = end - start == LANES;
            if (known == count && whole && !any_above(*(const vec *)(in + start), best[count - 1])) continue;
            for (long at = start; at < end; at++) {
                if (known == count && !(in[at] > best[count - 1])) continue;
                long place = known < count ? known++ : count - 1;
                for (; place > 0 && in[at] > best[place - 1]; place--)
                    best[place] = best[place - 1], where[place] = where[place - 1];
                best[place] = in[at], where[place] = at;
            }
        }
        const float highest = best[0];
        vec sums = {0};
        long at = 0;
        for (; at + LANES <= width; at += LANES) sums += exponential(*(const vec *)(in + at) - highest);
        float total = sum_of(sums);
        if (at < width) {
            float rest[LANES] = {0};
            memcpy(rest, in + at, (width - at) * sizeof(float));
            const vec more = exponential(*(const vec *)rest - highest);
            for (long lane = 0; at + lane < width; lane++) total += more[lane];
        }
        const float all = logf(total) + highest;
        for (long place = 0; place < count; place++) { /* 1 may round to a log of +1e-7 */
            const float value = best[place] - all;
            best[place] = value > 0.f ? 0.f : value;
        }
    }
}

/* Log-probabilities and indices of the best `count` of logits [rows, width], each [rows, count], descending.
 *
 * Equal logits are ordered by index. */
void df_top(const float *logits, long rows, long width, long count, float *values, int64_t *places, int threads) {
    const top_loop loop = {logits, width, count, values, places};
    share_loop(top_rows, &loop, rows, rows * width > SMALL ? threads : 1);
}

typedef struct {
    const float *x;
    long width;
    int64_t *places;
} argmax_loop;

static void argmax_rows(const void *loop, long first, long last) {
    const argmax_loop *of = loop;
    const long width = of->width;
    for (long row = first; row < last; row++) {
        const float *in = of->x + row * width;
        float highest = in[0];
        long best = 0;
        for (long start = 0; start < width; start += LANES) {
            const long end = start + LANES < width ? start + LANES : width;
            if (end - start == LANES && !any_above(*(const vec *)(in + start), highest)) continue;
            for (long at = start; at < end; at++)
                if (in[at] > highest) highest = in[at], best = at;
        }
        of->places[row] = best;
    }
}

/* Index of the largest number of each row of [rows, width]; the first of equal ones. */
void df_argmax(const float *x, long rows, long width, int64_t *places, int threads) {
    const argmax_loop loop = {x, width, places};
    share_loop(argmax_rows, &loop, rows, rows * width > SMALL ? threads : 1);
}

/* The walks that the target confirms: path [rows, levels] of nodes, padded with the root, and lengths [rows].
 *
 * tokens, parents, next: [rows, nodes], parents before children; a padding node is its own parent.  next: the target's
 * token after each node.  Returns 1 if a parent is no earlier node or a walk has more than `levels` nodes. */
int df_walk(const int64_t *tokens, const int64_t *parents, const int64_t *next, long rows, long nodes, long levels,
            int64_t *path, int64_t *lengths) {
    for (long row = 0; row < rows; row++, tokens += nodes, parents += nodes, next += nodes) {
        int64_t *walk = path + row * levels;
        memset(walk, 0, levels * sizeof(int64_t));
        long last = 0, length = 1;
        for (long node = 1; node < nodes; node++) {
            if (parents[node] < 0 || parents[node] > node) return 1;
            /* siblings differ, so at most one child of the walk's last node is confirmed */
            if (parents[node] != last || tokens[node] != next[last]) continue;
            if (length == levels) return 1;
            walk[length++] = last = node;
        }
        lengths[row] = length;
    }
    return 0;
}

/* Writes for each row: number of nodes without padding, length of the walk, the walk, the token after each of its nodes.
 *
 * parents: [rows, nodes]; the root's and padding's is itself.  path, tokens: [rows, levels].  packed: [rows, 2 + 2 levels].
 */
void df_pack_walks(const int64_t *parents, const int64_t *path, const int64_t *lengths, const int64_t *tokens,
                   long rows, long nodes, long levels, int64_t *packed) {
    for (long row = 0; row < rows; row++, parents += nodes, path += levels, tokens += levels) {
        int64_t size = 1;
        for (long node = 0; node < nodes; node++) size += parents[node] != node;
        *packed++ = size;
        *packed++ = lengths[row];
        memcpy(packed, path, levels * sizeof(int64_t));
        memcpy(packed + levels, tokens, levels * sizeof(int64_t));
        packed += 2 * levels;
    }
}

/* Adds a level of candidates after the `size` ones of the pool [rows, room]: the best `count` children of each beam node
 * by logits [rows, beam, width]; the `kept` best of these are the next beam, equal ones in their order.
 *
 * scores, pool: [rows, beam] cumulative log-probabilities and pool indices of the beam; NULL for the root.  names: token
 * of each logit, or NULL.  growing: rows that have this level, or NULL; candidates of other rows score -inf.  next_*,
 * origin: [rows, kept].  values, places: [rows * beam, count]. */
void df_level(const float *logits, long rows, long beam, long width, long count, const float *scores,
              const int64_t *pool, const int64_t *names, const uint8_t *growing, long size, long room,
              int64_t *all_tokens, float *all_scores, int64_t *all_parents, long kept, int64_t *next_tokens,
              float *next_scores, int64_t *next_pool, int64_t *origin, float *values, int64_t *places, int threads) {
    df_top(logits, rows * beam, width, count, values, places, threads);
    const long fresh = beam * count;
    for (long row = 0; row < rows; row++) {
        int64_t *tokens = all_tokens + row * room + size, *parents = all_parents + row * room + size;
        float *cumulative = all_scores + row * room + size;
        const float *logp = values + row * fresh;
        const int64_t *ids = places + row * fresh;
        for (long at = 0; at < fresh; at++) {
            const long node = row * beam + at / count;
            tokens[at] = names ? names[ids[at]] : ids[at];
            parents[at] = pool ? pool[node] : -1;
            cumulative[at] = growing && !growing[row] ? -INFINITY : scores ? scores[node] + logp[at] : logp[at];
        }
        float *best = next_scores + row * kept;
        int64_t *where = origin + row * kept;
        for (long at = 0, known = 0; at < fresh; at++) {
            if (known == kept && !(cumulative[at] > best[kept - 1])) continue;
            long place = known < kept ? known++ : kept - 1;
            for (; place > 0 && cumulative[at] > best[place - 1]; place--)
                best[place] = best[place - 1], where[place] = where[place - 1];
            best[place] = cumulative[at], where[place] = at;
        }
        for (long place = 0; place < kept; place++) {
            const int64_t at = where[place];
            next_tokens[row * kept + place] = tokens[at];
            next_pool[row * kept + place] = size + at;
            where[place] = at / count;
        }
    }
}

/* Level slots that the nodes of a beam read, [rows, beam, slots + beam]: those of their origins in `before` [rows,
 * earlier, slots], and themselves.  Returns 1 if an origin is no node of the beam before. */
int df_reads(const uint8_t *before, const int64_t *origin, long rows, long earlier, long beam, long slots,
             uint8_t *reads) {
    const long width = slots + beam;
    for (long node = 0; node < rows * beam; node++)
        if (origin[node] < 0 || origin[node] >= earlier) return 1;
    for (long node = 0; node < rows * beam; node++) {
        uint8_t *own = reads + node * width;
        memcpy(own, before + (node / beam * earlier + origin[node]) * slots, slots);
        memset(own + slots, 0, beam);
        own[slots + node % beam] = 1;
    }
    return 0;
}

/* Whether node j is node i or an ancestor of it, [rows, nodes, nodes], of parents [rows, nodes]; the root's and padding's
 * parent is itself.  Returns 1 if a parent comes after its child. */
int df_ancestors(const int64_t *parents, long rows, long nodes, uint8_t *mask) {
    for (long row = 0; row < rows; row++, parents += nodes, mask += nodes * nodes)
        for (long node = 0; node < nodes; node++) {
            const int64_t parent = parents[node];
            if (parent < 0 || parent > node) return 1;
            uint8_t *own = mask + node * nodes;
            if (parent < node) memcpy(own, mask + parent * nodes, nodes);
            else memset(own, 0, nodes);
            own[node] = 1;
        }
    return 0;
}

/* Additive mask [rows, beam, base + slots]: 0 for the first lengths[row] slots and, after `base`, where `reads` [rows,
 * beam, slots] is 1; else -inf. */
void df_mask(const uint8_t *reads, const int64_t *lengths, long rows, long beam, long slots, long base, float *mask) {
    for (long node = 0; node < rows * beam; node++, reads += slots, mask += base + slots) {
        const long own = lengths[node / beam];
        for (long at = 0; at < base; at++) mask[at] = at < own ? 0.f : -INFINITY;
        for (long at = 0; at < slots; at++) mask[base + at] = reads[at] ? 0.f : -INFINITY;
    }
}

/* Trees [rows, nodes] of the root and the best counts[row] - 1 of the `size` candidates of each row of the pool [rows,
 * room], equal ones in their order; nodes are in pool order, and padding nodes are their own parents.
 *
 * ends: end of each level in the pool, [depth].  finite: leave out candidates that score -inf.  place: scratch,
 * [size + 1].  Returns 1 if the parent of a node is not in the tree or no earlier candidate. */
int df_cut(const int64_t *roots, const int64_t *all_tokens, const float *all_scores, const int64_t *all_parents,
           long rows, long size, long room, const int64_t *ends, const int64_t *counts, int finite, long nodes,
           int64_t *out_tokens, int64_t *out_parents, int64_t *out_levels, int64_t *place) {
    for (long row = 0; row < rows; row++) {
        const float *scores = all_scores + row * room;
        int64_t *tokens = out_tokens + row * nodes, *parents = out_parents + row * nodes;
        int64_t *levels = out_levels + row * nodes;
        int64_t *kept = tokens; /* pool indices of the best, by score, until tokens replace them */
        const long most = counts[row] - 1 < nodes - 1 ? counts[row] - 1 : nodes - 1;
        long known = 0;
        for (long at = 0; at < size && most > 0; at++) {
            if (finite && scores[at] == -INFINITY) continue;
            if (known == most && !(scores[at] > scores[kept[known - 1]])) continue;
            long spot = known < most ? known++ : most - 1;
            for (; spot > 0 && scores[at] > scores[kept[spot - 1]]; spot--) kept[spot] = kept[spot - 1];
            kept[spot] = at;
        }
        memset(place, 0, (size + 1) * sizeof(int64_t));
        for (long spot = 0; spot < known; spot++) place[kept[spot] + 1] = 1;
        long node = 0, level = 1;
        tokens[0] = roots[row], parents[0] = levels[0] = 0;
        for (long at = 0; at < size; at++) {
            while (at >= ends[level - 1]) level++;
            if (!place[at + 1]) continue;
            place[at + 1] = ++node;
            const int64_t parent = all_parents[row * room + at];
            if (parent < -1 || parent >= at || (parent >= 0 && !place[parent + 1])) return 1;
            tokens[node] = all_tokens[row * room + at];
            parents[node] = place[parent + 1];
            levels[node] = level;
        }
        for (node++; node < nodes; node++) tokens[node] = levels[node] = 0, parents[node] = node;
    }
    return 0;
}

/* tanh(weight x + bias) of one row, weight [in, width]; the last layer has no tanh. */
static void dense(const float *x, const float *weight, const float *bias, float *out, long in, long width, int last) {
    memcpy(out, bias, width * sizeof(float));
    for (long at = 0; at < in; at++) {
        const float value = x[at], *of = weight + at * width;
        for (long column = 0; column < width; column++) out[column] += value * of[column];
    }
    if (last) return;
    for (long column = 0; column < width; column += LANES) {
        const long count = width - column < LANES ? width - column : LANES;
        float part[LANES] = {0};
        memcpy(part, out + column, count * sizeof(float));
        const vec doubled = exponential(2.f * *(const vec *)part);
        const vec done = (doubled - 1.f) / (doubled + 1.f);
        for (long lane = 0; lane < count; lane++) out[column + lane] = done[lane];
    }
}

typedef struct {
    const float *x, *mean, *scale;
    float farthest;
    const float *const *weights, *const *biases;
    const long *widths;
    long layers, widest;
    float *scratch, *out;
} mlp_loop;

static void mlp_rows(const void *loop, long first, long last_row) {
    const mlp_loop of = *(const mlp_loop *)loop;
    const float *x = of.x, *mean = of.mean, *scale = of.scale;
    const long *widths = of.widths, layers = of.layers;
    const float farthest = of.farthest;
    for (long row = first; row < last_row; row++) {
        float *from = of.scratch + 2 * row * of.widest, *to = from + of.widest;
        for (long at = 0; at < widths[0]; at++) {
            const float value = (x[row * widths[0] + at] - mean[at]) / scale[at];
            from[at] = value < -farthest ? -farthest : value > farthest ? farthest : value;
        }
        for (long layer = 0; layer < layers; layer++) {
            const int last = layer == layers - 1;
            float *into = last ? of.out + row * widths[layers] : to;
            dense(from, of.weights[layer], of.biases[layer], into, widths[layer], widths[layer + 1], last);
            to = from, from = into;
        }
    }
}

/* An MLP with tanh between its layers on clamp((x - mean) / scale); x [rows, widths[0]], out [rows, widths[layers]].
 *
 * weights, biases: one for each layer, [widths[i], widths[i + 1]] and [widths[i + 1]].  scratch: [rows, 2 widest]. */
void df_mlp(const float *x, const float *mean, const float *scale, float farthest, const float *const *weights,
            const float *const *biases, const long *widths, long layers, long widest, float *scratch, float *out,
            long rows, int threads) {
    const mlp_loop loop = {x, mean, scale, farthest, weights, biases, widths, layers, widest, scratch, out};
    share_loop(mlp_rows, &loop, rows, rows > 8 ? threads : 1);
}

/* x rounded to float16, for |x| up to 65504. */
INLINE float half_of(float x) {
    if (fabsf(x) < 6.103515625e-05f) return rintf(x * 16777216.f) / 16777216.f; /* subnormal in float16 */
    word number;
    memcpy(&number, &x, sizeof x);
    number = (number + 0xfff + (number >> 13 & 1)) & ~(word)0x1fff;
    memcpy(&x, &number, sizeof x);
    return x;
}

/* Log-probabilities [rows, count] rounded to float16 and at least `least`, their exponentials, and 1 less their sum; out
 * [rows, 2 count + 1]. */
void df_children(const float *logp, long rows, long count, float least, float *out) {
    for (long row = 0; row < rows; row++, logp += count, out += 2 * count + 1) {
        float sum = 0.f;
        for (long at = 0; at < count; at += LANES) {
            const long some = count - at < LANES ? count - at : LANES;
            float part[LANES] = {0};
            for (long lane = 0; lane < some; lane++)
                part[lane] = logp[at + lane] > least ? half_of(logp[at + lane]) : least;
            const vec powers = exponential(*(const vec *)part);
            for (long lane = 0; lane < some; lane++) {
                out[at + lane] = part[lane];
                out[count + at + lane] = powers[lane];
                sum += powers[lane];
            }
        }
        out[2 * count] = 1.f - sum;
    }
}

static int falling(const void *one, const void *other) {
    const float a = *(const float *)one, b = *(const float *)other;
    return (a < b) - (a > b);
}

/* For each row of log-probabilities [rows, count], rounded to float16: reach, the sum of the exponentials of its `most`
 * best, and chosen, the first of sizes with the largest sum of its best size - 1 less its price.
 *
 * reach, chosen: [rows]; either may be NULL.  sizes, prices: [num_sizes], rising, 2 or more.  scratch: [count]. */
void df_worth(const float *scores, long rows, long count, long most, float *reach, const int64_t *sizes,
              const double *prices, long num_sizes, int64_t *chosen, float *scratch) {
    for (long row = 0; row < rows; row++, scores += count) {
        for (long at = 0; at < count; at++) scratch[at] = half_of(scores[at]);
        qsort(scratch, count, sizeof(float), falling);
        if (reach) {
            double sum = 0.;
            for (long at = 0; at < count && at < most; at++) sum += expf(scratch[at]);
            reach[row] = (float)sum;
        }
        if (!chosen) continue;
        double sum = 0., best = -INFINITY;
        long summed = 0;
        chosen[row] = sizes[0]; /* if every gain is NaN */
        for (long place = 0; place < num_sizes; place++) {
            for (; summed < count && summed < sizes[place] - 1; summed++) sum += expf(scratch[summed]);
            const double gain = sum - prices[place];
            if (gain > best) best = gain, chosen[row] = sizes[place];
        }
    }
}

/* out[row] = x[row] / sqrt(mean of its squares + eps) * gain; [rows, width], row strides ldx and width. */
void df_rms_norm(const float *x, long ldx, const float *gain, float *out, long rows, long width, float eps) {
    for (long row = 0; row < rows; row++) {
        const float *in = x + row * ldx;
        float *to = out + row * width;
        vec squares[4] = {{0}, {0}, {0}, {0}};
        long at = 0;
        for (; at + 4 * LANES <= width; at += 4 * LANES)
            for (int part = 0; part < 4; part++) {
                const vec value = *(const vec *)(in + at + part * LANES);
                squares[part] = fused(value, value, squares[part]);
            }
        float total = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3]));
        for (; at < width; at++) total += in[at] * in[at];
        const float scale = 1.f / sqrtf(total / (float)width + eps);
        for (at = 0; at < width; at++) to[at] = in[at] * scale * gain[at];
    }
}

typedef struct {
    const float *in;
    float *out;
    long width;
} swiglu_loop;

static void swiglu_rows(const void *loop, long first, long last) {
    const swiglu_loop *of = loop;
    const long width = of->width;
    for (long row = first; row < last; row++) {
        const float *gate = of->in + row * 2 * width, *up = gate + width;
        float *to = of->out + row * width;
        long at = 0;
        for (; at + LANES <= width; at += LANES) {
            const vec value = *(const vec *)(gate + at);
            *(vec *)(to + at) = value / (1.f + exponential(-value)) * *(const vec *)(up + at);
        }
        if (at < width) {
            float part[LANES] = {0};
            memcpy(part, gate + at, (width - at) * sizeof(float));
            const vec value = *(const vec *)part;
            const vec done = value / (1.f + exponential(-value));
            for (long lane = 0; at + lane < width; lane++) to[at + lane] = done[lane] * up[at + lane];
        }
    }
}

/* out[row] = silu(gate) * up for rows gate|up; in [rows, 2 width], out [rows, width]. */
void df_swiglu(const float *in, float *out, long rows, long width, int threads) {
    const swiglu_loop loop = {in, out, width};
    share_loop(swiglu_rows, &loop, rows, rows * width > SMALL / 2 ? threads : 1);
}

/* The slot of row b * length + t: slots_of[row], or start + t without slots_of. */
INLINE long slot_of(const int64_t *slots_of, long start, long row, long length) {
    return slots_of ? slots_of[row] : start + row % length;
}

static int slots_fit(const int64_t *slots_of, long start, long rows, long length, long slots) {
    for (long row = 0; row < rows; row++) {
        const long slot = slot_of(slots_of, start, row, length);
        if (slot < 0 || slot >= slots) return 0;
    }
    return 1;
}

/* Copies a token's keys and values, `keys` heads each, side by side, to its slot of caches [keys, slots, width]. */
static void store(const float *keys_values, long keys, long width, long slots, float *keys_to, float *values_to) {
    for (long head = 0; head < keys; head++) {
        memcpy(keys_to + head * slots * width, keys_values + head * width, width * sizeof(float));
        memcpy(values_to + head * slots * width, keys_values + (keys + head) * width, width * sizeof(float));
    }
}

/* Rotates queries and keys of qkv [rows, queries + 2 keys, width] in place and stores keys and values in a cache.
 *
 * cosines, sines: [rows, width / 2].  rows: batch * length.  keys_to, values_to: [batch, keys, slots, width], the
 * batch `batch_stride` numbers apart; row b * length + t goes to slot slots_of[row], or start + t without slots_of.
 * Returns 1, without any change, if a slot lies outside the cache. */
int df_rotate_and_store(float *qkv, const float *cosines, const float *sines, long rows, long length, long queries,
                         long keys, long width, float *keys_to, float *values_to, long batch_stride, long slots,
                         const int64_t *slots_of, long start) {
    const long half = width / 2;
    if (!slots_fit(slots_of, start, rows, length, slots)) return 1;
    for (long row = 0; row < rows; row++) {
        float *heads = qkv + row * (queries + 2 * keys) * width;
        const float *cosine = cosines + row * half, *sine = sines + row * half;
        for (long head = 0; head < queries + keys; head++) {
            float *first = heads + head * width, *second = first + half;
            for (long at = 0; at < half; at++) {
                const float a = first[at], b = second[at];
                first[at] = a * cosine[at] - b * sine[at];
                second[at] = b * cosine[at] + a * sine[at];
            }
        }
        const long to = row / length * batch_stride + slot_of(slots_of, start, row, length) * width;
        store(heads + queries * width, keys, width, slots, keys_to + to, values_to + to);
    }
    return 0;
}

/* Copies slot from[i] of row rows[i] to slot to[i], one after the other, in each plane: a layer's keys or values.
 *
 * data: [planes, num_rows, heads, slots, width] bytes; strides in bytes.  Returns 1 if a row or slot is out of range. */
int df_move(char *data, long planes, long plane_stride, long num_rows, long row_stride, long heads, long slots,
            long width, const int64_t *rows, const int64_t *from, const int64_t *to, long count) {
    for (long at = 0; at < count; at++)
        if (rows[at] < 0 || rows[at] >= num_rows || from[at] < 0 || from[at] >= slots || to[at] < 0 || to[at] >= slots)
            return 1;
    for (long plane = 0; plane < planes; plane++)
        for (long at = 0; at < count; at++)
            for (long head = 0; head < heads && from[at] != to[at]; head++) {
                char *row = data + plane * plane_stride + rows[at] * row_stride + head * slots * width;
                memcpy(row + to[at] * width, row + from[at] * width, width);
            }
    return 0;
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

/* Sums of values under four queries' weights [used, LANES]: WIDE * LANES columns at once, or fewer. */
INLINE void weigh(const float *weights, const float *values, long width, long used, float sums[4][WIDE * LANES]) {
    vec acc[4][WIDE];
#pragma GCC unroll 4
    for (int row = 0; row < 4; row++)
#pragma GCC unroll 4
        for (int of = 0; of < WIDE; of++) acc[row][of] = (vec){0};
    for (long at = 0; at < used; at++) {
        const vec *value = (const vec *)(values + at * width);
#pragma GCC unroll 4
        for (int row = 0; row < 4; row++)
#pragma GCC unroll 4
            for (int of = 0; of < WIDE; of++)
                acc[row][of] = fused(spread(weights[at * LANES + row]), value[of], acc[row][of]);
    }
    memcpy(sums, acc, sizeof(acc));
}

static void weigh_few(const float *weights, const float *values, long width, long used, long columns,
                      float sums[4][WIDE * LANES]) {
    memset(sums, 0, 4 * WIDE * LANES * sizeof(float));
    for (long at = 0; at < used; at++)
        for (int row = 0; row < 4; row++)
            for (long column = 0; column < columns; column++)
                sums[row][column] += weights[at * LANES + row] * values[at * width + column];
}

/* The slots up to the last one that any of LANES queries reads, at least one: the keys behind it need not be loaded.
 * In a batch, shorter sequences end in slots that only the longest one reads. */
static long slots_read(const float *masks[LANES], long used) {
    for (; used > 1; used--)
        for (int lane = 0; lane < LANES; lane++)
            if (masks[lane] && masks[lane][used - 1] != -INFINITY) return used;
    return used;
}

/* How many slots all of LANES queries read unmasked, from the first on.  Queries of a token have the same mask. */
static long slots_open(const float *masks[LANES], long used) {
    const float *last = NULL;
    for (int lane = 0; lane < LANES && masks[lane]; lane++) {
        if (masks[lane] == last) continue;
        last = masks[lane];
        long slot = 0;
        for (; slot + LANES <= used; slot += LANES) {
            const ints masked = *(const vec *)(last + slot) != (vec){0};
            int some = 0;
            for (int part = 0; part < LANES; part++) some |= masked[part];
            if (some) break;
        }
        while (slot < used && last[slot] == 0.f) slot++;
        used = slot;
    }
    return used;
}

/* LANES queries of one key head: computes scores [used, LANES], overwrites them with weights, then sums values. */
static void attend(const float *queries[LANES], const float *masks[LANES], float *results[LANES], const float *keys,
                   const float *values, long width, long used, float scale, vec *scores, vec *turned) {
    memset(turned, 0, width * sizeof(vec));
    for (int lane = 0; lane < LANES; lane++)
        if (queries[lane])
            for (long at = 0; at < width; at++) ((float *)&turned[at])[lane] = queries[lane][at] * scale;
    long slot = 0;
    for (; slot + 8 <= used; slot += 8) {
        const float *key = keys + slot * width;
        for (long at = 0; at < 8 * width; at += 16) __builtin_prefetch(key + SOON * width + at);
        vec acc[8];
#pragma GCC unroll 8
        for (int part = 0; part < 8; part++) acc[part] = (vec){0};
        for (long at = 0; at < width; at++) {
            const vec query = turned[at];
#pragma GCC unroll 8
            for (int part = 0; part < 8; part++) acc[part] = fused(spread(key[part * width + at]), query, acc[part]);
        }
#pragma GCC unroll 8
        for (int part = 0; part < 8; part++) scores[slot + part] = acc[part];
    }
    for (; slot < used; slot++) {
        vec acc = {0};
        for (long at = 0; at < width; at++) acc = fused(spread(keys[slot * width + at]), turned[at], acc);
        scores[slot] = acc;
    }
    const long open = slots_open(masks, used);
    for (int lane = 0; lane < LANES && masks[lane]; lane++)
        for (long at = open; at < used; at++) ((float *)&scores[at])[lane] += masks[lane][at];
    vec highest = scores[0];
    for (long at = 1; at < used; at++) {
        const ints more = scores[at] > highest;
        highest = (vec)(((ints)scores[at] & more) | ((ints)highest & ~more));
    }
    vec total = {0};
    for (long at = 0; at < used; at++) { /* a masked key adds an exact zero */
        scores[at] = exponential(scores[at] - highest);
        total += scores[at];
    }
    const float *weights = (const float *)scores;
    for (int lane = 0; lane < LANES; lane += 4) {
        if (!results[lane]) break;
        for (long part = 0; part < width; part += WIDE * LANES) {
            const long columns = width - part < WIDE * LANES ? width - part : WIDE * LANES;
            float sums[4][WIDE * LANES];
            if (columns == WIDE * LANES)
                weigh(weights + lane, values + part, width, used, sums);
            else
                weigh_few(weights + lane, values + part, width, used, columns, sums);
            for (int row = 0; row < 4; row++)
                if (results[lane + row])
                    for (long column = 0; column < columns; column++)
                        results[lane + row][part + column] = sums[row][column] / total[lane + row];
        }
    }
}

typedef struct {
    const float *queries, *keys, *values, *mask;
    long query_stride, batch_stride, slots, mask_stride;
    float *out;
    long length, key_heads, group, width, used;
    float scale;
    atomic_int *failed;
} attention_loop;

static void attention_tasks(const void *loop, long first, long last) {
    const attention_loop of = *(const attention_loop *)loop;
    const long key_heads = of.key_heads, group = of.group, width = of.width, used = of.used;
    const long lanes = of.length * group, chunks = (lanes + LANES - 1) / LANES;
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (used + width) * sizeof(vec))) {
        atomic_store(of.failed, 1);
        return;
    }
    vec *scores = memory, *turned = scores + used;
    for (long task = first; task < last; task++) {
        const long chunk = task % chunks, head = task / chunks % key_heads, row = task / chunks / key_heads;
        const float *from[LANES], *masks[LANES];
        float *to[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            const long place = chunk * LANES + lane, step = place / group, query = head * group + place % group;
            const int real = place < lanes;
            from[lane] = real ? of.queries + (row * of.length + step) * of.query_stride + query * width : NULL;
            masks[lane] = real && of.mask ? of.mask + row * of.mask_stride + step * used : NULL;
            to[lane] = real ? of.out + ((row * of.length + step) * key_heads * group + query) * width : NULL;
        }
        const float *key = of.keys + row * of.batch_stride + head * of.slots * width;
        const float *value = of.values + row * of.batch_stride + head * of.slots * width;
        const long reach = of.mask ? slots_read(masks, used) : used;
        attend(from, masks, to, key, value, width, reach, of.scale, scores, turned);
    }
    free(memory);
}

/* softmax(q k^T scale + mask) v for queries [batch, length, key_heads * group, width] with row stride query_stride.
 *
 * keys, values: [batch, key_heads, slots, width] of which `used` slots are read, batch_stride numbers apart.
 * mask: additive [batch or 1, length, used], mask_stride apart, or none.
 * out: [batch, length, key_heads * group * width].  Returns 1 if memory ran out. */
int df_attention(const float *queries, long query_stride, const float *keys, const float *values, long batch_stride,
                 long slots, const float *mask, long mask_stride, float *out, long batch, long length, long key_heads,
                 long group, long width, long used, float scale, int threads) {
    const long tasks = batch * key_heads * ((length * group + LANES - 1) / LANES);
    atomic_int failed = 0;
    const attention_loop loop = {queries, keys, values, mask,      query_stride, batch_stride, slots, mask_stride,
                                 out,     length, key_heads, group, width,        used,         scale, &failed};
    share_loop(attention_tasks, &loop, tasks, tasks * used * width > SMALL / 4 ? threads : 1);
    return atomic_load(&failed);
}

#include "layers.h"
#include "retrieval.h"
