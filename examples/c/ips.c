/* ips: searches the first kilobytes of every HTTP/1.1 response for literal patterns, skips the rest
 * without decrypting it, and resets the session on a match (figure 9 of the paper).
 *
 *     ips CONFIG PATTERNS [KILOBYTES [CPUS]]
 *
 * Responses have a length here, or go on to the end of the connection; those in chunks are searched
 * as they stand, to the end. Requests are not looked at, so the answer to HEAD is not understood:
 * the Rust example of the same name does all that. As in the paper, it trusts servers not to pad:
 * a pause counts at most too much, and a server that makes it do so can hide its next response. */
#include <mmtls.h>

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "literal.h"

enum { MAX_CPUS = 64, MAX_HEAD = 16384 };

static struct literals patterns;
static long long limit = 64 << 10;

/* One session. */
typedef struct {
    char buf[MAX_HEAD + MMTLS_MAX_RECORD_BYTES + 1]; /* the last one stays NUL */
    size_t off;          /* bytes in buf: those that are not looked at yet */
    int in_body;
    int whole;           /* no limit for this response */
    long long body_left; /* LLONG_MAX: to the end of the connection */
    long long searched;  /* bytes of this body */
    int state;           /* of the search */
} uctx;

/* Removes the front of the buffer. */
static void consume(uctx *c, size_t len)
{
    c->off -= len;
    memmove(c->buf, c->buf + len, c->off);
}

/* Where the head ends: behind its empty line, with or without CR. 0 when it is not complete. */
static size_t head_len(const uctx *c)
{
    for (size_t at = 1; at < c->off; at++) {
        if (c->buf[at - 1] == '\n' && c->buf[at] == '\n')
            return at + 1;
        if (c->buf[at - 1] == '\n' && c->buf[at] == '\r' && c->buf[at + 1] == '\n')
            return at + 2;
    }
    return 0;
}

/* Everything that comes from here on is searched. */
static void begin_unknown_body(uctx *c)
{
    c->in_body = 1;
    c->whole = 1;
    c->searched = 0;
    c->state = 0;
    c->body_left = LLONG_MAX;
}

/* Reads the head at the front of the buffer and begins its body. */
static void begin_body(uctx *c, size_t len)
{
    int status = atoi(c->buf + strlen("HTTP/1.1 "));
    int bodyless = status < 200 || status == 204 || status == 304;
    begin_unknown_body(c);
    c->whole = 0;
    for (size_t at = 0; at < len && !bodyless; at++) {
        const char *line = c->buf + at + 1;
        if (c->buf[at] != '\n')
            continue;
        if (strncasecmp(line, "content-length:", 15) == 0 && !c->whole) {
            /* A second one may be the one that counts. */
            c->whole = c->body_left != LLONG_MAX;
            c->body_left = strtoll(line + 15, NULL, 10);
        }
        c->whole |= strncasecmp(line, "transfer-encoding:", 18) == 0;
        if (c->whole || c->body_left < 0)
            c->body_left = LLONG_MAX;
    }
    if (bodyless)
        c->body_left = 0;
    consume(c, len);
}

/* Looks at what is in the buffer. Returns the line of a pattern that was found, or 0. */
static int inspect(uctx *c)
{
    while (c->off > 0) {
        if (!c->in_body) {
            size_t len = head_len(c), compared = c->off < 7 ? c->off : 7;
            if (memcmp(c->buf, "HTTP/1.", compared) != 0 || (len == 0 && c->off > MAX_HEAD))
                begin_unknown_body(c);
            else if (len == 0)
                return 0;
            else
                begin_body(c, len);
        }
        if (c->in_body) {
            long long here = (long long)c->off < c->body_left ? (long long)c->off : c->body_left;
            long long wanted = c->whole || here < limit - c->searched ? here : limit - c->searched;
            int found = literals_scan(&patterns, &c->state, c->buf, (size_t)wanted);
            if (found > 0)
                return found;
            consume(c, (size_t)here);
            c->searched += wanted;
            if (c->body_left != LLONG_MAX)
                c->body_left -= here;
            c->in_body = c->body_left > 0;
        }
    }
    return 0;
}

