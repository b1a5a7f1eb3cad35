//! Where orders wait for the workers, each of which looks at its own desk at its tick.
//!
//! A worker looks at some thousand places of its table and goes on with frames; what is left is done a few milliseconds later.
//! Refuses more than a few orders at a time, and to let a worker wait for a reader, or for a lock that is held for longer than a push.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mmtls_engine::Carries;
use mmtls_engine::session::SessionId;
use mmtls_middlebox::worker::{SLOTS_PER_TICK, TICK_PAUSE, Worker};
use mmtls_packet_io::Ports;

use super::sessions::{self, Detail, Filter, Row};
use crate::monitor::Monitor;

/// Orders at a desk.
const MAX_WAITING: usize = 16;

/// Lines that are written in one tick.
const ROWS_PER_TICK: usize = 512;

/// How long all workers together have for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// What a worker is to do.
pub(super) enum Order {
    List(Filter),
    Show(u64),
    Kill(u64, Option<u32>),
    Bypass(u64, Option<u32>),
    /// How many sessions are followed.
    Count,
    Drain,
    /// Of the first worker alone: the log is everybody's.
    Rotate,
}

/// What it has come to.
pub(super) enum Outcome {
    /// Ordered, and how many there are in all.
    Rows(Vec<(u64, Row)>, usize),
    Detail(Box<Detail>),
    /// Whether it was done to a session that is this worker's.
    Done(bool),
    /// It is another worker's, or nobody's.
    Unknown,
    Count(usize),
}

struct Job {
    order: Arc<Order>,
    answer: SyncSender<Outcome>,
    /// The next place of the table.
    next: usize,
    rows: Vec<(u64, Row)>,
    total: usize,
}

#[derive(Default)]
struct Desk {
    waiting: AtomicUsize,
    jobs: Mutex<VecDeque<Job>>,
}

impl Desk {
    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, job: Job) -> bool {
        let mut jobs = self.jobs();
        if jobs.len() >= MAX_WAITING {
            return false;
        }
        jobs.push_back(job);
        self.waiting.store(jobs.len(), Ordering::Release);
        true
    }
}

/// The desks of all workers.
pub struct Desks(Vec<Desk>);

impl Desks {
    /// One for each worker.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Desk::default()).collect())
    }

    /// Has all workers, or the first one, do something; their outcomes.
    ///
    /// # Errors
    /// Where there is too much to do already, or a worker does not answer.
    pub(super) fn ask(&self, order: Order) -> Result<Vec<Outcome>, String> {
        let asked = if matches!(order, Order::Rotate) { 1 } else { self.0.len() };
        let order = Arc::new(order);
        let (answer, answers) = sync_channel(asked);
        for desk in self.0.iter().take(asked) {
            let (order, answer) = (Arc::clone(&order), answer.clone());
            let job = Job { order, answer, next: 0, rows: Vec::new(), total: 0 };
            if !desk.put(job) {
                return Err("too many requests at a time; try again".to_owned());
            }
        }
        drop(answer);
        collect(&answers, asked)
    }

    /// What a worker does at its tick.
    pub fn work<P: Ports>(&self, number: usize, worker: &mut Worker<Monitor, P>) {
        let Some(desk) = self.0.get(number) else {
            return;
        };
        if desk.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let Some(mut job) = desk.jobs().pop_front() else {
            return;
        };
        let outcome = job.go_on(number, worker);
        let mut jobs = desk.jobs();
        match outcome {
            // There is a place for each answer, and who does not wait for it any more needs none.
            Some(outcome) => drop(job.answer.try_send(outcome)),
            None => jobs.push_front(job),
        }
        desk.waiting.store(jobs.len(), Ordering::Release);
        if !jobs.is_empty() {
            worker.tick_again_after(TICK_PAUSE);
        }
    }
}

fn collect(answers: &Receiver<Outcome>, asked: usize) -> Result<Vec<Outcome>, String> {
    let end = Instant::now() + ANSWER_TIME;
    let mut outcomes = Vec::new();
    while outcomes.len() < asked {
        let left = end.saturating_duration_since(Instant::now());
        let outcome = answers.recv_timeout(left);
        outcomes.push(outcome.map_err(|_| "a worker does not answer".to_owned())?);
    }
    Ok(outcomes)
}

impl Job {
    /// Does a part of it; the outcome once all of it is done.
    fn go_on<P: Ports>(
        &mut self,
        number: usize,
        worker: &mut Worker<Monitor, P>,
    ) -> Option<Outcome> {
        let order = Arc::clone(&self.order);
        match &*order {
            Order::List(filter) => self.list(filter, number, worker),
            Order::Count => self.count(worker),
            &Order::Show(id) => {
                let (slot, _) = match self.find(id, worker) {
                    Ok(found) => found,
                    Err(unfinished) => return unfinished,
                };
                let now_ns = worker.now_ns();
                let engine = worker.engine();
                let view = engine.view_flows(slot..slot + 1).next();
                let monitor = engine.handler();
                Some(view.map_or(Outcome::Unknown, |view| {
                    let detail = sessions::detail(&view, monitor, number, now_ns);
                    Outcome::Detail(Box::new(detail))
                }))
            }
            &Order::Kill(id, uid) => self.decide(id, uid, "kill", worker),
            &Order::Bypass(id, uid) => self.decide(id, uid, "bypass", worker),
            Order::Drain => {
                worker.drain();
                Some(Outcome::Done(true))
            }
            Order::Rotate => {
                worker.handler_mut().reopen_log();
                Some(Outcome::Done(true))
            }
        }
    }

