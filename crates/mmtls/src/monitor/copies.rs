//! Copies of what was decrypted: stream files, and the mirror. Both are told of bytes in order, and of those that are missing.
//! And copies of packets as they were.
//!
//! Refuses to decide what is missing from what: a session's errors tell.

use std::io;
use std::path::Path;
use std::time::Instant;

use mmtls_engine::session::{EndReason, KeyStatus, SessionError, SessionInfo, TcpFrame};
use mmtls_engine::tls::Direction;
use mmtls_middlebox::keys::KeyLogTap;

use super::error::{MonitorError, MonitorIoError};
use crate::capture::{Capture, CaptureConfig};
use crate::mirror::{Mirror, MirrorConfig, SessionMirror};
use crate::streams::{StreamState, Streams};
use crate::summary::Summary;

/// Where copies go.
pub(super) struct Copies {
    streams: Option<Streams>,
    mirror: Option<Mirror>,
    capture: Option<Capture>,
}

/// What they keep of a session.
#[derive(Default)]
pub(super) struct SessionCopies {
    streams: StreamState,
    mirror: Option<Box<SessionMirror>>,
    /// The record at hand is early data.
    pub(super) is_early: bool,
    /// Why bytes of the client are missing before the first ones that came.
    hole_ahead: Option<SessionError>,
    /// What may have ended the following of both directions, and in which one it was found.
    lost: Option<(SessionError, Direction)>,
    /// The capture of original packets has taken it.
    is_captured: bool,
}

impl Copies {
    pub(super) fn open(
        streams_dir: Option<&Path>,
        mirror: Option<&MirrorConfig>,
        capture: &CaptureConfig,
    ) -> Result<Self, MonitorError> {
        let streams = open_streams(streams_dir)?;
        let mirror = mirror.map(Mirror::open).transpose().map_err(MonitorError::Mirror)?.flatten();
        let capture = Capture::open(capture).map_err(MonitorError::Capture)?;
        Ok(Self { streams, mirror, capture })
    }

    /// The same ones, for another worker.
    pub(super) fn share(&self) -> Self {
        let Self { streams, mirror, capture } = self;
        Self { streams: streams.clone(), mirror: mirror.clone(), capture: capture.clone() }
    }

    pub(super) fn wants_frames(&self) -> bool {
        self.capture.is_some()
    }

    pub(super) fn frame(&self, frame: &TcpFrame<'_>) {
        if let Some(capture) = &self.capture {
            capture.frame(frame);
        }
    }

    /// A connection carries TLS, and its random is known.
    pub(super) fn captured_session(&self, info: &SessionInfo, state: &mut SessionCopies) {
        if let Some(capture) = &self.capture {
            state.is_captured = capture.session(info);
        }
    }

    pub(super) fn key_log_tap(&self) -> Option<KeyLogTap> {
        self.capture.as_ref()?.key_log_tap()
    }

    /// Whether somebody wants all that is decrypted.
    pub(super) fn are_made(&self) -> bool {
        self.streams.is_some() || self.mirror.is_some()
    }

    /// The first bytes of both sides are missing. The mirror sees that itself.
    pub(super) fn begin_mid_stream(&mut self, info: &SessionInfo, state: &mut SessionCopies) {
        if let Some(streams) = &self.streams {
            let (id, random, state) = (info.id, &info.client_random, &mut state.streams);
            streams.hole_ahead(id, random, state, "mid_stream");
            streams.hole(id, random, state, Direction::ServerToClient, "mid_stream");
        }
    }

    /// Bytes of one side were decrypted.
    pub(super) fn append(
        &mut self,
        info: &SessionInfo,
        state: &mut SessionCopies,
        now_ns: u64,
        direction: Direction,
        bytes: &[u8],
    ) {
        if let Some(mirror) = &self.mirror {
            let early = state.is_early;
            let session = state.mirror.get_or_insert_default();
            session.data(mirror, info, now_ns, direction, (bytes, early));
        }
        if let Some(streams) = &self.streams {
            let (random, files) = (&info.client_random, &mut state.streams);
            // An empty one creates nothing: the hole is before what creates the files.
            let ahead = state.hole_ahead.take_if(|_| !bytes.is_empty());
            if let Some(error) = ahead {
                streams.hole_ahead(info.id, random, files, error.name());
            }
            streams.append(info.id, random, files, direction, bytes);
        }
    }

    /// A record that was to be opened could not be.
    pub(super) fn record_failed(
        &mut self,
        info: &SessionInfo,
        state: &mut SessionCopies,
        now_ns: u64,
        direction: Direction,
    ) {
        self.missing(info, state, now_ns, direction, SessionError::Integrity);
    }