static void cb_session_start(mmctx_t mmctx, int cid, int side)
{
    uctx *c = (uctx *)calloc(1, sizeof *c);
    (void)side;
    if (c == NULL) {
        mmtls_reset_session(mmctx, cid);
        return;
    }
    mmtls_set_uctx(mmctx, cid, c);
    mmtls_set_record_buffer(mmctx, cid, MMTLS_TO_CLIENT, c->buf, sizeof c->buf - 1);
    /* Requests: never decrypted. */
    mmtls_pause_monitor(mmctx, cid, MMTLS_TO_SERVER, -1);
}

static void cb_new_record(mmctx_t mmctx, int cid, int side)
{
    int len, found;
    uint64_t skipped;
    session_info info;
    uctx *c = (uctx *)mmtls_get_uctx(mmctx, cid);
    /* Alerts of TLS 1.2 come during a pause, too. */
    if (c == NULL || side != MMTLS_TO_CLIENT || mmtls_get_skipped(mmctx, cid, side, &skipped) < 0)
        return;
    if (skipped > 0 && c->body_left != LLONG_MAX) {
        c->body_left -= (long long)skipped < c->body_left ? (long long)skipped : c->body_left;
        c->in_body = c->body_left > 0;
    }
    /* A tag that does not verify is answered by the policy `integrity_failure`. */
    if (mmtls_get_record(mmctx, cid, side, c->buf + c->off, &len) < 0)
        return;
    c->off += (size_t)len;
    found = inspect(c);
    if (found > 0) {
        mmtls_get_tls_info(mmctx, cid, &info, SNI);
        printf("%s: pattern of line %d found: reset\n", info.sni, found);
        mmtls_reset_session(mmctx, cid);
    } else if (c->in_body && !c->whole && c->searched >= limit) {
        int left = c->body_left < INT_MAX ? (int)c->body_left : INT_MAX;
        mmtls_pause_monitor(mmctx, cid, side, c->body_left == LLONG_MAX ? -1 : left);
    }
}

static void cb_session_end(mmctx_t mmctx, int cid, int side)
{
    (void)side;
    free(mmtls_get_uctx(mmctx, cid));
}

static void on_signal(int signal)
{
    (void)signal;
    mmtls_stop();
}

static int failed(const char *why)
{
    fprintf(stderr, "ips: %s\n", why);
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    mmctx_t mmctx[MAX_CPUS];
    int cpus = argc > 4 ? atoi(argv[4]) : 1, status = EXIT_SUCCESS;
    const char *counters[] = {"sessions", "records_seen", "records_opened", "records_paused"};
    if (argc < 3 || cpus < 1 || cpus > MAX_CPUS)
        return failed("CONFIG PATTERNS [KILOBYTES [CPUS]]");
    if (argc > 3)
        limit = atoll(argv[3]) << 10;
    if (limit <= 0)
        return failed("KILOBYTES must be at least 1");
    if (literals_load(&patterns, argv[2]) <= 0)
        return failed("no patterns, or too many");
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    if (mmtls_init(argv[1], cpus) < 0)
        return failed(mmtls_error_message());
    for (int cpu = 0; cpu < cpus; cpu++) {
        mmctx[cpu] = mmtls_create_context(cpu);
        mmtls_register_callback(mmctx[cpu], ON_TLS_SESSION_START, cb_session_start);
        mmtls_register_callback(mmctx[cpu], ON_TLS_NEW_RECORD, cb_new_record);
        mmtls_register_callback(mmctx[cpu], ON_TLS_SESSION_END, cb_session_end);
    }
    for (int cpu = 0; cpu < cpus; cpu++) {
        mmtls_app_join(mmctx[cpu]);
        if (mmtls_errno() < 0)
            status = failed(mmtls_error_message());
    }
    for (size_t name = 0; name < sizeof counters / sizeof *counters; name++) {
        uint64_t sum = 0, value;
        for (int cpu = 0; cpu < cpus; cpu++)
            if (mmtls_get_counter(mmctx[cpu], counters[name], &value) == 0)
                sum += value;
        printf("%s: %llu\n", counters[name], (unsigned long long)sum);
    }
    mmtls_destroy();
    free(patterns.nodes);
    return status;
}
