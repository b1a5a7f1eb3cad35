//! The records of an application epoch in one direction, TLS 1.2 or 1.3: numbered, opened, shown to the handler.
//!
//! Refuses to interpret what is in them: that differs by version.

use super::context::{Context, RawRecord};
use super::contradiction::{Trials, is_contradicted, is_same};
use super::reporter::Reporter;
use crate::counters::Counters;
use crate::keys::KeySource;
use crate::session::Record;
use crate::tls::{Direction, OpenError, OpenRecord, Opened};

/// The keys of an application epoch, and the number of its next record.
pub(super) struct Epoch {
    /// `None` until they come.
    opener: Option<Box<dyn OpenRecord>>,
    number: u32,
    sequence: u64,
    /// With other keys, on its records and those of the epochs before.
    trials: Trials,
    /// So many records before number 0, at most, may have been of this epoch under other keys.
    passed: u8,
}

/// Who looks at a record.
pub(super) enum Audience {
    /// The handler.
    Handler,
    /// Nobody: it is paused.
    None,
    /// The engine alone, which needs what is in it.
    Engine,
}

/// What has come of a record.
pub(super) enum Shown {
    /// It was not opened.
    Unopened,
    Failed,
    /// Its content is in the context's plaintext.
    Opened(Opened),
}

impl Epoch {
    pub(super) fn new(number: u32, opener: Option<Box<dyn OpenRecord>>) -> Self {
        Self { opener, number, sequence: 0, trials: Trials::default(), passed: 0 }
    }

    /// In the middle of it.
    pub(super) fn at(number: u32, opener: Box<dyn OpenRecord>, sequence: u64) -> Self {
        Self { sequence, ..Self::new(number, Some(opener)) }
    }

    /// What [`Self::at`] takes; `None` without keys.
    pub(super) fn into_parts(self) -> Option<(u32, Box<dyn OpenRecord>, u64)> {
        Some((self.number, self.opener?, self.sequence))
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The next one.
    pub(super) fn followed_by(&self, opener: Option<Box<dyn OpenRecord>>) -> Self {
        Self { trials: self.trials, ..Self::new(self.number.saturating_add(1), opener) }
    }

    /// The first one, behind so many records that passed unopened.
    pub(super) fn first(opener: Option<Box<dyn OpenRecord>>, passed: u32) -> Self {
        Self { passed: passed.try_into().unwrap_or(u8::MAX), ..Self::new(0, opener) }
    }

    /// Whether these are its keys.
    pub(super) fn is_under(&self, keys: &dyn OpenRecord) -> bool {
        self.opener.as_deref().is_some_and(|used| is_same(used, keys))
    }

    /// Whether other keys that came for it open its last record, too.
    pub(super) fn is_contradicted(
        &mut self,
        others: Vec<(KeySource, Box<dyn OpenRecord>)>,
        record: RawRecord<'_>,
        counters: &mut Counters,
    ) -> bool {
        let last = self.sequence.wrapping_sub(1);
        let numbers = last..self.sequence.saturating_add(self.passed.into());
        !others.is_empty()
            && self.opener.as_deref().is_some_and(|used| {
                is_contradicted(used, others, record, numbers, &mut self.trials, counters)
            })
    }

    /// Number of the next record.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(super) fn has_keys(&self) -> bool {
        self.opener.is_some()
    }

    /// The session is idle: keys do without what they are expanded to.
    pub(super) fn rest(&mut self) {
        if let Some(opener) = &mut self.opener {
            opener.rest();
        }
    }

    /// Its keys have come.
    pub(super) fn set_keys(&mut self, opener: Box<dyn OpenRecord>) {
        self.opener = Some(opener);
    }

    /// At most so many bytes of content are in a record; `None` where there are no keys yet.
    pub(super) fn content_len(&self, fragment_len: usize) -> Option<u64> {
        Some(self.opener.as_ref()?.content_len(fragment_len) as u64)
    }

    /// So many records are skipped, with at most so much content: as [`Self::deliver`] does, without the records.
    pub(super) fn skip(
        &mut self,
        direction: Direction,
        records: u64,
        content: u64,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        reporter.count_skipped(direction, records, content, ctx);
        self.sequence = self.sequence.wrapping_add(records);
        ctx.counters.records_seen += records;
        reporter.info.records_seen[direction.index()] += records;
    }

    /// A record passes unseen.
    pub(super) fn pass(&mut self) {
        self.sequence += 1;
    }

    /// Shows a record to the handler, unless a pause skips it; `None` when the session is not followed any more.
    /// `outcome` is there when the record was opened to find where the epoch begins; `peek`: the engine wants to
    /// know its content, also where the handler does not.
    pub(super) fn deliver(
        &mut self,
        record: RawRecord<'_>,
        outcome: Option<Result<Opened, OpenError>>,
        peek: bool,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Option<Shown> {
        if outcome.is_some() {
            reporter.end_handshake(ctx);
            if !reporter.following() {
                return None;
            }
        }
        let fragment_len = record.fragment.len();
        let content = self.opener.as_ref().map_or(fragment_len, |it| it.content_len(fragment_len));
        // TLS 1.2 tells alerts from content: they do not count.
        if record.is_application_data() && reporter.skips(record.direction, content as u64, ctx) {
            return Some(self.show(record, outcome, Audience::None, peek, reporter, ctx));
        }
        reporter.end_handshake(ctx);
        if !reporter.following() {
            return None;
        }
        Some(self.show(record, outcome, Audience::Handler, peek, reporter, ctx))
    }

    /// Lets somebody see the next record.
    pub(super) fn show(
        &mut self,
        RawRecord { direction, header, fragment }: RawRecord<'_>,
        outcome: Option<Result<Opened, OpenError>>,
        audience: Audience,
        peek: bool,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Shown {
        let Some(opener) = self.opener.as_deref() else {
            return Shown::Unopened;
        };
        let mut record = Record {
            direction,
            early: false,
            sequence: self.sequence,
            skipped: match audience {
                Audience::Handler => reporter.take_skipped(direction),
                Audience::None | Audience::Engine => 0,
            },
            header: header.bytes,
            fragment,
            opener,
            plaintext: ctx.plaintext,
            outcome,
        };
        // 2^64 records do not happen; a wrapped number would only fail to open.
        self.sequence = self.sequence.wrapping_add(1);
        ctx.counters.records_seen += 1;
        match audience {
            Audience::Handler => {
                ctx.sink.new_record(&mut reporter.session(ctx.now_ns), &mut record)
            }
            Audience::Engine => {
                // What comes of it is looked at by the caller.
                let _ = record.open();
            }
            Audience::None => {}
        }
        if record.outcome.is_none() && peek {
            // An error is handled below as any other.
            let _ = record.open();
        }
        record.count(&mut reporter.info);
        let shown = match record.outcome {
            None => Shown::Unopened,
            Some(Err(_)) => Shown::Failed,
            Some(Ok(opened)) => {
                ctx.counters.records_opened += 1;
                Shown::Opened(opened)
            }
        };
        reporter.apply_control();
        shown
    }
}
