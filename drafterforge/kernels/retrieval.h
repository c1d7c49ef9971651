/* Retrieval on the host: earlier occurrences of a text's last tokens, and the likeliest tree of what followed them.
 * Included by native.c.  In double precision, in the order of the functions in Python, whose results these equal.
 */

#define SEPARATOR (-1)             /* before, between and after the sequences of a datastore */

/* Copies the `depth` tokens from `position` on; an occurrence that overlaps the text's end goes on with its repetition. */
static void copy_ahead(const int32_t *text, long length, long position, long depth, int32_t *ahead) {
    const long period = length - position;
    for (long at = 0; at < depth; at++) ahead[at] = text[position + at % period];
}

/* Earlier occurrences of the text's last tokens in the text itself, longest first, then the most recent first.
 *
 * counts, places: scratch, [max_ngram] and [max_ngram, max_matches].  Returns their number. */
static long own_occurrences(const int32_t *text, long length, long max_ngram, long min_ngram, long max_matches,
                            double length_weight, double recency, long depth, long *counts, long *places,
                            double *weights, int32_t *ahead) {
    memset(counts, 0, max_ngram * sizeof(long));
    for (long end = length - 1; end > 0 && counts[max_ngram - 1] < max_matches; end--) {
        long same = 0;
        while (same < max_ngram && same < end && text[end - 1 - same] == text[length - 1 - same]) same++;
        if (same < min_ngram || counts[same - 1] == max_matches) continue;
        places[(same - 1) * max_matches + counts[same - 1]++] = end;
    }
    long num = 0;
    for (long same = max_ngram; same >= min_ngram; same--) {
        double weight = pow(length_weight, same - 1);
        for (long at = 0; at < counts[same - 1] && num < max_matches; at++, num++, weight *= recency) {
            weights[num] = weight;
            copy_ahead(text, length, places[(same - 1) * max_matches + at], depth, ahead + num * depth);
        }
    }
    return num;
}

