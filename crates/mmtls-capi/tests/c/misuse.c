/* Every misuse has its fixed code and changes nothing. Usage: misuse CONFIG DAMAGED TRUNCATED
 *
 * CONFIG replays several long sessions side by side, DAMAGED one with a changed record, TRUNCATED a
 * file that ends in the middle. */
#include <mmtls.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int checks, wrong;

static void check(long long got, long long expected, const char *what, int line)
{
    checks++;
    if (got != expected) {
        wrong++;
        fprintf(stderr, "misuse.c:%d: %s is %lld, not %lld\n", line, what, got, expected);
    }
}

#define CHECK(call, expected) check((long long)(call), (long long)(expected), #call, __LINE__)
/* For functions that return a pointer or nothing. */
#define CHECK_ERRNO(call, expected) \
    do { \
        (void)(call); \
        check(mmtls_errno(), (expected), #call, __LINE__); \
    } while (0)
#define CHECK_JOIN(mmctx, expected) \
    do { \
        mmtls_app_join(mmctx); \
        check(mmtls_errno(), (expected), "mmtls_app_join", __LINE__); \
    } while (0)

static void cb_nothing(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid, (void)side;
}

/* Everything that needs an event, without one that fits. */
static void session_functions(mmctx_t mmctx, int cid, int expected)
{
    char buf[8];
    int len;
    uint8_t type;
    uint64_t skipped;
    session_info info;
    CHECK(mmtls_pause_monitor(mmctx, cid, MMTLS_TO_CLIENT, 1), expected);
    CHECK(mmtls_resume_monitor(mmctx, cid, MMTLS_TO_CLIENT), expected);
    CHECK(mmtls_get_record(mmctx, cid, MMTLS_TO_CLIENT, buf, &len, &type), expected);
    CHECK(mmtls_get_record(mmctx, cid, MMTLS_TO_CLIENT, buf, &len), expected);
    CHECK(mmtls_get_record(mmctx, cid, MMTLS_TO_CLIENT, NULL, &len, &type), expected);
    CHECK(mmtls_get_record_n(mmctx, cid, MMTLS_TO_CLIENT, buf, sizeof buf, &len, &type), expected);
    CHECK(mmtls_get_skipped(mmctx, cid, MMTLS_TO_CLIENT, &skipped), expected);
    CHECK(mmtls_reset_session(mmctx, cid), expected);
    CHECK(mmtls_get_tls_info(mmctx, cid, &info, SNI), expected);
}

/* Those that work for any session of the context. */
static void any_session_functions(mmctx_t mmctx, int cid, int expected)
{
    char buf[8];
    CHECK(mmtls_set_record_buffer(mmctx, cid, MMTLS_TO_CLIENT, buf, sizeof buf), expected);
    CHECK(mmtls_set_uctx(mmctx, cid, buf), expected);
    CHECK_ERRNO(mmtls_get_uctx(mmctx, cid), expected);
    CHECK(mmtls_get_last_error(mmctx, cid), expected);
}

static void before_and_after_the_library(void)
{
    uint64_t value;
    CHECK(mmtls_destroy(), MMTLS_ERR_NOT_INITIALISED);
    CHECK_ERRNO(mmtls_create_context(0), MMTLS_ERR_NOT_INITIALISED);
    CHECK(mmtls_register_callback(NULL, 0, cb_nothing), MMTLS_ERR_NOT_INITIALISED);
    CHECK(mmtls_deregister_callback(NULL, 0), MMTLS_ERR_NOT_INITIALISED);
    CHECK(mmtls_get_counter(NULL, "sessions", &value), MMTLS_ERR_NOT_INITIALISED);
    CHECK(mmtls_set_message_callback(NULL), MMTLS_ERR_NOT_INITIALISED);
    CHECK_JOIN(NULL, MMTLS_ERR_NOT_INITIALISED);
    session_functions(NULL, 1, MMTLS_ERR_CONTEXT);
    any_session_functions(NULL, 1, MMTLS_ERR_CONTEXT);
}

/* ---- a first run: what callbacks do wrong ---- */

enum { MAX_SESSIONS = 16 };

static mmctx_t running, idle;
static const char *config;
static int living[MAX_SESSIONS], ended, starts, ends, records, resets, fits, infos;

static void *in_another_thread(void *cid)
{
    session_functions(running, *(int *)cid, MMTLS_ERR_THREAD);
    any_session_functions(running, *(int *)cid, MMTLS_ERR_THREAD);
    CHECK(mmtls_register_callback(running, ON_TLS_ERROR, cb_nothing), MMTLS_ERR_STARTED);
    return NULL;
}

/* Handles that are none. */
static void wrong_handles(int cid, void (*functions)(mmctx_t, int, int), mmctx_t stale)
{
    int local;
    functions(NULL, cid, MMTLS_ERR_CONTEXT);
    functions((mmctx_t)(void *)&local, cid, MMTLS_ERR_CONTEXT);
    functions((mmctx_t)(uintptr_t)1, cid, MMTLS_ERR_CONTEXT);
    functions((mmctx_t)UINTPTR_MAX, cid, MMTLS_ERR_CONTEXT);
    functions(stale, cid, MMTLS_ERR_CONTEXT);
}

static mmctx_t stale_handle;

/* What is refused in every event. */
static void in_any_event(mmctx_t mmctx, int cid)
{
    uint64_t value;
    const int numbers[] = {0, -1, 12345678, -2147483647 - 1, 2147483647};
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        session_functions(mmctx, numbers[at], MMTLS_ERR_SESSION);
        any_session_functions(mmctx, numbers[at], MMTLS_ERR_SESSION);
    }
    if (ended > 0) {
        session_functions(mmctx, ended, MMTLS_ERR_SESSION);
        any_session_functions(mmctx, ended, MMTLS_ERR_SESSION);
    }
    for (int at = 0; at < MAX_SESSIONS; at++)
        if (living[at] > 0 && living[at] != cid) {
            session_functions(mmctx, living[at], MMTLS_ERR_OTHER_SESSION);
            CHECK(mmtls_get_last_error(mmctx, living[at]), 0);
            CHECK(mmtls_get_uctx(mmctx, living[at]), &living[at]);
        }
    session_functions(idle, cid, MMTLS_ERR_THREAD);
    any_session_functions(idle, cid, MMTLS_ERR_THREAD);
    wrong_handles(cid, session_functions, stale_handle);
    wrong_handles(cid, any_session_functions, stale_handle);
    CHECK(mmtls_init(config, 1), MMTLS_ERR_IN_CALLBACK);
    CHECK(mmtls_destroy(), MMTLS_ERR_IN_CALLBACK);
    CHECK_ERRNO(mmtls_create_context(1), MMTLS_ERR_IN_CALLBACK);
    CHECK_JOIN(mmctx, MMTLS_ERR_IN_CALLBACK);
    CHECK_JOIN(idle, MMTLS_ERR_IN_CALLBACK);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_ERROR, cb_nothing), MMTLS_ERR_STARTED);
    CHECK(mmtls_deregister_callback(mmctx, ON_TLS_NEW_RECORD), MMTLS_ERR_STARTED);
    CHECK(mmtls_set_message_callback(NULL), MMTLS_ERR_IN_CALLBACK);
    CHECK(mmtls_get_counter(mmctx, "sessions", &value), 0);
}

