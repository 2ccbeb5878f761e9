/* The form of a kernel by its variant, which is in the names of what belongs to it. Included once
 * for each type and form. */
#undef FORM
#if defined(WIDE)
#define FORM wide
#elif defined(TM)
#define FORM TM
#else
#define FORM any
#endif
#ifndef FORMED
#define FORMED(x) SIMT_JOIN(x, FORM)
#define FN(x)     NAME(FORMED(x))
#endif
