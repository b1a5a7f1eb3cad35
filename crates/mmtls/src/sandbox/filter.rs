//! Filters of system calls (seccomp) from the table.
//!
//! Refuses architectures that the table does not know.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use super::calls::{Argument, CALLS, Call, Is, Jobs, OPEN};
use super::settings::{SandboxError, Seccomp};

/// What a thread may call; it can be put in force more than once, by each thread that it is for.
#[derive(Clone)]
pub struct Filter {
    pub(super) programs: Vec<BpfProgram>,
}

impl Filter {
    /// For threads that do any of these jobs.
    pub fn new(jobs: Jobs, otherwise: Seccomp) -> Result<Self, SandboxError> {
        let refused = match otherwise {
            Seccomp::Kill => SeccompAction::KillProcess,
            Seccomp::Errno => SeccompAction::Errno(libc::EPERM.cast_unsigned()),
            Seccomp::Log => SeccompAction::Log,
            Seccomp::Off => return Ok(Self { programs: Vec::new() }),
        };
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        let mine = || CALLS.iter().filter(|call| call.jobs & jobs != 0);
        for call in mine() {
            rules.entry(call.number).or_default().extend(alternatives(call)?);
        }
        // Without a rule any arguments will do, whatever another line of the table asks for.
        for call in mine().filter(|call| call.only.is_empty()) {
            rules.insert(call.number, Vec::new());
        }
        // What other filters answer is allowed here: of several the strictest counts.
        let opens = OPEN.iter().filter(|call| !rules.contains_key(call)).copied();
        let opens: Vec<_> = opens.map(|call| (call, Vec::new())).collect();
        rules.extend(opens.iter().cloned());
        let mut programs = vec![
            compile(rules, refused, SeccompAction::Allow)?,
            answered(vec![(libc::SYS_clone3, Vec::new())], libc::ENOSYS)?,
        ];
        if !opens.is_empty() {
            programs.push(answered(opens, libc::EACCES)?);
        }
        Ok(Self { programs })
    }

    /// Puts it in force for the calling thread, and those that it starts.
    pub fn apply(&self) -> Result<(), SandboxError> {
        self.programs.iter().try_for_each(|program| apply_filter(program).map_err(seccomp))
    }
}

/// These calls fail, the others are left to other filters.
fn answered(
    calls: Vec<(i64, Vec<SeccompRule>)>,
    error: libc::c_int,
) -> Result<BpfProgram, SandboxError> {
    let error = SeccompAction::Errno(error.cast_unsigned());
    compile(calls.into_iter().collect(), SeccompAction::Allow, error)
}

fn seccomp(error: impl std::fmt::Display) -> SandboxError {
    SandboxError::Seccomp(error.to_string())
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, SandboxError> {
    let target = TargetArch::try_from(std::env::consts::ARCH).map_err(seccomp)?;
    let filter = SeccompFilter::new(rules, mismatch, matched, target).map_err(seccomp)?;
    BpfProgram::try_from(filter).map_err(seccomp)
}

fn alternatives(call: &Call) -> Result<Vec<SeccompRule>, SandboxError> {
    let conditions = |all: &&[Argument]| -> Result<_, seccompiler::BackendError> {
        SeccompRule::new(all.iter().copied().map(condition).collect::<Result<_, _>>()?)
    };
    call.only.iter().map(|all| conditions(all).map_err(seccomp)).collect()
}

fn condition(Argument(at, is): Argument) -> Result<SeccompCondition, seccompiler::BackendError> {
    let int = SeccompCmpArgLen::Dword;
    match is {
        Is::Exactly(value) => SeccompCondition::new(at, int, SeccompCmpOp::Eq, value.into()),
        Is::Bits { mask, set } => {
            SeccompCondition::new(at, int, SeccompCmpOp::MaskedEq(mask.into()), set.into())
        }
        Is::Null => SeccompCondition::new(at, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0),
        Is::OwnProcess => {
            SeccompCondition::new(at, int, SeccompCmpOp::Eq, std::process::id().into())
        }
    }
}
