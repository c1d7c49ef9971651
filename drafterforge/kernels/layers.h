/* Decoder layers in one call: for few rows, calling a kernel from Python takes as long as the kernel.  Included by
 * native.c, whose functions it calls.
 */

/* Tokens of a pass, and the cache that it writes and reads. */
typedef struct {
    float *keys, *values;              /* of the first layer, [batch, key heads, slots, width], batch_stride apart */
    long layer_stride, batch_stride, slots;
    const int64_t *slots_of;           /* [batch * length]; null: token t of every sequence goes to slot start + t */
    long start, used;                  /* used: slots that attention reads */
    const float *mask;                 /* see `df_attention`, of the queries */
    long mask_stride;
    const int64_t *positions;          /* [batch * length] */
    const float *cosines, *sines;      /* of each position, as `RopeTable` has them: [width / 2], and [2, width / 2] */
    long batch, length, num_positions; /* num_positions: of the table */
} passage;

typedef struct {
    const float *input_norm, *post_norm, *q_norm, *k_norm; /* the last two may be null */
    projection qkv, out, gate_up, down;
} decoder_layer;

typedef struct {
    const float *embedding, *input_norm, *hidden_norm, *post_norm, *norm;
    projection q, kv, out, gate_up, down, head;
    long vocabulary;                   /* tokens that the embedding has */
    int norm_before_residual, norm_output;
} draft_layer;

/* Copies the rotations of the tokens, [batch * length, width / 2] each; returns 1 if a position is not in the table. */
static int copy_rotations(const passage *of, long width, float *cosines, float *sines) {
    const long half = width / 2;
    for (long row = 0; row < of->batch * of->length; row++) {
        const int64_t position = of->positions[row];
        if (position < 0 || position >= of->num_positions) return 1;
        memcpy(cosines + row * half, of->cosines + position * half, half * sizeof(float));
        memcpy(sines + row * half, of->sines + position * width + half, half * sizeof(float));
    }
    return 0;
}

INLINE long larger(long one, long other) { return one > other ? one : other; }

/* The second half of a layer, in place: x += down swiglu(gate_up norm(x)).  normed: [rows, hidden].  wide: [rows, 3F]
 * for F gated columns. */
static void feed_forward(const float *norm, const projection *gate_up, const projection *down, float *x, long rows,
                         float eps, float *normed, float *wide, float *scratch, int threads) {
    const long hidden = gate_up->depth, gated = down->depth;
    df_rms_norm(x, hidden, norm, normed, rows, hidden, eps);
    project(gate_up, normed, NULL, wide, rows, scratch, threads);
    df_swiglu(wide, wide + rows * 2 * gated, rows, gated, threads);
    project(down, wide + rows * 2 * gated, x, x, rows, scratch, threads);
}

/* Applies `count` decoder layers to x [batch * length, hidden], in place.
 *
 * taps: [num_taps] layers whose inputs are written side by side, features [batch * length, num_taps * hidden].
 * Returns 1 if a slot, position, token, origin or wanted token is out of range, 2 if memory ran out. */
