//! Certificates for the channel's tests, made with the openssl command.

use std::path::{Path, PathBuf};
use std::process::Command;

use mmtls_keyshare::client::Identity;

/// A directory that is removed at the end.
pub struct Pki {
    directory: PathBuf,
}

impl Pki {
    /// An authority with a server certificate (`localhost`, `127.0.0.1`, `::1`) and a client one.
    pub fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("mmtls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let pki = Self { directory };
        pki.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem -addext basicConstraints=critical,CA:TRUE");
        pki.leaf("server", "DNS:localhost,IP:127.0.0.1,IP:::1");
        pki.leaf("client", "DNS:client.test");
        pki
    }

    fn leaf(&self, name: &str, alternative: &str) {
        std::fs::write(
            self.directory.join("ext"),
            format!("subjectAltName={alternative}\nbasicConstraints=CA:FALSE\n"),
        )
        .unwrap();
        self.openssl(&format!("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"));
        self.openssl(&format!("x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.pem"));
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(&self.directory)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn identity(&self, name: &str) -> Identity {
        Identity {
            certificate_file: self.path(&format!("{name}.pem")),
            key_file: self.path(&format!("{name}.key")),
        }
    }

    #[allow(dead_code)]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
