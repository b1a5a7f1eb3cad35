//! Key logs that programs write: lines in, the record keys that middleboxes ask for out.
//!
//! A line has a secret and a client random. Version, suite and server random come from the middlebox, which has seen
//! the hellos: with others than the session's the keys open nothing, and no secret can be learned from them. Each
//! question is answered from the secrets alone. What waits for its line is bounded for all middleboxes together, and
//! answered to all of them.
//!
//! With Encrypted Client Hello the lines have the random of the hello inside, which the middlebox does not know. Where the log
//! has what opens that hello, the answer is that session's; else keys are guessed ([`mmtls_keyshare::ech`]). Answers have the
//! random of their lines, and say by which one they were asked for.
//!
//! Refuses handshake keys unless asked for, and early data, which a middlebox cannot ask for in time.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::hash::RandomState;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lru::LruCache;
use mmtls_keylog::KeyLog;
use mmtls_keylog::follow::{self, Follower, LineSink};
use mmtls_keylog::live::{LiveKeys, News};
use mmtls_keyshare::client::Client;
use mmtls_keyshare::ech::{self, EchRequests, Known, Match};
use mmtls_keyshare::message::{
    EchKeyRequest, Epoch, Greeting, KeyEntry, KeyRequest, MAX_KEYS, Message, Random, Reason,
    Refused, SessionKeys,
};
use mmtls_record::{Direction, KeyEpoch, SessionParameters};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, mknodat};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};
use zeroize::Zeroizing;

use crate::Error;
use crate::audit::Cause;
use crate::consent::Consent;

/// What the key logs came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyLogCounters {
    /// Requests of a middlebox that were answered with keys.
    pub answered: u64,
    /// Of these, the ones that came before their line.
    pub waited: u64,
    /// Requests that were refused.
    pub denied: u64,
}

impl fmt::Display for KeyLogCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, waited, denied } = self;
        write!(f, "{answered} requests answered, {waited} of them when their line came")?;
        if *denied > 0 {
            write!(f, ", {denied} refused")?;
        }
        Ok(())
    }
}

/// How often a FIFO is tried that another process has locked, and how long between two attempts.
const LOCK_ATTEMPTS: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Sessions in one of two generations of secrets, and of requests that wait for them.
const MAX_SESSIONS: usize = 4096;

/// An answer, by the random that its session was asked for by.
type Asked = (Random, Message);

/// The secrets of all key logs, and who waits for them. Not `Debug`, because it holds secrets.
pub struct KeyLogs {
    state: Mutex<State>,
    share_handshake: bool,
    /// Else nothing of them is kept.
    shared: bool,
    /// Where late answers go.
    client: OnceLock<Weak<Client>>,
    consent: Arc<Consent>,
}

struct State {
    keys: LiveKeys<KeyRequest, Asked>,
    /// What the answers of the last sessions were, without their keys: no key log tells of it.
    answered: LruCache<(Random, Random), Answered, RandomState>,
    /// Sessions that were asked for by the random that their lines have.
    asked: LruCache<Random, (), RandomState>,
    /// Requests that name sessions by another one.
    ech: EchRequests,
    counters: KeyLogCounters,
}

impl KeyLogs {
    pub fn new(share_handshake: bool, shared: bool, consent: Arc<Consent>) -> Arc<Self> {
        let keys = LiveKeys::with_capacity(answer, MAX_SESSIONS);
        let sessions = NonZeroUsize::new(MAX_SESSIONS).unwrap_or(NonZeroUsize::MIN);
        let answered = LruCache::with_hasher(sessions, RandomState::new());
        let asked = LruCache::with_hasher(sessions, RandomState::new());
        let (ech, counters) = (EchRequests::default(), KeyLogCounters::default());
        let state = Mutex::new(State { keys, answered, asked, ech, counters });
        Arc::new(Self { state, share_handshake, shared, client: OnceLock::new(), consent })
    }

    /// Says where answers go that had to wait for their line.
    pub fn answer_through(&self, client: &Arc<Client>) {
        // There is one client, and it is told of once.
        let _ = self.client.set(Arc::downgrade(client));
    }

