//! Seeds of `worker`: sessions that are judged, held, reset, changed and interrupted.

use super::Add;

/// With the handshake's keys, and so many answers of the handler.
const fn how(keys: bool, answers: u8) -> u8 {
    if keys { answers << 3 } else { 1 | answers << 3 }
}

const BATCH: u8 = 7;
const MANY: u8 = 255;
const SEND: u8 = 0;
const LOSE: u8 = 4;
const AGAIN: u8 = 5;
const FRAGMENTS: u8 = 6;
const KEYS: u8 = 7;
const ODD: u8 = 8;
const TURN: u8 = 9;
const ACKNOWLEDGE: u8 = TURN | 16;
const LOSSY: u8 = 10 | 16;
const WAIT: u8 = 11;
const FORGE: u8 = 12;
const LINK: u8 = 13;
const SEGMENT: u8 = 14;

pub(super) fn worker(add: Add<'_>) {
    let mut seed = |name: &str, bytes: &[&[u8]]| add("worker", name, bytes.concat());
    let all = [SEND, TURN].repeat(8);
    for session in 0..4 {
        for keys in [true, false] {
            let name = format!("{session}-{}", if keys { "handshake" } else { "search" });
            let head = [session, how(keys, 0), BATCH, MANY];
            seed(&format!("early-{name}"), &[&head, &[KEYS], &all]);
            seed(&format!("held-{name}"), &[&head, &all, &[KEYS, TURN, TURN]]);
            seed(&format!("lost-{name}"), &[&head, &[KEYS, LOSE, SEND, LOSE, SEND, TURN], &all]);
        }
        let head = [session, how(true, 7), BATCH, MANY];
        for answer in 1..5 {
            let answers = [0, 0, 0, 0, 0, 0, answer];
            seed(&format!("answer-{session}-{answer}"), &[&head, &answers, &all, &[KEYS, TURN]]);
        }
        let pauses = [4; 20];
        let head = [session, how(true, 20), BATCH, MANY];
        let packets = [SEND, TURN, ACKNOWLEDGE].repeat(20);
        seed(&format!("paused-{session}"), &[&head, &pauses, &[KEYS], &packets]);
        let twice = [SEND, TURN, AGAIN, 3, TURN].repeat(20);
        seed(&format!("paused-again-{session}"), &[&head, &pauses, &[KEYS], &twice]);
        // What passed died, and is another one when it comes again.
        for at in 0..6 {
            let header = [SEND, TURN, ACKNOWLEDGE, ACKNOWLEDGE | 32].repeat(3);
            let lost = [SEND, LOSSY].repeat(8);
            for byte in [3, 4] {
                let before: Vec<u8> = (0..at).flat_map(|at| [AGAIN, at, TURN]).collect();
                let other = [&before[..], &[FORGE, at, byte, 1, 0, TURN]].concat();
                let name = format!("paused-lost-{session}-{at}-{byte}");
                seed(&name, &[&head, &pauses, &[KEYS], &header, &lost, &other, &packets]);
            }
        }
        let forged = [SEND, TURN, FORGE, 4, 4, 1, 0, TURN].repeat(20);
        seed(&format!("paused-changed-{session}"), &[&head, &pauses, &[KEYS], &forged]);
        let head = [session, how(true, 0), BATCH, MANY];
        seed(&format!("fragments-{session}"), &[&head, &[FRAGMENTS, 0, FRAGMENTS | 16, 1], &all]);
        seed(&format!("changed-{session}"), &[&head, &[SEND, FORGE, 0, 9, 1, 0, TURN], &all]);
        seed(&format!("again-{session}"), &[&head, &all, &[AGAIN, 0, AGAIN, 1, KEYS, TURN]]);
        for odd in 0..4 {
            seed(&format!("keys-{session}-{odd}"), &[&head, &[ODD, odd], &all, &[KEYS, TURN]]);
        }
        seed(&format!("late-{session}"), &[&head, &all, &[WAIT | 0xf0, 255, TURN, KEYS, TURN]]);
        seed(&format!("down-{session}"), &[&head, &[LINK, TURN, LINK | 32, KEYS], &all]);
        for kind in 0..4 {
            let segment = [SEGMENT | kind << 6, 4, 0, 2, 0];
            seed(&format!("segment-{session}-{kind}"), &[&head, &segment, &[TURN, KEYS], &all]);
        }
    }
}
