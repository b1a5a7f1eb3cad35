//! The list of stacks.

use super::case::Feature::{self, *};
use super::stack::{Build, KeyLogBy, Spelling, Stack};
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

/// Every stack that there is an endpoint for.
pub const STACKS: &[Stack] = &[
    Stack {
        name: "openssl",
        build: Build::C("openssl.c", &["-lssl", "-lcrypto"]),
        version_command: &["openssl", "version"],
        quick: true,
        spelling: Spelling::OpenSsl,
        keylog: KeyLogBy::Argument,
        versions: BOTH,
        chooses_13: true,
        ciphers_13: CIPHERS_13,
        exchanges: EVERY_EXCHANGE,
        has_cipher_12: |_| true,
        features: [OPENSSL, OPENSSL],
    },
    Stack {
        name: "gnutls",
        build: Build::C("gnutls.c", &["-lgnutls"]),
        version_command: &["pkg-config", "--modversion", "gnutls"],
        quick: true,
        spelling: Spelling::GnuTls,
        keylog: KeyLogBy::Environment,
        versions: BOTH,
        chooses_13: true,
        ciphers_13: CIPHERS_13,
        exchanges: EVERY_EXCHANGE,
        has_cipher_12: |_| true,
        features: [GNUTLS, GNUTLS],
    },
];
