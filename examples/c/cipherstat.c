/* cipherstat: logs the server name, version and cipher suite of every session (figure 22 of the
 * paper), and prints their distribution at the end. Usage: cipherstat CONFIG [CPUS] */
#include <mmtls.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_CPUS = 64 };

/* What a context has of its own: contexts run at the same time and share nothing. */
typedef struct {
    mmctx_t mmctx;
    FILE *logfile;
    unsigned long counts[2][65536]; /* TLS 1.2 and 1.3, by cipher suite */
} uctx;

static uctx workers[MAX_CPUS];

static void cb_session_start(mmctx_t mmctx, int cid, int side)
{
    (void)side;
    for (int cpu = 0; cpu < MAX_CPUS; cpu++)
        if (workers[cpu].mmctx == mmctx)
            mmtls_set_uctx(mmctx, cid, &workers[cpu]);
}

static void cb_handshake_end(mmctx_t mmctx, int cid, int side)
{
    session_info info;
    uctx *c = (uctx *)mmtls_get_uctx(mmctx, cid);
    (void)side;
    if (c == NULL || mmtls_get_tls_info(mmctx, cid, &info, SNI | VERSION | CIPHER_SUITE) < 0)
        return;
    fprintf(c->logfile, "server name:%s version:%d cipher:%d\n",
            info.sni, info.version, info.cipher_suite);
    c->counts[info.version == 0x0304][info.cipher_suite]++;
}

static void on_signal(int signal)
{
    (void)signal;
    mmtls_stop();
}

int main(int argc, char **argv)
{
    int cpus = argc > 2 ? atoi(argv[2]) : 1, status = EXIT_SUCCESS;
    if (argc < 2 || cpus > MAX_CPUS || mmtls_init(argv[1], cpus) < 0) {
        fprintf(stderr, "cipherstat: CONFIG [CPUS]: %s\n", mmtls_error_message());
        return EXIT_FAILURE;
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    for (int cpu = 0; cpu < cpus; cpu++) {
        workers[cpu].logfile = stdout;
        workers[cpu].mmctx = mmtls_create_context(cpu);
        mmtls_register_callback(workers[cpu].mmctx, ON_TLS_SESSION_START, cb_session_start);
        mmtls_register_callback(workers[cpu].mmctx, ON_TLS_HANDSHAKE_END, cb_handshake_end);
    }
    for (int cpu = 0; cpu < cpus; cpu++) {
        mmtls_app_join(workers[cpu].mmctx);
        if (mmtls_errno() < 0) {
            fprintf(stderr, "cipherstat: %s\n", mmtls_error_message());
            status = EXIT_FAILURE;
        }
        for (int kind = 0; kind < 2 * 65536; kind++)
            if (workers[cpu].counts[kind / 65536][kind % 65536] > 0)
                printf("cpu %d: TLS 1.%d, cipher suite 0x%04x: %lu sessions\n", cpu,
                       2 + kind / 65536, (unsigned)kind % 65536,
                       workers[cpu].counts[kind / 65536][kind % 65536]);
    }
    mmtls_destroy();
    return status;
}
