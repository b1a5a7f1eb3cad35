/* Every wrong call gets its documented code, changes no errno, prints nothing, and ends nobody. OpenSSL is not there.
 *
 *     misuse calls AGENT     an agent listens there
 *     misuse away PATH       nobody listens at PATH; the agent comes when this says so, and goes (both by lines on stdin)
 *     misuse full PATH       an agent listens there that takes nothing
 */
#define _GNU_SOURCE
#include <errno.h>
#include <mmtls_share.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
#define SHARE(call, expected) do { \
        errno = 4242; \
        const int code_ = (call); \
        if (code_ != (expected)) { \
            fprintf(stderr, "line %d: %s: %d, %s\n", __LINE__, #call, code_, mmtls_share_strerror(code_)); \
            exit(1); \
        } \
        CHECK(errno == 4242); \
    } while (0)

static const uint8_t SECRET[80] = { 7 };

static mmtls_share_secret secret_of(int kind, size_t length)
{
    mmtls_share_secret secret;
    memset(&secret, 0, sizeof secret);
    secret.kind = kind;
    secret.version = kind == MMTLS_SHARE_TLS12_MASTER ? 0x0303 : 0x0304;
    secret.cipher_suite = 0x1301;
    secret.secret = SECRET;
    secret.secret_len = length;
    memset(secret.client_random, 0xab, 32);
    return secret;
}

static void opening(const char *agent)
{
    char path[109] = { 0 };
    mmtls_share_t share = NULL, many[17];
    memset(path, 'x', 108);
    SHARE(mmtls_share_open(agent, NULL, 0, NULL), MMTLS_SHARE_ERR_ARGUMENT);
    SHARE(mmtls_share_open(agent, NULL, 4, &share), MMTLS_SHARE_ERR_ARGUMENT);
    share = (mmtls_share_t)path;
    SHARE(mmtls_share_open(NULL, NULL, 0, &share), MMTLS_SHARE_ERR_NO_AGENT);
    CHECK(share == NULL);
    SHARE(mmtls_share_open("", NULL, 0, &share), MMTLS_SHARE_ERR_PATH);
    SHARE(mmtls_share_open(path, NULL, 0, &share), MMTLS_SHARE_ERR_PATH);
    SHARE(mmtls_share_open(agent, "a.example,*", 0, &share), MMTLS_SHARE_ERR_NAMES);
    SHARE(mmtls_share_open(agent, "\xff", 0, &share), MMTLS_SHARE_ERR_NAMES);
    CHECK(setenv("MMTLS_EXEMPT", "*", 1) == 0);
    SHARE(mmtls_share_open(agent, NULL, 0, &share), MMTLS_SHARE_ERR_NAMES);
    CHECK(unsetenv("MMTLS_EXEMPT") == 0 && setenv("MMTLS_AGENT", "", 1) == 0);
    SHARE(mmtls_share_open(NULL, NULL, 0, &share), MMTLS_SHARE_ERR_PATH);
    CHECK(unsetenv("MMTLS_AGENT") == 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 16; i++)
            SHARE(mmtls_share_open(agent, NULL, 0, &many[i]), 0);
        SHARE(mmtls_share_open(agent, NULL, 0, &many[16]), MMTLS_SHARE_ERR_CAPACITY);
        for (int i = 0; i < 16; i++)
            SHARE(mmtls_share_close(many[i]), 0);
    }
}

static void no_handle(mmtls_share_t share)
{
    const mmtls_share_secret secret = secret_of(MMTLS_SHARE_CLIENT_TRAFFIC, 32);
    SHARE(mmtls_share_connect(share), MMTLS_SHARE_ERR_HANDLE);
    SHARE(mmtls_share_close(share), MMTLS_SHARE_ERR_HANDLE);
    SHARE(mmtls_share_give(share, &secret), MMTLS_SHARE_ERR_HANDLE);
    SHARE(mmtls_share_exempt(share, secret.client_random, NULL, NULL), MMTLS_SHARE_ERR_HANDLE);
    SHARE(mmtls_share_openssl(share, NULL), MMTLS_SHARE_ERR_HANDLE);
    SHARE(mmtls_share_ssl_ctx(share, &share), MMTLS_SHARE_ERR_HANDLE);
    SHARE(mmtls_share_ssl_keylog_line(share, &share, "x"), MMTLS_SHARE_ERR_HANDLE);
}

