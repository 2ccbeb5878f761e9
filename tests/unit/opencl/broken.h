/* A kernel that does not compile, for tests of the OpenCL backend. Included once per storage
 * type. */
KERNEL(broken, 64)(BUF(T, y))
{
    OPEN(T, y);
    y[LANE] = no_such_function(LANE);
}
