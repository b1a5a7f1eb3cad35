//! A handler that opens every record, writes down what it sees, does what the input tells it to,
//! and checks the order of events on the way.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use mmtls_engine::session::{
    Certificates, EndReason, FlowAnomaly, FlowEnd, Handler, MAX_CERTIFICATE_BYTES, Record, Session,
    SessionError, SessionId,
};
use mmtls_engine::tls::{Direction, KeyEpoch, MAX_LISTED};

use crate::material::{Authentic, Witness};

/// What was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    SessionStart,
    HandshakeStart,
    ServerHello,
    HandshakeEnd,
    /// A record, opened or not.
    Record(Direction, Option<Authentic>),
    Error(Direction, SessionError),
    Stall(Direction),
    Keys(Direction, KeyEpoch),
    SessionEnd(EndReason),
    FlowEnd(EndReason),
}

/// Where a session is in the order of its events.
#[derive(Default)]
pub(crate) struct Order {
    started: bool,
    handshake_started: bool,
    answered: bool,
    handshake_ended: bool,
    early_data_settled: bool,
    ended: bool,
    /// In the clear: it was started, and these FINs were told.
    is_clear: bool,
    fins: [bool; 2],
}

#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) events: Vec<Event>,
    /// What to do at each event, going round; 0 is nothing.
    pub(crate) actions: Vec<u8>,
    pub(crate) at: usize,
    /// What no record may hold: its session is reset.
    pub(crate) forbidden: Option<&'static [u8]>,
    /// Flows that ended since somebody took them.
    pub(crate) ended: Vec<(SocketAddr, SocketAddr, EndReason)>,
    /// Stalls that have not ended, as far as events tell: since when, and whose.
    pub(crate) stalls: BTreeMap<(SessionId, usize), (u64, IpAddr)>,
    anomalies: BTreeSet<(SessionId, SocketAddr, String)>,
    open_sessions: BTreeMap<SessionId, ()>,
    /// Connections that are shown in the clear.
    clear: BTreeSet<SessionId>,
}

impl Recorder {
    pub(crate) fn new(actions: &[u8]) -> Self {
        Self { actions: actions.to_vec(), ..Self::default() }
    }

    /// Sessions that have started and not ended.
    pub(crate) fn open_sessions(&self) -> usize {
        self.open_sessions.len()
    }

    fn act(&mut self, session: &mut Session<'_>) -> u8 {
        let action = self.actions.get(self.at).copied().unwrap_or(0);
        self.at = (self.at + 1) % self.actions.len().max(1);
        let direction = Direction::BOTH[usize::from(action >> 7)];
        match action & 0x0f {
            1 => session.pause(direction, None),
            2 => session.pause(direction, Some(u64::from(action >> 4 & 7) * 100)),
            3 => session.resume(direction),
            4 => session.resume(direction.reverse()),
            5 if action & 0x70 == 0x70 => session.reset(),
            _ => {}
        }
        action
    }

    fn in_order(&mut self, session: &Session<'_>, order: &Order) {
        assert!(order.started && !order.ended, "an event outside of a session's life");
        let info = session.info();
        for side in [0, 1] {
            assert!(info.records_opened[side] <= info.records_seen[side]);
        }
    }
}

impl Handler for Recorder {
    type State = Order;

    fn session_start(&mut self, session: &mut Session<'_>, order: &mut Order) {
        assert!(!order.started && !order.ended && !order.is_clear, "a session starts once");
        order.started = true;
        assert!(self.open_sessions.insert(session.info().id, ()).is_none(), "identities are new");
        self.events.push(Event::SessionStart);
        self.act(session);
    }

    fn handshake_start(&mut self, session: &mut Session<'_>, order: &mut Order) {
        self.in_order(session, order);
        assert!(!order.handshake_started && !order.handshake_ended);
        order.handshake_started = true;
        if let Some(offer) = session.info().client_offer() {
            let lists = [&offer.cipher_suites, &offer.extensions, &offer.groups];
            assert!(lists.iter().all(|list| list.len() <= MAX_LISTED));
            assert!(offer.point_formats.len() <= MAX_LISTED);
        }
        self.events.push(Event::HandshakeStart);
        self.act(session);
    }

    fn server_hello(&mut self, session: &mut Session<'_>, order: &mut Order) {
        self.in_order(session, order);
        assert!(order.handshake_started && !order.answered && !order.handshake_ended);
        order.answered = true;
        let info = session.info();
        assert!(info.version.is_some() && info.cipher_suite.is_some());
        assert!(info.server_choice().is_none_or(|it| it.extensions.len() <= MAX_LISTED));
        self.events.push(Event::ServerHello);
        self.act(session);
    }

    fn handshake_end(&mut self, session: &mut Session<'_>, order: &mut Order) {
        self.in_order(session, order);
        assert!(order.answered && !order.handshake_ended);
        order.handshake_ended = true;
        let info = session.info();
        assert!(info.version.is_some() && info.cipher_suite.is_some());
        assert!(info.server_random.is_some());
        self.events.push(Event::HandshakeEnd);
        self.act(session);
    }

    fn early_data(&mut self, session: &mut Session<'_>, order: &mut Order, _accepted: bool) {
        self.in_order(session, order);
        assert!(order.handshake_started && !order.early_data_settled, "settled once");
        order.early_data_settled = true;
        self.act(session);
    }

