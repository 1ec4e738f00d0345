//! Commands that only show something: `info`, `tokenize`, `engines`, `devices`.

use crate::cli::{Devices, ModelFile, Tokenize};
use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::local::{World, engine_of};
use crate::out;
use crate::render::{card, gib, size, table};
use ns_registry::Model;
use serde_json::{Value, json};

/// `info`.
pub fn info(world: &World, args: &ModelFile) -> Outcome {
    world.no_options()?;
    let model = Model::find(Some(&args.model), &world.settings, &world.layout)?;
    let engine = engine_of(&model.file)?;
    let info = (engine.info)(&model.file)?;
    if args.json {
        let mut value = json!(info);
        value["engine"] = engine.name.into();
        return out::line(format_args!("{value}"));
    }
    let mut text = String::new();
    for file in &info.files {
        text.push_str(&format!("file          {}\n", file.display()));
    }
    text.push_str(&format!("name          {}\n", info.name));
    text.push_str(&format!("architecture  {}\n", info.architecture));
    text.push_str(&format!("engine        {}\n", engine.name));
    text.push_str(&format!("tensors       {}, {}\n", info.tensor_count, size(info.tensor_bytes)));
    text.push_str(&format!("context       {} tokens\n\n", info.context_length));
    let geometry: Vec<Vec<String>> = info.geometry.iter().map(|(k, v)| vec![k.clone(), v.clone()]).collect();
    text.push_str(&table(&[false, false], &geometry));
    text.push('\n');
    let mut rows = vec![["ROLE", "TENSORS", "TYPES", "SIZE"].map(str::to_owned).to_vec()];
    for role in &info.roles {
        rows.push(vec![role.role.clone(), role.count.to_string(), role.types.join(" "), size(role.bytes)]);
    }
    text.push_str(&table(&[false, true, false, true], &rows));
    out::data(&text)
}

/// `tokenize`.
pub fn tokenize(world: &World, args: &Tokenize) -> Outcome {
    world.no_options()?;
    let model = Model::find(Some(&args.model), &world.settings, &world.layout)?;
    let text = crate::text::open(&model.file)?;
    let ids = text.encode(&args.text).map_err(|e| Failure::error(e.to_string()))?;
    if !args.show {
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        return out::line(format_args!("{}", words.join(" ")));
    }
    let rows: Vec<Vec<String>> = ids
        .iter()
        .map(|&id| {
            let bytes = text.bytes(id);
            let shown = if bytes.is_empty() { text.name(id) } else { format!("{:?}", String::from_utf8_lossy(&bytes)) };
            vec![id.to_string(), shown]
        })
        .collect();
    out::data(&table(&[true, false], &rows))
}

/// `engines`.
pub fn engines(world: &World) -> Outcome {
    world.no_options()?;
    let mut text = format!("{:<24}{}\n", "ARCHITECTURE", "ENGINE");
    for engine in ENGINES {
        for architecture in engine.architectures {
            text.push_str(&format!("{architecture:<24}{}\n", engine.name));
        }
        for option in engine.options {
            let flag = format!("--opt-{} {}", option.name, option.value);
            let variable = if option.env.is_empty() { String::new() } else { format!(", {}", option.env) };
            // what is too long for its column has a line of its own
            let gap = if flag.trim_end().len() < 32 { String::new() } else { format!("\n{:34}", "") };
            text.push_str(&format!(
                "  {:<32}{gap}{} [{}{variable}]\n",
                flag.trim_end(),
                option.help,
                option.moment.words()
            ));
        }
    }
    out::data(&text)
}

/// `devices`.
pub fn devices(world: &World, args: &Devices) -> Outcome {
    world.no_options()?;
    if let Some(selector) = &args.device {
        crate::device::check_form(selector)?;
    }
    let selector = args.device.as_deref().unwrap_or("all");
    let all = ns_sycl::devices(selector).map_err(|e| Failure::error(e.to_string()))?;
    if all.is_empty() && args.device.is_some() {
        return Err(Failure::not_found(format!("there is no device {selector}")));
    }
    if args.json {
        let list: Vec<Value> = all
            .iter()
            .map(|d| {
                json!({
                    "selector": d.selector, "name": d.name, "backend": d.backend, "driver": d.driver,
                    "class": d.class.variant(), "total": d.total_memory, "free": d.free_memory, "pci": d.pci,
                    "architecture": d.architecture, "compute_units": d.compute_units,
                })
            })
            .collect();
        return out::line(format_args!("{}", json!({"devices": list})));
    }
    let head = ["DEVICE", "NAME", "MEMORY", "FREE", "UNITS", "ARCHITECTURE", "PCI", "DRIVER"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let or_dash = |s: &str| if s.is_empty() { "-".to_owned() } else { s.to_owned() };
    for d in &all {
        rows.push(vec![
            d.selector.clone(),
            card(&d.name),
            gib(d.total_memory),
            gib(d.free_memory),
            d.compute_units.to_string(),
            or_dash(&d.architecture),
            or_dash(&d.pci),
            or_dash(&d.driver),
        ]);
    }
    out::data(&table(&[false, false, true, true, true, false, false, false], &rows))?;
    if args.device.is_none() && !all.iter().any(|d| d.selector.starts_with("gpu") || d.backend.contains("level_zero")) {
        out::talk("No Intel Arc GPU was found: check the driver and /dev/dri.");
    }
    Ok(())
}