    /// What the hello of an endpoint offers that answers from key logs.
    pub fn capabilities(&self) -> u32 {
        match self.share_handshake {
            _ if !self.shared => 0,
            true => Greeting::FIRST_KEYS_ON_REQUEST | Greeting::HANDSHAKE_KEYS_ON_REQUEST,
            false => Greeting::FIRST_KEYS_ON_REQUEST,
        }
    }

    pub fn counters(&self) -> KeyLogCounters {
        self.lock().counters
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Consistent between any two statements, so poison means nothing here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a middlebox that asks for keys; nothing where the line is yet to come.
    pub fn answer(&self, request: &KeyRequest) -> Option<Message> {
        self.answer_with(request, None)
    }

    /// The same of a session whose lines may have another random, as far as its ClientHello tells which. The answer has that
    /// one.
    pub fn answer_ech(&self, asked: &EchKeyRequest) -> Option<Message> {
        let hello = Some(&asked.client_hello).filter(|it| !it.is_empty());
        self.answer_with(&asked.request, hello)
    }

    fn answer_with(&self, request: &KeyRequest, hello: Option<&Arc<[u8]>>) -> Option<Message> {
        let mut state = self.lock();
        if let Err(reason) = self.allows(request) {
            state.counters.denied += 1;
            let client_random = request.client_random;
            return Some(Message::Refused(Refused { client_random, reason }));
        }
        let outer = request.client_random;
        state.asked.put(outer, ());
        let answer = state.keys.want(outer, hello, request.clone()).map(|(_, answer)| answer);
        if answer.is_some() {
            state.ech.is_known(&outer);
        }
        if let Some(inner) = state.keys.inner(&outer) {
            let State { asked, ech, .. } = &mut *state;
            opened(asked, ech, outer, inner);
        }
        answer.iter().for_each(|it| state.remember(it));
        answer
    }

    /// The same of a session whose lines may have another random: keys, by their own random, of sessions that may be the
    /// one. What comes later goes through the client.
    pub fn guesses(&self, asked: &EchKeyRequest) -> Vec<Message> {
        let mut state = self.lock();
        if self.allows(&asked.request).is_err() {
            return Vec::new();
        }
        let State { keys, ech, .. } = &mut *state;
        if keys.inner(&asked.request.client_random).is_some() {
            // It is known which one it is: its line is yet to come.
            return Vec::new();
        }
        ech.wait(asked.clone(), Instant::now(), |client_random, _| {
            Some(keys.find(client_random, &asked.request)?.1)
        })
    }

    /// The keys of every session that was asked about, of the epochs that were, the latest first.
    pub fn all(&self) -> Vec<Message> {
        let state = self.lock();
        let keys =
            state.answered.iter().filter_map(|(randoms, of)| of.again(*randoms, &state.keys));
        keys.map(Message::SessionKeys).collect()
    }

    fn allows(&self, request: &KeyRequest) -> Result<(), Reason> {
        match KeyEpoch::from(request.epoch) {
            _ if !self.shared => Err(Reason::POLICY),
            KeyEpoch::EarlyData => Err(Reason::POLICY),
            KeyEpoch::Handshake if !self.share_handshake => Err(Reason::POLICY),
            _ if !mmtls_record::suite::is_supported(request.version, request.cipher_suite) => {
                Err(Reason::UNSUPPORTED)
            }
            _ => Ok(()),
        }
    }

    /// Takes in whole lines; the answers that had to wait for them, and what may be one to who has asked by another random.
    fn lines(&self, text: &[u8]) -> (Vec<Asked>, Vec<Asked>) {
        if !self.shared {
            return Default::default();
        }
        let now = Instant::now();
        let mut state = self.lock();
        let State { keys, asked, ech, .. } = &mut *state;
        let mut unasked = Vec::new();
        let answers = keys.add_and_tell(text, |news| match news {
            News::Opened { outer, inner } => opened(asked, ech, outer, inner),
            News::Secret(random) if asked.contains(&random) => ech.is_known(&random),
            News::Secret(random) if !unasked.contains(&random) => unasked.push(random),
            News::Secret(_) => {}
        });
        let mut others = Vec::new();
        for client_random in unasked {
            let known = Known { client_random: &client_random, server_random: None, flow: None };
            others.extend(ech.answers(known, now, |request, _| keys.find(client_random, request)));
        }
        answers.iter().for_each(|(_, it)| state.remember(it));
        state.counters.waited += answers.len() as u64;
        (answers, others)
    }
}

/// A session that was asked for by the random on the wire has this one: it is nobody's guess.
fn opened(
    asked: &mut LruCache<Random, (), RandomState>,
    ech: &mut EchRequests,
    outer: Random,
    inner: Random,
) {
    asked.put(inner, ());
    [outer, inner].iter().for_each(|it| ech.is_known(it));
}

impl State {
    fn remember(&mut self, answer: &Message) {
        self.counters.answered += 1;
        if let Message::SessionKeys(keys) = answer
            && let Some(server_random) = keys.server_random
        {
            let SessionKeys { client_random, version, cipher_suite, .. } = *keys;
            let new = || Answered { version, cipher_suite, keys: Vec::new() };
            let of = self.answered.get_or_insert_mut((client_random, server_random), new);
            of.version = version;
            of.cipher_suite = cipher_suite;
            for entry in &keys.keys {
                of.note(entry.direction, entry.epoch);
            }
        }
    }
}

/// What was asked for of a session.
struct Answered {
    version: u16,
    cipher_suite: u16,
    keys: Vec<(Direction, Epoch)>,
}

impl Answered {
    /// The last ones: those before are over.
    fn note(&mut self, direction: Direction, epoch: Epoch) {
        // There is nothing to be followed under the handshake's keys any more.
        if epoch.updates().is_some() && !self.keys.contains(&(direction, epoch)) {
            if self.keys.len() == MAX_KEYS {
                self.keys.remove(0);
            }
            self.keys.push((direction, epoch));
        }
    }