int df_decoder(const decoder_layer *layers, long count, const passage *of, float *x, long queries, long keys,
               long width, float scale, float eps, const int64_t *taps, long num_taps, float *features, int threads) {
    const long rows = of->batch * of->length, hidden = layers->qkv.depth, heads = queries + 2 * keys;
    const long gated = layers->down.depth;
    const long spare = larger(larger(room(&layers->qkv), room(&layers->out)),
                              larger(room(&layers->gate_up), room(&layers->down)));
    float *memory = room_for(rows * (hidden + (heads + queries + 1) * width + 3 * gated + spare));
    if (!memory) return 2;
    float *normed = memory, *qkv = normed + rows * hidden, *mixed = qkv + rows * heads * width;
    float *wide = mixed + rows * queries * width, *scratch = wide + rows * 3 * gated;
    float *cosines = scratch + rows * spare, *sines = cosines + rows * (width / 2);
    int failed = copy_rotations(of, width, cosines, sines);
    for (long index = 0; index < count && !failed; index++) {
        const decoder_layer *layer = layers + index;
        float *keys_to = of->keys + index * of->layer_stride, *values_to = of->values + index * of->layer_stride;
        for (long tap = 0; tap < num_taps; tap++)
            for (long row = 0; taps[tap] == index && row < rows; row++)
                memcpy(features + (row * num_taps + tap) * hidden, x + row * hidden, hidden * sizeof(float));
        df_rms_norm(x, hidden, layer->input_norm, normed, rows, hidden, eps);
        project(&layer->qkv, normed, NULL, qkv, rows, scratch, threads);
        for (long row = 0; layer->q_norm && row < rows; row++) {
            float *head = qkv + row * heads * width;
            df_rms_norm(head, width, layer->q_norm, head, queries, width, eps);
            df_rms_norm(head + queries * width, width, layer->k_norm, head + queries * width, keys, width, eps);
        }
        failed = df_rotate_and_store(qkv, cosines, sines, rows, of->length, queries, keys, width, keys_to, values_to,
                                     of->batch_stride, of->slots, of->slots_of, of->start);
        if (failed) break; /* nothing was stored */
        if (df_attention(qkv, heads * width, keys_to, values_to, of->batch_stride, of->slots, of->mask, of->mask_stride,
                         mixed, of->batch, of->length, keys, queries / keys, width, of->used, scale, threads)) {
            failed = 2;
            break;
        }
        project(&layer->out, mixed, x, x, rows, scratch, threads);
        feed_forward(layer->post_norm, &layer->gate_up, &layer->down, x, rows, eps, normed, wide, scratch, threads);
    }
    free(memory);
    return failed;
}

/* Rotates `heads` heads in place.  Each sum is rounded once if the processor can, as torch's addcmul does it. */
static void rotate(float *head, long heads, long width, const float *cosine, const float *sine) {
    const long half = width / 2;
    for (; heads > 0; heads--, head += width)
        for (long at = 0; at < half; at += LANES) {
            const size_t bytes = (half - at < LANES ? half - at : LANES) * sizeof(float);
            vec a = {0}, b = {0}, cosines = {0}, sines = {0};
            memcpy(&a, head + at, bytes), memcpy(&b, head + half + at, bytes);
            memcpy(&cosines, cosine + at, bytes), memcpy(&sines, sine + at, bytes);
            const vec first = fused(b, -sines, a * cosines), second = fused(a, sines, b * cosines);
            memcpy(head + at, &first, bytes), memcpy(head + half + at, &second, bytes);
        }
}

/* The row of `before` that a token reads, see `df_draft_layer`. */
INLINE const float *read_by(long row, const float *before, const int64_t *origin, long earlier, long length,
                            long hidden) {
    return before + (row / length * earlier + (origin ? origin[row] : row % length)) * hidden;
}

/* The layer and the head of an EAGLE-3 drafter.
 *
 * tokens: [batch * length].  before: [batch, earlier, hidden], of which token t of every sequence reads row
 * origin[batch * length]; without origin, t.  wanted: tokens whose outputs [num, hidden] and logits [num, head's
 * columns] are computed, as many of every sequence; null: of all.  num: their number.  Returns as `df_decoder` does. */
