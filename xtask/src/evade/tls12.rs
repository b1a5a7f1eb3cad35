//! TLS 1.2 of the attacker: one suite (ECDHE-ECDSA with AES-128-GCM), one curve, both roles.
//!
//! Written out, since rustls has TLS 1.2 as a feature, which the build of a workspace would give to what
//! ships. Refuses to be safe: certificates are not looked at.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};

const SUITE: [u8; 2] = [0xc0, 0x2b];
const VERSION: [u8; 2] = [3, 3];
/// Of application data in a record.
const MAX_CONTENT: usize = 16_384;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// A server's certificate (DER) and private key (PKCS #8).
#[derive(Clone)]
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// Protects one direction.
struct Cipher {
    key: LessSafeKey,
    iv: [u8; 4],
    sequence: u64,
}

impl Cipher {
    fn new(key: &[u8], iv: &[u8]) -> Result<Self, String> {
        let key = UnboundKey::new(&AES_128_GCM, key).map_err(|error| error.to_string())?;
        let iv = *iv.first_chunk().ok_or("no IV")?;
        Ok(Self { key: LessSafeKey::new(key), iv, sequence: 0 })
    }

    fn parts(&mut self, kind: u8, length: usize, explicit: [u8; 8]) -> (Nonce, Aad<Vec<u8>>) {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.iv);
        nonce[4..].copy_from_slice(&explicit);
        let mut aad = self.sequence.to_be_bytes().to_vec();
        aad.push(kind);
        aad.extend(VERSION);
        // Records are shorter than 64 KiB.
        aad.extend((length as u16).to_be_bytes());
        self.sequence += 1;
        (Nonce::assume_unique_for_key(nonce), Aad::from(aad))
    }

    fn seal(&mut self, kind: u8, content: &[u8]) -> Result<Vec<u8>, String> {
        let explicit = self.sequence.to_be_bytes();
        let (nonce, aad) = self.parts(kind, content.len(), explicit);
        let mut sealed = content.to_vec();
        let done = self.key.seal_in_place_append_tag(nonce, aad, &mut sealed);
        done.map_err(|error| error.to_string())?;
        Ok([&explicit[..], &sealed].concat())
    }

    fn open(&mut self, kind: u8, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let (explicit, rest) = sealed.split_first_chunk::<8>().ok_or("a short record")?;
        let length = rest.len().checked_sub(16).ok_or("a short record")?;
        let (nonce, aad) = self.parts(kind, length, *explicit);
        let mut bytes = rest.to_vec();
        let opened = self.key.open_in_place(nonce, aad, &mut bytes).map_err(|e| e.to_string())?;
        Ok(opened.to_vec())
    }
}

/// One side of a connection.
pub struct Tls12 {
    /// `None` for a client.
    identity: Option<Identity>,
    exchange: Option<EphemeralPrivateKey>,
    /// Client's, server's.
    randoms: [[u8; 32]; 2],
    /// The server's share, until ServerHelloDone.
    peer_point: Vec<u8>,
    master: Vec<u8>,
    transcript: Vec<u8>,
    /// Own, peer's; in use once change_cipher_spec has been sent or has come.
    ciphers: [Option<Cipher>; 2],
    pending: [Option<Cipher>; 2],
    incoming: Vec<u8>,
    messages: Vec<u8>,
    output: Vec<u8>,
    /// What waits for the handshake.
    queued: Vec<u8>,
    established: bool,
    /// What came.
    pub plaintext: Vec<u8>,
}

