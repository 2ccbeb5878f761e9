/* Forms of the kernels of attention that own query rows on Hopper: what they are made of, and where
 * things lie in shared memory. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_FORM_H
#define BSKI_CUDA_SM90A_ATTENTION_FORM_H

#include <type_traits>

#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/attention.h>

enum { LANES = 32, GROUP_WARPS = 4, TILES = 4 /* that consumers know of at a time */ };
enum { PANEL = 64 /* features of a copy: rows of 128 bytes */, ROW_BYTES = 128 };
enum { TILE_BYTES = ATTENTION_UNIT * ROW_BYTES /* a panel of 64 rows */ };
enum { NONE = -1 };

/* What a step is. */
enum { FIRST = 1, LAST = 2, PARTIAL = 4, END = 8 /* no step: the stream is over */ };

/* What rows see of a unit: all, nothing, a part that positions tell, or (a number from 0 on) what a
 * bit mask leaves of that. */
enum { ALL = -1, NOTHING = -2, SOME = -3 };

/* Views of many bands: bit i, band i sees nothing; bit ATTENTION_BANDS + i, all; and from VIEW_AT on
 * the unit's place in the tile's list. */
enum { VIEW_AT = 2 * ATTENTION_BANDS, VIEW_NOTHING = (1 << ATTENTION_BANDS) - 1 };

/* Words of a tile's description. SHIFT: from a query to where it stands among the keys. */
enum {
    HEAD_WORD,
    QUERIES_WORD,
    KEYS_WORD,
    SHIFT_WORD,
    RUN_WORD,
    FIRST_WORD, /* of its list; for unions */
    BASE_WORD,  /* two: where the results of its head and run begin */
    COUNT_WORD = BASE_WORD + 2,
    ROW_WORD /* of each band */
};

/* See ATTENTION_FORMS. STEP: keys of a step. */
template <int TYPE_, int STEP_, int WIDTH_, int GROUPS_, int RINGS_, int SLOTS_, int BUFFERS_,
          int SIDE_, int BANDS_, int TEAM_ = 1>
struct form {
    static constexpr int TYPE = TYPE_, STEP = STEP_, WIDTH = WIDTH_, GROUPS = GROUPS_;
    static constexpr int RINGS = RINGS_, SLOTS = SLOTS_, BUFFERS = BUFFERS_, SIDE = SIDE_;
    static constexpr int PANELS = WIDTH / PANEL;
    static constexpr int TEAM = TEAM_;                    /* warpgroups with the same rows */
    static constexpr int READERS = GROUPS / RINGS / TEAM; /* of a ring, with rows of their own */
    static constexpr int UNITS = STEP / SIDE;             /* of a step */
    static constexpr int BANDS = BANDS_, BAND_ROWS = READERS * ATTENTION_UNIT / BANDS;
    /* Views of many bands share a word. */
    static constexpr bool MANY = BANDS > 2;
    static constexpr int VIEWS = MANY ? 1 : BANDS;
    static constexpr int TOLD = MANY ? 1 : UNITS;    /* of a step, that a producing lane holds */
    static constexpr int TELLERS = MANY ? UNITS : 1; /* lanes that store a step's description */
    static constexpr int BIT_SIDE = MANY ? STEP : SIDE, BIT_WORDS = STEP / BIT_SIDE; /* see sight */
    static constexpr int BOX = BAND_ROWS < ATTENTION_UNIT ? BAND_ROWS : ATTENTION_UNIT; /* rows */
    static constexpr int SCORES = STEP / 2; /* of a lane */
    static constexpr uint32_t UNIT_BYTES = SIDE * ROW_BYTES, PANEL_BYTES = STEP * ROW_BYTES;
    static constexpr uint32_t Q_BYTES = PANELS * TILE_BYTES, SLOT_BYTES = PANELS * PANEL_BYTES;
    /* There are registers for queries unless the results of wide heads take them, and with short
     * steps for scores beside their shares. */
    static constexpr bool HOLDS = WIDTH <= 128 && GROUPS < 4, SHORT = HOLDS && STEP <= 64;
    /* A tile is stored when its successor's first shares are made, beside its last product. Where
     * steps are short that gains nothing or takes longer. */
    static constexpr bool SHARES_FIRST = STEP > 64;
    static constexpr int REGISTERS = 65536 / ATTENTION_THREADS(GROUPS) / 8 * 8; /* at launch */
    static constexpr bool ROOMY = BANDS > 1 || (SHORT && GROUPS == 2);
    static constexpr int PRODUCER_REGISTERS = ROOMY ? 56 : GROUPS == 2 ? 40 : 32;
    static constexpr int CONSUMER_REGISTERS =
        ((GROUPS + 1) * REGISTERS - PRODUCER_REGISTERS) / GROUPS / 8 * 8;
    typedef typename element<TYPE>::type T;