int df_draft_layer(const draft_layer *layer, const passage *of, const int64_t *tokens, const float *before,
                   const int64_t *origin, long earlier, const int64_t *wanted, long num, long queries, long keys,
                   long width, float scale, float eps, float *out, float *logits, int threads) {
    const long rows = of->batch * of->length, hidden = layer->out.columns, gated = layer->down.depth;
    const long spare = larger(larger(larger(room(&layer->q), room(&layer->kv)), room(&layer->out)),
                              larger(larger(room(&layer->gate_up), room(&layer->down)), room(&layer->head)));
    const long numbers = rows * (2 * hidden + (2 * keys + 1) * width + spare) +
                         num * (2 * hidden + 2 * queries * width + 3 * gated);
    if (!slots_fit(of->slots_of, of->start, rows, of->length, of->slots)) return 1;
    for (long row = 0; row < rows; row++) {
        const int64_t from = origin ? origin[row] : row % of->length;
        if (tokens[row] < 0 || tokens[row] >= layer->vocabulary || from < 0 || from >= earlier) return 1;
    }
    for (long place = 0; wanted && place < num; place++)
        if (wanted[place] < 0 || wanted[place] >= rows) return 1;
    float *memory = room_for(numbers);
    if (!memory) return 2;
    float *x = memory, *queried = x + rows * 2 * hidden, *kv = queried + num * 2 * hidden;
    float *q = kv + rows * 2 * keys * width, *mixed = q + num * queries * width, *wide = mixed + num * queries * width;
    float *scratch = wide + num * 3 * gated, *cosines = scratch + rows * spare, *sines = cosines + rows * (width / 2);
    int failed = copy_rotations(of, width, cosines, sines);
    if (failed) goto done;
    for (long row = 0; row < rows; row++) {
        float *to = x + row * 2 * hidden;
        df_rms_norm(layer->embedding + tokens[row] * hidden, hidden, layer->input_norm, to, 1, hidden, eps);
        const float *from = read_by(row, before, origin, earlier, of->length, hidden);
        df_rms_norm(from, hidden, layer->hidden_norm, to + hidden, 1, hidden, eps);
    }
    project(&layer->kv, x, NULL, kv, rows, scratch, threads);
    for (long row = 0; row < rows; row++) {
        float *key = kv + row * 2 * keys * width;
        const long slot = slot_of(of->slots_of, of->start, row, of->length);
        const long to = row / of->length * of->batch_stride + slot * width;
        rotate(key, keys, width, cosines + row * (width / 2), sines + row * (width / 2));
        store(key, keys, width, of->slots, of->keys + to, of->values + to);
    }
    for (long place = 0; place < num; place++) {
        const long row = wanted ? wanted[place] : place;
        memcpy(queried + place * 2 * hidden, x + row * 2 * hidden, 2 * hidden * sizeof(float));
        const float *residual = read_by(row, before, origin, earlier, of->length, hidden);
        memcpy(out + place * hidden, layer->norm_before_residual ? x + (2 * row + 1) * hidden : residual,
               hidden * sizeof(float));
    }
    project(&layer->q, queried, NULL, q, num, scratch, threads);
    for (long place = 0; place < num; place++) {
        const long angles = (wanted ? wanted[place] : place) * (width / 2);
        rotate(q + place * queries * width, queries, width, cosines + angles, sines + angles);
    }
    if (df_attention(q, queries * width, of->keys, of->values, of->batch_stride, of->slots, of->mask, of->mask_stride,
                     mixed, of->batch, num / of->batch, keys, queries / keys, width, of->used, scale, threads)) {
        failed = 2;
        goto done;
    }
    project(&layer->out, mixed, out, out, num, scratch, threads);
    feed_forward(layer->post_norm, &layer->gate_up, &layer->down, out, num, eps, x, wide, scratch, threads);
    if (layer->norm_output) df_rms_norm(out, hidden, layer->norm, out, num, hidden, eps);
    if (!layer->norm_output) df_rms_norm(out, hidden, layer->norm, x, num, hidden, eps);
    project(&layer->head, layer->norm_output ? out : x, NULL, logits, num, scratch, threads);
done:
    free(memory);
    return failed;
}

/* A draft below `rows` roots, to which candidates are added level by level, see `df_level`. */
typedef struct {
    const float *hidden, *logits;      /* of the newest stable token of each row, [rows, hidden] and [rows, head's columns] */
    const int64_t *lengths, *names;    /* stable slots of each row; the token of each logit, or null */
    const double *least;               /* reach from which each row has another level; null: all have all levels */
    long rows, depth;
    long children, beam;               /* children of a node; nodes of a level that get children, at most: `children` or more */
    long base, room;                   /* slot of the first level; candidates that a row has room for */
    int64_t *tokens, *parents;         /* candidates, [rows, room] */
    float *scores;
    double *reaches, *clock;           /* [depth - 1, rows] after each level but the last, and when: of a monotonic clock */
} draft;

/* Writes each row's reach, the summed probability of the `beam` best of a level, and whether it goes on; returns whether
 * any does.  going: [rows]; a row that has stopped never goes on. */
