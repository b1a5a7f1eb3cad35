//! Makes a thread of a running program call the kernel, as somebody could who has taken it over.
//!
//! A thread that waits in the kernel is stopped, moved back onto the instruction that it called by, and steps over it once for each call. No
//! debugger: those save and restore the whole state of the processor for a call, which fails where it is larger than they know (gdb 13 with
//! AMX). Refuses a thread that does not come to wait.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use mmtls_testkit::Background;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// An argument of a call.
#[derive(Clone, Copy)]
pub enum Argument {
    Number(i64),
    /// Where the call's bytes are.
    Memory,
    /// What the call before has returned.
    Previous,
}

/// A system call: its number, its arguments, and the bytes at [`Argument::Memory`].
pub struct Call {
    pub name: &'static str,
    pub number: libc::c_long,
    pub arguments: Vec<Argument>,
    pub bytes: Vec<u8>,
}

/// What each call returned, and its error number where that is -1.
pub type Outcomes = BTreeMap<String, (i64, i32)>;

/// Below what the stopped thread uses of its stack.
const MEMORY_BELOW: u64 = 4096;

/// `syscall` of x86-64.
const INSTRUCTION: [u8; 2] = [0x0f, 0x05];

/// Has a thread of a program make these calls. `None`: the program was killed.
pub fn inject(process: &Background, thread: &str, calls: &[Call]) -> Option<Outcomes> {
    let number = process.thread(thread).unwrap_or_else(|| panic!("no thread {thread}"));
    let thread = Pid::from_raw(number.cast_signed());
    let saved = stop(thread);
    let (rip, memory) = (saved.rip - INSTRUCTION.len() as u64, saved.rsp - MEMORY_BELOW);
    let mut outcomes = Outcomes::new();
    let mut previous = 0;
    for call in calls {
        write(thread, memory, &call.bytes);
        let mut arguments = [0; 6];
        for (to, argument) in arguments.iter_mut().zip(&call.arguments) {
            *to = match argument {
                Argument::Number(number) => number.cast_unsigned(),
                Argument::Memory => memory,
                Argument::Previous => i64::cast_unsigned(previous),
            };
        }
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let rax = call.number.cast_unsigned();
        // Nothing is to be restarted by the kernel in between.
        let orig_rax = u64::MAX;
        let registers =
            libc::user_regs_struct { rip, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..saved };
        ptrace::setregs(thread, registers).unwrap();
        ptrace::step(thread, None).unwrap();
        if !is_stopped(thread) {
            return None;
        }
        let returned = ptrace::getregs(thread).unwrap().rax.cast_signed();
        let outcome = match i32::try_from(-returned) {
            Ok(error @ 1..4096) => (-1, error),
            _ => (returned, 0),
        };
        previous = outcome.0;
        outcomes.insert(call.name.to_owned(), outcome);
    }
    // It goes on waiting.
    ptrace::setregs(thread, saved).unwrap();
    ptrace::detach(thread, None).unwrap();
    Some(outcomes)
}

/// Stops a thread where it waits in the kernel.
fn stop(thread: Pid) -> libc::user_regs_struct {
    for _ in 0..1000 {
        ptrace::attach(thread).unwrap();
        assert!(is_stopped(thread));
        let registers = ptrace::getregs(thread).unwrap();
        let before = registers.rip - INSTRUCTION.len() as u64;
        let word = ptrace::read(thread, before as ptrace::AddressType).unwrap();
        if word.to_ne_bytes().starts_with(&INSTRUCTION) {
            return registers;
        }
        ptrace::detach(thread, None).unwrap();
        sleep(Duration::from_millis(10));
    }
    panic!("the thread does not wait");
}

/// Waits until it is; false where it has ended.
fn is_stopped(thread: Pid) -> bool {
    match waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap() {
        WaitStatus::Stopped(_, Signal::SIGSTOP | Signal::SIGTRAP) => true,
        WaitStatus::Signaled(..) | WaitStatus::Exited(..) => false,
        other => panic!("{other:?}"),
    }
}

/// Words: the last one is filled up with zeros, of which there is at least one.
fn write(thread: Pid, memory: u64, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len() / 8 * 8 + 8, 0);
    for (at, word) in (memory..).step_by(8).zip(bytes.as_chunks::<8>().0) {
        ptrace::write(thread, at as ptrace::AddressType, i64::from_ne_bytes(*word)).unwrap();
    }
}
