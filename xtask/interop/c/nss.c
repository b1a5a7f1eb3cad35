/* Endpoint on NSS. Debian's build does not read SSLKEYLOGFILE, so a callback logs the secrets of
 * TLS 1.3; the library does not tell the client's random, which a server can peek at. */
#include "endpoint.h"

#include <nspr.h>
#include <nss.h>
#include <nssb64.h>
#include <pk11pub.h>
#include <cert.h>
#include <keyhi.h>
#include <private/pprio.h>
#include <secerr.h>
#include <ssl.h>
#include <sslexp.h>
#include <sslproto.h>

static PRFileDesc *model;
static CERTCertificate *own_certificate;
static SECKEYPrivateKey *own_key;

static void check(SECStatus status, const char *what) {
    if (status != SECSuccess)
        fail("%s: %s", what, PR_ErrorToName(PR_GetError()));
}

static const char *version(void) {
    static char line[64];
    snprintf(line, sizeof line, "NSS %s", NSS_GetVersion());
    return line;
}

/* The bytes of a PEM file with one object. */
static SECItem read_pem(const char *path) {
    static char buffer[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file)
        fail("cannot open %s", path);
    size_t length = fread(buffer, 1, sizeof buffer - 1, file);
    buffer[length] = 0;
    fclose(file);
    char *from = strchr(buffer, '\n'), *to = strstr(buffer, "-----END");
    if (!from || !to)
        fail("%s is no PEM", path);
    *to = 0;
    SECItem item = {0};
    if (!NSSBase64_DecodeBuffer(NULL, &item, from, (unsigned)strlen(from)))
        fail("%s is no Base64", path);
    return item;
}

/* Certificate and key without a database: the key lives as long as the process. */
static void load_identity(void) {
    SECItem der = read_pem(text("cert"));
    own_certificate = CERT_NewTempCertificate(CERT_GetDefaultCertDB(), &der, NULL, PR_FALSE, PR_TRUE);
    if (!own_certificate)
        fail("certificate");
    SECKEYPublicKey *public_key = CERT_ExtractPublicKey(own_certificate);
    SECItem *value = public_key->keyType == ecKey ? &public_key->u.ec.publicValue
                                                  : &public_key->u.rsa.modulus;
    SECItem key = read_pem(required("key"));
    PK11SlotInfo *slot = PK11_GetInternalSlot();
    check(PK11_ImportDERPrivateKeyInfoAndReturnKey(slot, &key, NULL, value, PR_FALSE, PR_FALSE, KU_ALL,
                                                   &own_key, NULL),
          "private key");
}

static SECStatus accept_any(void *context, PRFileDesc *session, PRBool signatures, PRBool server) {
    (void)context, (void)session, (void)signatures, (void)server;
    return SECSuccess;
}

static SECStatus give_identity(void *context, PRFileDesc *session, CERTDistNames *names,
                               CERTCertificate **certificate, SECKEYPrivateKey **key) {
    (void)context, (void)session, (void)names;
    *certificate = CERT_DupCertificate(own_certificate);
    *key = SECKEY_CopyPrivateKey(own_key);
    return SECSuccess;
}

static void only_suite(const char *name) {
    int found = 0;
    for (unsigned i = 0; i < SSL_NumImplementedCiphers; i++) {
        SSLCipherSuiteInfo facts;
        unsigned short number = SSL_ImplementedCiphers[i];
        check(SSL_GetCipherSuiteInfo(number, &facts, sizeof facts), "suite");
        int wanted = !strcmp(facts.cipherSuiteName, name);
        check(SSL_CipherPrefSet(model, number, wanted), "suite");
        found |= wanted;
    }
    if (!found)
        fail("no suite %s", name);
}

static void setup(void) {
    check(NSS_NoDB_Init(NULL), "library");
    /* Old suites are part of the matrix. */
    check(NSS_SetDomesticPolicy(), "policy");
    model = SSL_ImportFD(NULL, PR_NewTCPSocket());
    PRUint16 number_of_version = is("version", "1.2") ? SSL_LIBRARY_VERSION_TLS_1_2
                                                      : SSL_LIBRARY_VERSION_TLS_1_3;
    SSLVersionRange range = {number_of_version, number_of_version};
    check(SSL_VersionRangeSet(model, &range), "version");
    if (text("suite"))
        only_suite(text("suite"));
    check(SSL_OptionSet(model, SSL_HANDSHAKE_AS_SERVER, is_server), "role");
    check(SSL_OptionSet(model, SSL_HANDSHAKE_AS_CLIENT, !is_server), "role");
    check(SSL_OptionSet(model, SSL_ENABLE_SERVER_DHE, PR_TRUE), "DHE");
    check(SSL_OptionSet(model, SSL_ENABLE_SESSION_TICKETS, !is("resume", "id")), "tickets");
    check(SSL_OptionSet(model, SSL_ENABLE_EXTENDED_MASTER_SECRET, number("ems", 1) != 0), "EMS");
    if (number("rsl", 0))
        check(SSL_OptionSet(model, SSL_RECORD_SIZE_LIMIT, (PRIntn)number("rsl", 0)), "record size");
    if (number("reneg", 0))
        check(SSL_OptionSet(model, SSL_ENABLE_RENEGOTIATION, SSL_RENEGOTIATE_REQUIRES_XTN), "reneg");
    if (number("auth", 0)) {
        check(SSL_OptionSet(model, SSL_REQUEST_CERTIFICATE, PR_TRUE), "certificate request");
        check(SSL_OptionSet(model, SSL_REQUIRE_CERTIFICATE, SSL_REQUIRE_ALWAYS), "certificate request");
    }
    if (number("pha", 0))
        check(SSL_OptionSet(model, SSL_ENABLE_POST_HANDSHAKE_AUTH, PR_TRUE), "authentication");
    if (text("groups")) {
        SSLNamedGroup groups[2];
        unsigned count = 0;
        if (strstr(text("groups"), "P-256"))
            groups[count++] = ssl_grp_ec_secp256r1;
        if (strstr(text("groups"), "P-384"))
            groups[count++] = ssl_grp_ec_secp384r1;
        check(SSL_NamedGroupConfig(model, groups, count), "groups");
    }
    check(SSL_AuthCertificateHook(model, accept_any, NULL), "hook");
    if (text("cert"))
        load_identity();
    if (is_server) {
        check(SSL_ConfigServerSessionIDCache(16, 0, 0, "/tmp"), "session cache");
        check(SSL_ConfigServerCert(model, own_certificate, own_key, NULL, 0), "certificate");
    } else if (text("cert")) {
        check(SSL_GetClientAuthDataHook(model, give_identity, NULL), "hook");
    }
}

