/* Control of the build of the OpenCL backend whose calls of the driver fail on command
 * (opencl_faults.c). Programs load the module with dlopen and fetch OPENCL_FAULTS_SYMBOL. */
#ifndef OPENCL_FAULTS_H
#define OPENCL_FAULTS_H

typedef struct opencl_faults {
    /* The next `skip` calls of a function of OpenCL succeed, all later ones answer `error`. One
     * function at a time; "" for none. */
    void (*set)(const char *call, int error, int skip);
    /* Calls of that function since. */
    int (*met)(void);
} opencl_faults;

#define OPENCL_FAULTS_SYMBOL "bsk_opencl_faults"
typedef const opencl_faults *(*opencl_faults_fn)(void);

#endif