static void without_a_record(mmctx_t mmctx, int cid)
{
    char buf[8];
    int len;
    uint64_t skipped;
    CHECK(mmtls_get_record(mmctx, cid, MMTLS_TO_CLIENT, NULL, &len), MMTLS_ERR_EVENT);
    CHECK(mmtls_get_record_n(mmctx, cid, MMTLS_TO_SERVER, buf, sizeof buf, &len, NULL),
          MMTLS_ERR_EVENT);
    CHECK(mmtls_get_skipped(mmctx, cid, MMTLS_TO_CLIENT, &skipped), MMTLS_ERR_EVENT);
}

static void cb_start(mmctx_t mmctx, int cid, int side)
{
    pthread_t thread;
    CHECK(mmctx, running);
    CHECK(side, MMTLS_TO_SERVER);
    CHECK(cid > 0, 1);
    for (int at = 0; at < MAX_SESSIONS; at++)
        CHECK(living[at] == cid, 0);
    CHECK(mmtls_get_uctx(mmctx, cid), NULL);
    living[starts] = cid;
    CHECK(mmtls_set_uctx(mmctx, cid, &living[starts]), 0);
    starts++;
    in_any_event(mmctx, cid);
    without_a_record(mmctx, cid);
    CHECK(pthread_create(&thread, NULL, in_another_thread, &cid), 0);
    CHECK(pthread_join(thread, NULL), 0);
    /* cb_record is not called for it. */
    CHECK(mmtls_pause_monitor(mmctx, cid, MMTLS_TO_SERVER, -1), 0);
}

