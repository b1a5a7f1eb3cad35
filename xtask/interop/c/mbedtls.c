/* Endpoint on mbedTLS 2.28, which speaks TLS 1.2. */
#include "endpoint.h"

#include <mbedtls/ctr_drbg.h>
#include <mbedtls/entropy.h>
#include <mbedtls/error.h>
#include <mbedtls/net_sockets.h>
#include <mbedtls/ssl.h>
#include <mbedtls/ssl_cache.h>
#include <mbedtls/ssl_ticket.h>
#include <mbedtls/version.h>

struct session {
    mbedtls_ssl_context ssl;
    mbedtls_net_context net;
};

static mbedtls_ssl_config config;
static mbedtls_entropy_context entropy;
static mbedtls_ctr_drbg_context random_source;
static mbedtls_x509_crt certificate, authority;
static mbedtls_pk_context private_key;
static mbedtls_ssl_cache_context cache;
static mbedtls_ssl_ticket_context tickets;
static mbedtls_ssl_session saved;
static int has_saved;
static FILE *keylog;

static void check(int result, const char *what) {
    char reason[128];
    if (result < 0) {
        mbedtls_strerror(result, reason, sizeof reason);
        fail("%s: %s", what, reason);
    }
}

static void print_hex(const unsigned char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++)
        fprintf(keylog, "%02x", bytes[i]);
}

/* One line per handshake: the master secret under the client's random. */
static int log_key(void *context, const unsigned char *master, const unsigned char *block,
                   size_t mac, size_t key, size_t iv, const unsigned char client_random[32],
                   const unsigned char server_random[32], mbedtls_tls_prf_types prf) {
    (void)context, (void)block, (void)mac, (void)key, (void)iv, (void)server_random, (void)prf;
    fputs("CLIENT_RANDOM ", keylog);
    print_hex(client_random, 32);
    fputc(' ', keylog);
    print_hex(master, 48);
    fputc('\n', keylog);
    fflush(keylog);
    return 0;
}

static const char *version(void) {
    static char line[64];
    mbedtls_version_get_string_full(line);
    return line;
}

static void setup(void) {
    mbedtls_ssl_config_init(&config);
    mbedtls_entropy_init(&entropy);
    mbedtls_ctr_drbg_init(&random_source);
    mbedtls_x509_crt_init(&certificate);
    mbedtls_x509_crt_init(&authority);
    mbedtls_pk_init(&private_key);
    mbedtls_ssl_cache_init(&cache);
    mbedtls_ssl_ticket_init(&tickets);
    mbedtls_ssl_session_init(&saved);
    check(mbedtls_ctr_drbg_seed(&random_source, mbedtls_entropy_func, &entropy, NULL, 0), "random");
    check(mbedtls_ssl_config_defaults(&config, is_server ? MBEDTLS_SSL_IS_SERVER : MBEDTLS_SSL_IS_CLIENT,
                                      MBEDTLS_SSL_TRANSPORT_STREAM, MBEDTLS_SSL_PRESET_DEFAULT),
          "configuration");
    mbedtls_ssl_conf_rng(&config, mbedtls_ctr_drbg_random, &random_source);
    mbedtls_ssl_conf_min_version(&config, MBEDTLS_SSL_MAJOR_VERSION_3, MBEDTLS_SSL_MINOR_VERSION_3);
    mbedtls_ssl_conf_max_version(&config, MBEDTLS_SSL_MAJOR_VERSION_3, MBEDTLS_SSL_MINOR_VERSION_3);
    if (text("suite")) {
        static int suites[2];
        suites[0] = mbedtls_ssl_get_ciphersuite_id(text("suite"));
        if (!suites[0])
            fail("no suite %s", text("suite"));
        mbedtls_ssl_conf_ciphersuites(&config, suites);
    }
    if (text("cert")) {
        check(mbedtls_x509_crt_parse_file(&certificate, text("cert")), "certificate");
        check(mbedtls_pk_parse_keyfile(&private_key, required("key"), NULL), "private key");
        check(mbedtls_ssl_conf_own_cert(&config, &certificate, &private_key), "certificate");
    }
    check(mbedtls_x509_crt_parse_file(&authority, required("ca")), "CA");
    mbedtls_ssl_conf_ca_chain(&config, &authority, NULL);
    mbedtls_ssl_conf_authmode(&config, number("auth", 0) ? MBEDTLS_SSL_VERIFY_REQUIRED
                                                         : MBEDTLS_SSL_VERIFY_NONE);
    if (text("psk")) {
        unsigned char psk[64];
        size_t length = hex(text("psk"), psk, sizeof psk);
        check(mbedtls_ssl_conf_psk(&config, psk, length, (const unsigned char *)"mmtls", 5), "psk");
    }
    if (text("keylog")) {
        keylog = fopen(text("keylog"), "a");
        mbedtls_ssl_conf_export_keys_ext_cb(&config, log_key, NULL);
    }
    int by_id = is("resume", "id");
    if (is_server) {
        mbedtls_ssl_conf_session_cache(&config, &cache, mbedtls_ssl_cache_get, mbedtls_ssl_cache_set);
        if (!by_id) {
            check(mbedtls_ssl_ticket_setup(&tickets, mbedtls_ctr_drbg_random, &random_source,
                                           MBEDTLS_CIPHER_AES_256_GCM, 3600),
                  "tickets");
            mbedtls_ssl_conf_session_tickets_cb(&config, mbedtls_ssl_ticket_write,
                                                mbedtls_ssl_ticket_parse, &tickets);
        }
    } else {
        mbedtls_ssl_conf_session_tickets(&config, by_id ? MBEDTLS_SSL_SESSION_TICKETS_DISABLED
                                                        : MBEDTLS_SSL_SESSION_TICKETS_ENABLED);
    }
    if (number("ems", 1) == 0)
        mbedtls_ssl_conf_extended_master_secret(&config, MBEDTLS_SSL_EXTENDED_MS_DISABLED);
    if (number("etm", 1) == 0)
        mbedtls_ssl_conf_encrypt_then_mac(&config, MBEDTLS_SSL_ETM_DISABLED);
    if (number("reneg", 0))
        mbedtls_ssl_conf_renegotiation(&config, MBEDTLS_SSL_RENEGOTIATION_ENABLED);
    if (number("mfl", 0) && !is_server)
        check(mbedtls_ssl_conf_max_frag_len(&config, MBEDTLS_SSL_MAX_FRAG_LEN_512), "max fragment");
}

