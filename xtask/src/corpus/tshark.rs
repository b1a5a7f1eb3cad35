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
            let bytes = hex(line.trim()).ok_or_else(|| format!("tshark said {line:?}"))?;
            streams[number][usize::from(!from_client)].extend(bytes);
        }
    }
    Ok(streams)
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_hex_only() {
        assert_eq!(hex("00ff7A"), Some(vec![0, 255, 0x7a]));
        assert_eq!(hex("0"), None);
        assert_eq!(hex("0g"), None);
    }
}