static void cb_handshake_end(mmctx_t mmctx, int cid, int side)
{
    session_info info;
    unsigned char zero[sizeof info] = {0};
    CHECK(side, MMTLS_TO_SERVER);
    in_any_event(mmctx, cid);
    without_a_record(mmctx, cid);
    CHECK(mmtls_get_tls_info(mmctx, cid, NULL, SNI), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_get_tls_info(mmctx, cid, &info, 0x8000), MMTLS_ERR_ARGUMENT);
    memset(&info, 0xee, sizeof info);
    CHECK(mmtls_get_tls_info(mmctx, cid, &info, 0), 0);
    CHECK(memcmp(&info, zero, sizeof info), 0);
    CHECK(mmtls_get_tls_info(mmctx, cid, &info, MMTLS_INFO_ALL), 0);
    CHECK(strcmp(info.sni, "server.test"), 0);
    CHECK(info.version == 0x0304 || info.version == 0x0303, 1);
    CHECK(info.server_port, 443);
    CHECK(info.client_port >= 20000, 1);
    if (info.ip_version == 6) {
        CHECK(memcmp(info.server_ip, "\x20\x01\x0d\xb8", 4), 0);
        CHECK(info.server_ip[15], 9);
    } else {
        CHECK(info.ip_version, 4);
        CHECK(memcmp(info.client_ip, "\xc0\x00\x02\x07", 4), 0);
    }
    CHECK(info.server_random[31], 0x5a);
    CHECK(info.client_random[31], 0x11);
    if (info.known & MMTLS_INFO_CERTIFICATE) {
        /* The synthetic one is all 0x30. */
        CHECK(info.certificate_len > 100, 1);
        CHECK(info.certificate[info.certificate_len - 1], 0x30);
    }
    CHECK(info.known | MMTLS_INFO_CERTIFICATE, MMTLS_INFO_ALL);
    CHECK(info.early_data, MMTLS_EARLY_NONE);
    CHECK(info.mid_stream, 0);
    infos += (info.known & MMTLS_INFO_CERTIFICATE) != 0;
}