impl Tls12 {
    fn new(identity: Option<Identity>) -> Result<Self, String> {
        let text = |error: aws_lc_rs::error::Unspecified| error.to_string();
        let exchange = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new());
        let mut randoms = [[0; 32]; 2];
        let own = usize::from(identity.is_some());
        aws_lc_rs::rand::fill(&mut randoms[own]).map_err(text)?;
        Ok(Self {
            identity,
            exchange: Some(exchange.map_err(text)?),
            randoms,
            peer_point: vec![],
            master: vec![],
            transcript: vec![],
            ciphers: [None, None],
            pending: [None, None],
            incoming: vec![],
            messages: vec![],
            output: vec![],
            queued: vec![],
            established: false,
            plaintext: vec![],
        })
    }

    /// A client that has said hello, longer by so many bytes of protocols that nobody has heard of.
    pub fn client(name: &str, longer: usize) -> Result<Self, String> {
        let mut it = Self::new(None)?;
        let mut body = VERSION.to_vec();
        body.extend(it.randoms[0]);
        body.extend([0, 0, 2]);
        body.extend(SUITE);
        body.extend([1, 0]);
        let mut extensions = Vec::new();
        let mut add = |kind: u16, content: &[u8]| {
            extensions.extend(kind.to_be_bytes());
            extensions.extend(length16(content));
        };
        add(0, &length16(&[&[0][..], &length16(name.as_bytes())].concat()));
        add(10, &[0, 2, 0, 23]);
        add(11, &[1, 0]);
        add(13, &[0, 6, 4, 3, 8, 4, 4, 1]);
        add(0xff01, &[0]);
        if longer > 0 {
            let one = |at: usize| [&[250][..], format!("{at:0>250}").as_bytes()].concat();
            let all: Vec<u8> = (0..longer.div_ceil(251)).flat_map(one).collect();
            add(16, &length16(&all));
        }
        body.extend(length16(&extensions));
        it.say(1, &body)?;
        Ok(it)
    }

    /// A server.
    pub fn server(identity: &Identity) -> Result<Self, String> {
        Self::new(Some(identity.clone()))
    }

    /// Whether application data cannot be sent yet.
    pub fn is_handshaking(&self) -> bool {
        !self.established
    }

    /// What is to be sent.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Sends application data, as soon as there are keys.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.queued.extend(bytes);
        if self.established {
            for piece in std::mem::take(&mut self.queued).chunks(MAX_CONTENT) {
                self.record(DATA, piece)?;
            }
        }
        Ok(())
    }

    /// close_notify.
    pub fn close(&mut self) -> Result<(), String> {
        self.record(ALERT, &[1, 0])
    }

    /// Takes what came.
    pub fn input(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.incoming.extend(bytes);
        while let Some(&[kind, _, _, high, low]) = self.incoming.first_chunk::<5>() {
            let end = 5 + usize::from(u16::from_be_bytes([high, low]));
            if self.incoming.len() < end {
                break;
            }
            let record: Vec<u8> = self.incoming.drain(..end).skip(5).collect();
            let content = match &mut self.ciphers[1] {
                Some(cipher) => cipher.open(kind, &record)?,
                None => record,
            };
            match kind {
                20 => self.ciphers[1] = self.pending[1].take(),
                ALERT => match content[..] {
                    // Warnings, close_notify among them, end nothing.
                    [1, _] | [] => {}
                    _ => return Err(format!("alert {content:?}")),
                },
                HANDSHAKE => {
                    self.messages.extend(content);
                    while let Some(message) = self.next_message() {
                        self.hear(&message)?;
                    }
                }
                DATA => self.plaintext.extend(content),
                _ => return Err(format!("a record of type {kind}")),
            }
        }
        Ok(())
    }

    fn next_message(&mut self) -> Option<Vec<u8>> {
        let &[_, a, b, c] = self.messages.first_chunk::<4>()?;
        let end = 4 + (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c));
        (self.messages.len() >= end).then(|| self.messages.drain(..end).collect())
    }

    fn record(&mut self, kind: u8, content: &[u8]) -> Result<(), String> {
        let content = match &mut self.ciphers[0] {
            Some(cipher) => cipher.seal(kind, content)?,
            None => content.to_vec(),
        };
        self.output.push(kind);
        self.output.extend(VERSION);
        self.output.extend(length16(&content));
        Ok(())
    }

    /// Sends a handshake message.
    fn say(&mut self, kind: u8, body: &[u8]) -> Result<(), String> {
        // Shorter than 2^24.
        let mut message = (body.len() as u32).to_be_bytes().to_vec();
        message[0] = kind;
        message.extend(body);
        self.transcript.extend(&message);
        for piece in message.chunks(MAX_CONTENT) {
            self.record(HANDSHAKE, piece)?;
        }
        Ok(())
    }

    fn hear(&mut self, message: &[u8]) -> Result<(), String> {
        let (kind, body) = (message[0], &message[4..]);
        // A HelloRequest is not part of it.
        if kind != 0 && kind != 20 {
            self.transcript.extend(message);
        }
        let random = || body.get(2..34).and_then(|it| it.first_chunk().copied());
        match (self.identity.clone(), kind) {
            (None, 2) => self.randoms[1] = random().ok_or("a short ServerHello")?,
            (None, 12) => {
                let length = usize::from(*body.get(3).ok_or("a short key exchange")?);
                let point = body.get(4..4 + length).ok_or("a short key exchange")?;
                self.peer_point = point.to_vec();
            }
            (None, 14) => {
                let exchange = self.exchange.take().ok_or("a second handshake")?;
                let own = exchange.compute_public_key().map_err(|error| error.to_string())?;
                let own = [&[own.as_ref().len() as u8][..], own.as_ref()].concat();
                let point = std::mem::take(&mut self.peer_point);
                self.say(16, &own)?;
                self.agree(exchange, &point)?;
                self.finish()?;
            }
            (Some(identity), 1) => {
                self.randoms[0] = random().ok_or("a short ClientHello")?;
                self.answer(&identity)?;
            }
            (Some(_), 16) => {
                let exchange = self.exchange.take().ok_or("a second handshake")?;
                self.agree(exchange, body.get(1..).unwrap_or_default())?;
            }
            (_, 20) => {
                let label = if self.identity.is_some() { "client" } else { "server" };
                if body != self.verify_data(label) {
                    return Err("a wrong Finished".to_owned());
                }
                self.transcript.extend(message);
                if self.identity.is_some() {
                    self.finish()?;
                }
                self.established = true;
                self.write(&[])?;
            }
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, identity: &Identity) -> Result<(), String> {
        let mut hello = VERSION.to_vec();
        hello.extend(self.randoms[1]);
        hello.push(0);
        hello.extend(SUITE);
        // Renegotiation is safe, points are uncompressed.
        hello.extend([0, 0, 11, 0xff, 1, 0, 1, 0, 0, 11, 0, 2, 1, 0]);
        self.say(2, &hello)?;
        let one = length24(&identity.certificate);
        self.say(11, &length24(&one))?;
        let exchange = self.exchange.as_ref().ok_or("a second handshake")?;
        let own = exchange.compute_public_key().map_err(|error| error.to_string())?;
        let mut parameters = vec![3, 0, 23, own.as_ref().len() as u8];
        parameters.extend(own.as_ref());
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &identity.key);
        let key = key.map_err(|error| error.to_string())?;
        let signed = [&self.randoms[0][..], &self.randoms[1], &parameters].concat();
        let signature = key.sign(&SystemRandom::new(), &signed).map_err(|e| e.to_string())?;
        parameters.extend([4, 3]);
        parameters.extend(length16(signature.as_ref()));
        self.say(12, &parameters)?;
        self.say(14, &[])
    }

    fn agree(&mut self, own: EphemeralPrivateKey, point: &[u8]) -> Result<(), String> {
        let peer = UnparsedPublicKey::new(&ECDH_P256, point);
        let [client, server] = self.randoms;
        let failed = "no agreement".to_owned();
        self.master = agree_ephemeral(own, peer, failed, |secret| {
            Ok(prf(secret, b"master secret", &[client, server].concat(), 48))
        })?;
        let block = prf(&self.master, b"key expansion", &[server, client].concat(), 40);
        let clients = Cipher::new(&block[..16], &block[32..36])?;
        let servers = Cipher::new(&block[16..32], &block[36..])?;
        self.pending = match self.identity {
            Some(_) => [Some(servers), Some(clients)],
            None => [Some(clients), Some(servers)],
        };
        Ok(())
    }

    /// change_cipher_spec and Finished.
    fn finish(&mut self) -> Result<(), String> {
        self.record(20, &[1])?;
        self.ciphers[0] = self.pending[0].take();
        let data = self.verify_data(if self.identity.is_some() { "server" } else { "client" });
        self.say(20, &data)
    }

    fn verify_data(&self, whose: &str) -> Vec<u8> {
        let hash = digest(&SHA256, &self.transcript);
        prf(&self.master, format!("{whose} finished").as_bytes(), hash.as_ref(), 12)
    }
}

