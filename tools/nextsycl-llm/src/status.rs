//! `status` and `ps` as text.

use crate::render::{card, duration, energy, gib, table};
use serde_json::Value;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// A cell of a number that may be missing.
fn cell(value: &Value, unit: &str) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |n| format!("{n:.0}{unit}"))
}

/// The server's status: model, devices, requests.
pub fn status(value: &Value) -> String {
    let mut out = format!("{} - up {}", text(&value["model"]), duration(number(&value["uptime_seconds"])));
    if let Some(loading) = value.get("loading").filter(|l| !l.is_null()) {
        if let Some(reason) = loading["waiting"].as_str() {
            return out + &format!(", {reason}\n");
        }
        let (done, total) = (number(&loading["done"]), number(&loading["total"]));
        let percent = if total > 0.0 { format!(" {:.0}%", done / total * 100.0) } else { String::new() };
        return out + &format!(", loading{percent}\n");
    }
    let mtp = if value["mtp"] == true { "on" } else { "off" };
    let served = number(&value["served"]);
    out.push_str(&format!(", context {}, MTP {mtp}, {served} request(s) served", value["context"]));
    if value["stopping"] == true {
        out.push_str(" - stopping");
    }
    out.push('\n');
    out.push_str(&gpus(value));
    let active = value["active"].as_array().map(Vec::as_slice).unwrap_or_default();
    for record in active {
        out.push_str(&request_line(record));
    }
    if active.is_empty() {
        out.push_str("idle\n");
    }
    let waiting = number(&value["waiting"]);
    if waiting > 0.0 {
        out.push_str(&format!("{waiting} more waiting\n"));
    }
    out.push_str(&prompt_cache(value));
    out
}

fn prompt_cache(value: &Value) -> String {
    let Some(cache) = value.get("prompt_cache") else { return String::new() };
    if cache.is_null() {
        return "prompt cache: off\n".to_owned();
    }
    let bytes = |value: &Value| gib(value.as_u64().unwrap_or(0));
    let sessions = cache["sessions"].as_array().map_or(1, Vec::len);
    let live = if sessions > 1 { "the live sessions hold" } else { "the live session holds" };
    let mut out = format!(
        "prompt cache: {} checkpoint(s), {} of {}, {} evicted; {live} {} tokens\n",
        cache["entries"],
        bytes(&cache["bytes"]),
        bytes(&cache["budget"]),
        cache["evictions"],
        cache["live_tokens"]
    );
    let disk = &cache["disk"];
    if !disk.is_null() {
        let (used, most) = (bytes(&disk["bytes"]), bytes(&disk["budget"]));
        out.push_str(&format!("  on disk: {} checkpoint(s), {used} of {most}\n", disk["entries"]));
    }
    out
}

/// The checkpoints of the prompt cache, the most recently used first.
pub fn cache(value: &Value) -> String {
    if value["off"] == true {
        return "the prompt cache is off\n".to_owned();
    }
    let size = |value: &Value| format!("{:.3}GiB", value.as_u64().unwrap_or(0) as f64 / (1_u64 << 30) as f64);
    let mut rows = vec![["#", "TOKENS", "SIZE", "WHERE"].map(str::to_owned).to_vec()];
    for (i, entry) in value["entries"].as_array().map(Vec::as_slice).unwrap_or_default().iter().enumerate() {
        let place = if entry["disk"] == true { "disk" } else { "memory" };
        rows.push(vec![(i + 1).to_string(), entry["tokens"].to_string(), size(&entry["bytes"]), place.to_owned()]);
    }
    let mut out = table(&[true, true, true, false], &rows);
    out.push_str(&format!("{} of {}, {} evicted\n", size(&value["bytes"]), size(&value["budget"]), value["evictions"]));
    let disk = &value["disk"];
    if !disk.is_null() {
        out.push_str(&format!("on disk {} of {}\n", size(&disk["bytes"]), size(&disk["budget"])));
    }
    out
}

