//! `plan`, and the memory plan that is told before a model is loaded.

use crate::cli::Plan as Args;
use crate::device::{self, NoCard};
use crate::failure::Outcome;
use crate::local::{Found, World, load_options};
use crate::out;
use crate::render::{card, size, table};
use ns_llm::{DevicePlan, LoadOptions, Plan};
use serde_json::json;

/// `0-11` or `3`, or `-` where there is none.
fn layers(d: &DevicePlan) -> String {
    match d.layers.1.saturating_sub(d.layers.0) {
        0 => "-".to_owned(),
        1 => d.layers.0.to_string(),
        _ => format!("{}-{}", d.layers.0, d.layers.1 - 1),
    }
}

/// `45.0 MiB + 2 x 10.0 MiB`: equal ones together.
fn caches(d: &DevicePlan) -> String {
    let runs: Vec<String> = d
        .caches
        .chunk_by(|a, b| a == b)
        .map(|run| if run.len() > 1 { format!("{} x {}", run.len(), size(run[0])) } else { size(run[0]) })
        .collect();
    if runs.is_empty() { "-".to_owned() } else { runs.join(" + ") }
}

/// One line a device.
pub fn lines(plan: &Plan) -> Vec<String> {
    let line = |d: &DevicePlan| {
        if d.needed() == 0 {
            return format!("{} ({}): not needed", card(&d.name), d.selector);
        }
        let parts: String = d.parts.iter().map(|p| format!(", {p}")).collect();
        format!(
            "{} ({}): layers {}{parts}; weights {}, caches {}, buffers {}: {} of {} free, {} stay free",
            card(&d.name),
            d.selector,
            layers(d),
            size(d.weights),
            caches(d),
            size(d.work),
            size(d.needed()),
            size(d.free),
            size(d.margin)
        )
    };
    plan.devices.iter().map(line).collect()
}

/// The plan of a load; refused when it does not fit. `tell` gets its lines first.
pub fn before_load(found: &Found, options: &LoadOptions, tell: &dyn Fn(&str)) -> Outcome {
    let plan = (found.registration.plan)(&found.model.file, options)?;
    lines(&plan).iter().for_each(|line| tell(line));
    Ok(plan.check()?)
}

/// `plan`.
pub fn show(world: &World, args: &Args) -> Outcome {
    let found = world.find(args.model.as_deref())?;
    let info = (found.registration.info)(&found.model.file)?;
    let contexts =
        crate::server::contexts(world, args.ctx.as_deref(), args.parallel, &found.model, info.context_length)?;
    let registered = found.model.entry.as_ref().and_then(|e| e.gpus.as_deref());
    let most = found.registration.max_devices;
    let chosen = device::choose(&args.open.device, registered, &world.settings, NoCard::UseCpu, most)?;
    let draft = !args.open.no_mtp && world.settings.switch("NS_NO_MTP")? != Some(true);
    let options = load_options(&found, &chosen, contexts.clone(), &args.open, draft)?;
    let plan = (found.registration.plan)(&found.model.file, &options)?;
    if args.json {
        let value = json!({
            "model": found.model.id, "contexts": contexts, "fits": plan.fits(), "devices": plan.devices,
        });
        out::line(format_args!("{value}"))?;
    } else {
        let head = [
            "DEVICE",
            "CARD",
            "LAYERS",
            "ALSO",
            "WEIGHTS",
            "CACHES",
            "BUFFERS",
            "NEEDED",
            "FREE",
            "STAYS FREE",
            "LEFT",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for d in &plan.devices {
            let room = d.free.saturating_sub(d.margin);
            let left = match room.checked_sub(d.needed()) {
                Some(left) => size(left),
                None => format!("{} short", size(d.needed() - room)),
            };
            rows.push(vec![
                d.selector.clone(),
                card(&d.name),
                layers(d),
                if d.parts.is_empty() { "-".to_owned() } else { d.parts.join(", ") },
                size(d.weights),
                caches(d),
                size(d.work),
                size(d.needed()),
                size(d.free),
                size(d.margin),
                left,
            ]);
        }
        let right = [false, false, false, false, true, true, true, true, true, true, true];
        out::data(&table(&right, &rows))?;
        let words: Vec<String> = contexts.iter().map(usize::to_string).collect();
        out::line(format_args!("{} session(s) of {} tokens", contexts.len(), words.join(", ")))?;
    }
    Ok(plan.check()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_everything() {
        let mut device = DevicePlan {
            selector: "gpu:1".into(),
            name: "Intel(R) Arc(TM) Pro B70 Graphics".into(),
            layers: (0, 12),
            parts: vec!["embedding".into(), "draft block".into()],
            weights: 3 << 29,
            caches: vec![1 << 20, 1 << 20],
            work: 5 << 20,
            total: 32 << 30,
            free: 30 << 30,
            margin: 1 << 30,
        };
        let plan = |d: &DevicePlan| Plan { devices: vec![d.clone()] };
        assert_eq!(
            lines(&plan(&device)),
            [concat!(
                "Arc Pro B70 (gpu:1): layers 0-11, embedding, draft block; weights 1.50 GiB, caches 2 x 1.0 MiB, ",
                "buffers 5.0 MiB: 1.51 GiB of 30.00 GiB free, 1.00 GiB stay free"
            )]
        );
        device.caches = vec![1 << 20, 2 << 20, 2 << 20];
        device.layers = (3, 4);
        assert!(
            lines(&plan(&device))[0]
                .contains("layers 3, embedding, draft block; weights 1.50 GiB, caches 1.0 MiB + 2 x 2.0 MiB, ")
        );
    }
}
