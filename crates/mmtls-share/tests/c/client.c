/* A TLS client that writes a key log of its own and shares its sessions.
 *
 *     client HOW ADDRESS:PORT NAME LOG [FLAGS] [EXEMPT]
 *
 * HOW: ctx (mmtls_share_ssl_ctx), line (mmtls_share_ssl_keylog_line), give (mmtls_share_give), threads (ctx, 8 of 10
 * sessions each and contexts of their own), fork (ctx, then both processes have a session), memory (ctx; both ends in this
 * process), late (ctx, on a context that was given to another handle, which is closed), quiet (ctx, without a callback of its
 * own). Prints nothing but what failed.
 *
 * With -DHEADERS it uses OpenSSL's headers and tells the library where the functions are, as a program does that links it
 * statically. Without, what it needs is declared here, so that no headers are needed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <mmtls_share.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef HEADERS
#include <openssl/ssl.h>
#else
typedef void SSL, SSL_CTX, SSL_METHOD, BIO, SSL_CIPHER;
const SSL_METHOD *TLS_client_method(void), *TLS_server_method(void);
SSL_CTX *SSL_CTX_new(const SSL_METHOD *);
void SSL_CTX_free(SSL_CTX *);
void SSL_CTX_set_keylog_callback(SSL_CTX *, void (*)(const SSL *, const char *));
int SSL_CTX_use_certificate_file(SSL_CTX *, const char *, int);
int SSL_CTX_use_PrivateKey_file(SSL_CTX *, const char *, int);
SSL *SSL_new(SSL_CTX *);
void SSL_free(SSL *);
int SSL_set_fd(SSL *, int), SSL_get_fd(const SSL *), SSL_connect(SSL *), SSL_do_handshake(SSL *);
int SSL_read(SSL *, void *, int), SSL_write(SSL *, const void *, int), SSL_version(const SSL *);
void SSL_set_connect_state(SSL *), SSL_set_accept_state(SSL *), SSL_set_bio(SSL *, BIO *, BIO *);
int BIO_new_bio_pair(BIO **, size_t, BIO **, size_t);
long SSL_ctrl(SSL *, int, long, void *);
size_t SSL_get_server_random(const SSL *, unsigned char *, size_t);
const SSL_CIPHER *SSL_get_pending_cipher(const SSL *), *SSL_get_current_cipher(const SSL *);
uint32_t SSL_CIPHER_get_id(const SSL_CIPHER *);
#define SSL_set_tlsext_host_name(ssl, name) SSL_ctrl(ssl, 55, 0, (void *)(name))
#define SSL_FILETYPE_PEM 1
#endif

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
/* No call may change it. */
#define SHARE(call, code) do { errno = 4242; CHECK((call) == (code)); CHECK(errno == 4242); } while (0)

static const char *how, *name;
static struct sockaddr_in server;
static FILE *log_file;
static mmtls_share_t share;
/* MMTLS_SHARE_EXEMPT where the list that is given has the server's name. */
static int expected;

static size_t bytes_of(const char *digits, uint8_t *out)
{
    size_t count = 0;
    unsigned byte;
    while (sscanf(digits + 2 * count, "%2x", &byte) == 1)
        out[count++] = (uint8_t)byte;
    return count;
}

/* As a program does whose TLS library is not known to ours. */
static void give(const SSL *ssl, const char *line)
{
    static const struct { const char *label; int kind; } KINDS[] = {
        { "CLIENT_RANDOM", MMTLS_SHARE_TLS12_MASTER },
        { "CLIENT_TRAFFIC_SECRET_0", MMTLS_SHARE_CLIENT_TRAFFIC },
        { "SERVER_TRAFFIC_SECRET_0", MMTLS_SHARE_SERVER_TRAFFIC },
    };
    char label[64], random[65], secret[129];
    uint8_t bytes[64];
    struct sockaddr_storage own, peer;
    socklen_t own_len = sizeof own, peer_len = sizeof peer;
    const SSL_CIPHER *cipher = SSL_get_pending_cipher(ssl);
    mmtls_share_secret given;

    CHECK(sscanf(line, "%63s %64s %128s", label, random, secret) == 3);
    memset(&given, 0, sizeof given);
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(label, KINDS[i].label) == 0)
            given.kind = KINDS[i].kind;
    if (given.kind == 0)
        return;
    if (cipher == NULL)
        cipher = SSL_get_current_cipher(ssl);
    CHECK(getsockname(SSL_get_fd(ssl), (struct sockaddr *)&own, &own_len) == 0);
    CHECK(getpeername(SSL_get_fd(ssl), (struct sockaddr *)&peer, &peer_len) == 0);
    CHECK(bytes_of(random, given.client_random) == 32);
    CHECK(SSL_get_server_random(ssl, given.server_random, 32) == 32);
    given.role = MMTLS_SHARE_CLIENT;
    given.version = (uint16_t)SSL_version(ssl);
    given.cipher_suite = (uint16_t)SSL_CIPHER_get_id(cipher);
    given.secret = bytes;
    given.secret_len = bytes_of(secret, bytes);
    given.server_name = name;
    given.client = (struct sockaddr *)&own;
    given.server = (struct sockaddr *)&peer;
    SHARE(mmtls_share_give(share, &given), expected);
}