/* Of these nothing may reach the agent. */
static void wrong_secrets(mmtls_share_t share)
{
    char name[257] = { 0 };
    struct sockaddr_in v4 = { 0 };
    struct sockaddr_in6 v6 = { 0 };
    struct sockaddr_un local = { 0 };
    mmtls_share_secret secret = secret_of(MMTLS_SHARE_CLIENT_TRAFFIC, 32);
    v4.sin_family = AF_INET;
    v6.sin6_family = AF_INET6;
    local.sun_family = AF_UNIX;

#define WRONG(change, expected) do { \
        mmtls_share_secret good_ = secret; \
        change; \
        SHARE(mmtls_share_give(share, &secret), expected); \
        secret = good_; \
    } while (0)
    SHARE(mmtls_share_give(share, NULL), MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.kind = 0, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.kind = 9, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.kind = -1, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.kind = 256 + MMTLS_SHARE_CLIENT_TRAFFIC, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.role = 2, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.version = 0x0303, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.version = 0xfefc, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.secret = NULL, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.secret_len = 0, MMTLS_SHARE_ERR_SECRET);
    WRONG(secret.secret_len = 65, MMTLS_SHARE_ERR_SECRET);
    WRONG(secret.secret_len = SIZE_MAX, MMTLS_SHARE_ERR_SECRET);
    memset(name, 'x', 256);
    WRONG(secret.server_name = name, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.client = (struct sockaddr *)&v4, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG(secret.server = (struct sockaddr *)&v6, MMTLS_SHARE_ERR_ARGUMENT);
    WRONG((secret.client = (struct sockaddr *)&v4, secret.server = (struct sockaddr *)&v6), MMTLS_SHARE_ERR_ARGUMENT);
    WRONG((secret.client = secret.server = (struct sockaddr *)&local), MMTLS_SHARE_ERR_ARGUMENT);
    secret = secret_of(MMTLS_SHARE_TLS12_MASTER, 48);
    WRONG(secret.secret_len = 32, MMTLS_SHARE_ERR_SECRET);
    WRONG(secret.version = 0x0304, MMTLS_SHARE_ERR_ARGUMENT);
    SHARE(mmtls_share_exempt(share, NULL, NULL, NULL), MMTLS_SHARE_ERR_ARGUMENT);
    SHARE(mmtls_share_exempt(share, secret.client_random, (struct sockaddr *)&v4, NULL), MMTLS_SHARE_ERR_ARGUMENT);
}

static void without_openssl(mmtls_share_t share)
{
    mmtls_share_functions functions;
    memset(&functions, 0, sizeof functions);
    SHARE(mmtls_share_openssl(share, NULL), MMTLS_SHARE_ERR_OPENSSL);
    SHARE(mmtls_share_openssl(share, &functions), MMTLS_SHARE_ERR_OPENSSL);
    SHARE(mmtls_share_ssl_ctx(share, NULL), MMTLS_SHARE_ERR_ARGUMENT);
    SHARE(mmtls_share_ssl_ctx(share, &functions), MMTLS_SHARE_ERR_OPENSSL);
    SHARE(mmtls_share_ssl_keylog_line(share, NULL, "x"), MMTLS_SHARE_ERR_ARGUMENT);
    SHARE(mmtls_share_ssl_keylog_line(share, &functions, NULL), MMTLS_SHARE_ERR_ARGUMENT);
    SHARE(mmtls_share_ssl_keylog_line(share, &functions, "x"), MMTLS_SHARE_ERR_OPENSSL);
}

