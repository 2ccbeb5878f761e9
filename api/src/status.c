/* Status names and the thread's last error. */
#include <stdarg.h>
#include <stdio.h>

#include "api/src/internal.h"

static _Thread_local bski_error last_error;
static _Thread_local unsigned failures;

static const struct {
    bsk_status status;
    const char *name;
} names[] = {
    {BSK_OK, "BSK_OK"},
    {BSK_E_INVALID, "BSK_E_INVALID"},
    {BSK_E_UNSUPPORTED, "BSK_E_UNSUPPORTED"},
    {BSK_E_NOMEM, "BSK_E_NOMEM"},
    {BSK_E_DEVICE_NOMEM, "BSK_E_DEVICE_NOMEM"},
    {BSK_E_DEVICE, "BSK_E_DEVICE"},
    {BSK_E_DEVICE_LOST, "BSK_E_DEVICE_LOST"},
    {BSK_E_PLUGIN, "BSK_E_PLUGIN"},
    {BSK_E_VERSION, "BSK_E_VERSION"},
    {BSK_E_CORRUPT, "BSK_E_CORRUPT"},
    {BSK_E_ENVIRONMENT, "BSK_E_ENVIRONMENT"},
    {BSK_E_INTERNAL, "BSK_E_INTERNAL"},
};

const char *bsk_status_name(bsk_status status)
{
    for (size_t i = 0; i < BSKI_COUNT(names); i++)
        if (names[i].status == status)
            return names[i].name;
    return "unknown status";
}

const char *bsk_last_error(void)
{
    return last_error.text;
}

const char *bsk_version(void)
{
    return BSK_VERSION_STRING;
}

bsk_status bski_fail(bsk_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error.text, sizeof(last_error.text), format, args);
    va_end(args);
    failures++;
    return status;
}

unsigned bski_failures(void)
{
    return failures;
}

bsk_status bski_explained(unsigned before, bsk_status status, const char *call)
{
    return status && failures == before
               ? bski_fail(status, "%s answers %s", call, bsk_status_name(status))
               : status;
}

bski_error bski_error_save(void)
{
    return last_error;
}

void bski_error_restore(const bski_error *error)
{
    last_error = *error;
}
