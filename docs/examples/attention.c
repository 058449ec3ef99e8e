/* Attention for float32 in C: one query at a time, with a running maximum. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { BATCH, HEADS, QUERIES, D_HEAD, KEYS, KV_HEADS, D_VALUE, SIZES };

/* Strides count elements, in the order (batch, head, row, channel).
   Returns 0, or 1 if it refuses the call; then it writes nothing. */
int attention(const float *query, const int64_t *q_stride, const float *key,
              const int64_t *k_stride, const float *value, const int64_t *v_stride,
              float *out, const int64_t *size, int is_causal, float scale) {
    if (size[KV_HEADS] == 0 || size[HEADS] % size[KV_HEADS] != 0) return 1;
    int64_t group = size[HEADS] / size[KV_HEADS];
    for (int64_t b = 0; b < size[BATCH]; b++)
    for (int64_t h = 0; h < size[HEADS]; h++)
    for (int64_t i = 0; i < size[QUERIES]; i++, out += size[D_VALUE]) {
        const float *q = query + b * q_stride[0] + h * q_stride[1] + i * q_stride[2];
        int64_t keys = is_causal && i + 1 < size[KEYS] ? i + 1 : size[KEYS];
        float peak = -INFINITY, total = 0.0f;
        for (int64_t c = 0; c < size[D_VALUE]; c++) out[c] = 0.0f;
        for (int64_t j = 0; j < keys; j++) {
            const float *k = key + b * k_stride[0] + h / group * k_stride[1] + j * k_stride[2];
            const float *v = value + b * v_stride[0] + h / group * v_stride[1] + j * v_stride[2];
            float score = 0.0f;
            for (int64_t d = 0; d < size[D_HEAD]; d++)
                score += q[d * q_stride[3]] * k[d * k_stride[3]];
            score *= scale;
            if (score > peak) {
                float shrink = expf(peak - score);
                total *= shrink;
                for (int64_t c = 0; c < size[D_VALUE]; c++) out[c] *= shrink;
                peak = score;
            }
            float weight = peak == -INFINITY ? 0.0f : expf(score - peak);
            if (score != score) weight = score; /* NaN is not greater than anything */
            total += weight;
            for (int64_t c = 0; c < size[D_VALUE]; c++) out[c] += weight * v[c * v_stride[3]];
        }
        for (int64_t c = 0; c < size[D_VALUE]; c++)
            if (keys > 0) out[c] /= total;
    }
    return 0;
}