    fn certificates(
        &mut self,
        session: &mut Session<'_>,
        order: &mut Order,
        _direction: Direction,
        certificates: &Certificates<'_>,
    ) {
        self.in_order(session, order);
        assert!(order.handshake_started);
        let shown: usize = certificates.chain().iter().map(|it| it.len()).sum();
        assert!(shown <= MAX_CERTIFICATE_BYTES);
        self.act(session);
    }

    fn new_record(
        &mut self,
        session: &mut Session<'_>,
        order: &mut Order,
        record: &mut Record<'_>,
    ) {
        self.in_order(session, order);
        let expected =
            if record.is_early_data() { order.handshake_started } else { order.handshake_ended };
        assert!(expected, "records of the application follow the handshake, early data the hello");
        let (direction, sequence) = (record.direction(), record.sequence());
        let unopened = self.act(session) & 0x0f == 6;
        let seen = if unopened {
            None
        } else {
            let opened = record.open().ok().map(|plaintext| Authentic {
                sequence,
                kind: plaintext.content_type,
                content: plaintext.bytes.to_vec(),
            });
            if opened.is_some() {
                assert_eq!(opened, Witness::last(), "only what was authenticated is shown");
            }
            let holds = |pattern: &[u8], it: &Authentic| {
                it.content.windows(pattern.len()).any(|part| part == pattern)
            };
            if let (Some(pattern), Some(it)) = (self.forbidden, &opened)
                && holds(pattern, it)
            {
                session.reset();
            }
            let again = record.open().ok().map(|it| (it.content_type, it.bytes.to_vec()));
            assert_eq!(again, opened.clone().map(|it| (it.kind, it.content)), "opened once");
            opened
        };
        self.events.push(Event::Record(direction, seen));
    }

    fn error(
        &mut self,
        session: &mut Session<'_>,
        order: &mut Order,
        direction: Direction,
        error: SessionError,
    ) {
        if order.is_clear {
            assert!(!order.ended && error.code() < 0, "an error outside of a connection's life");
            self.act(session);
            return;
        }
        self.in_order(session, order);
        let id = session.info().id;
        self.stalls.retain(|(of, _), _| *of != id);
        self.events.push(Event::Error(direction, error));
        self.act(session);
    }

    fn stall(&mut self, session: &mut Session<'_>, order: &mut Order, direction: Direction) {
        self.in_order(session, order);
        let info = session.info();
        let stall = (session.now_ns(), info.client.ip());
        self.stalls.insert((info.id, direction as usize), stall);
        self.events.push(Event::Stall(direction));
        self.act(session);
    }

    fn keys(
        &mut self,
        session: &mut Session<'_>,
        order: &mut Order,
        direction: Direction,
        epoch: KeyEpoch,
        _waited: Duration,
    ) {
        self.in_order(session, order);
        // They may be for a later epoch, and the stall may go on; nothing tells.
        self.stalls.remove(&(session.info().id, direction as usize));
        self.events.push(Event::Keys(direction, epoch));
        self.act(session);
    }

    fn session_end(&mut self, session: &mut Session<'_>, order: &mut Order, why: EndReason) {
        self.in_order(session, order);
        order.ended = true;
        let id = session.info().id;
        assert!(self.open_sessions.remove(&id).is_some());
        self.stalls.retain(|(of, _), _| *of != id);
        self.events.push(Event::SessionEnd(why));
        self.act(session);
    }

    fn cleartext_start(&mut self, session: &mut Session<'_>, order: &mut Order) {
        assert!(!core::mem::replace(&mut order.is_clear, true), "a connection starts once");
        let id = session.info().id;
        assert!(self.clear.insert(id), "identities are new");
        assert!(!self.open_sessions.contains_key(&id), "TLS is not shown in the clear");
        self.act(session);
    }

    fn cleartext(
        &mut self,
        session: &mut Session<'_>,
        order: &mut Order,
        direction: Direction,
        bytes: &[u8],
    ) {
        assert!(self.clear.contains(&session.info().id), "bytes outside of a connection's life");
        assert!(!bytes.is_empty() && !order.fins[direction.index()]);
        self.act(session);
    }

    fn cleartext_fin(&mut self, session: &mut Session<'_>, order: &mut Order, at: Direction) {
        assert!(self.clear.contains(&session.info().id), "a FIN outside of a connection's life");
        assert!(!core::mem::replace(&mut order.fins[at.index()], true), "a direction ends once");
        self.act(session);
    }

    fn cleartext_end(
        &mut self,
        session: &mut Session<'_>,
        order: &mut Order,
        _why: Option<EndReason>,
    ) {
        assert!(order.is_clear && !core::mem::replace(&mut order.ended, true), "it ends once");
        assert!(self.clear.remove(&session.info().id));
        self.act(session);
    }

    fn flow_anomaly(&mut self, anomaly: &FlowAnomaly) {
        // Roles may change in a flow's life, senders do not.
        let sender = match anomaly.direction {
            Direction::ClientToServer => anomaly.client,
            Direction::ServerToClient => anomaly.server,
        };
        let new = self.anomalies.insert((anomaly.id, sender, format!("{:?}", anomaly.kind)));
        let nameless = anomaly.client == anomaly.server;
        assert!(new || nameless, "{:?} is told once for each flow and sender", anomaly.kind);
    }

    fn flow_end(&mut self, flow: &FlowEnd) {
        assert!(!self.open_sessions.contains_key(&flow.id), "sessions end before their flow");
        assert!(!self.clear.contains(&flow.id), "what is in the clear ends before its flow");
        assert!(flow.started_ns <= flow.last_ns);
        self.ended.push((flow.client, flow.server, flow.reason));
        self.events.push(Event::FlowEnd(flow.reason));
    }
}
