//! The list of stacks.

use super::case::Case;
use super::case::Feature::{self, *};
use super::stack::{Build, KeyLogBy, Role, Spelling, Stack};
use super::suite::{CIPHERS_13, Version};

const BOTH: &[Version] = &Version::BOTH;
const EVERY_EXCHANGE: &[&str] =
    &["ECDHE_RSA", "ECDHE_ECDSA", "DHE_RSA", "RSA", "PSK", "DHE_PSK", "ECDHE_PSK", "RSA_PSK"];

const OPENSSL: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    EarlyData,
    ClientCertificate,
    PostHandshakeAuth,
    KeyUpdate,
    HelloRetry,
    Padding,
    Psk,
    Renegotiation,
    NoExtendedMasterSecret,
    MacThenEncrypt,
    MaxFragment,
    Http,
];

const GNUTLS: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    EarlyData,
    ClientCertificate,
    PostHandshakeAuth,
    KeyUpdate,
    HelloRetry,
    Padding,
    Psk,
    Renegotiation,
    NoExtendedMasterSecret,
    MacThenEncrypt,
    MaxFragment,
    RecordSizeLimit,
    Http,
];

/// Without CCM.
const GCM_AND_CHACHA: &[&str] =
    &["AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"];

/// No session ids, no early data over TCP, no renegotiation as server.
const GO: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    ClientCertificate,
    KeyUpdate,
    HelloRetry,
    Padding,
    PostQuantum,
    Http,
];

const RUSTLS: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    EarlyData,
    ClientCertificate,
    KeyUpdate,
    HelloRetry,
    Padding,
    PostQuantum,
];

const JAVA: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    KeyUpdate,
    HelloRetry,
    Padding,
    NoExtendedMasterSecret,
    MaxFragment,
];

const JAVA_SERVER: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    KeyUpdate,
    HelloRetry,
    Padding,
    Renegotiation,
    NoExtendedMasterSecret,
    MaxFragment,
];

const NODE: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    KeyUpdate,
    HelloRetry,
    Padding,
    Renegotiation,
    NoExtendedMasterSecret,
    MacThenEncrypt,
];

const PYTHON: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    PostHandshakeAuth,
    KeyUpdate,
    HelloRetry,
    Padding,
    NoExtendedMasterSecret,
    MacThenEncrypt,
];

/// As a client it can name one group only, so no second one is left for a HelloRetryRequest.
const PYTHON_CLIENT: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    PostHandshakeAuth,
    KeyUpdate,
    Padding,
    NoExtendedMasterSecret,
    MacThenEncrypt,
];

const NSS: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    PostHandshakeAuth,
    KeyUpdate,
    HelloRetry,
    Padding,
    Renegotiation,
    NoExtendedMasterSecret,
    RecordSizeLimit,
];

const WOLFSSL: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    KeyUpdate,
    HelloRetry,
    Padding,
    NoExtendedMasterSecret,
    MaxFragment,
];

const MBEDTLS: &[Feature] = &[
    Full,
    Large,
    SmallRecords,
    Ticket,
    SessionId,
    ClientCertificate,
    Renegotiation,
    NoExtendedMasterSecret,
    MacThenEncrypt,
    MaxFragment,
];

/// Some log a master secret when it is made, and not when a session of TLS 1.2 is resumed.
fn not_resumed_12(_: Role, case: &Case) -> bool {
    case.version == Version::V13 || !case.feature.resumes()
}

const OPENSSL_STACK: Stack = Stack {
    name: "openssl",
    build: Build::C("openssl.c", &["-lssl", "-lcrypto"]),
    quick: true,
    private_tag: false,
    spelling: Spelling::OpenSsl,
    keylog: KeyLogBy::Argument,
    logs_keys: |_, _| true,
    versions: BOTH,
    chooses_13: true,
    ciphers_13: CIPHERS_13,
    exchanges: EVERY_EXCHANGE,
    has_cipher_12: |_| true,
    features: [OPENSSL, OPENSSL],
    passive: &[],
};

const RUSTLS_STACK: Stack = Stack {
    name: "rustls",
    build: Build::Rust,
    quick: false,
    private_tag: false,
    spelling: Spelling::Iana,
    // KeyLogFile of the library reads the environment.
    keylog: KeyLogBy::Environment,
    logs_keys: |_, _| true,
    versions: BOTH,
    chooses_13: true,
    ciphers_13: GCM_AND_CHACHA,
    exchanges: &["ECDHE_RSA", "ECDHE_ECDSA"],
    has_cipher_12: |suite| !suite.is_cbc() && !suite.cipher.contains("CCM"),
    features: [RUSTLS, RUSTLS],
    passive: &[Padding],
};