/* Of the good calls the agent gets five datagrams. */
static void calls(const char *agent)
{
    mmtls_share_t share, stale;
    struct sockaddr_in v4 = { 0 };
    struct sockaddr_in6 v6 = { 0 };
    mmtls_share_secret secret = secret_of(MMTLS_SHARE_SERVER_NEXT, 64);
    opening(agent);
    SHARE(mmtls_share_open(agent, "private.example,*.below.example", 0, &share), 0);
    stale = share;
    SHARE(mmtls_share_close(share), 0);
    SHARE(mmtls_share_open(agent, "private.example,*.below.example", 0, &share), 0);
    CHECK(share != stale);
    no_handle(NULL);
    no_handle(stale);
    no_handle((mmtls_share_t)(void *)&v4);
    no_handle((mmtls_share_t)(uintptr_t)-1);
    wrong_secrets(share);
    without_openssl(share);

    /* 1: a whole one. An IPv4 address that is written as IPv6 is the same. */
    v4.sin_family = AF_INET;
    v4.sin_port = htons(40000);
    v4.sin_addr.s_addr = htonl(0xc0000201);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(443);
    memcpy(v6.sin6_addr.s6_addr, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\0\2\2", 16);
    secret.client = (struct sockaddr *)&v4;
    secret.server = (struct sockaddr *)&v6;
    secret.server_name = "a.example";
    SHARE(mmtls_share_give(share, &secret), 0);
    /* 2 and 3: exempt by name, each told once. */
    secret = secret_of(MMTLS_SHARE_CLIENT_TRAFFIC, 32);
    secret.server_name = "PRIVATE.example";
    SHARE(mmtls_share_give(share, &secret), MMTLS_SHARE_EXEMPT);
    secret.kind = MMTLS_SHARE_SERVER_TRAFFIC;
    SHARE(mmtls_share_give(share, &secret), MMTLS_SHARE_EXEMPT);
    secret = secret_of(MMTLS_SHARE_TLS12_MASTER, 48);
    secret.server_name = "a.below.example";
    SHARE(mmtls_share_give(share, &secret), MMTLS_SHARE_EXEMPT);
    /* 4: by the program's own judgement. */
    SHARE(mmtls_share_exempt(share, secret.client_random, NULL, NULL), MMTLS_SHARE_EXEMPT);
    /* 5: no name matches no rule. */
    secret.server_name = NULL;
    SHARE(mmtls_share_give(share, &secret), 0);
    SHARE(mmtls_share_close(share), 0);
    no_handle(share);
    CHECK(strcmp(mmtls_share_strerror(MMTLS_SHARE_ERR_AGENT), "the agent cannot be reached") == 0);
    CHECK(strcmp(mmtls_share_strerror(-7), "unknown error") == 0);
}

static void wait_for_line(void)
{
    char line[16];
    puts("now");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    /* It does not try again at once. */
    usleep(150000);
}

static void away(const char *path)
{
    mmtls_share_t share;
    mmtls_share_secret secret = secret_of(MMTLS_SHARE_CLIENT_TRAFFIC, 32);
    SHARE(mmtls_share_open(path, NULL, 0, &share), 0);
    SHARE(mmtls_share_connect(share), MMTLS_SHARE_ERR_AGENT);
    for (int i = 0; i < 100; i++) {
        secret.client_random[0] = (uint8_t)i;
        SHARE(mmtls_share_give(share, &secret), MMTLS_SHARE_ERR_AGENT);
    }
    wait_for_line(); /* The agent comes. */
    SHARE(mmtls_share_connect(share), 0);
    secret.client_random[0] = 200;
    SHARE(mmtls_share_give(share, &secret), 0);
    wait_for_line(); /* It goes. */
    SHARE(mmtls_share_connect(share), MMTLS_SHARE_ERR_AGENT);
    secret.client_random[0] = 201;
    SHARE(mmtls_share_give(share, &secret), MMTLS_SHARE_ERR_AGENT);
    wait_for_line(); /* Another one comes. */
    secret.client_random[0] = 202;
    SHARE(mmtls_share_give(share, &secret), 0);
    wait_for_line(); /* It goes, and this is not asked first. */
    SHARE(mmtls_share_give(share, &secret), MMTLS_SHARE_ERR_AGENT);
    SHARE(mmtls_share_close(share), 0);
}

static void full(const char *path)
{
    mmtls_share_t share;
    struct timespec before, after;
    int sent = 0;
    const mmtls_share_secret secret = secret_of(MMTLS_SHARE_CLIENT_TRAFFIC, 32);
    SHARE(mmtls_share_open(path, NULL, 0, &share), 0);
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int i = 0; i < 20000; i++) {
        const int code = mmtls_share_give(share, &secret);
        CHECK(code == 0 || code == MMTLS_SHARE_ERR_AGENT);
        sent += code == 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK(sent > 0 && sent < 20000);
    /* Waiting a millisecond each time would take twenty seconds. */
    CHECK(after.tv_sec - before.tv_sec < 10);
    SHARE(mmtls_share_connect(share), MMTLS_SHARE_ERR_AGENT);
    SHARE(mmtls_share_close(share), 0);
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    if (strcmp(arguments[1], "calls") == 0)
        calls(arguments[2]);
    else if (strcmp(arguments[1], "away") == 0)
        away(arguments[2]);
    else
        full(arguments[2]);
    return 0;
}