    /// The keys once more, as far as their secrets are still there.
    fn again(
        &self,
        (client_random, server_random): (Random, Random),
        log: &LiveKeys<KeyRequest, Asked>,
    ) -> Option<SessionKeys> {
        let Self { version, cipher_suite, .. } = *self;
        let mut all: Option<SessionKeys> = None;
        for &(direction, epoch) in &self.keys {
            let request = KeyRequest {
                client_random,
                server_random,
                version,
                cipher_suite,
                direction,
                epoch,
            };
            let Some((_, Message::SessionKeys(mut keys))) = log.find(client_random, &request)
            else {
                continue;
            };
            match &mut all {
                Some(all) => all.keys.append(&mut keys.keys),
                None => all = Some(keys),
            }
        }
        all
    }
}

/// The keys that are asked for, if their secret is there, of the session that the log has under this random.
fn answer(log: &KeyLog, client_random: Random, request: &KeyRequest) -> Option<Asked> {
    let &KeyRequest { version, cipher_suite, direction, .. } = request;
    let server_random = Some(request.server_random);
    let parameters = SessionParameters { version, cipher_suite, client_random, server_random };
    let keys = log.record_keys(parameters, direction, request.epoch.into())?;
    let entry = KeyEntry::new(direction, request.epoch, keys.key(), keys.iv(), keys.mac_key())?;
    let keys = vec![entry];
    let keys =
        SessionKeys { client_random, server_random, version, cipher_suite, flow: None, keys };
    Some((request.client_random, Message::SessionKeys(keys)))
}

/// One key log's way in.
struct Sink {
    path: PathBuf,
    logs: Arc<KeyLogs>,
    say: fn(&str),
    /// What was said of the last file with this name.
    said: Option<String>,
}

impl LineSink for Sink {
    fn has_room(&self) -> bool {
        true
    }

    fn admit(&mut self, file: &Metadata) -> io::Result<()> {
        let warning = warning(geteuid(), file)?;
        // A file that is replaced by its like is no news.
        if self.said != warning {
            if let Some(warning) = &warning {
                (self.say)(&format!("{}: {warning}", self.path.display()));
            }
            self.said = warning;
        }
        Ok(())
    }

