//! `serve`: a server in the foreground.

use crate::cli::{Control, Serve};
use crate::device::{self, NoCard};
use crate::failure::{Failure, Outcome};
use crate::local::{DEFAULT_CONTEXT, Found, World, load_options};
use crate::serve::{self, CacheConfig, Config, DiskConfig, Doors, Loaded, Loader, Opening};
use crate::{out, text, wait};
use ns_http::Limits;
use ns_http::cors::Origins;
use ns_registry::Model;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The control socket of a server.
pub fn socket(world: &World, control: &Control) -> PathBuf {
    control.socket.clone().unwrap_or_else(|| world.layout.sockets.join("nextsycl.sock"))
}

/// The model a server is asked for.
pub fn wanted(args: &Serve) -> Option<&str> {
    args.model.as_deref().or(args.model_path.as_deref())
}

/// Runs the command.
pub fn run(world: &World, args: &Serve) -> Outcome {
    let passed = ns_systemd::passed()?;
    let doors = Doors::of(&passed).map_err(|e| Failure::error(format!("cannot take the passed sockets: {e}")))?;
    let result = serve(world, args, passed);
    if result.as_ref().is_err_and(|failure| !failure.is_quiet()) {
        doors.turn_away();
    }
    result
}

fn serve(world: &World, args: &Serve, passed: ns_systemd::Passed) -> Outcome {
    let found = world.find(wanted(args))?;
    let info = (found.registration.info)(&found.model.file)?;
    let contexts = contexts(world, args.ctx.as_deref(), args.parallel, &found.model, info.context_length)?;
    let config = Config { passed, ..config(world, args, &found, contexts.clone())? };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::error(format!("cannot start the server's threads: {e}")))?;
    // Before a device is opened: the SYCL runtime's compiler catches signals too, and gives them on to whoever was
    // there before it.
    let stops = {
        let _guard = runtime.enter();
        stop_signals()?
    };
    let registered = found.model.entry.as_ref().and_then(|e| e.gpus.clone());
    let draft = !args.open.no_mtp && world.settings.switch("NS_NO_MTP")? != Some(true);
    let limit = seconds(world, args.wait_device, "NS_WAIT_DEVICE")?;
    let name = config.name.clone();
    let (open, settings) = (args.open.clone(), world.settings.clone());
    let choose = move |found: &Found| {
        let most = found.registration.max_devices;
        let chosen = device::choose(&open.device, registered.as_deref(), &settings, NoCard::Refuse, most)?;
        let options = load_options(found, &chosen, contexts, &open, draft)?;
        Ok::<_, Failure>((chosen, options))
    };
    let (devices, loader): (String, Loader) = match limit {
        None => {
            let (chosen, options) = choose(&found)?;
            (chosen.names(), Box::new(move |opening: &Opening<'_>| load(&found, &options, opening)))
        }
        Some(limit) => {
            let registered = found.model.entry.as_ref().and_then(|e| e.gpus.as_deref());
            let (wanted, _) = device::asked(&args.open.device, registered, &world.settings)?;
            let loader = {
                let wanted = wanted.clone();
                move |opening: &Opening<'_>| {
                    wait::for_devices(&wanted, limit, &|why| opening.waiting(why), &|| opening.is_stopping())?;
                    if opening.is_stopping() {
                        return Err(Failure::said(0));
                    }
                    opening.progress(0, 0);
                    let (chosen, options) = choose(&found)?;
                    tracing::info!("opening {} on {}", found.model.id, chosen.names());
                    load(&found, &options, opening)
                }
            };
            (wanted.join(" + "), Box::new(loader))
        }
    };
    let result = runtime.block_on(async move {
        let bound = serve::bind(config).await?;
        out::talk(&format!("{name} on {devices}: http://{} and {}", bound.address, bound.socket.display()));
        bound.run(loader, stops).await
    });
    // Threads that wait for clients do not hold the program.
    runtime.shutdown_background();
    result
}