/// Every stack that there is an endpoint for.
pub const STACKS: &[Stack] = &[
    OPENSSL_STACK,
    Stack {
        name: "gnutls",
        build: Build::C("gnutls.c", &["-lgnutls"]),
        quick: true,
        private_tag: false,
        spelling: Spelling::GnuTls,
        keylog: KeyLogBy::Environment,
        logs_keys: not_resumed_12,
        versions: BOTH,
        chooses_13: true,
        ciphers_13: CIPHERS_13,
        exchanges: EVERY_EXCHANGE,
        has_cipher_12: |_| true,
        features: [GNUTLS, GNUTLS],
        passive: &[],
    },
    Stack {
        name: "go",
        build: Build::Go,
        quick: true,
        private_tag: false,
        spelling: Spelling::Iana,
        keylog: KeyLogBy::Argument,
        logs_keys: not_resumed_12,
        versions: BOTH,
        chooses_13: false,
        ciphers_13: GCM_AND_CHACHA,
        exchanges: &["ECDHE_RSA", "ECDHE_ECDSA", "RSA"],
        has_cipher_12: |suite| {
            let sha1 = suite.cipher.ends_with("_CBC_SHA");
            sha1 || !suite.is_cbc() && !suite.cipher.contains("CCM")
        },
        features: [GO, GO],
        passive: &[KeyUpdate, Padding],
    },
    RUSTLS_STACK,
    Stack {
        name: "java",
        build: Build::Java,
        quick: false,
        private_tag: false,
        spelling: Spelling::Iana,
        keylog: KeyLogBy::Nothing,
        logs_keys: |_, _| false,
        versions: BOTH,
        chooses_13: true,
        ciphers_13: GCM_AND_CHACHA,
        exchanges: &["ECDHE_RSA", "ECDHE_ECDSA", "DHE_RSA", "RSA"],
        has_cipher_12: |suite| !suite.cipher.contains("CCM"),
        // As a client its second handshake runs beside the data, which other stacks refuse.
        features: [JAVA, JAVA_SERVER],
        passive: &[Padding],
    },
    Stack {
        name: "node",
        build: Build::Script("node", "node/endpoint.js"),
        quick: false,
        private_tag: false,
        spelling: Spelling::OpenSsl,
        keylog: KeyLogBy::Argument,
        logs_keys: |_, _| true,
        versions: BOTH,
        chooses_13: true,
        ciphers_13: CIPHERS_13,
        exchanges: &["ECDHE_RSA", "ECDHE_ECDSA", "DHE_RSA", "RSA", "PSK"],
        has_cipher_12: |_| true,
        features: [NODE, NODE],
        passive: &[KeyUpdate, Padding],
    },
    Stack {
        name: "python",
        build: Build::Script("python3", "python/endpoint.py"),
        quick: true,
        private_tag: false,
        spelling: Spelling::OpenSsl,
        keylog: KeyLogBy::Argument,
        logs_keys: |_, _| true,
        versions: BOTH,
        chooses_13: false,
        ciphers_13: GCM_AND_CHACHA,
        exchanges: &["ECDHE_RSA", "ECDHE_ECDSA", "RSA"],
        has_cipher_12: |_| true,
        features: [PYTHON_CLIENT, PYTHON],
        passive: &[KeyUpdate, Padding],
    },
    Stack {
        name: "nss",
        build: Build::PkgConfig("nss.c", &["nss", "nspr"]),
        quick: false,
        private_tag: false,
        spelling: Spelling::Iana,
        keylog: KeyLogBy::Argument,
        // Debian's build does not read SSLKEYLOGFILE.
        logs_keys: |role, case| role == Role::Server && case.version == Version::V13,
        versions: BOTH,
        chooses_13: true,
        ciphers_13: GCM_AND_CHACHA,
        exchanges: &["ECDHE_RSA", "ECDHE_ECDSA", "DHE_RSA", "RSA"],
        has_cipher_12: |suite| {
            !suite.cipher.contains("CCM") && suite.cipher != "AES_256_CBC_SHA384"
        },
        features: [NSS, NSS],
        passive: &[Padding],
    },
    Stack {
        name: "wolfssl",
        build: Build::C("wolfssl.c", &["-lwolfssl"]),
        quick: false,
        private_tag: false,
        spelling: Spelling::Iana,
        keylog: KeyLogBy::Argument,
        // Debian's build has no callback for the secrets of TLS 1.3.
        logs_keys: |_, case| case.version == Version::V12,
        versions: BOTH,
        chooses_13: true,
        ciphers_13: CIPHERS_13,
        exchanges: &["ECDHE_RSA", "ECDHE_ECDSA", "DHE_RSA"],
        has_cipher_12: |suite| {
            let ecdsa = suite.exchange == "ECDHE_ECDSA" && suite.cipher != "AES_256_CCM";
            ecdsa || !suite.cipher.contains("CCM")
        },
        features: [WOLFSSL, WOLFSSL],
        passive: &[Padding, MacThenEncrypt],
    },
    Stack {
        name: "mbedtls",
        build: Build::C("mbedtls.c", &["-lmbedtls", "-lmbedx509", "-lmbedcrypto"]),
        quick: false,
        private_tag: false,
        spelling: Spelling::MbedTls,
        keylog: KeyLogBy::Argument,
        logs_keys: |_, _| true,
        // TLS 1.3 came with version 3.
        versions: &[Version::V12],
        chooses_13: false,
        ciphers_13: &[],
        exchanges: EVERY_EXCHANGE,
        has_cipher_12: |_| true,
        features: [MBEDTLS, MBEDTLS],
        passive: &[],
    },
    Stack {
        name: "chromium",
        build: Build::Chromium,
        quick: false,
        private_tag: false,
        spelling: Spelling::Iana,
        keylog: KeyLogBy::Argument,
        logs_keys: |_, _| true,
        versions: BOTH,
        chooses_13: false,
        ciphers_13: GCM_AND_CHACHA,
        exchanges: &["ECDHE_RSA", "ECDHE_ECDSA", "RSA"],
        has_cipher_12: |suite| !suite.cipher.contains("CCM") && !suite.is_cbc(),
        features: [&[Http], &[]],
        passive: &[],
    },
    Stack { name: "openssl-tag", quick: false, private_tag: true, ..OPENSSL_STACK },
    Stack { name: "rustls-tag", quick: false, private_tag: true, ..RUSTLS_STACK },
];