    fn list<P: Ports>(
        &mut self,
        filter: &Filter,
        number: usize,
        worker: &Worker<Monitor, P>,
    ) -> Option<Outcome> {
        let (engine, now_ns) = (worker.engine(), worker.now_ns());
        let mut written = 0;
        let end = self.next + SLOTS_PER_TICK;
        // What would be thrown away again needs no line.
        let mut least = self.least(filter.limit);
        let mut next = end;
        for view in engine.view_flows(self.next..end) {
            if !filter.accepts(&view) {
                continue;
            }
            self.total += 1;
            let key = filter.key(&view);
            if least.is_some_and(|least| key <= least) {
                continue;
            }
            self.rows.push((key, sessions::row(&view, engine.handler(), number, now_ns)));
            written += 1;
            if written >= ROWS_PER_TICK {
                next = view.slot + 1;
                break;
            }
            if self.rows.len() >= 2 * filter.limit {
                self.keep_best(filter.limit);
                least = self.least(filter.limit);
            }
        }
        self.next = next;
        if self.next < engine.slots() {
            return None;
        }
        self.keep_best(filter.limit);
        Some(Outcome::Rows(std::mem::take(&mut self.rows), self.total))
    }

    /// The least of the best, once there are enough.
    fn least(&self, limit: usize) -> Option<u64> {
        (self.rows.len() >= limit).then(|| self.rows.iter().map(|row| row.0).min()).flatten()
    }

    /// Leaves the largest ones, in any order: whoever has asked sorts them.
    fn keep_best(&mut self, limit: usize) {
        if self.rows.len() > limit {
            self.rows.select_nth_unstable_by_key(limit, |row| Reverse(row.0));
            self.rows.truncate(limit);
        }
    }

    fn count<P: Ports>(&mut self, worker: &Worker<Monitor, P>) -> Option<Outcome> {
        let (engine, end) = (worker.engine(), self.next + SLOTS_PER_TICK);
        let is_live = |view: &sessions::View<'_>| {
            view.ended.is_none()
                && matches!(view.carries, Carries::Session { is_followed: true, .. })
        };
        self.total += engine.view_flows(self.next..end).filter(is_live).count();
        self.next = end;
        (end >= engine.slots()).then_some(Outcome::Count(self.total))
    }

    /// Where a session is; an outcome, or none yet, where it has not been found.
    fn find<P: Ports>(
        &mut self,
        flow_id: u64,
        worker: &Worker<Monitor, P>,
    ) -> Result<(usize, SessionId), Option<Outcome>> {
        let engine = worker.engine();
        let Some(id) = engine.handler().operated.flow_of(flow_id) else {
            return Err(Some(Outcome::Unknown));
        };
        let end = self.next + SLOTS_PER_TICK;
        match engine.slot_of(id, self.next..end) {
            Some(slot) => Ok((slot, id)),
            None if end >= engine.slots() => Err(Some(Outcome::Unknown)),
            None => {
                self.next = end;
                Err(None)
            }
        }
    }

    /// Kills or bypasses a session.
    fn decide<P: Ports>(
        &mut self,
        flow_id: u64,
        uid: Option<u32>,
        action: &'static str,
        worker: &mut Worker<Monitor, P>,
    ) -> Option<Outcome> {
        let (slot, id) = match self.find(flow_id, worker) {
            Ok(found) => found,
            Err(unfinished) => return unfinished,
        };
        let kills = action == "kill";
        let view = worker.engine().view_flows(slot..slot + 1).next()?;
        let may = view.ended.is_none()
            && (kills || matches!(view.carries, Carries::Session { is_followed: true, .. }));
        let flow = sessions::flow_key(&view);
        if !may {
            return Some(Outcome::Done(false));
        }
        // Before what follows from it.
        let now_ns = worker.now_ns();
        worker.handler_mut().set_now(now_ns);
        worker.handler_mut().operator_decides(flow, action, uid);
        let done = if kills { worker.reset_flow(slot, id) } else { worker.bypass_flow(slot, id) };
        Some(Outcome::Done(done))
    }
}

/// Leaves the largest ones, in order.
pub(super) fn keep_best(rows: &mut Vec<(u64, Row)>, limit: usize) {
    rows.sort_by_key(|row| Reverse(row.0));
    rows.truncate(limit);
}
