/* Endpoint on GnuTLS. Its key log is the library's own: the environment's SSLKEYLOGFILE. */
#include "endpoint.h"

#include <gnutls/gnutls.h>

static gnutls_certificate_credentials_t credentials;
static gnutls_psk_client_credentials_t psk_client;
static gnutls_psk_server_credentials_t psk_server;
static gnutls_priority_t priority;
static gnutls_datum_t ticket_key, ticket;
static gnutls_anti_replay_t anti_replay;
static unsigned char early_buffer[1 << 16];
static int resumed_id;

/* One session's state in the server's cache of session ids: one entry is enough here. */
static gnutls_datum_t cached;

static void check(int result, const char *what) {
    if (result < 0)
        fail("%s: %s", what, gnutls_strerror(result));
}

static int server_psk_key(gnutls_session_t session, const char *name, gnutls_datum_t *key) {
    (void)session;
    if (strcmp(name, "mmtls"))
        return -1;
    key->data = gnutls_malloc(64);
    key->size = (unsigned)hex(required("psk"), key->data, 64);
    return 0;
}

static int store_session(void *context, gnutls_datum_t key, gnutls_datum_t data) {
    (void)context, (void)key;
    gnutls_free(cached.data);
    cached.data = gnutls_malloc(data.size);
    cached.size = data.size;
    memcpy(cached.data, data.data, data.size);
    return 0;
}

static gnutls_datum_t find_session(void *context, gnutls_datum_t key) {
    gnutls_datum_t copy = {NULL, 0};
    (void)context, (void)key;
    if (cached.data) {
        copy.data = gnutls_malloc(cached.size);
        copy.size = cached.size;
        memcpy(copy.data, cached.data, cached.size);
    }
    return copy;
}

static int forget_session(void *context, gnutls_datum_t key) {
    (void)context, (void)key;
    return 0;
}

static int never_seen(void *context, time_t expires, const gnutls_datum_t *key,
                      const gnutls_datum_t *data) {
    (void)context, (void)expires, (void)key, (void)data;
    return 0;
}

static const char *version(void) {
    static char line[64];
    snprintf(line, sizeof line, "GnuTLS %s", gnutls_check_version(NULL));
    return line;
}

static void setup(void) {
    check(gnutls_global_init(), "library");
    check(gnutls_certificate_allocate_credentials(&credentials), "credentials");
    if (text("cert"))
        check(gnutls_certificate_set_x509_key_file(credentials, text("cert"), required("key"),
                                                   GNUTLS_X509_FMT_PEM),
              "certificate");
    gnutls_certificate_set_known_dh_params(credentials, GNUTLS_SEC_PARAM_MEDIUM);
    const char *wrong = NULL;
    if (gnutls_priority_init(&priority, required("priority"), &wrong) < 0)
        fail("priority string, at %s", wrong);
    if (text("psk") && is_server) {
        check(gnutls_psk_allocate_server_credentials(&psk_server), "psk");
        gnutls_psk_set_server_credentials_function(psk_server, server_psk_key);
        gnutls_psk_set_server_known_dh_params(psk_server, GNUTLS_SEC_PARAM_MEDIUM);
    } else if (text("psk")) {
        gnutls_datum_t key = {(unsigned char *)text("psk"), (unsigned)strlen(text("psk"))};
        check(gnutls_psk_allocate_client_credentials(&psk_client), "psk");
        check(gnutls_psk_set_client_credentials(psk_client, "mmtls", &key, GNUTLS_PSK_KEY_HEX),
              "psk");
    }
    if (is_server) {
        check(gnutls_session_ticket_key_generate(&ticket_key), "ticket key");
        check(gnutls_anti_replay_init(&anti_replay), "anti-replay");
        gnutls_anti_replay_set_add_function(anti_replay, never_seen);
    }
}