static void buffers(mmctx_t mmctx, int cid, int side)
{
    int len, announced, other = 1 - side;
    uint8_t type, outer;
    char *heap, local[4] = "old";
    CHECK(mmtls_get_record(mmctx, cid, side, NULL, NULL, NULL), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_get_record(mmctx, cid, 2, NULL, &len, NULL), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_get_record(mmctx, cid, -1, NULL, &len, NULL), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_get_record(mmctx, cid, other, NULL, &len, NULL), MMTLS_ERR_EVENT);
    CHECK(mmtls_get_skipped(mmctx, cid, side, NULL), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_get_record(mmctx, cid, side, NULL, &announced, &outer), 0);
    CHECK(announced > 0 && announced <= MMTLS_MAX_RECORD_BYTES, 1);
    /* Not declared yet. */
    CHECK(mmtls_get_record(mmctx, cid, side, local, &len), MMTLS_ERR_BUFFER);
    CHECK(mmtls_get_record(mmctx, cid, side, local, &len, &type), MMTLS_ERR_BUFFER);
    CHECK(mmtls_set_record_buffer(mmctx, cid, 7, local, 4), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_set_record_buffer(mmctx, cid, side, NULL, 4), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_set_record_buffer(mmctx, cid, side, local, 0), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_set_record_buffer(mmctx, cid, side, local, SIZE_MAX), MMTLS_ERR_ARGUMENT);
    /* Declared for the other side. */
    CHECK(mmtls_set_record_buffer(mmctx, cid, other, local, 4), 0);
    CHECK(mmtls_get_record(mmctx, cid, side, local, &len), MMTLS_ERR_BUFFER);
    CHECK(mmtls_set_record_buffer(mmctx, cid, other, NULL, 0), 0);
    /* Too small, and places outside of it. The sanitizer would see a byte too much. */
    heap = (char *)malloc((size_t)announced);
    memset(heap, 0xee, (size_t)announced);
    CHECK(mmtls_set_record_buffer(mmctx, cid, side, heap, 10), 0);
    CHECK(mmtls_get_record(mmctx, cid, side, heap, &len, &type), MMTLS_ERR_CAPACITY);
    CHECK(len > 10 && len <= announced, 1);
    CHECK(mmtls_get_record(mmctx, cid, side, heap + 10, &len, &type), MMTLS_ERR_CAPACITY);
    CHECK(mmtls_get_record(mmctx, cid, side, heap + 11, &len, &type), MMTLS_ERR_BUFFER);
    CHECK(mmtls_get_record(mmctx, cid, side, heap - 1, &len, &type), MMTLS_ERR_BUFFER);
    CHECK(mmtls_get_record(mmctx, cid, side, local, &len), MMTLS_ERR_BUFFER);
    CHECK(mmtls_get_record_n(mmctx, cid, side, heap, 0, &len, &type), MMTLS_ERR_CAPACITY);
    CHECK(mmtls_get_record_n(mmctx, cid, side, heap, (size_t)len - 1, &len, &type),
          MMTLS_ERR_CAPACITY);
    for (int at = 0; at < announced; at++)
        CHECK(heap[at], (char)0xee);
    CHECK(strcmp(local, "old"), 0);
    /* Opened by now: both are exact. Exactly enough is enough. */
    CHECK(mmtls_get_record(mmctx, cid, side, NULL, &len, &type), 0);
    heap = (char *)realloc(heap, (size_t)len);
    CHECK(mmtls_set_record_buffer(mmctx, cid, side, heap, (size_t)len), 0);
    CHECK(mmtls_get_record(mmctx, cid, side, heap, &announced, &type), 0);
    CHECK(announced, len);
    CHECK(mmtls_get_record(mmctx, cid, side, heap, &len), 0);
    /* Without a type only application data is given. */
    CHECK(len, type == 23 ? announced : 0);
    CHECK(mmtls_get_record(mmctx, cid, side, heap + 1, &len, &type), MMTLS_ERR_CAPACITY);
    CHECK(mmtls_set_record_buffer(mmctx, cid, side, NULL, 0), 0);
    CHECK(mmtls_get_record(mmctx, cid, side, heap, &len, &type), MMTLS_ERR_BUFFER);
    free(heap);
    fits++;
}