static void *open_session(int fd) {
    struct session *session = calloc(1, sizeof *session);
    mbedtls_ssl_init(&session->ssl);
    session->net.fd = fd;
    check(mbedtls_ssl_setup(&session->ssl, &config), "session");
    mbedtls_ssl_set_bio(&session->ssl, &session->net, mbedtls_net_send, mbedtls_net_recv, NULL);
    if (!is_server) {
        check(mbedtls_ssl_set_hostname(&session->ssl, "server.test"), "name");
        if (has_saved && text("resume"))
            check(mbedtls_ssl_set_session(&session->ssl, &saved), "resumption");
    }
    check(mbedtls_ssl_handshake(&session->ssl), "handshake");
    if (!is_server) {
        check(mbedtls_ssl_get_session(&session->ssl, &saved), "session");
        has_saved = 1;
    }
    return session;
}

static long read_some(void *context, unsigned char *buffer, size_t room) {
    struct session *session = context;
    for (;;) {
        int count = mbedtls_ssl_read(&session->ssl, buffer, room);
        if (count == MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY || count == MBEDTLS_ERR_SSL_CONN_EOF)
            return 0;
        if (count == MBEDTLS_ERR_SSL_WANT_READ || count == MBEDTLS_ERR_SSL_WANT_WRITE)
            continue;
        check(count, "read");
        return count;
    }
}

static void write_all(void *context, const unsigned char *bytes, size_t length) {
    struct session *session = context;
    while (length > 0) {
        int count = mbedtls_ssl_write(&session->ssl, bytes, length);
        check(count, "write");
        bytes += count;
        length -= (size_t)count;
    }
}

static void between_rounds(void *context) {
    struct session *session = context;
    if (number("reneg", 0) && !is_server) {
        check(mbedtls_ssl_renegotiate(&session->ssl), "renegotiation");
        note("renegotiation");
    }
}

static void close_stream(void *context) {
    mbedtls_ssl_close_notify(&((struct session *)context)->ssl);
}

static void free_session(void *context) {
    mbedtls_ssl_free(&((struct session *)context)->ssl);
    free(context);
}

#include "endpoint.h"
