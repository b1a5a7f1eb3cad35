//! A certificate authority for the length of a run: server, middlebox and client certificates.
//!
//! Made with the openssl program, valid for a week, in a private directory that goes with the
//! last testbed. Refuses reuse across runs: nobody should come to trust this CA.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::testbed::error::TestbedError;
use crate::testbed::namespace::check;
use crate::testbed::skip::find_program;
use crate::testbed::sweep::ScratchDir;

/// Signature key of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyType {
    /// ECDSA with P-256.
    #[default]
    Ecdsa,
    /// RSA with 2048 bits.
    Rsa,
}

/// A certificate with its private key, both PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, without the CA's.
    pub certificate: PathBuf,
    /// The private key (PKCS #8), unencrypted.
    pub key: PathBuf,
}

/// The files of one run.
#[derive(Debug)]
pub struct Pki {
    /// The CA's certificate: what clients trust.
    pub ca: PathBuf,
    /// `server.test`, `*.test`, 10.77.0.3, fd77::3, 10.79.0.3, fd79::3; ECDSA P-256.
    pub server: Identity,
    /// As [`Self::server`], RSA 2048.
    pub server_rsa: Identity,
    /// `middlebox.test`, 10.78.0.1, fd78::1, 127.0.0.1, ::1.
    pub middlebox: Identity,
    /// `client.test`, for client authentication.
    pub client: Identity,
    directory: ScratchDir,
}

impl Pki {
    /// The PKI of this process: made by the first caller, removed after the last.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn shared() -> Result<Arc<Self>, TestbedError> {
        static SHARED: Mutex<Weak<Pki>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pki) = shared.upgrade() {
            return Ok(pki);
        }
        let pki = Arc::new(Self::generate()?);
        *shared = Arc::downgrade(&pki);
        Ok(pki)
    }

    /// A new PKI, for instance one that others must not trust.
    ///
    /// # Errors
    /// [`TestbedError::Unavailable`] without the openssl program; else what it said.
    pub fn generate() -> Result<Self, TestbedError> {
        if find_program("openssl").is_none() {
            return Err(TestbedError::Unavailable("openssl is not installed".to_owned()));
        }
        let directory = ScratchDir::create("pki")?;
        let ca = make_ca(directory.path(), KeyType::Ecdsa)?;
        let server_names = "DNS:server.test,DNS:*.test,IP:10.77.0.3,IP:fd77::3,\
                            IP:10.79.0.3,IP:fd79::3";
        let leaf = |name: &str, key_type, names: &str, usage: &str| {
            issue(directory.path(), name, key_type, names, usage)
        };
        Ok(Self {
            ca,
            server: leaf("server", KeyType::Ecdsa, server_names, "serverAuth")?,
            server_rsa: leaf("server_rsa", KeyType::Rsa, server_names, "serverAuth")?,
            middlebox: leaf(
                "middlebox",
                KeyType::Ecdsa,
                "DNS:middlebox.test,IP:10.78.0.1,IP:fd78::1,IP:127.0.0.1,IP:::1",
                "serverAuth",
            )?,
            client: leaf("client", KeyType::Ecdsa, "DNS:client.test", "clientAuth")?,
            directory,
        })
    }

    /// The server's identity with this type of key.
    #[must_use]
    pub fn server_with(&self, key_type: KeyType) -> &Identity {
        match key_type {
            KeyType::Ecdsa => &self.server,
            KeyType::Rsa => &self.server_rsa,
        }
    }

    /// Where the files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Another certificate of this CA. `names` in OpenSSL's form: `DNS:a.test,IP:10.0.0.1`.
    ///
    /// # Errors
    /// What the openssl program said.
    pub fn issue(
        &self,
        name: &str,
        key_type: KeyType,
        names: &str,
    ) -> Result<Identity, TestbedError> {
        let directory = self.directory.path();
        issue(directory, name, key_type, names, "serverAuth,clientAuth")
    }
}

fn openssl(directory: &Path, arguments: &str) -> Result<(), TestbedError> {
    let mut command = Command::new("openssl");
    command.current_dir(directory).args(arguments.split_whitespace());
    check(command).map(drop)
}

fn new_key(key_type: KeyType, path: &str) -> String {
    let algorithm = match key_type {
        KeyType::Ecdsa => "EC -pkeyopt ec_paramgen_curve:prime256v1",
        KeyType::Rsa => "RSA -pkeyopt rsa_keygen_bits:2048",
    };
    format!("genpkey -algorithm {algorithm} -out {path}")
}

/// `ca.pem` and `ca.key`.
pub(crate) fn make_ca(directory: &Path, key_type: KeyType) -> Result<PathBuf, TestbedError> {
    openssl(directory, &new_key(key_type, "ca.key"))?;
    // A configuration of our own: the system's may be missing or add extensions.
    write(
        &directory.join("ca.cnf"),
        "[req]\ndistinguished_name=name\nx509_extensions=ca\nprompt=no\n\
         [name]\nCN=mmTLS testbed CA\n\
         [ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n\
         subjectKeyIdentifier=hash\n",
    )?;
    openssl(directory, "req -x509 -new -config ca.cnf -key ca.key -sha256 -days 7 -out ca.pem")?;
    Ok(directory.join("ca.pem"))
}

fn issue(
    directory: &Path,
    name: &str,
    key_type: KeyType,
    names: &str,
    usage: &str,
) -> Result<Identity, TestbedError> {
    openssl(directory, &new_key(key_type, &format!("{name}.key")))?;
    write(
        &directory.join(format!("{name}.cnf")),
        &format!(
            "[req]\ndistinguished_name=name\nprompt=no\n[name]\nCN={name}.test\n\
             [leaf]\nbasicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,\
             keyEncipherment\nextendedKeyUsage={usage}\nsubjectAltName={names}\n\
             subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        ),
    )?;
    openssl(directory, &format!("req -new -config {name}.cnf -key {name}.key -out {name}.csr"))?;
    let serial = name
        .bytes()
        .fold(1u64, |serial, byte| serial.wrapping_mul(31).wrapping_add(u64::from(byte)) >> 1);
    openssl(
        directory,
        &format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -set_serial {serial} -sha256 \
             -days 7 -extfile {name}.cnf -extensions leaf -out {name}.pem"
        ),
    )?;
    Ok(Identity {
        certificate: directory.join(format!("{name}.pem")),
        key: directory.join(format!("{name}.key")),
    })
}

fn write(path: &Path, text: &str) -> Result<(), TestbedError> {
    fs::write(path, text).map_err(TestbedError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_certificate_of_its_own_ca() {
        if !crate::require_program("openssl") {
            return;
        }
        let pki = Pki::shared().unwrap();
        for identity in [&pki.server, &pki.server_rsa, &pki.middlebox, &pki.client] {
            let certificate = identity.certificate.display();
            let ca = pki.ca.display();
            openssl(pki.directory(), &format!("verify -CAfile {ca} {certificate}")).unwrap();
        }
    }

    #[test]
    fn refuses_certificates_of_another_ca() {
        if !crate::require_program("openssl") {
            return;
        }
        let (ours, theirs) = (Pki::shared().unwrap(), Pki::generate().unwrap());
        let certificate = theirs.server.certificate.display();
        let ca = ours.ca.display();
        openssl(ours.directory(), &format!("verify -CAfile {ca} {certificate}")).unwrap_err();
        let gone = theirs.directory().to_path_buf();
        drop(theirs);
        assert!(!gone.exists());
    }
}
