//! Runs language models: chat, server, measurements.

mod answer;
mod bench;
mod checks;
mod cli;
mod device;
mod engines;
mod failure;
mod local;
mod measure;
mod out;
mod plan;
mod render;
mod run;
mod serve;
mod server;
mod service;
mod show;
mod status;
mod text;
mod wait;

use clap::Parser;
use cli::{Cli, Command};
use failure::{Failure, Outcome};
use local::World;
use ns_registry::{Layout, Settings};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Result<Vec<String>, _> = std::env::args_os().map(std::ffi::OsString::into_string).collect();
    let result = match words {
        Ok(words) => run(words),
        Err(word) => Err(Failure::usage(format!("the argument {} is not UTF-8", word.display()))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(words: Vec<String>) -> Outcome {
    let (words, options) = cli::split_options(words, &engines::is_switch);
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            // Told by clap in its own form, with colours on a terminal.
            let _ = error.print();
            return Err(Failure::said(code));
        }
        // --help and --version
        Err(text) => return out::data(&text.render().to_string()),
    };
    let settings = Settings::load()?;
    // A server's log is its record; elsewhere only what needs attention is told.
    start_log(&settings, if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" })?;
    let layout = Layout::discover(&settings);
    let world = World { settings, layout, options };
    match &cli.command {
        Command::Run(args) => run::run(&world, args),
        Command::Serve(args) => server::run(&world, args),
        Command::Start(args) => service::start(&world, args),
        Command::Stop(args) => world.no_options().and_then(|()| service::stop(&world, args)),
        Command::Status(args) => world.no_options().and_then(|()| service::show(&world, args)),
        Command::Ps(args) => world.no_options().and_then(|()| service::list(&world, args)),
        Command::Cache(args) => world.no_options().and_then(|()| service::cache(&world, args)),
        Command::Inspect(args) => world.no_options().and_then(|()| service::inspect(&world, args)),
        Command::Logs(args) => world.no_options().and_then(|()| service::logs(&world, args)),
        Command::Chat(args) => world.no_options().and_then(|()| service::chat(&world, args)),
        Command::Generate(args) => run::generate(&world, args),
        Command::Info(args) => show::info(&world, args),
        Command::Plan(args) => plan::show(&world, args),
        Command::Tokenize(args) => show::tokenize(&world, args),
        Command::Engines => show::engines(&world),
        Command::Devices(args) => show::devices(&world, args),
        Command::Selftest(args) => world.no_options().and_then(|()| measure::selftest(&world, args)),
        Command::Check(args) => checks::check(&world, args),
        Command::Bench(args) if bench::is_single(args) => measure::offline(&world, args),
        Command::Bench(args) => bench::run(&world, args),
        Command::Logits(args) => measure::logits(&world, args),
        Command::Kernels(args) => measure::kernels(&world, args),
        Command::SpecCheck(args) => checks::spec_check(&world, args),
        Command::BatchCheck(args) => checks::batch_check(&world, args),
    }
}

/// Log lines go to stderr.
fn start_log(settings: &Settings, default: &str) -> Outcome {
    let wanted = settings.get("NS_LOG").unwrap_or(default);
    let filter = tracing_subscriber::EnvFilter::try_new(wanted)
        .map_err(|e| Failure::error(format!("NS_LOG is `{wanted}`: {e}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(out::talk_is_terminal())
        .with_target(false)
        .init();
    Ok(())
}