/// Cases in which two stacks cannot talk to each other, with or without mmTLS.
struct Incompatible {
    client: &'static str,
    server: &'static str,
    version: Version,
    /// `None` for every feature.
    feature: Option<Feature>,
    reason: &'static str,
}

const LONG_RECORDS: &str =
    "as a server GnuTLS sends longer records than max_fragment_length allows in TLS 1.2";

const LONG_HANDSHAKE: &str =
    "as a server mbedTLS sends handshake records longer than max_fragment_length";

const NO_CERTIFICATE: &str = "wolfSSL's request for a certificate in TLS 1.2 is answered without one (the client's is ECDSA)";

const INCOMPATIBLE: &[Incompatible] = &[
    Incompatible {
        client: "mbedtls",
        server: "gnutls",
        version: Version::V12,
        feature: Some(MaxFragment),
        reason: LONG_RECORDS,
    },
    Incompatible {
        client: "openssl",
        server: "mbedtls",
        version: Version::V12,
        feature: Some(MaxFragment),
        reason: LONG_HANDSHAKE,
    },
    Incompatible {
        client: "gnutls",
        server: "mbedtls",
        version: Version::V12,
        feature: Some(MaxFragment),
        reason: LONG_HANDSHAKE,
    },
    Incompatible {
        client: "go",
        server: "java",
        version: Version::V13,
        feature: Some(KeyUpdate),
        reason: "the last record of JSSE, after its key updates, does not authenticate at Go",
    },
    Incompatible {
        client: "go",
        server: "wolfssl",
        version: Version::V12,
        feature: Some(ClientCertificate),
        reason: NO_CERTIFICATE,
    },
    Incompatible {
        client: "java",
        server: "wolfssl",
        version: Version::V12,
        feature: Some(ClientCertificate),
        reason: NO_CERTIFICATE,
    },
    Incompatible {
        client: "openssl",
        server: "gnutls",
        version: Version::V12,
        feature: Some(MaxFragment),
        reason: LONG_RECORDS,
    },
    Incompatible {
        client: "wolfssl",
        server: "gnutls",
        version: Version::V12,
        feature: Some(MaxFragment),
        reason: LONG_RECORDS,
    },
    Incompatible {
        client: "mbedtls",
        server: "wolfssl",
        version: Version::V12,
        feature: Some(MaxFragment),
        reason: "mbedTLS refuses wolfSSL's answer to max_fragment_length",
    },
    Incompatible {
        client: "java",
        server: "go",
        version: Version::V12,
        feature: Some(Ticket),
        reason: "Go does not accept its own ticket from JSSE",
    },
    Incompatible {
        client: "wolfssl",
        server: "go",
        version: Version::V12,
        feature: Some(Ticket),
        reason: "Go does not accept its own ticket from wolfSSL",
    },
    Incompatible {
        client: "wolfssl",
        server: "rustls",
        version: Version::V13,
        feature: None,
        reason: "wolfSSL refuses what rustls sends after the handshake (illegal_parameter)",
    },
];

/// Why a case cannot come about.
pub fn incompatible(case: &Case) -> Option<&'static str> {
    // With the private tag or without, it is the same library.
    let name = |index: usize| STACKS[index].name.trim_end_matches("-tag");
    let [client, server] = [case.client, case.server].map(name);
    let found = INCOMPATIBLE.iter().find(|it| {
        it.client == client
            && it.server == server
            && it.version == case.version
            && it.feature.is_none_or(|feature| feature == case.feature)
    });
    found.map(|it| it.reason)
}
