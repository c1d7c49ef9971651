/* Products by the matrix unit of a processor (AMX): up to MATRIX_ROWS inputs with a panel of weights.  Included by
 * native.c.
 *
 * Its registers hold 16 rows of 64 bytes.  Reading the weights takes longer than multiplying, so 16 rows take hardly
 * longer than one.  A row's sums do not depend on the other rows, but differ from those of `tile_pairs` in rounding.
 */

#if HAS_PAIRS && HAS_BYTES && defined __AMX_TILE__ && defined __AMX_BF16__ && defined __AMX_INT8__ && defined __linux__
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_MATRIX 1
#define MATRIX_ROWS 32             /* two registers of inputs by two of weights: all eight are in use */
#define DEEP 16                    /* 4-byte words of an input, and so rows of weights, in a register */
#define REQUEST_FEATURE 0x1023     /* ARCH_REQ_XCOMP_PERM of arch_prctl */
#define MATRIX_REGISTERS 18        /* XFEATURE_XTILEDATA */

/* Has all memory written before the processor's tile operations read it: GCC does not know that they do (bug 114098). */
#define WRITTEN(address) __asm__ volatile("" : : "r"(address) : "memory")

/* What the processor reads for `_tile_loadconfig`. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} register_shapes;

/* Asks Linux for permission to use AMX; returns whether this process has it. */
int df_has_matrix(void) { return !syscall(SYS_arch_prctl, REQUEST_FEATURE, MATRIX_REGISTERS); }

/* Registers 0 to 3: sums of the first 16 rows, left and right, and of the others; 4, 5: inputs of these rows; 6, 7: left
 * and right weights. */
static void begin_matrices(long rows) {
    const long few = rows < DEEP ? rows : DEEP, others = rows - few;
    register_shapes shapes = {.palette = 1};
    for (int at = 0; at < 8; at++) {
        const int second = at == 2 || at == 3 || at == 5;
        shapes.rows[at] = (uint8_t)(at > 5 ? DEEP : second ? others : few);
        shapes.bytes[at] = shapes.rows[at] ? 64 : 0;
    }
    WRITTEN(&shapes);
    _tile_loadconfig(&shapes);
}

static void end_matrices(void) { _tile_release(); }

#define MULTIPLY(product)                                                                                          \
    for (long word = 0; word < words; word += DEEP, w += DEEP * PANEL) {                                           \
        for (int step = 0; step < DEEP; step++, fetch += stride) ask(1, w + step * PANEL, fetch, stride);          \
        _tile_loadd(4, x + word, 4 * ldx);                                                                         \
        _tile_loadd(6, w, STEP);                                                                                   \
        product(0, 4, 6);                                                                                          \
        _tile_loadd(7, w + LANES, STEP);                                                                           \
        product(1, 4, 7);                                                                                          \
        if (rows <= DEEP) continue;                                                                                \
        _tile_loadd(5, x + DEEP * ldx + word, 4 * ldx);                                                            \
        product(2, 5, 6);                                                                                          \
        product(3, 5, 7);                                                                                          \
    }

/* As `tile_pairs` or, of bytes, `tile_bytes`, for as many rows as `begin_matrices` got.  words: of an input, of 4 bytes; a
 * multiple of DEEP. */
static void multiply_matrices(const float *x, long ldx, const uint32_t *w, long words, int bytes, const char *fetch,
                              long stride, long rows, vec sums[MATRIX_ROWS][2]) {
    WRITTEN(x);
    _tile_zero(0);
    _tile_zero(1);
    if (rows > DEEP) {
        _tile_zero(2);
        _tile_zero(3);
    }
    if (bytes) MULTIPLY(_tile_dpbusd) else MULTIPLY(_tile_dpbf16ps)
    _tile_stored(0, sums[0], sizeof(sums[0]));
    _tile_stored(1, &sums[0][1], sizeof(sums[0]));
    WRITTEN(sums);
    if (rows <= DEEP) return;
    _tile_stored(2, sums[DEEP], sizeof(sums[0]));
    _tile_stored(3, &sums[DEEP][1], sizeof(sums[0]));
    WRITTEN(sums);
}
#else
#define HAS_MATRIX 0
#define MATRIX_ROWS MOST_ROWS
int df_has_matrix(void) { return 0; }
static void begin_matrices(long rows) { (void)rows; }
static void end_matrices(void) {}
static void multiply_matrices(const float *x, long ldx, const uint32_t *w, long words, int bytes, const char *fetch,
                              long stride, long rows, vec sums[MATRIX_ROWS][2]) {
    (void)x, (void)ldx, (void)w, (void)words, (void)bytes, (void)fetch, (void)stride, (void)rows, (void)sums;
}
#endif