    /* Words of a step's description: flags, the units' first keys (not with many bands, where a
     * view leads to the list), what each band sees of each. */
    static constexpr int KEY_WORD = 1, VIEW_WORD = KEY_WORD + (MANY ? 0 : UNITS);
    static constexpr int STEP_WORDS = VIEW_WORD + UNITS * VIEWS;
    static constexpr int STEP_BYTES = (STEP_WORDS + 3) / 4 * 16;
    static constexpr int INFO_BYTES = (ROW_WORD + BANDS + 3) / 4 * 16;
};

/* Where things lie in shared memory. */
template <class F> struct memory {
    uint32_t base;

    __device__ uint32_t queries(int ring, int buffer, int part) const
    {
        return base + ((ring * F::BUFFERS + buffer) * F::READERS + part) * F::Q_BYTES;
    }
    __device__ uint32_t slot(int ring, int i) const
    {
        return base + F::GROUPS * F::BUFFERS * F::Q_BYTES + (ring * F::SLOTS + i) * F::SLOT_BYTES;
    }
    __device__ uint32_t step(int ring, int i) const
    {
        return slot(F::RINGS, 0) + (ring * F::SLOTS + i) * F::STEP_BYTES;
    }
    __device__ uint32_t tile(int ring, uint32_t i) const
    {
        return step(F::RINGS, 0) + (ring * TILES + i % TILES) * F::INFO_BYTES;
    }
    /* Barriers: the data of a slot has come; its readers are done. */
    __device__ uint32_t full(int ring, int i) const
    {
        return tile(F::RINGS, 0) + (ring * F::SLOTS + i) * 8;
    }
    __device__ uint32_t empty(int ring, int i) const
    {
        return full(F::RINGS, i) + ring * F::SLOTS * 8;
    }
    __device__ uint32_t q_full(int ring, int buffer) const
    {
        return empty(F::RINGS, buffer) + ring * F::BUFFERS * 8;
    }
    __device__ uint32_t q_empty(int ring, int buffer) const
    {
        return q_full(F::RINGS, buffer) + ring * F::BUFFERS * 8;
    }
    /* Lines that the producer has to cut have come. */
    __device__ uint32_t cut(int ring) const
    {
        return q_empty(F::RINGS, 0) + ring * 8;
    }
    /* Of many bands: which lanes have the visible units of a list's 32. */
    __device__ uint32_t order(int ring) const
    {
        return cut(F::RINGS) + ring * ORDER_BYTES;
    }
    static constexpr int ORDER_BYTES = F::MANY ? 4 * LANES : 0;
    static constexpr int CONTROL_BYTES =
        F::RINGS * (F::SLOTS * F::STEP_BYTES + TILES * F::INFO_BYTES +
                    (2 * F::SLOTS + 2 * F::BUFFERS + 1) * 8 + ORDER_BYTES);
};

/* The buffer of a ring's tile number n, and the parity of its use. */
template <class F> __device__ __forceinline__ int buffer_of(int n)
{
    return n % F::BUFFERS;
}

template <class F> __device__ __forceinline__ uint32_t parity_of(int n)
{
    return n / F::BUFFERS & 1;
}

#endif
