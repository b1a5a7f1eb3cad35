//! The minimal application: it opens every record. Benchmarks measure the engine with it.
//!
//! An engine is compiled where its application is first used. That is here, where it is optimised: `xtask`, which is not, is linked
//! with what this crate has made of [`Engine`], and instructions are counted of that.
//!
//! Refuses nothing: whoever plays frames looks at verdicts and counts.

use std::hint::black_box;

use mmtls_engine::session::{Handler, Record, Session};
use mmtls_engine::{Engine, FrameInput, KeyRefusal, SharedKeys, Verdict};

/// Opens every record, and counts.
#[derive(Debug, Default)]
pub struct OpenAll {
    /// Records that were opened.
    pub opened: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Sessions that have begun, and whose keys nobody has delivered yet: whoever does takes them off.
    pub keys_wanted: u32,
}

impl Handler for OpenAll {
    type State = ();

    fn handshake_start(&mut self, _: &mut Session<'_>, (): &mut ()) {
        self.keys_wanted += 1;
    }

    fn new_record(&mut self, _: &mut Session<'_>, (): &mut (), record: &mut Record<'_>) {
        if let Ok(plaintext) = record.open() {
            self.opened += 1;
            self.bytes += black_box(plaintext.bytes).len() as u64;
        }
    }
}

impl OpenAll {
    /// A frame, and what the engine has to say behind it, which is thrown away.
    pub fn play(engine: &mut Engine<Self>, now_ns: u64, frame: &FrameInput<'_>) -> Verdict {
        let verdict = engine.handle_frame(now_ns, frame);
        while engine.poll_output().is_some() {}
        verdict
    }

    /// Keys of a session.
    ///
    /// # Errors
    /// The engine's refusal.
    pub fn deliver(
        engine: &mut Engine<Self>,
        now_ns: u64,
        keys: SharedKeys,
    ) -> Result<bool, KeyRefusal> {
        engine.handle_keys(now_ns, keys)
    }

    /// Lets time pass, as a worker does.
    pub fn pass_time(engine: &mut Engine<Self>, now_ns: u64) {
        while engine.next_timeout().is_some_and(|due| due <= now_ns) {
            engine.handle_timeout(now_ns);
        }
    }
}
