//! The way to the middleboxes, as the command line names it.

use std::path::PathBuf;

use mmtls_keyshare::client::{Client, ClientConfig, Identity, Middlebox, RequestHandler};

use crate::Error;

/// Which middleboxes get keys, and how they and this endpoint show who they are.
#[derive(Clone, Debug, Default)]
pub struct Channel {
    /// Each `[NAME@]HOST:PORT`; every one gets every key.
    pub middleboxes: Vec<String>,
    /// PEM file with the authorities that may certify a middlebox.
    pub ca_file: PathBuf,
    /// PEM files of the certificate and the key to show to middleboxes that ask.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

impl Channel {
    /// Starts to connect. `capabilities` is what this endpoint's hello offers.
    pub(crate) fn start(
        &self,
        software: &str,
        capabilities: u32,
        on_request: RequestHandler,
    ) -> Result<Client, Error> {
        let middleboxes = self
            .middleboxes
            .iter()
            .map(|text| text.parse::<Middlebox>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| Error::Usage(format!("--middlebox: {error}")))?;
        let mut config = ClientConfig::new(middleboxes, self.ca_file.clone());
        config.identity = self.client_certificate.as_ref().map(|(certificate_file, key_file)| {
            Identity { certificate_file: certificate_file.clone(), key_file: key_file.clone() }
        });
        config.software = format!("{software}/{}", env!("CARGO_PKG_VERSION"));
        config.capabilities = capabilities;
        Client::start(config, on_request).map_err(|error| Error::Usage(error.to_string()))
    }
}
