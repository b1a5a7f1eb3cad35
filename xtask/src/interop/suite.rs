//! Cipher suites, and what each stack calls them.
//!
//! Refuses suites that mmTLS does not claim: a case about one would prove nothing.

use std::fmt;

/// TLS version of a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    /// TLS 1.2
    V12,
    /// TLS 1.3
    V13,
}

impl Version {
    /// Both, the newer first.
    pub const BOTH: [Self; 2] = [Self::V13, Self::V12];

    /// The value of `version=`.
    pub fn number(self) -> &'static str {
        match self {
            Self::V12 => "1.2",
            Self::V13 => "1.3",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS {}", self.number())
    }
}

/// What stands in the place of the key exchange in suites with a private tag.
pub const PRIVATE_TAG: &str = "MMTLS";

/// A cipher suite, in the parts that its names are made of. No key exchange in TLS 1.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suite {
    /// `ECDHE_RSA`, …; empty in TLS 1.3.
    pub exchange: &'static str,
    /// `AES_128_GCM_SHA256`, …
    pub cipher: &'static str,
}

/// Ciphers of TLS 1.3.
pub const CIPHERS_13: &[&str] = &[
    "AES_128_GCM_SHA256",
    "AES_256_GCM_SHA384",
    "CHACHA20_POLY1305_SHA256",
    "AES_128_CCM_SHA256",
    "AES_128_CCM_8_SHA256",
];

/// Ciphers of TLS 1.2 with each key exchange that mmTLS claims.
const CIPHERS_12: &[(&str, &[&str])] = &[
    (
        "ECDHE_RSA",
        &[
            "AES_128_GCM_SHA256",
            "AES_256_GCM_SHA384",
            "CHACHA20_POLY1305_SHA256",
            "AES_128_CBC_SHA",
            "AES_256_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_256_CBC_SHA384",
        ],
    ),
    (
        "ECDHE_ECDSA",
        &[
            "AES_128_GCM_SHA256",
            "AES_256_GCM_SHA384",
            "CHACHA20_POLY1305_SHA256",
            "AES_128_CBC_SHA",
            "AES_256_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_256_CBC_SHA384",
            "AES_128_CCM",
            "AES_256_CCM",
            "AES_128_CCM_8",
            "AES_256_CCM_8",
        ],
    ),
    (
        "DHE_RSA",
        &[
            "AES_128_GCM_SHA256",
            "AES_256_GCM_SHA384",
            "CHACHA20_POLY1305_SHA256",
            "AES_128_CBC_SHA",
            "AES_256_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_256_CBC_SHA256",
            "AES_128_CCM",
            "AES_256_CCM",
            "AES_128_CCM_8",
            "AES_256_CCM_8",
        ],
    ),
    (
        "RSA",
        &[
            "AES_128_GCM_SHA256",
            "AES_256_GCM_SHA384",
            "AES_128_CBC_SHA",
            "AES_256_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_256_CBC_SHA256",
            "AES_128_CCM",
            "AES_256_CCM",
            "AES_128_CCM_8",
            "AES_256_CCM_8",
        ],
    ),
    (
        "PSK",
        &[
            "AES_128_GCM_SHA256",
            "AES_256_GCM_SHA384",
            "CHACHA20_POLY1305_SHA256",
            "AES_128_CBC_SHA",
            "AES_128_CBC_SHA256",
            "AES_256_CBC_SHA384",
            "AES_128_CCM",
            "AES_128_CCM_8",
        ],
    ),
    ("DHE_PSK", &["AES_128_GCM_SHA256", "AES_128_CBC_SHA256", "CHACHA20_POLY1305_SHA256"]),
    ("ECDHE_PSK", &["AES_128_CBC_SHA", "AES_128_CBC_SHA256", "CHACHA20_POLY1305_SHA256"]),
    ("RSA_PSK", &["AES_128_GCM_SHA256", "AES_128_CBC_SHA256"]),
];

/// Every suite of a version.
pub fn all(version: Version) -> Vec<Suite> {
    match version {
        Version::V13 => CIPHERS_13.iter().map(|cipher| Suite { exchange: "", cipher }).collect(),
        Version::V12 => CIPHERS_12
            .iter()
            .flat_map(|(exchange, ciphers)| ciphers.iter().map(|cipher| Suite { exchange, cipher }))
            .collect(),
    }
}

/// Every suite with a private tag, all of them of TLS 1.3 (docs/private-tag.md).
pub fn private_tag() -> impl Iterator<Item = Suite> {
    CIPHERS_13.iter().map(|cipher| Suite { exchange: PRIVATE_TAG, cipher })
}

impl Suite {
    /// Whether records have a private tag.
    pub fn has_private_tag(self) -> bool {
        self.exchange == PRIVATE_TAG
    }