static void on_line(const SSL *ssl, const char *line)
{
    /* One write, so that processes and threads do not mix. */
    fprintf(log_file, "%s\n", line);
    fflush(log_file);
    if (strcmp(how, "line") == 0)
        SHARE(mmtls_share_ssl_keylog_line(share, ssl, line), strncmp(line, "EXPORTER", 8) ? expected : 0);
    else if (strcmp(how, "give") == 0)
        give(ssl, line);
}

static SSL_CTX *context(const SSL_METHOD *method)
{
    SSL_CTX *made = SSL_CTX_new(method);
    CHECK(made != NULL);
    if (strcmp(how, "quiet") != 0)
        SSL_CTX_set_keylog_callback(made, on_line);
    if (strcmp(how, "line") != 0 && strcmp(how, "give") != 0) {
        SHARE(mmtls_share_ssl_ctx(share, made), 0);
        /* Twice does no harm. */
        SHARE(mmtls_share_ssl_ctx(share, made), 0);
    }
    return made;
}

static void session(SSL_CTX *made)
{
    char buffer[4096];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    SSL *ssl = SSL_new(made);
    CHECK(fd >= 0 && ssl != NULL);
    CHECK(connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(SSL_set_fd(ssl, fd) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1);
    CHECK(SSL_connect(ssl) == 1);
    CHECK(SSL_write(ssl, "GET / HTTP/1.0\r\n\r\n", 18) == 18);
    while (SSL_read(ssl, buffer, sizeof buffer) > 0) {}
    SSL_free(ssl);
    close(fd);
}

static void *work(void *unused)
{
    SSL_CTX *made = context(TLS_client_method());
    for (int i = 0; i < 10; i++)
        session(made);
    SSL_CTX_free(made);
    return unused;
}

static void threads(void)
{
    pthread_t running[8];
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&running[i], NULL, work, NULL) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
}

/* Both ends, without a socket. */
static void memory(void)
{
    SSL_CTX *to_server = context(TLS_client_method()), *to_client = context(TLS_server_method());
    SSL *client, *peer;
    BIO *a, *b;
    CHECK(SSL_CTX_use_certificate_file(to_client, "cert.pem", SSL_FILETYPE_PEM) == 1);
    CHECK(SSL_CTX_use_PrivateKey_file(to_client, "key.pem", SSL_FILETYPE_PEM) == 1);
    client = SSL_new(to_server);
    peer = SSL_new(to_client);
    CHECK(BIO_new_bio_pair(&a, 0, &b, 0) == 1);
    SSL_set_bio(client, a, a);
    SSL_set_bio(peer, b, b);
    SSL_set_connect_state(client);
    SSL_set_accept_state(peer);
    int done = 0;
    for (int i = 0; i < 10 && !done; i++) {
        done = SSL_do_handshake(client) == 1;
        done = SSL_do_handshake(peer) == 1 && done;
    }
    CHECK(done);
    SSL_free(client);
    SSL_free(peer);
    SSL_CTX_free(to_server);
    SSL_CTX_free(to_client);
}

int main(int count, char **arguments)
{
    CHECK(count >= 5);
    how = arguments[1];
    char *colon = strchr(arguments[2], ':');
    CHECK(colon != NULL);
    *colon = 0;
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(colon + 1));
    CHECK(inet_pton(AF_INET, arguments[2], &server.sin_addr) == 1);
    name = arguments[3];
    CHECK((log_file = fopen(arguments[4], "a")) != NULL);
    const unsigned flags = count > 5 ? (unsigned)atoi(arguments[5]) : 0;
    const char *exempt = count > 6 ? arguments[6] : NULL;
    expected = exempt != NULL && strstr(exempt, name) != NULL ? MMTLS_SHARE_EXEMPT : 0;
    SHARE(mmtls_share_open(NULL, exempt, flags, &share), 0);
    SHARE(mmtls_share_connect(share), 0);
#ifdef HEADERS
    {
        const mmtls_share_functions functions = MMTLS_SHARE_OPENSSL_FUNCTIONS;
        SHARE(mmtls_share_openssl(share, &functions), 0);
    }
#endif
    if (strcmp(how, "threads") == 0) {
        threads();
    } else if (strcmp(how, "memory") == 0) {
        memory();
    } else {
        SSL_CTX *made = context(TLS_client_method());
        if (strcmp(how, "late") == 0) {
            SHARE(mmtls_share_close(share), 0);
            session(made);
            fclose(log_file);
            CHECK((log_file = fopen(arguments[4], "w")) != NULL);
            SHARE(mmtls_share_open(NULL, exempt, flags, &share), 0);
#ifdef HEADERS
            const mmtls_share_functions functions = MMTLS_SHARE_OPENSSL_FUNCTIONS;
            SHARE(mmtls_share_openssl(share, &functions), 0);
#endif
            SHARE(mmtls_share_ssl_ctx(share, made), 0);
        }
        session(made);
        if (strcmp(how, "fork") == 0) {
            const pid_t child = fork();
            CHECK(child >= 0);
            session(made);
            if (child == 0) {
                SHARE(mmtls_share_close(share), 0);
                SHARE(mmtls_share_connect(share), MMTLS_SHARE_ERR_HANDLE);
                fflush(log_file);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            /* The child has closed its own connection only. */
            session(made);
        }
        SSL_CTX_free(made);
    }
    SHARE(mmtls_share_close(share), 0);
    fclose(log_file);
    return 0;
}