/* First place from `low` to `high` of `order` whose token `back` places before is at least (after: above) `token`. */
static long bisect(const int32_t *stored, const int32_t *order, long low, long high, long back, long token, int after) {
    while (low < high) {
        const long middle = low + (high - low) / 2, other = stored[order[middle] - back];
        if (other < token || (after && other == token)) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Occurrences in a datastore, longest first, an even sample of those of a length that do not all fit.
 *
 * starts: see `df_look_up`.  lows, highs: scratch, [max_ngram].  Returns their number. */
static long stored_occurrences(const int32_t *text, long length, const int32_t *stored, long num_stored,
                               const int32_t *order, const int32_t *starts, long num_starts, long max_ngram,
                               long min_ngram, long max_matches, double length_weight, double store_weight, long depth,
                               long *lows, long *highs, double *weights, int32_t *ahead) {
    const long last = text[length - 1], longest = length < max_ngram ? length : max_ngram;
    if (last < 0 || last + 1 >= num_starts) return 0;
    long low = starts[last], high = starts[last + 1], ranges = 0;
    while (low < high) {
        lows[ranges] = low, highs[ranges++] = high;
        if (ranges == longest) break;
        const long back = ranges + 1, token = text[length - back];
        if (token < 0) break; /* it could be taken for a separator, before which nothing may be read */
        if (stored[order[low] - back] == token && stored[order[high - 1] - back] == token) continue;
        low = bisect(stored, order, low, high, back, token, 0);
        high = bisect(stored, order, low, high, back, token, 1);
    }
    long num = 0, inner_low = ranges ? lows[ranges - 1] : 0, inner_high = inner_low; /* reported with longer matches */
    for (long same = ranges; same >= min_ngram && num < max_matches; same--) {
        low = lows[same - 1], high = highs[same - 1];
        const long hole = inner_high - inner_low, count = high - low - hole, room = max_matches - num;
        const long picks = count < room ? count : room;
        const double weight = store_weight * pow(length_weight, same - 1);
        for (long pick = 0; pick < picks; pick++, num++) {
            const long place = low + pick * count / picks, position = order[place < inner_low ? place : place + hole];
            weights[num] = weight;
            long inside = 1;
            for (long at = 0; at < depth; at++) {
                inside = inside && position + at < num_stored && stored[position + at] != SEPARATOR;
                ahead[num * depth + at] = inside ? stored[position + at] : SEPARATOR;
            }
        }
        inner_low = low, inner_high = high;
    }
    return num;
}

/* Weights of the occurrences of a text's last tokens, those in the text first, and the `depth` tokens after each.
 *
 * text: [length].  min_ngram, max_ngram: at least 1.  stored: tokens of a datastore, or null; order: places in it, by the
 * tokens before them; starts [num_starts]: index in `order` of the first place behind each token.  weights: [2
 * max_matches].  ahead: [2 max_matches, depth].  Returns their number, or -1 if memory ran out. */
int df_look_up(const int32_t *text, long length, const int32_t *stored, long num_stored, const int32_t *order,
                const int32_t *starts, long num_starts, long max_ngram, long min_ngram, long max_matches,
                double length_weight, double recency, double store_weight, long depth, double *weights,
                int32_t *ahead) {
    if (!length || min_ngram > max_ngram) return 0;
    long *scratch = malloc(max_ngram * (max_matches + 2) * sizeof(long));
    if (!scratch) return -1;
    long num = own_occurrences(text, length, max_ngram, min_ngram, max_matches, length_weight, recency, depth, scratch,
                                 scratch + max_ngram, weights, ahead);
    if (stored)
        num += stored_occurrences(text, length, stored, num_stored, order, starts, num_starts, max_ngram, min_ngram,
                                    max_matches, length_weight, store_weight, depth, scratch, scratch + max_ngram,
                                    weights + num, ahead + num * depth);
    free(scratch);
    return (int)num;
}

/* A node that may join a tree, with the occurrences that continue with it. */
typedef struct {
    double likely;                     /* that it and all its ancestors are accepted */
    long level, created, token, parent, candidate, first, count;
} sprout;

INLINE int precedes(const sprout *one, const sprout *other) {
    if (one->likely != other->likely) return one->likely > other->likely;
    return one->level != other->level ? one->level < other->level : one->created < other->created;
}

static void push(sprout *heap, long size, sprout added) {
    long at = size;
    for (; at > 0 && precedes(&added, heap + (at - 1) / 2); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = added;
}

/* Removes the first of `size` sprouts. */
static sprout pop(sprout *heap, long size) {
    const sprout first = heap[0], moved = heap[size - 1];
    long at = 0;
    for (long child; (child = 2 * at + 1) < size - 1; at = child) {
        if (child + 1 < size - 1 && precedes(heap + child + 1, heap + child)) child++;
        if (!precedes(heap + child, &moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
    return first;
}

/* What can follow a node. */
typedef struct {
    long count;
    long *tokens, *slots, *indices;    /* of each follower: its token; its place in a `grouping`, or -1; its candidate, or -1 */
    double *guesses;                   /* the drafter's probability */
} followers;

INLINE long place_of(const long *numbers, long count, long number) {
    for (long at = 0; at < count; at++)
        if (numbers[at] == number) return at;
    return -1;
}

/* Occurrences grouped by the token that follows next, in the order in which tokens appear. */
typedef struct {
    long count;
    long *tokens, *firsts, *counts, *ranks; /* ranks: groups by falling share, equal ones in their order */
    double *shares, total;
} grouping;

/* Splits `count` occurrences by their token at `level`, and writes those of each group side by side into `places`. */
static void split(const double *weights, const int32_t *ahead, long depth, const long *occurrences, long count,
                  long level, grouping *of, long *places, long *slot) {
    of->count = 0, of->total = 0.;
    for (long at = 0; at < count; at++) {
        const long token = level < depth ? ahead[occurrences[at] * depth + level] : SEPARATOR;
        slot[at] = token == SEPARATOR ? -1 : place_of(of->tokens, of->count, token);
        if (token == SEPARATOR) continue;
        if (slot[at] < 0) {
            slot[at] = of->count++;
            of->tokens[slot[at]] = token, of->shares[slot[at]] = 0., of->counts[slot[at]] = 0;
        }
        of->shares[slot[at]] += weights[occurrences[at]];
        of->counts[slot[at]]++;
    }
    for (long group = 0, first = 0; group < of->count; group++) {
        of->total += of->shares[group];
        of->firsts[group] = first;
        first += of->counts[group];
        of->counts[group] = 0;
        long rank = group;
        for (; rank > 0 && of->shares[group] > of->shares[of->ranks[rank - 1]]; rank--) of->ranks[rank] = of->ranks[rank - 1];
        of->ranks[rank] = group;
    }
    for (long at = 0; at < count; at++)
        if (slot[at] >= 0) places[of->firsts[slot[at]] + of->counts[slot[at]]++] = occurrences[at];
}

/* Nodes of `merge.likeliest`, in level order: tokens, parents (0: the root), levels, probabilities; as many as returned.
 *
 * weights: [num].  ahead: [num, depth].  tokens, scores, parents: of a drafter's candidates, [num_candidates].  prices:
 * [num_prices].  out_*: [num_tokens - 1].  num_tokens, top_k: at least 1.  Returns -1 if memory ran out. */
int df_likeliest(const double *weights, const int32_t *ahead, long num, long depth, double doubt, double length_weight,
                  long num_tokens, long top_k, double min_probability, const int64_t *tokens, const float *scores,
                  const int64_t *parents, long num_candidates, double trust, const double *prices, long num_prices,
                  int64_t *out_tokens, int64_t *out_parents, int64_t *out_levels, double *out_likely) {
    const long most = num_tokens * (top_k < num ? top_k : num) + num_candidates + 1;  /* sprouts */
    const long widest = num + num_candidates + 1;                                    /* followers of a node */
    const long longs = num * (depth + 6) + 3 * widest + num_tokens;
    char *memory = malloc((most + num_tokens) * sizeof(sprout) + longs * sizeof(long) + (num + widest) * sizeof(double));
    if (!memory) return -1;
    sprout *heap = (sprout *)memory, *nodes = heap + most;
    double *numbers = (double *)(nodes + num_tokens);
    long *free_places = (long *)(numbers + num + widest);
    grouping by_token = {.shares = numbers, .tokens = free_places, .firsts = free_places + num,
                       .counts = free_places + 2 * num, .ranks = free_places + 3 * num};
    long *slot = free_places + 4 * num, *arena = slot + num;          /* arena: [1 + depth, num] */
    followers next = {.guesses = numbers + num, .tokens = arena + num * (depth + 1)};
    next.slots = next.tokens + widest, next.indices = next.slots + widest;
    long *number_of = next.indices + widest, used = num, size = 0, count = 0, created = 0;
    for (long at = 0; at < num; at++) arena[at] = at;
    sprout node = {.likely = 1., .parent = -1, .candidate = -1, .first = 0, .count = num};
    for (long parent = -1;; parent = count++) {
        if (parent >= 0) {
            node = pop(heap, size--);
            nodes[parent] = node;
        }
        split(weights, ahead, depth, arena + node.first, node.count, node.level, &by_token, arena + used, slot);
        next.count = 0;
        for (long at = 0; at < num_candidates; at++) {
            if (parents[at] != node.candidate || !(scores[at] > -INFINITY)) continue;
            long place = place_of(next.tokens, next.count, tokens[at]);
            if (place < 0) place = next.count++;
            const double above = parents[at] >= 0 ? scores[parents[at]] : 0.;
            next.tokens[place] = tokens[at], next.indices[place] = at, next.guesses[place] = exp(scores[at] - above);
            next.slots[place] = place_of(by_token.tokens, by_token.count, tokens[at]);
        }
        const double unsure = doubt / pow(length_weight, node.level) * (next.count ? trust : 1.);
        const double total = by_token.total + unsure;
        const long guessed = next.count, best = by_token.count > 1 && top_k < by_token.count ? top_k : by_token.count;
        for (long rank = 0; rank < best; rank++) {
            const long group = by_token.ranks[rank];
            if (place_of(next.tokens, guessed, by_token.tokens[group]) >= 0) continue;
            next.tokens[next.count] = by_token.tokens[group], next.slots[next.count] = group;
            next.indices[next.count] = -2, next.guesses[next.count++] = 0.; /* no candidate has it as its parent */
        }
        for (long at = 0; at < next.count; at++) {
            const long group = next.slots[at];
            const double share = group < 0 ? 0. : by_token.shares[group];
            const double likely = node.likely * ((share + unsure * next.guesses[at]) / total);
            if (!(likely >= min_probability && likely > 0.)) continue;
            const sprout added = {likely, node.level + 1, created++, next.tokens[at], parent, next.indices[at],
                                  group < 0 ? 0 : used + by_token.firsts[group], group < 0 ? 0 : by_token.counts[group]};
            push(heap, size++, added);
        }
        for (long group = 0; group < by_token.count; group++) used += by_token.counts[group];
        if (!size || count >= num_tokens - 1) break;
    }
    if (num_prices) {
        double sum = 0., highest = -prices[0];
        long best = 0;
        for (long more = 1; more <= count && more < num_prices; more++) {
            sum += nodes[more - 1].likely;
            if (sum - prices[more] > highest) highest = sum - prices[more], best = more;
        }
        count = best;
    }
    long placed = 0;
    for (long level = 1; placed < count; level++)
        for (long at = 0; at < count; at++) {
            if (nodes[at].level != level) continue;
            number_of[at] = placed + 1;
            out_tokens[placed] = nodes[at].token, out_levels[placed] = level, out_likely[placed] = nodes[at].likely;
            out_parents[placed++] = nodes[at].parent < 0 ? 0 : number_of[nodes[at].parent];
        }
    free(memory);
    return (int)count;
}