static int decide(const draft *of, long beam, const float *scores, double *reaches, uint8_t *going) {
    int any = 0;
    for (long row = 0; row < of->rows; row++) {
        double reach = 0.;
        for (long node = 0; node < beam; node++) reach += expf(scores[row * beam + node]);
        reaches[row] = reach;
        going[row] = going[row] && reach >= of->least[row];
        any |= going[row];
    }
    return any;
}

/* Drafts all levels, whose slots begin at `base`.  `from` holds the cache and the table of rotations; the rest of it is
 * not read.
 *
 * levels: of the draft, as many as were drafted.  Returns as `df_decoder` does. */
int df_draft(const draft_layer *layer, const passage *from, const draft *of, long queries, long keys, long width,
             float scale, float eps, long *levels, int threads) {
    const long rows = of->rows, hidden = layer->out.columns, columns = layer->head.columns;
    const long widest = of->beam, nodes = rows * widest, slots = widest * of->depth;
    const long fresh = nodes * of->children;
    const long longs = 5 * nodes + fresh; /* tokens, origins, positions, indices of two beams; places */
    const long floats = nodes * (2 * hidden + columns + of->base + slots + 2) + fresh;
    char *memory = (char *)room_for(2 * longs + floats + (2 * nodes * slots + rows) / sizeof(float) + 1);
    if (!memory) return 2;
    int64_t *tokens = (int64_t *)memory, *origin = tokens + nodes, *positions = origin + nodes;
    int64_t *pool[2] = {positions + nodes, positions + 2 * nodes}, *places = positions + 3 * nodes;
    float *out[2] = {(float *)(tokens + longs), (float *)(tokens + longs) + nodes * hidden};
    float *logits = out[1] + nodes * hidden, *mask = logits + nodes * columns, *values = mask + nodes * (of->base + slots);
    float *scores[2] = {values + fresh, values + fresh + nodes};
    uint8_t *reads[2] = {(uint8_t *)(scores[1] + nodes), (uint8_t *)(scores[1] + nodes) + nodes * slots};
    uint8_t *going = reads[1] + nodes * slots;
    memset(going, 1, rows);
    const float *before = of->hidden;
    long earlier = 1, beam = of->children, size = beam, written = 0;
    int failed = 0;
    df_level(of->logits, rows, 1, columns, of->children, NULL, NULL, of->names, NULL, 0, of->room, of->tokens, of->scores,
             of->parents, beam, tokens, scores[0], pool[0], origin, values, places, threads);
    *levels = 1;
    for (int turn = 0; *levels < of->depth; turn = !turn) {
        if (of->least) {
            struct timespec now;
            const int any = decide(of, beam, scores[turn], of->reaches + (*levels - 1) * rows, going);
            clock_gettime(CLOCK_MONOTONIC, &now);
            of->clock[*levels - 1] = now.tv_sec + 1e-9 * now.tv_nsec;
            if (!any) break;
        }
        failed = df_reads(reads[turn], origin, rows, earlier, beam, written, reads[!turn]);
        if (failed) break;
        written += beam;
        for (long node = 0; node < rows * beam; node++) positions[node] = of->lengths[node / beam] + *levels - 1;
        passage here = *from;
        here.slots_of = NULL, here.start = of->base + written - beam, here.used = of->base + written;
        here.mask = mask, here.mask_stride = beam * here.used, here.positions = positions, here.length = beam;
        df_mask(reads[!turn], of->lengths, rows, beam, written, of->base, mask);
        failed = df_draft_layer(layer, &here, tokens, before, origin, earlier, NULL, rows * beam, queries, keys, width,
                                scale, eps, out[turn], logits, threads);
        if (failed) break;
        const long best = of->beam < beam * of->children ? of->beam : beam * of->children;
        df_level(logits, rows, beam, columns, of->children, scores[turn], pool[turn], of->names, of->least ? going : NULL,
                 size, of->room, of->tokens, of->scores, of->parents, best, tokens, scores[!turn], pool[!turn], origin,
                 values, places, threads);
        size += beam * of->children;
        before = out[turn], earlier = beam, beam = best, ++*levels;
    }
    free(memory);
    return failed;
}