static void cb_record(mmctx_t mmctx, int cid, int side)
{
    int len;
    records++;
    CHECK(side, MMTLS_TO_CLIENT); /* the other one is paused */
    in_any_event(mmctx, cid);
    buffers(mmctx, cid, side);
    CHECK(mmtls_pause_monitor(mmctx, cid, side, -2), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_pause_monitor(mmctx, cid, 2, 0), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_resume_monitor(mmctx, cid, -1), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_pause_monitor(mmctx, cid, side, -1), 0);
    CHECK(mmtls_resume_monitor(mmctx, cid, side), 0);
    CHECK(mmtls_resume_monitor(mmctx, cid, side), 0);
    CHECK(mmtls_pause_monitor(mmctx, cid, side, 0), 0);
    if (records % 8 == 5) {
        resets++;
        CHECK(mmtls_reset_session(mmctx, cid), 0);
        CHECK(mmtls_reset_session(mmctx, cid), MMTLS_ERR_RESET);
        CHECK(mmtls_pause_monitor(mmctx, cid, side, 5), MMTLS_ERR_RESET);
        CHECK(mmtls_resume_monitor(mmctx, cid, side), MMTLS_ERR_RESET);
        /* The record is still there. */
        CHECK(mmtls_get_record(mmctx, cid, side, NULL, &len), 0);
    }
}

static void cb_end(mmctx_t mmctx, int cid, int side)
{
    int *place = (int *)mmtls_get_uctx(mmctx, cid);
    CHECK(side, MMTLS_TO_SERVER);
    CHECK(*place, cid);
    in_any_event(mmctx, cid);
    without_a_record(mmctx, cid);
    CHECK(mmtls_pause_monitor(mmctx, cid, side, 5), MMTLS_ERR_EVENT);
    CHECK(mmtls_resume_monitor(mmctx, cid, side), MMTLS_ERR_EVENT);
    if (ends % 2 == 0) {
        int was_reset = mmtls_reset_session(mmctx, cid) == MMTLS_ERR_RESET;
        CHECK(was_reset ? MMTLS_ERR_RESET : mmtls_reset_session(mmctx, cid), MMTLS_ERR_RESET);
    }
    *place = 0;
    ended = cid;
    ends++;
}