    fn lines(&mut self, lines: Zeroizing<Vec<u8>>) {
        let (answers, others) = self.logs.lines(&lines);
        if let Some(client) = self.logs.client.get().and_then(Weak::upgrade) {
            let judge = |(random, it): Asked, by| {
                let judged = self.logs.consent.judge(it, Cause::KeyLog).into_iter();
                judged.filter_map(move |it| match &it {
                    Message::SessionKeys(keys) if keys.client_random == random => Some(it),
                    _ => ech::renamed(&it, random, by),
                })
            };
            let answers = answers.into_iter().flat_map(|it| judge(it, Match::Exact));
            let others = others.into_iter().flat_map(|it| judge(it, Match::Guess));
            for answer in answers.chain(others) {
                // To every middlebox: it may have the same keys twice. A full queue is in the client's counters.
                let _ = client.send(&answer);
            }
        }
    }

    fn failed(&mut self, error: io::Error) {
        (self.say)(&format!("key log {}: {error}", self.path.display()));
    }
}

/// What there is to be said of a key log's owner and mode. Root does not read what is another user's: its secrets are that user's to
/// see, and its lines that user's to write.
fn warning(reader: Uid, metadata: &Metadata) -> io::Result<Option<String>> {
    let owner = metadata.uid();
    let is_others = owner != reader.as_raw() && owner != Uid::ROOT.as_raw();
    let text = || format!("it belongs to another user ({owner})");
    if is_others && reader.is_root() {
        let text = format!("{}: start an agent as that user, or give the file to root", text());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let is_open = metadata.mode() & 0o077 != 0;
    Ok(is_others.then(text).or_else(|| is_open.then(|| "others can read or write it".to_owned())))
}

/// A key log that is followed until this is dropped.
pub struct FollowedLog {
    path: PathBuf,
    follower: Option<Follower>,
    /// A FIFO of this user: no other agent reads it, and it is removed at the end.
    fifo: Option<File>,
}

impl FollowedLog {
    /// Follows a file or a FIFO. Where nothing is there a FIFO is made, for this user only: what a program writes to it
    /// is nowhere on a disk.
    pub fn start(path: &Path, logs: &Arc<KeyLogs>, say: fn(&str)) -> Result<Self, Error> {
        let metadata = match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_fifo(path).map_err(Error::file(path))?;
                path.metadata()
            }
            found => found,
        }
        .map_err(Error::file(path))?;
        let is_ours = metadata.file_type().is_fifo() && metadata.uid() == geteuid().as_raw();
        // From here on the FIFO is removed in any case: also one that an agent left which was killed.
        let fifo = is_ours.then(|| lock(path)).transpose()?;
        let mut log = Self { path: path.to_owned(), follower: None, fifo };
        let sink = Sink { path: path.to_owned(), logs: Arc::clone(logs), say, said: None };
        log.follower = Some(Follower::start(path.to_owned(), sink).map_err(Error::file(path))?);
        Ok(log)
    }

    /// As [`Self::start`], of a FIFO in an agent's directory, which nothing else may take the place of.
    pub fn start_fifo(path: &Path, logs: &Arc<KeyLogs>, say: fn(&str)) -> Result<Self, Error> {
        let is_fifo = |it: std::fs::Metadata| it.file_type().is_fifo();
        if path.symlink_metadata().is_ok_and(|it| !is_fifo(it)) {
            // A program has made a file while no agent was there.
            std::fs::remove_file(path).map_err(Error::file(path))?;
        }
        Self::start(path, logs, say)
    }
}

/// Makes a FIFO for this user; another process may just have made it.
fn make_fifo(path: &Path) -> io::Result<()> {
    match mknodat(CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a FIFO so that no other agent reads it: each would get some of the lines.
fn lock(path: &Path) -> Result<File, Error> {
    // Open for writing, too, so that it waits for nobody.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    for _ in 0..LOCK_ATTEMPTS {
        let fifo = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let fifo = match fifo {
            Ok(fifo) => fifo,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_fifo(path).map_err(Error::file(path))?;
                continue;
            }
            Err(error) => return Err(Error::file(path)(error)),
        };
        match flock(&fifo, FlockOperation::NonBlockingLockExclusive) {
            // Its agent may have removed it as it ended: then nobody finds it any more.
            Ok(()) if follow::is_replaced(path, &fifo).is_ok_and(|replaced| !replaced) => {
                return Ok(fifo);
            }
            // The guard of an agent that was killed looks whether there is another one.
            Ok(()) | Err(Errno::WOULDBLOCK) => thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(Error::file(path)(error.into())),
        }
    }
    Err(Error::Usage(format!("{}: another agent reads it", path.display())))
}

