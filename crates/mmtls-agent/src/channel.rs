//! The way to the middleboxes, as the command line names it.

use std::path::PathBuf;
use std::sync::Arc;

use mmtls_keyshare::client::{Client, ClientConfig, Identity, Middlebox, Pin};

use crate::Error;
use crate::programs::Programs;

/// Which middleboxes get keys, and how they and this endpoint show who they are.
#[derive(Clone, Debug, Default)]
pub struct Channel {
    /// Each `[NAME@]HOST:PORT`; every one gets every key.
    pub middleboxes: Vec<String>,
    /// PEM file with the authorities that may certify a middlebox.
    pub ca_file: PathBuf,
    /// Which keys they may have: `sha256/BASE64` each. Any that is certified, where there are none.
    pub pins: Vec<String>,
    /// PEM files of the certificate and the key to show to middleboxes that ask.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

impl Channel {
    /// What a client is started with, which calls itself `software`.
    ///
    /// # Errors
    /// [`Error::Usage`] names the option that cannot be read.
    pub fn config(&self, software: &str) -> Result<ClientConfig, Error> {
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
        let pins = self.pins.iter().map(|text| text.parse::<Pin>()).collect::<Result<_, _>>();
        config.pins = pins.map_err(|error| Error::Usage(format!("--pin: {error}")))?;
        config.software = format!("{software}/{}", env!("CARGO_PKG_VERSION"));
        Ok(config)
    }

    /// Starts to connect, for programs that middleboxes may ask about.
    pub(crate) fn start(&self, software: &str, programs: &Programs) -> Result<Arc<Client>, Error> {
        let mut config = self.config(software)?;
        config.capabilities = programs.capabilities();
        let asked = programs.clone();
        let on_request = Box::new(move |message| asked.middlebox_says(&message));
        let client = Client::start(config, on_request);
        let client = Arc::new(client.map_err(|error| Error::Usage(error.to_string()))?);
        if let Some(logs) = programs.logs() {
            logs.answer_through(&client);
        }
        Ok(client)
    }
}
