/* A kernel for tests of the OpenCL backend: y = alpha * x + bias, with groups that turn their part
 * of x round through local memory, so that a missing barrier or a wrong group size shows.
 * Included once per storage type. */
typedef struct scale_arg {
    i64 n;
    f32 alpha;
    i32 repeat; /* how often, to take time */
} scale_arg;

KERNEL(scale, 64)(BUF(const T, x), BUF(const T, bias), BUF(T, y), const scale_arg a)
{
    OPEN(const T, x);
    OPEN(const T, bias);
    OPEN(T, y);
    LOCAL R part[64];
    i64 first = (GROUP(0) + GROUPS(0) * (GROUP(1) + GROUPS(1) * GROUP(2))) * 64, i = first + LANE;
    for (i32 r = 0; r < a.repeat; r++) {
        part[63 - LANE] = i < a.n ? LD(x, i) : 0;
        BARRIER();
        if (i < a.n)
            ST(y, i, FMA((R)a.alpha, part[63 - LANE], bias ? LD(bias, i) : 0));
        BARRIER();
    }
}
