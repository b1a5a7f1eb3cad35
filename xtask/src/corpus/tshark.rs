//! The same captures and key logs through tshark: an independent opinion about every decrypted
//! stream.

use std::path::Path;
use std::process::{Command, Stdio};

use super::trace::Trace;

/// The application bytes of each connection as tshark sees them, client first.
pub fn streams(
    capture: &Path,
    keylog: &Path,
    traces: &[Trace],
) -> Result<Vec<[Vec<u8>; 2]>, String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).arg("-q");
    command.arg("-o").arg(format!("tls.keylog_file:{}", keylog.display()));
    // The corpus is on ports of its own.
    for trace in traces {
        command.arg("-d").arg(format!("tcp.port=={},tls", trace.endpoints.server.port()));
    }
    for trace in traces {
        command.arg("-z").arg(format!("follow,tls,raw,{}", trace.number));
    }
    let output = command
        .stdin(Stdio::null())
        .env_remove("SSLKEYLOGFILE")
        .output()
        .map_err(|error| format!("tshark: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("tshark: {}: {}", output.status, text.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut streams = vec![<[Vec<u8>; 2]>::default(); traces.len()];
    // It prints the last tap first; the filter says which one it is.
    let mut current = None;
    let mut first_is_client = true;
    for line in text.lines() {
        if line.starts_with("Follow: ") {
            current = None;
        } else if let Some(number) = line.strip_prefix("Filter: tcp.stream eq ") {
            let number = number.trim().parse::<usize>().ok();
            current = traces.iter().position(|trace| Some(trace.number) == number);
        } else if let (Some(node), Some(number)) = (line.strip_prefix("Node 0: "), current) {
            first_is_client = node.trim() == traces[number].endpoints.client.to_string();
        } else if let Some(number) = current
            && !line.is_empty()
            && !line.starts_with("Node 1: ")
            && !line.starts_with('=')
        {
            // The second node's lines are indented.
            let from_client = line.starts_with('\t') != first_is_client;
            let bytes = base16ct::mixed::decode_vec(line.trim())
                .map_err(|_| format!("tshark said {line:?}"))?;
            streams[number][usize::from(!from_client)].extend(bytes);
        }
    }
    Ok(streams)
}
