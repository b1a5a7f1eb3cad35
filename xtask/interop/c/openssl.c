/* Endpoint on OpenSSL. Its key log is the library's own callback. */
#include "endpoint.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

static SSL_CTX *context;
static SSL_SESSION *ticket;
static FILE *keylog;
static unsigned char early_buffer[1 << 16];

static void check(int holds, const char *what) {
    if (!holds) {
        unsigned long error = ERR_get_error();
        fail("%s: %s", what, error ? ERR_error_string(error, NULL) : "no reason");
    }
}

static void log_key(const SSL *ssl, const char *line) {
    (void)ssl;
    fprintf(keylog, "%s\n", line);
    fflush(keylog);
}

static int keep_ticket(SSL *ssl, SSL_SESSION *session) {
    (void)ssl;
    SSL_SESSION_free(ticket);
    ticket = session;
    return 1;
}

static unsigned int client_psk(SSL *ssl, const char *hint, char *identity, unsigned int identity_room,
                               unsigned char *psk, unsigned int room) {
    (void)ssl, (void)hint;
    snprintf(identity, identity_room, "mmtls");
    return (unsigned int)hex(required("psk"), psk, room);
}

static unsigned int server_psk(SSL *ssl, const char *identity, unsigned char *psk, unsigned int room) {
    (void)ssl;
    return strcmp(identity, "mmtls") ? 0 : (unsigned int)hex(required("psk"), psk, room);
}

static int accept_any(int ok, X509_STORE_CTX *store) {
    (void)ok, (void)store;
    return 1;
}

static const char *version(void) {
    return OpenSSL_version(OPENSSL_VERSION);
}

static void setup(void) {
    context = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    int version = is("version", "1.2") ? TLS1_2_VERSION : TLS1_3_VERSION;
    SSL_CTX_set_min_proto_version(context, version);
    SSL_CTX_set_max_proto_version(context, version);
    /* Level 0 also allows the old suites and short RSA keys. */
    SSL_CTX_set_security_level(context, 0);
    if (text("suite")) {
        if (version == TLS1_3_VERSION)
            check(SSL_CTX_set_ciphersuites(context, text("suite")), "suite");
        else
            check(SSL_CTX_set_cipher_list(context, text("suite")), "suite");
    }
    if (text("groups"))
        check(SSL_CTX_set1_groups_list(context, text("groups")), "groups");
    if (text("cert")) {
        check(SSL_CTX_use_certificate_file(context, text("cert"), SSL_FILETYPE_PEM), "certificate");
        check(SSL_CTX_use_PrivateKey_file(context, text("key"), SSL_FILETYPE_PEM), "private key");
    }
    if (is_server && number("auth", 0)) {
        check(SSL_CTX_load_verify_locations(context, required("ca"), NULL), "CA");
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
    if (!is_server) {
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, accept_any);
        SSL_CTX_set_post_handshake_auth(context, number("pha", 0) != 0);
    }
    if (text("keylog")) {
        keylog = fopen(text("keylog"), "a");
        SSL_CTX_set_keylog_callback(context, log_key);
    }
    if (text("psk")) {
        if (is_server)
            SSL_CTX_set_psk_server_callback(context, server_psk);
        else
            SSL_CTX_set_psk_client_callback(context, client_psk);
    }
    /* Diffie-Hellman in the field of OpenSSL's choice. */
    SSL_CTX_set_dh_auto(context, 1);
    if (is_server)
        SSL_CTX_set_session_id_context(context, (const unsigned char *)"mmtls", 5);
    if (is("resume", "id"))
        SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    if (is_server) {
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_SERVER);
        if (number("early", 0))
            SSL_CTX_set_max_early_data(context, 16384);
    } else {
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(context, keep_ticket);
    }
    if (number("ems", 1) == 0)
        SSL_CTX_set_options(context, SSL_OP_NO_EXTENDED_MASTER_SECRET);
    if (number("etm", 1) == 0)
        SSL_CTX_set_options(context, SSL_OP_NO_ENCRYPT_THEN_MAC);
    if (number("reneg", 0))
        SSL_CTX_set_options(context, SSL_OP_ALLOW_CLIENT_RENEGOTIATION);
    if (number("pad", 0))
        SSL_CTX_set_block_padding(context, (size_t)number("pad", 0));
    if (number("fragment", 0)) {
        SSL_CTX_set_max_send_fragment(context, number("fragment", 0));
    }
    if (!is_server && number("mfl", 0)) {
        static const int lengths[] = {512, 1024, 2048, 4096};
        for (int i = 0; i < 4; i++)
            if (number("mfl", 0) == lengths[i])
                SSL_CTX_set_tlsext_max_fragment_length(context, (uint8_t)(i + 1));
    }
}

static void *open_session(int fd) {
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (is_server) {
        if (number("early", 0)) {
            for (;;) {
                size_t count = 0;
                int state = SSL_read_early_data(ssl, early_buffer + early_done,
                                                sizeof early_buffer - early_done, &count);
                check(state != SSL_READ_EARLY_DATA_ERROR, "early data");
                early_done += count;
                if (state == SSL_READ_EARLY_DATA_FINISH)
                    break;
            }
            early = early_buffer;
        }
        check(SSL_accept(ssl) == 1, "handshake");
        return ssl;
    }
    SSL_set_tlsext_host_name(ssl, "server.test");
    if (ticket && text("resume"))
        SSL_set_session(ssl, ticket);
    if (early_length) {
        check(SSL_write_early_data(ssl, early, early_length, &early_done) == 1, "early data");
    }
    check(SSL_connect(ssl) == 1, "handshake");
    if (text("resume") && connection > 0 && !SSL_session_reused(ssl))
        fail("not resumed");
    if (early_length && SSL_get_early_data_status(ssl) != SSL_EARLY_DATA_ACCEPTED)
        fail("early data refused");
    return ssl;
}

static long read_some(void *session, unsigned char *buffer, size_t room) {
    int count = SSL_read(session, buffer, (int)room);
    if (count > 0)
        return count;
    int reason = SSL_get_error(session, count);
    check(reason == SSL_ERROR_ZERO_RETURN || reason == SSL_ERROR_SYSCALL, "read");
    return 0;
}

static void write_all(void *session, const unsigned char *bytes, size_t length) {
    size_t count;
    check(SSL_write_ex(session, bytes, length, &count) == 1, "write");
}

static void between_rounds(void *session) {
    if (text("keyupdate")) {
        int kind = is("keyupdate", "request") ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED;
        check(SSL_key_update(session, kind), "key update");
        check(SSL_do_handshake(session), "key update");
        note("key update");
    }
    if (number("reneg", 0) && !is_server) {
        check(SSL_renegotiate(session), "renegotiation");
        check(SSL_do_handshake(session), "renegotiation");
        note("renegotiation");
    }
    if (is_server && number("pha", 0)) {
        SSL_set_verify(session, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, accept_any);
        check(SSL_verify_client_post_handshake(session), "post-handshake authentication");
        check(SSL_do_handshake(session), "post-handshake authentication");
        note("post-handshake authentication");
    }
}

static void close_stream(void *session) {
    SSL_shutdown(session);
}

static void free_session(void *session) {
    SSL_free(session);
}

#include "endpoint.h"