impl Drop for FollowedLog {
    fn drop(&mut self) {
        // Who opens it after its last reader would wait for ever.
        if let Some(fifo) = &self.fifo
            && follow::is_replaced(&self.path, fifo).is_ok_and(|replaced| !replaced)
        {
            let _ = std::fs::remove_file(&self.path);
        }
        self.follower = None;
    }
}

#[cfg(test)]
mod tests {
    use base16ct::lower::encode_string as hex;
    use mmtls_keyshare::message::Epoch;
    use mmtls_record::{Direction, key_schedule};

    use super::*;

    const AES_128: u16 = 0x1301;

    fn key_logs(share_handshake: bool) -> Arc<KeyLogs> {
        KeyLogs::new(share_handshake, true, Arc::default())
    }

    fn request(random: u8, epoch: Epoch) -> KeyRequest {
        KeyRequest {
            client_random: [random; 32],
            server_random: [9; 32],
            version: 0x0304,
            cipher_suite: AES_128,
            direction: Direction::ServerToClient,
            epoch,
        }
    }

    fn line(label: &str, random: u8) -> Vec<u8> {
        format!("{label} {} {}\n", hex(&[random; 32]), hex(&[7; 32])).into_bytes()
    }

    fn set_mode(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[track_caller]
    fn is_keys(message: Option<&Message>, secret: &[u8]) {
        let Some(Message::SessionKeys(session)) = message else {
            panic!("no keys");
        };
        let keys = key_schedule::traffic_keys(AES_128, secret).unwrap();
        assert_eq!(session.keys[0].key.as_bytes(), keys.key());
        assert_eq!((session.server_random, session.cipher_suite), (Some([9; 32]), AES_128));
    }

    #[test]
    fn accepts_requests_before_and_behind_their_lines() {
        let logs = key_logs(false);
        assert!(logs.lines(&line("SERVER_TRAFFIC_SECRET_0", 1)).0.is_empty());
        is_keys(logs.answer(&request(1, Epoch::APPLICATION)).as_ref(), &[7; 32]);
        assert!(logs.answer(&request(2, Epoch::APPLICATION)).is_none(), "it waits");
        assert!(
            logs.lines(&line("CLIENT_TRAFFIC_SECRET_0", 2)).0.is_empty(),
            "the other direction"
        );
        let answers = logs.lines(&line("SERVER_TRAFFIC_SECRET_0", 2)).0;
        is_keys(answers.first().map(|(_, it)| it), &[7; 32]);
        // A KeyUpdate is in no key log.
        let next = key_schedule::next_secret(AES_128, &[7; 32]).unwrap();
        is_keys(logs.answer(&request(2, Epoch(3))).as_ref(), next.as_bytes());
        let counters = logs.counters();
        assert_eq!((counters.answered, counters.waited, counters.denied), (3, 1, 0));
    }

    #[test]
    fn accepts_questions_for_all_sessions() {
        let logs = key_logs(false);
        logs.lines(&line("SERVER_TRAFFIC_SECRET_0", 1));
        logs.lines(&line("SERVER_TRAFFIC_SECRET_0", 2));
        logs.answer(&request(1, Epoch::APPLICATION));
        logs.answer(&request(1, Epoch(3)));
        logs.answer(&request(1, Epoch(3)));
        assert!(logs.answer(&request(3, Epoch::APPLICATION)).is_none());
        let [Message::SessionKeys(keys)] = &logs.all()[..] else {
            panic!("one session was asked about and is known");
        };
        assert_eq!(keys.client_random, [1; 32]);
        assert_eq!(keys.keys.iter().map(|it| it.epoch).collect::<Vec<_>>(), [Epoch(2), Epoch(3)]);
        let answer = logs.answer(&request(1, Epoch(3)));
        let Some(Message::SessionKeys(one)) = &answer else {
            panic!("no keys");
        };
        assert_eq!(one.keys[0].key.as_bytes(), keys.keys[1].key.as_bytes());
        logs.lines(&line("SERVER_TRAFFIC_SECRET_0", 3));
        assert_eq!(logs.all().len(), 2, "that line was waited for");
    }

    #[test]
    fn refuses_what_is_not_shared_and_what_cannot_be() {
        let reason = |logs: &KeyLogs, request| match logs.answer(&request) {
            Some(Message::Refused(refused)) => Some(refused.reason),
            _ => None,
        };
        for share_handshake in [false, true] {
            let logs = key_logs(share_handshake);
            let shared = reason(&logs, request(1, Epoch::HANDSHAKE)).is_none();
            assert_eq!(shared, share_handshake);
            assert_eq!(reason(&logs, request(1, Epoch::EARLY_DATA)), Some(Reason::POLICY));
            let asked = request(1, Epoch::APPLICATION);
            let other = KeyRequest { cipher_suite: 0xaaaa, ..asked };
            assert_eq!(reason(&logs, other), Some(Reason::UNSUPPORTED));
        }
    }

    /// Where the log has what opens the hello inside, nothing is guessed, and keys behind a KeyUpdate are given.
    #[test]
    fn accepts_requests_by_the_random_on_the_wire_where_the_log_opens_the_hello() {
        const OUTER: u8 = 0x0a;
        const INNER: u8 = 0x1a;
        let asked = |epoch, hello: &[u8]| EchKeyRequest {
            request: request(OUTER, epoch),
            flow: None,
            client_hello: hello.into(),
        };
        let hello = mmtls_testkit::ech::hello();
        let first = asked(Epoch::APPLICATION, &hello);
        let ech = mmtls_testkit::ech::lines().concat();
        let is_exact = |logs: &KeyLogs| {
            assert!(logs.guesses(&first).is_empty());
            let later = asked(Epoch(3), &[]);
            let Some(Message::SessionKeys(keys)) = logs.answer_ech(&later) else {
                panic!("no keys");
            };
            assert_eq!(keys.client_random, [INNER; 32]);
            assert!(logs.guesses(&later).is_empty());
            // Those of another session, which somebody else asks for.
            let (answers, others) = logs.lines(&line("SERVER_TRAFFIC_SECRET_0", 7));
            assert!(answers.is_empty() && others.is_empty(), "it waits for no guess");
            assert_eq!(logs.all().len(), 1, "for a middlebox that has started again");
        };
        // Lines first.
        let logs = key_logs(false);
        logs.lines(ech.as_bytes());
        logs.lines(&line("SERVER_TRAFFIC_SECRET_0", INNER));
        is_keys(logs.answer_ech(&first).as_ref(), &[7; 32]);
        is_exact(&logs);
        // The request first, which guesses wait for as well until the lines are there.
        let logs = key_logs(false);
        assert!(logs.answer_ech(&first).is_none() && logs.guesses(&first).is_empty());
        let (answers, others) = logs.lines(ech.as_bytes());
        assert!(answers.is_empty() && others.is_empty());
        let (_, others) = logs.lines(&line("SERVER_TRAFFIC_SECRET_0", 8));
        assert!(others.is_empty(), "that is another session");
        let (answers, others) = logs.lines(&line("SERVER_TRAFFIC_SECRET_0", INNER));
        assert!(others.is_empty());
        let [(by, Message::SessionKeys(keys))] = &answers[..] else {
            panic!("no answer");
        };
        assert_eq!((by, keys.client_random), (&[OUTER; 32], [INNER; 32]));
        is_exact(&logs);
        // The control: without the lines it is a guess.
        let logs = key_logs(false);
        logs.lines(&line("SERVER_TRAFFIC_SECRET_0", INNER));
        assert!(logs.answer_ech(&first).is_none());
        assert_eq!(logs.guesses(&first).len(), 1);
    }

    #[test]
    fn accepts_a_fifo_of_its_own_and_removes_it() {
        use std::io::Write;
        let directory = crate::paths::AgentDirectory::create().unwrap();
        let path = crate::paths::key_log(directory.path());
        let logs = key_logs(false);
        let followed = FollowedLog::start(&path, &logs, |text| panic!("{text}")).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let mut fifo = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        fifo.write_all(&line("SERVER_TRAFFIC_SECRET_0", 1)).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let keys = loop {
            match logs.answer(&request(1, Epoch::APPLICATION)) {
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
                keys => break keys,
            }
            assert!(std::time::Instant::now() < deadline, "nothing was read");
        };
        is_keys(keys.as_ref(), &[7; 32]);
        let other = FollowedLog::start(&path, &logs, |text| panic!("{text}"));
        assert!(matches!(other, Err(Error::Usage(_))), "each would get some of the lines");
        drop(other);
        assert!(path.exists(), "it is the first one's");
        drop(followed);
        assert!(!path.exists());
    }

    #[test]
    fn accepts_a_fifo_that_was_left_and_leaves_what_is_not_its_own() {
        let directory = crate::paths::AgentDirectory::create().unwrap();
        let path = crate::paths::key_log(directory.path());
        let logs = key_logs(false);
        mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        drop(FollowedLog::start(&path, &logs, |text| panic!("{text}")).unwrap());
        assert!(!path.exists(), "it was left by an agent that was killed");
        let followed = FollowedLog::start(&path, &logs, |text| panic!("{text}")).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "somebody else's").unwrap();
        drop(followed);
        assert!(path.exists(), "another file has its name");
    }