static void callbacks_that_misuse(void)
{
    uint64_t value = 7;
    int local;
    CHECK(mmtls_init(NULL, 1), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_init(config, 0), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_init(config, -1), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_init(config, 129), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_init("/nonexistent/mmtls.toml", 1), MMTLS_ERR_CONFIG);
    CHECK(strstr(mmtls_error_message(), "/nonexistent/mmtls.toml") != NULL, 1);
    CHECK(mmtls_init(config, 3), 0);
    CHECK(mmtls_init(config, 3), MMTLS_ERR_INITIALISED);
    CHECK_ERRNO(mmtls_create_context(-1), MMTLS_ERR_ARGUMENT);
    CHECK_ERRNO(mmtls_create_context(3), MMTLS_ERR_ARGUMENT);
    idle = mmtls_create_context(1);
    running = mmtls_create_context(0);
    CHECK(mmtls_errno(), 0);
    CHECK_ERRNO(mmtls_create_context(0), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_register_callback(NULL, 0, cb_nothing), MMTLS_ERR_CONTEXT);
    CHECK(mmtls_register_callback((mmctx_t)(void *)&local, 0, cb_nothing), MMTLS_ERR_CONTEXT);
    CHECK(mmtls_register_callback(running, -1, cb_nothing), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_register_callback(running, 9, cb_nothing), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_register_callback(running, 0, NULL), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_deregister_callback(running, 9), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_deregister_callback(running, ON_TLS_ERROR), 0);
    CHECK(mmtls_get_counter(running, "sessions", &value), 0);
    CHECK(value, 0);
    CHECK_JOIN(NULL, MMTLS_ERR_CONTEXT);
    session_functions(running, 1, MMTLS_ERR_THREAD);
    any_session_functions(running, 1, MMTLS_ERR_THREAD);
    wrong_handles(1, session_functions, NULL);

    CHECK(mmtls_register_callback(running, ON_TLS_SESSION_START, cb_nothing), 0);
    CHECK(mmtls_register_callback(running, ON_TLS_SESSION_START, cb_start), 0);
    CHECK(mmtls_register_callback(running, ON_TLS_HANDSHAKE_START, cb_nothing), 0);
    CHECK(mmtls_deregister_callback(running, ON_TLS_HANDSHAKE_START), 0);
    CHECK(mmtls_register_callback(running, ON_TLS_HANDSHAKE_END, cb_handshake_end), 0);
    CHECK(mmtls_register_callback(running, ON_TLS_NEW_RECORD, cb_record), 0);
    CHECK(mmtls_register_callback(running, ON_TLS_SESSION_END, cb_end), 0);
    CHECK_JOIN(running, 0);
    CHECK_JOIN(running, 0);
    CHECK_JOIN(idle, 0);
    CHECK(starts > 3 && ends == starts && resets > 1 && fits > 10 && infos > 1, 1);

    CHECK_ERRNO(mmtls_create_context(2), MMTLS_ERR_STARTED);
    CHECK(mmtls_register_callback(running, 0, cb_nothing), MMTLS_ERR_STARTED);
    CHECK(mmtls_set_message_callback(NULL), MMTLS_ERR_STARTED);
    session_functions(running, 1, MMTLS_ERR_THREAD);
    CHECK(mmtls_get_counter(running, "sessions", &value), 0);
    CHECK(value, starts);
    CHECK(mmtls_get_counter(idle, "sessions", &value), 0);
    CHECK(value, 0);
    CHECK(mmtls_get_counter(running, "nonsense", &value), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_get_counter(running, NULL, &value), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_get_counter(running, "sessions", NULL), MMTLS_ERR_ARGUMENT);
    CHECK(mmtls_destroy(), 0);
    stale_handle = running;
}

/* ---- destroy while sessions live ---- */

static atomic_int in_record, destroying;

static void cb_count_start(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid, (void)side;
    starts++;
}

static void cb_count_end(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid, (void)side;
    ends++;
}

static void cb_wait(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid, (void)side;
    records++;
    in_record = 1;
    while (!destroying)
        usleep(1000);
    usleep(50000);
}

static void *join_it(void *mmctx)
{
    CHECK_JOIN((mmctx_t)mmctx, 0);
    return NULL;
}

static void destroy_with_living_sessions(void)
{
    pthread_t joiner;
    starts = ends = records = 0;
    CHECK(mmtls_init(config, 1), 0);
    CHECK(mmtls_register_callback(stale_handle, 0, cb_nothing), MMTLS_ERR_CONTEXT);
    CHECK_JOIN(stale_handle, MMTLS_ERR_CONTEXT);
    running = mmtls_create_context(0);
    CHECK(mmtls_register_callback(running, ON_TLS_SESSION_START, cb_count_start), 0);
    CHECK(mmtls_register_callback(running, ON_TLS_SESSION_END, cb_count_end), 0);
    CHECK(mmtls_register_callback(running, ON_TLS_NEW_RECORD, cb_wait), 0);
    CHECK(pthread_create(&joiner, NULL, join_it, running), 0);
    while (!in_record)
        usleep(1000);
    session_functions(running, 1, MMTLS_ERR_THREAD);
    CHECK(mmtls_init(config, 1), MMTLS_ERR_INITIALISED);
    destroying = 1;
    CHECK(mmtls_destroy(), 0);
    CHECK(pthread_join(joiner, NULL), 0);
    /* It was stopped early, and every session was ended. */
    CHECK(records < 4, 1);
    CHECK(starts > 0 && starts == ends, 1);
    CHECK(mmtls_destroy(), MMTLS_ERR_NOT_INITIALISED);
    CHECK_JOIN(running, MMTLS_ERR_NOT_INITIALISED);
}

