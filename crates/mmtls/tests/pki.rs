//! `mmtls pki`: certificates for the key channel.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::{Place, fails, mmtls, mode};
use mmtls_keyshare::client::{Client, ClientConfig, Identity};
use mmtls_keyshare::message::Message;
use mmtls_keyshare::server::{KeySink, Peer, Server, ServerConfig, ServerName};

/// What `mmtls pki` makes opens the key channel both ways, and nothing of it is overwritten.
#[test]
fn accepts_certificates_of_its_own_authority() {
    let place = Place::new("pki");
    let directory = place.path("keys").to_str().unwrap().to_owned();
    let arguments = ["pki", &directory, "--middlebox", "box.test", "--client", "laptop"];
    let made = mmtls(&arguments).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(
        said.contains("client_ca_file")
            && said.contains("mmtls exec --middlebox box.test@HOST:PORT")
    );
    let file = |name: &str| place.path("keys").join(name);
    for name in ["ca", "middlebox", "laptop"] {
        assert_eq!(mode(&file(&format!("{name}.key"))), 0o600);
        assert_eq!(mode(&file(&format!("{name}.pem"))), 0o644);
    }
    let identity = |name: &str| Identity {
        certificate_file: file(&format!("{name}.pem")),
        key_file: file(&format!("{name}.key")),
    };
    let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity("middlebox"));
    config.client_ca_file = Some(file("ca.pem"));
    let server = Server::start(config, NoKeys).unwrap();
    let pin = said.split_whitespace().find(|it| it.starts_with("sha256/")).unwrap();
    let connects_with = |name: &str, certificate: Option<&str>, pins: &[&str], seconds| {
        let middlebox = format!("{name}@{}", server.local_addr()).parse().unwrap();
        let mut config = ClientConfig::new(vec![middlebox], file("ca.pem"));
        config.identity = certificate.map(identity);
        config.pins = pins.iter().map(|it| it.parse().unwrap()).collect();
        let client = Client::start(config, Box::new(|_| Vec::new())).unwrap();
        let connected = client.wait_connected(Duration::from_secs(seconds));
        let errors = client.connection_errors().into_iter().map(|(_, why)| why);
        (connected, errors.collect::<String>())
    };
    let connects =
        |name: &str, certificate, seconds| connects_with(name, certificate, &[], seconds).0;
    assert!(connects("box.test", Some("laptop"), 20));
    // The control: another name, no certificate, one that is for something else.
    for (name, certificate) in
        [("other.test", Some("laptop")), ("box.test", None), ("box.test", Some("middlebox"))]
    {
        assert!(!connects(name, certificate, 2), "{name} {certificate:?}");
    }

    // Certified, and another key.
    let other = "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
    assert!(connects_with("box.test", Some("laptop"), &[other, pin], 20).0);
    let (connected, error) = connects_with("box.test", Some("laptop"), &[other], 2);
    assert!(!connected && error.contains(pin) && error.contains("not pinned"), "{error}");

    let before = fs::read(file("ca.key")).unwrap();
    fails(mmtls(&arguments), &["ca.pem is there already", "nothing was written"]);
    fs::remove_file(file("ca.pem")).unwrap();
    fails(mmtls(&arguments), &["ca.key is there already"]);
    assert!(fs::read(file("ca.key")).unwrap() == before && !file("ca.pem").exists());
    let named = |client: &'static str| mmtls(&["pki", "x", "--middlebox", "a", "--client", client]);
    fails(named("../laptop"), &["--client", "make a name"]);
    fails(named("ca"), &["this name is taken"]);
    for name in ["192.0.2.1:4433", "[::1]", "a b", "", "box.-test", "1.2.3"] {
        let wrong = mmtls(&["pki", "x", "--middlebox", name]);
        fails(wrong, &["neither a host name nor an address"]);
    }
}

/// The same for a key server, towards endpoints and towards the middlebox.
#[test]
fn accepts_a_key_server_of_its_own_authority() {
    let place = Place::new("pki-key-server");
    let directory = place.path("keys").to_str().unwrap().to_owned();
    let made = mmtls(&["pki", &directory, "--middlebox", "box.test", "--key-server", "keys.test"]);
    let made = { made }.output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let said = String::from_utf8(made.stdout).unwrap();
    for part in ["client_ca_file", "key_servers = [\"keys.test\"]", "mmtls key-server --listen"] {
        assert!(said.contains(part), "{said}");
    }
    let file = |name: &str| place.path("keys").join(name);
    let identity = |name: &str| Identity {
        certificate_file: file(&format!("{name}.pem")),
        key_file: file(&format!("{name}.key")),
    };
    let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity("middlebox"));
    config.client_ca_file = Some(file("ca.pem"));
    config.key_servers = vec![ServerName::try_from("keys.test").unwrap()];
    let middlebox = Server::start(config, NoKeys).unwrap();
    let to = format!("box.test@{}", middlebox.local_addr()).parse().unwrap();
    let mut config = ClientConfig::new(vec![to], file("ca.pem"));
    config.identity = Some(identity("key-server"));
    let key_server =
        Client::start_key_server(config, Box::new(|_| Vec::new()), Arc::new(|_| Vec::new()));
    let key_server = key_server.unwrap();
    assert!(key_server.wait_connected(Duration::from_secs(20)));

    let config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity("key-server"));
    let server = Server::start(config, NoKeys).unwrap();
    let to = format!("keys.test@{}", server.local_addr()).parse().unwrap();
    let config = ClientConfig::new(vec![to], file("ca.pem"));
    let endpoint = Client::start(config, Box::new(|_| Vec::new())).unwrap();
    assert!(endpoint.wait_connected(Duration::from_secs(20)));

    let wrong = ["pki", "x", "--middlebox", "box.test", "--key-server", "a b"];
    fails(mmtls(&wrong), &["--key-server", "neither a host name nor an address"]);
}

/// Takes no keys.
struct NoKeys;

impl KeySink for NoKeys {
    fn message(&mut self, _peer: &Peer, _message: Message) -> Option<Message> {
        None
    }
}