fn load(found: &Found, options: &ns_llm::LoadOptions, opening: &Opening<'_>) -> Outcome<Loaded> {
    let text = text::open(&found.model.file)?;
    let identity = text::identity(&found.model.file)?;
    crate::plan::before_load(found, options, &|line| tracing::info!("{line}"))?;
    let mut progress = |done, total| opening.progress(done, total);
    let engine = (found.registration.load)(&found.model.file, options, &mut progress)?;
    Ok(Loaded { engine, text, identity })
}

/// A time from a flag or a setting; none when it is 0.
fn seconds(world: &World, flag: Option<u64>, setting: &'static str) -> Outcome<Option<Duration>> {
    const MOST: u64 = 366 * 24 * 3600;
    let seconds = match flag {
        Some(n) if n > MOST => return Err(Failure::usage(format!("{n} seconds: at most {MOST} are possible"))),
        Some(n) => n,
        None => world.settings.number(setting, 0..=MOST, "a number of seconds, 0 for none")?.unwrap_or(0),
    };
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// Tells each SIGINT and SIGTERM. Needs a tokio runtime.
fn stop_signals() -> Outcome<tokio::sync::mpsc::Receiver<()>> {
    let (sender, stops) = tokio::sync::mpsc::channel(8);
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signal = signal(kind).map_err(|e| Failure::error(format!("cannot catch signals: {e}")))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                // The server that is gone needs no telling.
                let _ = sender.send(()).await;
            }
        });
    }
    Ok(stops)
}

/// How the server is set up: flags, else the registry's entry, else the settings.
fn config(world: &World, args: &Serve, found: &Found, contexts: Vec<usize>) -> Outcome<Config> {
    let settings = &world.settings;
    let port = match args.port {
        Some(port) => port,
        None => settings.number("NS_PORT", 0..=65535, "a port number")?.unwrap_or(8085) as u16,
    };
    let keep = match args.keep_requests {
        Some(n) => n,
        None => settings.number("NS_KEEP_REQUESTS", 0..=1_000_000, "a number up to 1000000")?.unwrap_or(100),
    };
    let max_tokens = match args.max_tokens {
        Some(n) => Some(n),
        None => settings.number("NS_MAX_TOKENS", 1..=1 << 40, "a number of tokens")?.map(|n| n as usize),
    };
    let name = args.name.as_deref().or(settings.get("NS_NAME")).unwrap_or(&found.model.id).to_owned();
    Ok(Config {
        aliases: if name == found.model.id { Vec::new() } else { vec![found.model.id.clone()] },
        name,
        passed: ns_systemd::Passed::default(),
        idle_exit: seconds(world, args.idle_exit, "NS_IDLE_EXIT")?,
        listen: (args.host.as_deref().or(settings.get("NS_HOST")).unwrap_or("127.0.0.1").to_owned(), port),
        socket: socket(world, &args.control),
        contexts,
        max_tokens,
        keep_requests: usize::try_from(keep).unwrap_or(100),
        keep_text: settings.switch("NS_KEEP_TEXT")? != Some(false),
        origins: Origins::new(args.cors.as_deref().or(settings.get("NS_CORS")).unwrap_or("")),
        limits: Limits::default(),
        cache: cache(world, args)?,
    })
}

