/* Figure 9 of the paper: the callback stands as it is printed there, what it leaves out is around it.
 * Usage: figure9 CONFIG WORD */
#include <mmtls.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_AND_BODY = 10000 + 16384 };

typedef struct {
    char buf[HEAD_AND_BODY + MMTLS_MAX_RECORD_BYTES];
    int off, bodyOff, contLen, received;
    void *dpiCtx;
} uctx;

static const char *word;
static int found, pauses;

#define IsHTTPHdrReceived(c) ((c)->received)

static int ParseHTTPRespHdr(uctx *c)
{
    const char *end, *length;
    c->buf[c->off] = 0;
    end = strstr(c->buf, "\r\n\r\n");
    length = strstr(c->buf, "Content-Length: ");
    if (end == NULL || length == NULL)
        return 0;
    c->bodyOff = (int)(end + 4 - c->buf);
    /* As bodyOff, it counts from the start of the response. */
    c->contLen = c->bodyOff + atoi(length + strlen("Content-Length: "));
    c->received = 1;
    return 1;
}

static int DPI(void *dpiCtx, const char *content, int len)
{
    (void)dpiCtx;
    for (int at = 0; at + (int)strlen(word) <= len; at++)
        if (memcmp(content + at, word, strlen(word)) == 0) {
            found++;
            return -1;
        }
    return 0;
}

static void PrepareNewResponse(uctx *c)
{
    c->off = c->bodyOff = c->contLen = c->received = 0;
    pauses++;
}

static void free_ctx(uctx *c)
{
    free(c);
}

/* ---- from here on as printed ---- */

static void
cb_new_record(mmtls_t mmctx, int cid, int side)
{
    int len;
    uctx *c = mmtls_get_uctx(mmctx, cid);
    /* get plaintext record */
    if (mmtls_get_record(mmctx, cid, side,
                         c->buf + c->off, &len) < 0)
        goto error_case;
    c->off += len;
    if (!IsHTTPHdrReceived(c) && ParseHTTPRespHdr(c))
        len = c->off - c->bodyOff;
    if (IsHTTPHdrReceived(c)) {
        /* DPI on the response body */
        if (DPI(c->dpiCtx,
              c->buf + c->bodyOff, len) < 0)
            goto error_case;
        c->bodyOff += len;
    }
    /* monitor only first 10KB of response */
    if (c->bodyOff > 10000) {
        mmtls_pause_monitor(mmctx, cid, side,
                            c->contLen - c->bodyOff);
        PrepareNewResponse(c);
    }
    return;
error_case:
    free_ctx(c);
    mmtls_reset_session(mmctx, cid);
}

/* ---- to here ---- */

static void cb_session_start(mmctx_t mmctx, int cid, int side)
{
    uctx *c = calloc(1, sizeof *c);
    mmtls_set_uctx(mmctx, cid, c);
    mmtls_set_record_buffer(mmctx, cid, MMTLS_TO_CLIENT, c->buf, sizeof c->buf - 1);
    mmtls_pause_monitor(mmctx, cid, side, -1);
}

static void cb_checked(mmctx_t mmctx, int cid, int side)
{
    int before = found;
    /* Alerts of TLS 1.2 come during a pause, too. */
    if (side != MMTLS_TO_CLIENT)
        return;
    cb_new_record(mmctx, cid, side);
    /* What the figure frees must not be freed again at the end of the session. */
    if (found > before || mmtls_get_last_error(mmctx, cid) < 0)
        mmtls_set_uctx(mmctx, cid, NULL);
}

static void cb_session_end(mmctx_t mmctx, int cid, int side)
{
    (void)side;
    free(mmtls_get_uctx(mmctx, cid));
}

int main(int argc, char **argv)
{
    mmctx_t mmctx;
    uint64_t opened, paused;
    if (argc != 3 || mmtls_init(argv[1], 1) < 0)
        return 1;
    word = argv[2];
    mmctx = mmtls_create_context(0);
    mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_session_start);
    mmtls_register_callback(mmctx, ON_TLS_NEW_RECORD, cb_checked);
    mmtls_register_callback(mmctx, ON_TLS_SESSION_END, cb_session_end);
    mmtls_app_join(mmctx);
    if (mmtls_errno() < 0 || mmtls_get_counter(mmctx, "records_opened", &opened) < 0 ||
        mmtls_get_counter(mmctx, "records_paused", &paused) < 0)
        return 1;
    printf("found %d, paused %d times: %d records opened, %d not\n", found, pauses, (int)opened,
           (int)paused);
    return mmtls_destroy();
}