/// RFC 5246, section 5.
fn prf(secret: &[u8], label: &[u8], seed: &[u8], length: usize) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let seed = [label, seed].concat();
    let mut a = hmac::sign(&key, &seed);
    let mut out = Vec::new();
    while out.len() < length {
        out.extend(hmac::sign(&key, &[a.as_ref(), &seed].concat()).as_ref());
        a = hmac::sign(&key, a.as_ref());
    }
    out.truncate(length);
    out
}

fn length16(bytes: &[u8]) -> Vec<u8> {
    // What is sent is shorter than 64 KiB.
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn length24(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[1..], bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_itself() {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let key = key.to_pkcs8v1().unwrap();
        let identity = Identity { certificate: vec![1; 300], key: key.as_ref().to_vec() };
        let mut client = Tls12::client("server.test", 20_000).unwrap();
        let mut server = Tls12::server(&identity).unwrap();
        client.write(b"a request").unwrap();
        for _ in 0..4 {
            server.input(&client.output()).unwrap();
            client.input(&server.output()).unwrap();
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(server.plaintext, b"a request");
        server.write(&[7; 40_000]).unwrap();
        server.close().unwrap();
        client.input(&server.output()).unwrap();
        assert_eq!(client.plaintext, [7; 40_000]);
        let mut spoilt = Tls12::client("server.test", 0).unwrap();
        spoilt.input(&[23, 3, 3, 0, 1, 9, 99, 3, 3, 0, 0]).unwrap_err();
    }
}