/// The prompt cache: flags, else the settings.
fn cache(world: &World, args: &Serve) -> Outcome<Option<CacheConfig>> {
    const MOST_MIB: u64 = 1 << 24;
    const MOST: f64 = 1e6;
    let settings = &world.settings;
    let memory = match args.prompt_cache_mib {
        Some(n) if n > MOST_MIB => return Err(Failure::usage(format!("--prompt-cache-mib {n}: at most {MOST_MIB}"))),
        Some(n) => n,
        None => settings.number("NS_PROMPT_CACHE_MIB", 0..=MOST_MIB, "a number of MiB, 0 for none")?.unwrap_or(4096),
    };
    let decimal = |flag: &str, given: Option<f64>, setting, expected, usual| match given {
        Some(n) if (0.0..=MOST).contains(&n) => Ok(n),
        Some(n) => Err(Failure::usage(format!("{flag} {n}: it takes {expected}"))),
        None => Ok::<f64, Failure>(settings.decimal(setting, 0.0..=MOST, expected)?.unwrap_or(usual)),
    };
    let gib = "a number of GiB, 0 for none";
    let gib = decimal("--cache-disk-gib", args.cache_disk_gib, "NS_CACHE_DISK_GIB", gib, 32.0)?;
    let hours = "a number of hours";
    let hours = decimal("--cache-ttl-hours", args.cache_ttl_hours, "NS_CACHE_TTL_HOURS", hours, 24.0)?;
    let disk = DiskConfig {
        path: args.cache_dir.clone().unwrap_or_else(|| world.layout.prompts.clone()),
        budget: (gib * (1_u64 << 30) as f64) as u64,
        ttl: Duration::from_secs_f64(hours * 3600.0),
    };
    Ok((memory > 0).then(|| CacheConfig { memory: memory << 20, disk: (disk.budget > 0).then_some(disk) }))
}

/// Tokens each session holds.
pub fn contexts(
    world: &World,
    ctx: Option<&str>,
    parallel: Option<u64>,
    model: &Model,
    trained: usize,
) -> Outcome<Vec<usize>> {
    let settings = &world.settings;
    let asked = parallel;
    let parallel = match parallel {
        Some(n) => n,
        None => settings.number("NS_PARALLEL", 1..=8, "a number from 1 to 8")?.unwrap_or(2),
    };
    let parallel = usize::try_from(parallel).unwrap_or(1);
    let registered = model.entry.as_ref().and_then(|e| e.ctx.as_deref());
    let (list, from) = match (ctx, registered, settings.get("NS_CTX")) {
        (Some(list), _, _) => (list, "--ctx"),
        (None, Some(list), _) => (list, "the registry's ctx"),
        (None, None, Some(list)) => (list, "NS_CTX"),
        (None, None, None) => return Ok(vec![DEFAULT_CONTEXT.min(trained); parallel]),
    };
    let sessions = context_list(list, from, parallel, trained)?;
    match asked {
        // a list from the registry or the settings gives way to nobody; two words of one command have to agree
        Some(n) if from == "--ctx" && sessions.len() as u64 != n => {
            Err(Failure::usage(format!("--ctx {list} is {} sessions, --parallel {n} another number", sessions.len())))
        }
        _ => Ok(sessions),
    }
}

fn context_list(list: &str, from: &str, parallel: usize, trained: usize) -> Outcome<Vec<usize>> {
    let wrong = |why: &str| Failure::usage(format!("{from} {list}: {why}"));
    let numbers: Vec<usize> = list
        .split(',')
        .map(|n| n.trim().parse().map_err(|_| wrong("it takes a number of tokens, or up to 8 apart by commas")))
        .collect::<Outcome<_>>()?;
    if numbers.len() > 8 {
        return Err(wrong("at most 8 sessions are possible"));
    }
    if numbers.iter().any(|&n| n < 256.min(trained)) {
        return Err(wrong("a session holds at least 256 tokens"));
    }
    if numbers.iter().any(|&n| n > trained) {
        return Err(wrong(&format!("the model was trained for {trained} tokens")));
    }
    Ok(if let [one] = numbers[..] { vec![one; parallel] } else { numbers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_lists() {
        let of = |list| context_list(list, "--ctx", 3, 4096);
        assert_eq!(of("1024").unwrap(), [1024; 3]);
        assert_eq!(of("4096, 512").unwrap(), [4096, 512]);
        for bad in ["", "x", "255", "4097", "512,,512", "256,256,256,256,256,256,256,256,256"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert_eq!(context_list("64", "--ctx", 1, 64).unwrap(), [64]);
    }
}