static void *open_session(int fd) {
    gnutls_session_t session;
    unsigned flags = is_server ? GNUTLS_SERVER : GNUTLS_CLIENT;
    if (number("early", 0))
        flags |= GNUTLS_ENABLE_EARLY_DATA;
    if (number("pha", 0))
        flags |= GNUTLS_POST_HANDSHAKE_AUTH;
    if (is("resume", "id"))
        flags |= GNUTLS_NO_TICKETS;
    check(gnutls_init(&session, flags), "session");
    check(gnutls_priority_set(session, priority), "priority");
    check(gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials), "credentials");
    if (psk_server)
        check(gnutls_credentials_set(session, GNUTLS_CRD_PSK, psk_server), "psk");
    if (psk_client)
        check(gnutls_credentials_set(session, GNUTLS_CRD_PSK, psk_client), "psk");
    gnutls_transport_set_int(session, fd);
    gnutls_handshake_set_timeout(session, 30000);
    if (number("mfl", 0) && !is_server)
        check((int)gnutls_record_set_max_size(session, (size_t)number("mfl", 0)), "max fragment");
    if (number("rsl", 0))
        check((int)gnutls_record_set_max_recv_size(session, (size_t)number("rsl", 0)), "record size");
    if (is_server) {
        if (is("resume", "id")) {
            gnutls_db_set_store_function(session, store_session);
            gnutls_db_set_retrieve_function(session, find_session);
            gnutls_db_set_remove_function(session, forget_session);
        } else {
            check(gnutls_session_ticket_enable_server(session, &ticket_key), "tickets");
        }
        if (number("early", 0)) {
            gnutls_anti_replay_enable(session, anti_replay);
            check(gnutls_record_set_max_early_data_size(session, 16384), "early data");
        }
        gnutls_certificate_server_set_request(session, number("auth", 0) ? GNUTLS_CERT_REQUIRE
                                                                         : GNUTLS_CERT_IGNORE);
    } else {
        check(gnutls_server_name_set(session, GNUTLS_NAME_DNS, "server.test", 11), "name");
        if (ticket.data && text("resume"))
            check(gnutls_session_set_data(session, ticket.data, ticket.size), "resumption");
        if (early_length) {
            check((int)gnutls_record_send_early_data(session, early, early_length), "early data");
            early_done = early_length;
        }
    }
    int result;
    do {
        result = gnutls_handshake(session);
    } while (result < 0 && !gnutls_error_is_fatal(result));
    check(result, "handshake");
    resumed_id = gnutls_session_is_resumed(session);
    if (!is_server && text("resume") && connection > 0 && !resumed_id)
        fail("not resumed");
    if (is_server && number("early", 0)) {
        ssize_t count;
        early = early_buffer;
        while ((count = gnutls_record_recv_early_data(session, early + early_done,
                                                      sizeof early_buffer - early_done)) > 0)
            early_done += (size_t)count;
    }
    if (early_length && !(gnutls_session_get_flags(session) & GNUTLS_SFLAGS_EARLY_DATA))
        fail("early data refused");
    return session;
}

static long read_some(void *session, unsigned char *buffer, size_t room) {
    for (;;) {
        ssize_t count = gnutls_record_recv(session, buffer, room);
        if (count >= 0)
            return count;
        if (count == GNUTLS_E_PREMATURE_TERMINATION)
            return 0;
        if (count == GNUTLS_E_REHANDSHAKE) {
            check(gnutls_handshake(session), "renegotiation");
            note("renegotiation");
        } else if (count == GNUTLS_E_REAUTH_REQUEST) {
            check(gnutls_reauth(session, 0), "post-handshake authentication");
        } else if (gnutls_error_is_fatal((int)count)) {
            check((int)count, "read");
        }
    }
}

static void write_all(void *session, const unsigned char *bytes, size_t length) {
    size_t pad = (size_t)number("pad", 0);
    while (length > 0) {
        ssize_t count = pad ? gnutls_record_send2(session, bytes, length > 8192 ? 8192 : length, pad, 0)
                            : gnutls_record_send(session, bytes, length);
        if (count < 0 && gnutls_error_is_fatal((int)count))
            check((int)count, "write");
        if (count > 0) {
            bytes += count;
            length -= (size_t)count;
        }
    }
}

static void between_rounds(void *session) {
    if (text("keyupdate")) {
        /* GnuTLS refuses a request that crosses its own: only one side may ask. */
        unsigned flags = is("keyupdate", "request") ? GNUTLS_KU_PEER : 0;
        check(gnutls_session_key_update(session, flags), "key update");
        note("key update");
    }
    /* Only the client: a server's request is answered when the peer next reads. */
    if (number("reneg", 0) && !is_server) {
        check(gnutls_handshake(session), "renegotiation");
        note("renegotiation");
    }
    if (is_server && number("pha", 0)) {
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
        check(gnutls_reauth(session, 0), "post-handshake authentication");
        note("post-handshake authentication");
    }
}

static void close_stream(void *session) {
    if (!is_server && text("resume")) {
        gnutls_free(ticket.data);
        ticket.data = NULL;
        check(gnutls_session_get_data2(session, &ticket), "session data");
    }
    gnutls_bye(session, GNUTLS_SHUT_WR);
}

static void free_session(void *session) {
    gnutls_deinit(session);
}

#include "endpoint.h"