static unsigned char client_random[32];

static void log_key(PRFileDesc *session, PRUint16 epoch, SSLSecretDirection direction,
                    PK11SymKey *secret, void *context) {
    (void)session, (void)context;
    /* Epoch 2 is the handshake's, 3 the application's first; later ones follow from that. */
    const char *labels[2][2] = {
        {"CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET"},
        {"CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"},
    };
    if (epoch != 2 && epoch != 3)
        return;
    check(PK11_ExtractKeyValue(secret), "secret");
    SECItem *value = PK11_GetKeyData(secret);
    FILE *file = fopen(text("keylog"), "a");
    fprintf(file, "%s ", labels[epoch - 2][direction == ssl_secret_write]);
    for (int i = 0; i < 32; i++)
        fprintf(file, "%02x", client_random[i]);
    fputc(' ', file);
    for (unsigned i = 0; i < value->len; i++)
        fprintf(file, "%02x", value->data[i]);
    fputc('\n', file);
    fclose(file);
}

/* The random is behind the headers of record and message, and the version. */
static void peek_at_random(int fd) {
    unsigned char start[43];
    if (recv(fd, start, sizeof start, MSG_PEEK | MSG_WAITALL) != sizeof start)
        fail("no ClientHello");
    memcpy(client_random, start + 11, 32);
}

static void *open_session(int fd) {
    int logs = is_server && text("keylog") && is("version", "1.3");
    if (logs)
        peek_at_random(fd);
    /* The driver closes its own descriptor. */
    PRFileDesc *session = SSL_ImportFD(model, PR_ImportTCPSocket(dup(fd)));
    if (!session)
        fail("session");
    if (logs)
        check(SSL_SecretCallback(session, log_key, NULL), "key log");
    check(SSL_ResetHandshake(session, is_server), "handshake");
    if (!is_server) {
        check(SSL_SetURL(session, "server.test"), "name");
        /* The cache looks for the same peer under the same name. */
        check(SSL_SetSockPeerID(session, "server.test"), "name");
    }
    check(SSL_ForceHandshake(session), "handshake");
    SSLChannelInfo facts;
    check(SSL_GetChannelInfo(session, &facts, sizeof facts), "facts");
    if (!is_server && text("resume") && connection > 0 && !facts.resumed)
        fail("not resumed");
    return session;
}

static long read_some(void *session, unsigned char *buffer, size_t room) {
    PRInt32 count = PR_Recv(session, buffer, (PRInt32)room, 0, PR_INTERVAL_NO_TIMEOUT);
    if (count < 0)
        check(SECFailure, "read");
    return count;
}

static void write_all(void *session, const unsigned char *bytes, size_t length) {
    while (length > 0) {
        PRInt32 count = PR_Send(session, bytes, (PRInt32)length, 0, PR_INTERVAL_NO_TIMEOUT);
        if (count < 0)
            check(SECFailure, "write");
        bytes += count;
        length -= (size_t)count;
    }
}

static void between_rounds(void *session) {
    if (text("keyupdate")) {
        check(SSL_KeyUpdate(session, is("keyupdate", "request")), "key update");
        note("key update");
    }
    if (number("reneg", 0) && !is_server) {
        check(SSL_ReHandshake(session, PR_TRUE), "renegotiation");
        check(SSL_ForceHandshake(session), "renegotiation");
        note("renegotiation");
    }
    if (is_server && number("pha", 0)) {
        check(SSL_SendCertificateRequest(session), "post-handshake authentication");
        note("post-handshake authentication");
    }
}

static void close_stream(void *session) {
    PR_Shutdown(session, PR_SHUTDOWN_SEND);
}

static void free_session(void *session) {
    PR_Close(session);
}

#include "endpoint.h"
