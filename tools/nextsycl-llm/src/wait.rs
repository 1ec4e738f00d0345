//! Waiting for a device that is not there yet: a card's driver may come up long after the services of a boot (G01).
//!
//! The SYCL runtime looks for drivers and devices once in a process and never again, so every look is a process of its own
//! (`devices --device`), and this one opens the runtime only when the device is there.

use crate::failure::{Failure, Outcome};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which is looked again, whatever `/dev/dri` says.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Time between two glances at `/dev/dri`, which cost nothing.
const GLANCE: Duration = Duration::from_millis(200);

/// Waits until every selector has a device, at most so long. `waiting` is told why it waits, `stopping` ends it.
pub fn for_devices(
    selectors: &[String],
    limit: Duration,
    waiting: &dyn Fn(&str),
    stopping: &dyn Fn() -> bool,
) -> Outcome {
    let begun = Instant::now();
    loop {
        let nodes = render_nodes();
        let Some((selector, reason)) = missing(selectors, &nodes, limit)? else { return Ok(()) };
        if stopping() {
            return Ok(());
        }
        if begun.elapsed() >= limit {
            return Err(Failure::error(format!(
                "there is no device {selector} after {} s (--wait-device): {reason}. Check the driver and the permissions of \
                 /dev/dri, or name another device with --device: none is taken by itself",
                limit.as_secs()
            )));
        }
        let text = format!("waiting for the device {selector}, at most {} s: {reason}", limit.as_secs());
        tracing::info!("{text}");
        waiting(&text);
        let looked = Instant::now();
        while looked.elapsed() < LOOK_AGAIN && begun.elapsed() < limit && render_nodes() == nodes {
            if stopping() {
                return Ok(());
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// The first selector without a device, and why.
fn missing(selectors: &[String], nodes: &[(String, bool)], limit: Duration) -> Outcome<Option<(String, String)>> {
    for selector in selectors {
        let program = std::env::current_exe().map_err(|e| Failure::error(format!("cannot find this program: {e}")))?;
        let mut command = Command::new(program);
        for name in ns_systemd::HANDOVER {
            command.env_remove(name);
        }
        command.args(["devices", "--json", "--device", selector]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::error(format!("cannot look for devices: {e}")))?;
        // A driver that hangs is not waited for longer than for the device.
        let Some(status) = within(&mut child, limit.max(Duration::from_secs(30)))? else {
            return Ok(Some((selector.clone(), "the driver does not answer".to_owned())));
        };
        let mut said = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            // What cannot be read is left out of the reason.
            let _ = std::io::Read::read_to_string(&mut pipe, &mut said);
        }
        match status.code() {
            Some(0) => {}
            Some(4) => return Ok(Some((selector.clone(), reason(selector, nodes)))),
            _ => {
                let line = said.lines().last().unwrap_or_default().trim_start_matches("nextsycl-llm: ").to_owned();
                return Ok(Some((selector.clone(), format!("the devices cannot be listed ({status}): {line}"))));
            }
        }
    }
    Ok(None)
}

fn within(child: &mut std::process::Child, time: Duration) -> Outcome<Option<std::process::ExitStatus>> {
    let begun = Instant::now();
    let fail = |e: std::io::Error| Failure::error(format!("cannot look for devices: {e}"));
    loop {
        if let Some(status) = child.try_wait().map_err(fail)? {
            return Ok(Some(status));
        }
        if begun.elapsed() > time {
            child.kill().and_then(|()| child.wait()).map_err(fail)?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The render nodes of graphics cards, and whether this user may open them.
fn render_nodes() -> Vec<(String, bool)> {
    let Ok(entries) = std::fs::read_dir("/dev/dri") else { return Vec::new() };
    let mut nodes: Vec<(String, bool)> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("renderD")))
        .map(|p| (p.display().to_string(), std::fs::File::options().read(true).write(true).open(&p).is_ok()))
        .collect();
    nodes.sort();
    nodes
}

fn reason(selector: &str, nodes: &[(String, bool)]) -> String {
    let closed: Vec<&str> = nodes.iter().filter(|(_, open)| !open).map(|(path, _)| path.as_str()).collect();
    if selector.contains("cpu") {
        "the SYCL runtime does not list it".to_owned()
    } else if nodes.is_empty() {
        "there is no graphics card under /dev/dri".to_owned()
    } else if !closed.is_empty() {
        format!("{} may not be opened by this user (the group render is needed)", closed.join(" and "))
    } else {
        format!("the driver does not list it yet ({} graphics card(s) under /dev/dri)", nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_tell_what_to_do() {
        let node = |open| vec![("/dev/dri/renderD128".to_owned(), open)];
        assert_eq!(reason("gpu", &[]), "there is no graphics card under /dev/dri");
        assert_eq!(reason("gpu:1", &node(true)), "the driver does not list it yet (1 graphics card(s) under /dev/dri)");
        assert_eq!(
            reason("gpu", &node(false)),
            "/dev/dri/renderD128 may not be opened by this user (the group render is needed)"
        );
        assert_eq!(reason("cpu", &[]), "the SYCL runtime does not list it");
    }
}
