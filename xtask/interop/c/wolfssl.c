/* Endpoint on wolfSSL. Debian's build exports no secrets of TLS 1.3; of TLS 1.2 it tells the
 * master secret afterwards. */
#include "endpoint.h"

#include <wolfssl/options.h>
#include <wolfssl/ssl.h>
#include <wolfssl/wolfcrypt/dh.h>

static WOLFSSL_CTX *context;
static WOLFSSL_SESSION *saved;

static void check_session(WOLFSSL *ssl, int result, const char *what) {
    char reason[80];
    if (result != WOLFSSL_SUCCESS) {
        int code = wolfSSL_get_error(ssl, result);
        fail("%s: %s", what, wolfSSL_ERR_error_string((unsigned long)code, reason));
    }
}

static void check(int holds, const char *what) {
    if (!holds)
        fail("%s: refused", what);
}

static unsigned int client_psk(WOLFSSL *ssl, const char *hint, char *identity,
                               unsigned int identity_room, unsigned char *psk, unsigned int room) {
    (void)ssl, (void)hint;
    snprintf(identity, identity_room, "mmtls");
    return (unsigned)hex(required("psk"), psk, room);
}

static unsigned int server_psk(WOLFSSL *ssl, const char *identity, unsigned char *psk,
                               unsigned int room) {
    (void)ssl;
    return strcmp(identity, "mmtls") ? 0 : (unsigned)hex(required("psk"), psk, room);
}

static const char *version(void) {
    static char line[64];
    snprintf(line, sizeof line, "wolfSSL %s", wolfSSL_lib_version());
    return line;
}

static void setup(void) {
    wolfSSL_Init();
    int new_version = is("version", "1.3");
    if (is_server)
        context = wolfSSL_CTX_new(new_version ? wolfTLSv1_3_server_method()
                                              : wolfTLSv1_2_server_method());
    else
        context = wolfSSL_CTX_new(new_version ? wolfTLSv1_3_client_method()
                                              : wolfTLSv1_2_client_method());
    check(context != NULL, "context");
    if (text("suite"))
        check(wolfSSL_CTX_set_cipher_list(context, text("suite")) == WOLFSSL_SUCCESS, "suite");
    if (text("cert")) {
        check(wolfSSL_CTX_use_certificate_file(context, text("cert"), WOLFSSL_FILETYPE_PEM) ==
                  WOLFSSL_SUCCESS, "certificate");
        check(wolfSSL_CTX_use_PrivateKey_file(context, required("key"), WOLFSSL_FILETYPE_PEM) ==
                  WOLFSSL_SUCCESS, "private key");
    }
    check(wolfSSL_CTX_load_verify_locations(context, required("ca"), NULL) == WOLFSSL_SUCCESS, "CA");
    int must_verify = is_server && number("auth", 0);
    wolfSSL_CTX_set_verify(context, must_verify ? WOLFSSL_VERIFY_PEER | WOLFSSL_VERIFY_FAIL_IF_NO_PEER_CERT
                                                : WOLFSSL_VERIFY_NONE, NULL);
    if (is_server) {
        const DhParams *group = wc_Dh_ffdhe2048_Get();
        check(wolfSSL_CTX_SetTmpDH(context, group->p, (int)group->p_len, group->g,
                                   (int)group->g_len) == WOLFSSL_SUCCESS, "DHE group");
    }
    if (text("groups")) {
        int groups[2], count = 0;
        if (strstr(text("groups"), "P-256"))
            groups[count++] = WOLFSSL_ECC_SECP256R1;
        if (strstr(text("groups"), "P-384"))
            groups[count++] = WOLFSSL_ECC_SECP384R1;
        check(wolfSSL_CTX_set_groups(context, groups, count) == WOLFSSL_SUCCESS, "groups");
    }
    if (text("psk") && is_server)
        wolfSSL_CTX_set_psk_server_callback(context, server_psk);
    else if (text("psk"))
        wolfSSL_CTX_set_psk_client_callback(context, client_psk);
    if (!is_server && is("resume", "ticket") && !new_version)
        check(wolfSSL_CTX_UseSessionTicket(context) == WOLFSSL_SUCCESS, "tickets");
    if (is("resume", "id"))
        wolfSSL_CTX_NoTicketTLSv12(context);
    if (number("ems", 1) == 0 && !is_server)
        wolfSSL_CTX_DisableExtendedMasterSecret(context);
    if (number("mfl", 0) && !is_server)
        check(wolfSSL_CTX_UseMaxFragment(context, WOLFSSL_MFL_2_9) == WOLFSSL_SUCCESS, "max fragment");
}

static void *open_session(int fd) {
    WOLFSSL *ssl = wolfSSL_new(context);
    check(ssl != NULL, "session");
    wolfSSL_set_fd(ssl, fd);
    /* Randoms are forgotten after the handshake otherwise. */
    wolfSSL_KeepArrays(ssl);
    if (!is_server) {
        check(wolfSSL_UseSNI(ssl, WOLFSSL_SNI_HOST_NAME, "server.test", 11) == WOLFSSL_SUCCESS, "name");
        if (text("groups") && is("version", "1.3"))
            check(wolfSSL_UseKeyShare(ssl, WOLFSSL_ECC_SECP256R1) == WOLFSSL_SUCCESS, "key share");
        if (saved && text("resume"))
            check(wolfSSL_set_session(ssl, saved) == WOLFSSL_SUCCESS, "resumption");
        check_session(ssl, wolfSSL_connect(ssl), "handshake");
        if (text("resume") && connection > 0 && !wolfSSL_session_reused(ssl))
            fail("not resumed");
    } else {
        check_session(ssl, wolfSSL_accept(ssl), "handshake");
    }
    if (text("keylog") && is("version", "1.2")) {
        unsigned char *master, *server_random, *client_random;
        unsigned master_length, server_length, client_length;
        FILE *file = fopen(text("keylog"), "a");
        int result = wolfSSL_get_keys(ssl, &master, &master_length, &server_random, &server_length,
                                      &client_random, &client_length);
        check(file && result == WOLFSSL_SUCCESS && client_length == 32, "key log");
        fputs("CLIENT_RANDOM ", file);
        for (unsigned i = 0; i < client_length; i++)
            fprintf(file, "%02x", client_random[i]);
        fputc(' ', file);
        for (unsigned i = 0; i < master_length; i++)
            fprintf(file, "%02x", master[i]);
        fputc('\n', file);
        fclose(file);
    }
    return ssl;
}

static long read_some(void *session, unsigned char *buffer, size_t room) {
    int count = wolfSSL_read(session, buffer, (int)room);
    if (count > 0)
        return count;
    int reason = wolfSSL_get_error(session, count);
    if (reason != WOLFSSL_ERROR_ZERO_RETURN && reason != SOCKET_PEER_CLOSED_E && count < 0)
        check_session(session, count, "read");
    return 0;
}

static void write_all(void *session, const unsigned char *bytes, size_t length) {
    check_session(session, wolfSSL_write(session, bytes, (int)length) == (int)length, "write");
}

static void between_rounds(void *session) {
    if (text("keyupdate")) {
        check_session(session, wolfSSL_update_keys(session), "key update");
        note("key update");
    }
}

static void close_stream(void *session) {
    if (!is_server && text("resume"))
        saved = wolfSSL_get1_session(session);
    wolfSSL_shutdown(session);
}

static void free_session(void *session) {
    wolfSSL_free(session);
}

#include "endpoint.h"