    /// Whether the server needs no certificate, but both a shared key.
    pub fn is_psk(self) -> bool {
        self.exchange.ends_with("PSK")
    }

    /// Whether the server's certificate has an ECDSA key.
    pub fn is_ecdsa(self) -> bool {
        self.exchange.ends_with("ECDSA")
    }

    /// Whether records have a MAC beside the cipher.
    pub fn is_cbc(self) -> bool {
        self.cipher.contains("_CBC_")
    }

    /// The registered name.
    pub fn iana(self) -> String {
        if self.exchange.is_empty() {
            format!("TLS_{}", self.cipher)
        } else if self.has_private_tag() {
            format!("{}_{}", self.exchange, self.cipher)
        } else {
            format!("TLS_{}_WITH_{}", self.exchange, self.cipher)
        }
    }

    /// OpenSSL's name, also in Node.js and Python.
    pub fn openssl(self) -> String {
        if self.exchange.is_empty() || self.has_private_tag() {
            return self.iana();
        }
        let exchange = match self.exchange {
            "RSA" => String::new(),
            other => format!("{}-", other.replace('_', "-")),
        };
        let cipher = self.cipher.replace("AES_", "AES").replace("CCM_8", "CCM8").replace('_', "-");
        let cipher = match cipher.strip_suffix("POLY1305-SHA256") {
            Some(rest) => format!("{rest}POLY1305"),
            None => cipher,
        };
        // Only the suites with a pre-shared key spell the mode out.
        let cipher = if self.is_psk() { cipher } else { cipher.replace("-CBC", "") };
        format!("{exchange}{cipher}")
    }

    /// mbedTLS's name.
    pub fn mbedtls(self) -> String {
        self.iana().replace('_', "-")
    }

    /// The parts of a GnuTLS priority string: key exchange, cipher and MAC.
    fn gnutls(self) -> String {
        let (cipher, mac) = if let Some((cipher, hash)) = self.cipher.split_once("_CBC_") {
            let mac = if hash == "SHA" { "SHA1" } else { hash };
            (format!("{cipher}_CBC"), mac)
        } else {
            let cipher = self.cipher.trim_end_matches("_SHA256").trim_end_matches("_SHA384");
            (cipher.to_owned(), "AEAD")
        };
        let exchange = match self.exchange {
            "" => String::new(),
            other => format!(":+{}", other.replace('_', "-")),
        };
        format!("{exchange}:+{}:+{mac}", cipher.replace('_', "-"))
    }
}

/// A GnuTLS priority string for one version, and one suite or all.
pub fn gnutls_priority(version: Version, suite: Option<Suite>, groups: &str) -> String {
    let versions = format!("+VERS-TLS{}", version.number());
    match suite {
        None => {
            let base = "NORMAL:-VERS-ALL:-GROUP-ALL";
            format!("{base}:{versions}:{groups}:+DHE-RSA:+AES-128-CCM-8")
        }
        Some(suite) => {
            format!("NONE:{versions}:{groups}:+COMP-NULL:+SIGN-ALL:+CTYPE-X509{}", suite.gnutls())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(exchange: &'static str, cipher: &'static str) -> Suite {
        Suite { exchange, cipher }
    }

    #[test]
    fn accepts_the_names_of_every_stack() {
        let gcm = suite("ECDHE_RSA", "AES_128_GCM_SHA256");
        assert_eq!(gcm.iana(), "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(gcm.openssl(), "ECDHE-RSA-AES128-GCM-SHA256");
        assert_eq!(gcm.gnutls(), ":+ECDHE-RSA:+AES-128-GCM:+AEAD");
        assert_eq!(gcm.mbedtls(), "TLS-ECDHE-RSA-WITH-AES-128-GCM-SHA256");
        assert_eq!(suite("RSA", "AES_256_CCM_8").openssl(), "AES256-CCM8");
        assert_eq!(suite("RSA", "AES_128_CBC_SHA").openssl(), "AES128-SHA");
        assert_eq!(suite("PSK", "AES_128_CBC_SHA").openssl(), "PSK-AES128-CBC-SHA");
        assert_eq!(suite("RSA", "AES_128_CBC_SHA").gnutls(), ":+RSA:+AES-128-CBC:+SHA1");
        let chacha = suite("DHE_PSK", "CHACHA20_POLY1305_SHA256");
        assert_eq!(chacha.openssl(), "DHE-PSK-CHACHA20-POLY1305");
        assert_eq!(chacha.gnutls(), ":+DHE-PSK:+CHACHA20-POLY1305:+AEAD");
        assert_eq!(suite("", "AES_128_CCM_8_SHA256").iana(), "TLS_AES_128_CCM_8_SHA256");
        assert_eq!(suite("", "AES_128_CCM_8_SHA256").gnutls(), ":+AES-128-CCM-8:+AEAD");
    }
}