/* ---- contexts that are never run, and stopped ones ---- */

static void never_joined(void)
{
    mmctx_t mmctx;
    CHECK(mmtls_init(config, 2), 0);
    mmctx = mmtls_create_context(1);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_nothing), 0);
    CHECK(mmtls_destroy(), 0);
}

static void cb_stop(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid, (void)side;
    records++;
    mmtls_stop();
}

static void stopped_by_a_callback(void)
{
    mmctx_t mmctx;
    starts = ends = records = 0;
    CHECK(mmtls_init(config, 1), 0);
    mmctx = mmtls_create_context(0);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_count_start), 0);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_SESSION_END, cb_count_end), 0);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_NEW_RECORD, cb_stop), 0);
    CHECK_JOIN(mmctx, 0);
    CHECK(records >= 1 && records < 4 && starts == ends, 1);
    CHECK(mmtls_destroy(), 0);
}

static void stopped_before_it_began(void)
{
    int early;
    /* Before mmtls_init, and between it and the start. */
    for (early = 0; early < 2; early++) {
        mmctx_t mmctx;
        starts = 0;
        if (early)
            mmtls_stop();
        CHECK(mmtls_init(config, 1), 0);
        if (!early)
            mmtls_stop();
        mmctx = mmtls_create_context(0);
        CHECK(mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_count_start), 0);
        CHECK_JOIN(mmctx, 0);
        CHECK(starts, 0);
        CHECK(mmtls_destroy(), 0);
    }
    /* What is destroyed before it ran takes the stop along, too. */
    mmtls_stop();
    never_joined();
}

/* ---- what the input does wrong ---- */

static int errors, opened, damaged;

static void cb_open(mmctx_t mmctx, int cid, int side)
{
    char buf[MMTLS_MAX_RECORD_BYTES];
    int len, code = mmtls_get_record_n(mmctx, cid, side, buf, sizeof buf, &len, NULL);
    CHECK(code == 0 || code == -20, 1);
    opened += code == 0;
    damaged += code == -20;
    if (code < 0) {
        CHECK(mmtls_get_last_error(mmctx, cid), -20);
        CHECK(mmtls_get_record_n(mmctx, cid, side, buf, sizeof buf, &len, NULL), -20);
        CHECK(strcmp(mmtls_error_message(), "integrity failure"), 0);
        CHECK(strcmp(mmtls_strerror(-20), "integrity failure"), 0);
    }
}

static void cb_error(mmctx_t mmctx, int cid, int side)
{
    CHECK(side, MMTLS_TO_CLIENT);
    CHECK(mmtls_get_last_error(mmctx, cid), -20);
    without_a_record(mmctx, cid);
    errors++;
}

static void bad_input(const char *file, int expected)
{
    mmctx_t mmctx;
    errors = opened = damaged = starts = ends = 0;
    CHECK(mmtls_init(file, 1), 0);
    mmctx = mmtls_create_context(0);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_count_start), 0);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_SESSION_END, cb_count_end), 0);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_NEW_RECORD, cb_open), 0);
    CHECK(mmtls_register_callback(mmctx, ON_TLS_ERROR, cb_error), 0);
    CHECK_JOIN(mmctx, expected);
    CHECK(opened > 0 && starts == ends, 1);
    CHECK(mmtls_destroy(), 0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    config = argv[1];
    before_and_after_the_library();
    callbacks_that_misuse();
    before_and_after_the_library();
    destroy_with_living_sessions();
    never_joined();
    stopped_by_a_callback();
    stopped_before_it_began();
    bad_input(argv[2], 0);
    CHECK(damaged, 1);
    CHECK(errors, 1);
    bad_input(argv[3], MMTLS_ERR_RUN);
    CHECK(damaged + errors, 0);
    printf("%d checks, %d wrong\n", (int)checks, (int)wrong);
    return wrong == 0 ? 0 : 1;
}