    #[test]
    fn refuses_root_key_logs_of_others_and_warns_other_users() {
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let logs = key_logs(false);
        let (own, other) = (geteuid(), Uid::from_raw(geteuid().as_raw() + 1));
        let start =
            || FollowedLog::start(&path, &logs, |text| SAID.lock().unwrap().push(text.to_owned()));
        std::fs::write(&path, "").unwrap();
        set_mode(&path, 0o600);
        drop(start().unwrap());
        assert!(SAID.lock().unwrap().is_empty());
        let is_others = |reader| warning(reader, &path.metadata().unwrap());
        let expected = format!("it belongs to another user ({})", own.as_raw());
        // Root can make others read its own, and nobody else can give away what is theirs.
        assert_eq!(is_others(other).unwrap(), (!own.is_root()).then(|| expected.clone()));
        if !own.is_root() {
            assert!(is_others(Uid::ROOT).unwrap_err().to_string().starts_with(&expected));
        } else if let Err(error) = std::os::unix::fs::chown(&path, Some(other.as_raw()), None) {
            eprintln!("SKIP: no other user than this one: {error}");
        } else {
            let Err(error) = start() else {
                panic!("it is another user's");
            };
            assert!(error.to_string().contains("it belongs to another user (1)"), "{error}");
            let third = Uid::from_raw(other.as_raw() + 1);
            assert!(is_others(third).unwrap().unwrap().contains("another user (1)"));
            assert!(is_others(other).unwrap().is_none());
            std::os::unix::fs::chown(&path, Some(own.as_raw()), None).unwrap();
            // One that comes in its place.
            let followed = start().unwrap();
            std::fs::remove_file(&path).unwrap();
            let next = directory.path().join("next");
            std::fs::write(&next, line("SERVER_TRAFFIC_SECRET_0", 1)).unwrap();
            set_mode(&next, 0o600);
            std::os::unix::fs::chown(&next, Some(other.as_raw()), None).unwrap();
            std::fs::rename(&next, &path).unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while SAID.lock().unwrap().is_empty() {
                assert!(Instant::now() < deadline, "nothing was said");
                thread::sleep(Duration::from_millis(2));
            }
            assert!(SAID.lock().unwrap().pop().unwrap().contains("another user (1)"));
            assert!(logs.answer(&request(1, Epoch::APPLICATION)).is_none(), "it is not read");
            drop(followed);
            std::os::unix::fs::chown(&path, Some(own.as_raw()), None).unwrap();
        }
        set_mode(&path, 0o604);
        drop(start().unwrap());
        assert!(SAID.lock().unwrap().pop().unwrap().ends_with("others can read or write it"));
    }

    #[test]
    fn refuses_places_where_no_fifo_can_be() {
        let logs = key_logs(false);
        let path = Path::new("/nonexistent/keys");
        assert!(FollowedLog::start(path, &logs, |_| {}).is_err());
    }
}
