/* Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy
 * as 1, 2, 3" (SC11). Random numbers depend on key and counter only: never on launch shape,
 * micro-batch or order. Header only, so that CPU kernels inline it. */
#ifndef BANTAM_BASE_PHILOX_H
#define BANTAM_BASE_PHILOX_H

#include <stdint.h>

typedef struct bt_philox4 {
    uint32_t v[4];
} bt_philox4;

static inline bt_philox4 bti_philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                    uint32_t c3) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (bt_philox4){{c0, c1, c2, c3}};
}

/* The most that the fields of a dropout counter hold: 16 bits for site and head each, 18 for the
 * position, 14 for a quarter of the channel. A value beyond would meet another one's numbers. */
#define BT_PHILOX_MAX_SITE 65535
#define BT_PHILOX_MAX_HEAD 65535
#define BT_PHILOX_MAX_POSITION 262143
#define BT_PHILOX_MAX_CHANNEL 65535

/* The four random words of channels 4*quad .. 4*quad+3. `place` is the sentence's place in the
 * update; in attention `position` is the query and the channel is the key. */
static inline bt_philox4 bti_philox_quad(uint64_t seed, uint32_t update, uint32_t site,
                                         uint32_t head, uint32_t place, uint32_t position,
                                         uint32_t quad) {
    return bti_philox(seed, update, site << 16 | head, place, position << 14 | quad);
}

/* An element is kept when its word is at least this (p in [0, 1)): P(drop) = p to 2^-32. */
static inline uint32_t bti_drop_threshold(float p) { return (uint32_t)((double)p * 4294967296.0); }

#endif
