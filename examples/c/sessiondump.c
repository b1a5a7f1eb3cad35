/* sessiondump: writes what was said in every session to two files, DIRECTORY/CPU-SESSION-to_server
 * and -to_client. Usage: sessiondump CONFIG DIRECTORY [CPUS] */
#include <mmtls.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MAX_CPUS = 64, APPLICATION_DATA = 23 };

static mmctx_t contexts[MAX_CPUS];
static const char *directory;

/* One session: its two files, opened when there is something to write. */
typedef struct {
    FILE *files[2];
} uctx;

static FILE *open_file(mmctx_t mmctx, int cid, int side)
{
    char path[4096];
    int cpu = 0;
    while (cpu < MAX_CPUS - 1 && contexts[cpu] != mmctx)
        cpu++;
    if (snprintf(path, sizeof path, "%s/%d-%d-%s", directory, cpu, cid,
                 side == MMTLS_TO_SERVER ? "to_server" : "to_client") >= (int)sizeof path)
        return NULL;
    /* Never through a link, nor into a file that is there. */
    return fopen(path, "wbx");
}

static void cb_session_start(mmctx_t mmctx, int cid, int side)
{
    (void)side;
    mmtls_set_uctx(mmctx, cid, calloc(1, sizeof(uctx)));
}

static void cb_new_record(mmctx_t mmctx, int cid, int side)
{
    char record[MMTLS_MAX_RECORD_BYTES];
    int len;
    uint8_t type;
    uctx *c = (uctx *)mmtls_get_uctx(mmctx, cid);
    if (c == NULL ||
        mmtls_get_record_n(mmctx, cid, side, record, sizeof record, &len, &type) < 0 ||
        type != APPLICATION_DATA)
        return;
    if (c->files[side] == NULL)
        c->files[side] = open_file(mmctx, cid, side);
    if (c->files[side] == NULL || fwrite(record, 1, (size_t)len, c->files[side]) != (size_t)len) {
        perror("sessiondump");
        mmtls_pause_monitor(mmctx, cid, side, -1);
    }
}

static void cb_session_end(mmctx_t mmctx, int cid, int side)
{
    uctx *c = (uctx *)mmtls_get_uctx(mmctx, cid);
    for (side = 0; c != NULL && side < 2; side++)
        if (c->files[side] != NULL && fclose(c->files[side]) != 0)
            perror("sessiondump");
    free(c);
}

static void on_signal(int signal)
{
    (void)signal;
    mmtls_stop();
}

int main(int argc, char **argv)
{
    int cpus = argc > 3 ? atoi(argv[3]) : 1, status = EXIT_SUCCESS;
    if (argc < 3 || cpus > MAX_CPUS || mmtls_init(argv[1], cpus) < 0) {
        fprintf(stderr, "sessiondump: CONFIG DIRECTORY [CPUS]: %s\n", mmtls_error_message());
        return EXIT_FAILURE;
    }
    directory = argv[2];
    umask(077);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    for (int cpu = 0; cpu < cpus; cpu++) {
        contexts[cpu] = mmtls_create_context(cpu);
        mmtls_register_callback(contexts[cpu], ON_TLS_SESSION_START, cb_session_start);
        mmtls_register_callback(contexts[cpu], ON_TLS_NEW_RECORD, cb_new_record);
        mmtls_register_callback(contexts[cpu], ON_TLS_SESSION_END, cb_session_end);
    }
    for (int cpu = 0; cpu < cpus; cpu++) {
        mmtls_app_join(contexts[cpu]);
        if (mmtls_errno() < 0) {
            fprintf(stderr, "sessiondump: %s\n", mmtls_error_message());
            status = EXIT_FAILURE;
        }
    }
    mmtls_destroy();
    return status;
}