fn gpus(value: &Value) -> String {
    let head = ["GPU", "CARD", "VRAM USED", "FREE", "LAYERS", "EXPERTS VRAM/HOST", "TEMP", "VRAM", "POWER"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut watts = 0.0;
    for gpu in value["gpus"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let total = gpu["total"].as_u64().unwrap_or(0);
        let free = gpu["free"].as_u64();
        let (first, end) = (number(&gpu["layers"][0]), number(&gpu["layers"][1]));
        watts += number(&gpu["watts"]);
        rows.push(vec![
            gpu["index"].to_string(),
            card(text(&gpu["name"])),
            format!("{} / {}", free.map_or_else(|| "-".to_owned(), |f| gib(total.saturating_sub(f))), gib(total)),
            free.map_or_else(|| "-".to_owned(), gib),
            if end > first { format!("{first}-{}", end - 1.0) } else { "-".to_owned() },
            match (gpu["expert_slots"].as_u64(), gpu["host_slots"].as_u64()) {
                (Some(0) | None, Some(0) | None) => "-".to_owned(),
                (vram, host) => format!("{}/{}", vram.unwrap_or(0), host.unwrap_or(0)),
            },
            cell(&gpu["temp_c"], "C"),
            cell(&gpu["vram_temp_c"], "C"),
            cell(&gpu["watts"], "W"),
        ]);
    }
    let mut out = table(&[false, false, true, true, true, true, true, true, true], &rows);
    if watts > 0.0 {
        out.push_str(&format!("{:>90}\n", format!("the GPUs draw {watts:.0} W")));
    }
    out
}

fn request_line(record: &Value) -> String {
    let head = format!("request #{} ({})", record["id"], text(&record["via"]));
    let prompt = number(&record["prompt_tokens"]);
    let elapsed = |field: &str| number(&record[field]);
    match record["state"].as_str() {
        Some("waiting") => format!("{head}: waiting for a session\n"),
        Some("reading") => format!(
            "{head}: reading, {} of {} prompt tokens, {} reused ({}), {}\n",
            number(&record["read_tokens"]),
            prompt - number(&record["reused"]),
            record["reused"],
            text(&record["source"]),
            duration(elapsed("read_seconds"))
        ),
        _ => {
            let so_far = match record["energy_j"].as_f64() {
                Some(j) => format!(", {} so far", energy(Some(j))),
                None => String::new(),
            };
            format!(
                "{head}: generating, prompt {prompt} tokens, {} reused ({}), {} / {} generated at {:.1} tok/s, {}{so_far}\n",
                record["reused"],
                text(&record["source"]),
                record["generated"],
                record["max_tokens"],
                number(&record["tok_s"]),
                duration(elapsed("read_seconds") + elapsed("generate_seconds")),
            )
        }
    }
}

/// The list of requests: running ones, then the newest that ended.
pub fn requests(value: &Value, now: f64, most: usize) -> String {
    let head =
        ["ID", "VIA", "STATE", "PROMPT", "REUSED", "READ", "GENERATED", "TOK/S", "ENERGY", "AVG W", "FINISH", "AGO"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let list = |field: &str| value[field].as_array().cloned().unwrap_or_default();
    for record in list("active").iter().chain(list("done").iter().take(most)) {
        rows.push(vec![
            format!("#{}", record["id"]),
            text(&record["via"]).to_owned(),
            text(&record["state"]).to_owned(),
            record["prompt_tokens"].to_string(),
            format!("{} {}", record["reused"], text(&record["source"])),
            format!("{:.1}s", number(&record["read_seconds"])),
            record["generated"].to_string(),
            format!("{:.1}", number(&record["tok_s"])),
            energy(record["energy_j"].as_f64()),
            cell(&record["avg_watts"], ""),
            text(&record["finish"]).to_owned(),
            duration(now - number(&record["started"])),
        ]);
    }
    table(&[false, false, false, true, false, true, true, true, true, true, false, true], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_with_a_request() {
        let value = json!({
            "model": "m", "uptime_seconds": 104.2, "context": 65536, "mtp": true, "served": 2, "stopping": false,
            "gpus": [{"index": 0, "name": "Intel(R) Arc(TM) Pro B70 Graphics", "total": 34_252_783_616_u64,
                "free": 1_932_735_283_u64, "layers": [0, 22], "expert_slots": 0, "host_slots": 0,
                "temp_c": 36, "vram_temp_c": null, "watts": 77.4}],
            "active": [{"id": 2, "via": "socket", "state": "generating", "prompt_tokens": 23, "reused": 0,
                "source": "none", "generated": 166, "max_tokens": 400, "tok_s": 20.51, "read_seconds": 0.9,
                "generate_seconds": 8.2, "energy_j": 1565.0}],
            "waiting": 1,
        });
        assert_eq!(
            status(&value),
            "m - up 1m44s, context 65536, MTP on, 2 request(s) served\n\
             GPU  CARD                 VRAM USED    FREE  LAYERS  EXPERTS VRAM/HOST  TEMP  VRAM  POWER\n\
             0    Arc Pro B70  30.1GiB / 31.9GiB  1.8GiB    0-21                  -   36C     -    77W\n\
             \x20                                                                       the GPUs draw 77 W\n\
             request #2 (socket): generating, prompt 23 tokens, 0 reused (none), 166 / 400 generated at 20.5 tok/s, 9s, \
             1565 J so far\n\
             1 more waiting\n"
        );
    }

    #[test]
    fn status_idle_and_loading() {
        let value = json!({"model": "m", "uptime_seconds": 1, "loading": {"done": 5, "total": 10}});
        assert_eq!(status(&value), "m - up 1s, loading 50%\n");
        let value = json!({"model": "m", "uptime_seconds": 1, "loading": {"waiting": "waiting for the device gpu"}});
        assert_eq!(status(&value), "m - up 1s, waiting for the device gpu\n");
        let value =
            json!({"model": "m", "uptime_seconds": 1, "context": 256, "served": 0, "active": [], "stopping": true});
        assert!(status(&value).ends_with(
            "served - stopping\nGPU  CARD  VRAM USED  FREE  LAYERS  EXPERTS VRAM/HOST  TEMP  VRAM  POWER\nidle\n"
        ));
    }

    #[test]
    fn the_prompt_cache_is_shown() {
        let gib = 1_u64 << 30;
        let mut value = json!({"model": "m", "uptime_seconds": 1, "context": 256, "served": 0, "active": [],
            "prompt_cache": {"entries": 2, "bytes": gib * 3 / 2, "budget": 4 * gib, "evictions": 7, "live_tokens": 1234,
                "sessions": [1234], "disk": {"entries": 5, "bytes": gib, "budget": 32 * gib}}});
        assert!(status(&value).ends_with(
            "\nidle\nprompt cache: 2 checkpoint(s), 1.5GiB of 4.0GiB, 7 evicted; the live session holds 1234 tokens\n\
             \x20 on disk: 5 checkpoint(s), 1.0GiB of 32.0GiB\n"
        ));
        value["prompt_cache"] = Value::Null;
        assert!(status(&value).ends_with("\nidle\nprompt cache: off\n"));
        let value = json!({"entries": [{"tokens": 4096, "bytes": gib / 2, "disk": false},
            {"tokens": 64, "bytes": gib / 1000, "disk": true}], "bytes": gib / 2, "budget": 4 * gib, "evictions": 1,
            "disk": {"entries": 1, "bytes": gib / 1000, "budget": 32 * gib}});
        assert_eq!(
            cache(&value),
            "#  TOKENS      SIZE  WHERE\n1    4096  0.500GiB  memory\n2      64  0.001GiB  disk\n\
             0.500GiB of 4.000GiB, 1 evicted\non disk 0.001GiB of 32.000GiB\n"
        );
        assert_eq!(cache(&json!({"entries": [], "off": true})), "the prompt cache is off\n");
    }

    #[test]
    fn ps_shows_running_ones_first_and_the_last_ten() {
        let record = |id: u64, state: &str| {
            json!({"id": id, "via": "socket", "state": state, "prompt_tokens": 23, "reused": 0, "source": "none",
                "read_seconds": 0.84, "generated": 169, "tok_s": 20.2, "energy_j": 1613.0, "avg_watts": 175.0,
                "finish": if state == "done" { json!("stop") } else { Value::Null }, "started": 100.0})
        };
        let done: Vec<Value> = (1..=12).rev().map(|id| record(id, "done")).collect();
        let value = json!({"active": [record(13, "generating")], "done": done});
        let text = requests(&value, 134.0, 10);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 12);
        assert_eq!(
            lines[0],
            "ID   VIA     STATE       PROMPT  REUSED  READ  GENERATED  TOK/S  ENERGY  AVG W  FINISH  AGO"
        );
        assert_eq!(
            lines[1],
            "#13  socket  generating      23  0 none  0.8s        169   20.2  1613 J    175  -       34s"
        );
        assert_eq!(
            lines[2],
            "#12  socket  done            23  0 none  0.8s        169   20.2  1613 J    175  stop    34s"
        );
    }
}
