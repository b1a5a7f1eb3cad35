/* What operators should know, by callback and on standard error. Usage: messages CONFIG WORDS */
#include <mmtls.h>

#include <stdio.h>
#include <string.h>

static const char *words;
static mmctx_t running;
static int told, wrong;

static void cb_message(mmctx_t mmctx, const char *text)
{
    told++;
    wrong += mmctx != running || strstr(text, words) == NULL || strchr(text, '\n') != NULL;
    /* It is a callback, of no session. */
    wrong += mmtls_destroy() != MMTLS_ERR_IN_CALLBACK;
    wrong += mmtls_reset_session(mmctx, 1) != MMTLS_ERR_THREAD;
}

static int run(const char *config, mmtls_message_cb cb)
{
    int code;
    if (mmtls_init(config, 1) < 0 || mmtls_set_message_callback(cb) < 0)
        return -1;
    running = mmtls_create_context(0);
    mmtls_app_join(running);
    code = mmtls_errno();
    return mmtls_destroy() < 0 ? -1 : code;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    words = argv[2];
    if (run(argv[1], cb_message) < 0 || run(argv[1], NULL) < 0)
        return 1;
    printf("%d told, %d wrong\n", told, wrong);
    return 0;
}