    /// Bytes that an error has kept from being decrypted are missing.
    pub(super) fn hole(
        &mut self,
        info: &SessionInfo,
        state: &mut SessionCopies,
        now_ns: u64,
        direction: Direction,
        error: SessionError,
    ) {
        match error {
            // What a failed record had is told where it fails.
            SessionError::Integrity
            | SessionError::UnsupportedVersion
            | SessionError::UnsupportedCipherSuite
            | SessionError::UnsupportedCompression
            | SessionError::NoPrivateTag
            | SessionError::EarlyFin
            | SessionError::ConflictingOverlap
            | SessionError::NothingOpened
            | SessionError::UnreadFlight
            | SessionError::JudgedLate => return,
            SessionError::EarlyDataNotInspected => {
                if state.streams == StreamState::None {
                    state.hole_ahead = Some(error);
                }
            }
            _ => drop(state.lost.get_or_insert((error, direction))),
        }
        self.missing(info, state, now_ns, direction, error);
    }

    fn missing(
        &mut self,
        info: &SessionInfo,
        state: &mut SessionCopies,
        now_ns: u64,
        direction: Direction,
        error: SessionError,
    ) {
        if let Some(mirror) = &self.mirror {
            let session = state.mirror.get_or_insert_default();
            session.lost(mirror, info, now_ns, direction, error.name());
        }
        if let Some(streams) = &self.streams {
            let (random, state) = (&info.client_random, &mut state.streams);
            streams.hole(info.id, random, state, direction, error.name());
        }
    }

    /// The server takes early data, or not.
    pub(super) fn early_data(
        &mut self,
        info: &SessionInfo,
        state: &mut SessionCopies,
        now_ns: u64,
        accepted: bool,
    ) {
        if let (Some(mirror), Some(session)) = (&self.mirror, &mut state.mirror) {
            session.early_data(mirror, info, now_ns, accepted);
        }
    }

    /// One side has said that it says no more.
    pub(super) fn close(state: &mut SessionCopies, direction: Direction) {
        if let Some(session) = &mut state.mirror {
            session.close(direction);
        }
    }

    /// The session is over.
    pub(super) fn end(
        &mut self,
        info: &SessionInfo,
        state: &mut SessionCopies,
        now_ns: u64,
        why: EndReason,
    ) {
        if let (Some(capture), true) = (&self.capture, state.is_captured) {
            capture.session_end(info);
        }
        if let (Some(mirror), Some(mut session)) = (&self.mirror, state.mirror.take()) {
            session.end(mirror, info, now_ns, why);
        }
        let Some(streams) = &self.streams else {
            return;
        };
        let random = &info.client_random;
        let bypassed = matches!(info.key_status, KeyStatus::Missing | KeyStatus::Unusable);
        if let Some((error, direction)) = state.lost.filter(|_| bypassed) {
            // The other direction went on as well, and nobody looked at it.
            let other = direction.reverse();
            streams.hole(info.id, random, &mut state.streams, other, error.name());
        }
        if info.bypassed_by_operator {
            for direction in Direction::BOTH {
                streams.hole(info.id, random, &mut state.streams, direction, "bypassed");
            }
        }
        streams.close(info.id, &mut state.streams);
    }

    pub(super) fn write_behind(&mut self) -> io::Result<()> {
        self.streams.as_mut().map_or(Ok(()), Streams::write_behind)?;
        self.capture.as_mut().map_or(Ok(()), Capture::write_behind)?;
        self.mirror.as_mut().map_or(Ok(()), Mirror::write_behind)
    }

    /// Waits until streams, mirror and packets are written.
    pub(super) fn finish(&mut self) {
        let begun = Instant::now();
        if let Some(capture) = &self.capture {
            capture.finish(begun);
        }
        if let Some(streams) = &self.streams {
            streams.finish(begun);
        }
        if let Some(mirror) = &self.mirror {
            mirror.finish(begun);
        }
    }

    /// Says what is written, and what could not be.
    pub(super) fn report(&mut self, summary: &mut Summary, errors: &mut Vec<MonitorIoError>) {
        if let Some(streams) = &self.streams {
            summary.failed_streams = streams.failed();
            errors.extend(streams.take_error().map(MonitorIoError::Streams));
        }
        if let Some(mirror) = &self.mirror {
            summary.set_mirror(&mirror.read_counters());
            errors.extend(mirror.take_error().map(MonitorIoError::Mirror));
        }
        if let Some(capture) = &self.capture {
            summary.set_capture(&capture.read_counters());
            errors.extend(capture.take_error().map(MonitorIoError::Capture));
        }
    }
}

fn open_streams(dir: Option<&Path>) -> Result<Option<Streams>, MonitorError> {
    let open = |dir: &Path| {
        Streams::create(dir).map_err(|error| MonitorError::Streams(dir.to_owned(), error))
    };
    dir.map(open).transpose()
}
