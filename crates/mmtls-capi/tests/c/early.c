/* What becomes of early data. Usage: early CONFIG */
#include <mmtls.h>

#include <stdio.h>

static int records;

static void cb_start(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid, (void)side;
    records = 0;
}

static void cb_record(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid;
    records += side == MMTLS_TO_SERVER;
}

static void cb_early_data(mmctx_t mmctx, int cid, int side)
{
    session_info info;
    if (side != MMTLS_TO_SERVER || mmtls_get_tls_info(mmctx, cid, &info, MMTLS_INFO_BEGINNING) < 0)
        return;
    printf("session %d: early data %d, %d records before, mid stream %d\n", cid, info.early_data,
           records, info.mid_stream);
}

int main(int argc, char **argv)
{
    mmctx_t mmctx;
    if (argc != 2 || mmtls_init(argv[1], 1) < 0)
        return 1;
    mmctx = mmtls_create_context(0);
    mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_start);
    mmtls_register_callback(mmctx, ON_TLS_NEW_RECORD, cb_record);
    mmtls_register_callback(mmctx, ON_TLS_EARLY_DATA, cb_early_data);
    mmtls_app_join(mmctx);
    return mmtls_errno() < 0 || mmtls_destroy() < 0;
}
