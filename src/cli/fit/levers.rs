//! `fit --levers`: what each thing that may save memory or time is worth, compiled beside the plain program.
//!
//! A lever is a row of [`LEVERS`]: a name, what it does, and a function that edits the experiment as a user would edit the
//! YAML, or says why it does not apply. To add one, add a row.

use anyhow::ensure;
use serde::Serialize;

use super::super::compile::compiler;
use super::super::emit::replace;
use super::super::program::{Which, build, read};
use super::super::{Context, Status, module_file};
use super::{Args, Watch, compile, keep_what_is_compiled, words};
use crate::graph::Precision;
use crate::models::Model;
use crate::models::resnet::Stem;
use crate::optim::{Adafactor, MomentumDtype, Optimizer};
use crate::passes::remat;
use crate::report;
use crate::report::html::{Cell, Column, Fact, Page, Table};
use crate::tpu::fit::{Row, Step};
use crate::tpu::{Compiler, Report, Target};
use crate::train::Experiment;

/// What a lever edits.
#[derive(Clone, Debug)]
struct Setting {
    experiment: Experiment,
    precision: Precision,
    batch: u32,
}

/// Something that may save memory or time.
struct Lever {
    name: &'static str,
    /// In the YAML or on the command line.
    option: &'static str,
    /// What it changes, and whether gradients stay as they are.
    about: &'static str,
    /// Edits the setting, or says why it does not apply.
    pull: fn(&mut Setting) -> Result<(), String>,
}

const LEVERS: &[Lever] = &[
    Lever {
        name: "bf16 scope",
        option: "--precision bf16",
        about: "the network computes in bf16, its variables stay f32: gradients are rounded as bf16 rounds",
        pull: bf16_scope,
    },
    Lever {
        name: "bf16 first moments",
        option: "momentum_dtype: bf16",
        about: "the optimizer keeps first moments in bf16: the same gradients, updates rounded",
        pull: bf16_moments,
    },
    Lever {
        name: "adafactor for adam",
        option: "optimizer: {kind: adafactor}",
        about: "second moments of matrices are kept as means of rows and of columns: the same gradients, another rule of update",
        pull: adafactor,
    },
    Lever {
        name: "accumulate over 4",
        option: "accumulate: 4",
        about: "gradients are summed in f32 over four parts of the batch, one after the other: the same gradients but for \
                the order of sums; batch norm uses the statistics of each part",
        pull: accumulate,
    },
    Lever {
        name: "recompute elementwise",
        option: "remat: elementwise",
        about: "the backward pass computes functions of one or two kept arrays again instead of keeping them: the same bits",
        pull: remat,
    },
    Lever {
        name: "recompute blocks",
        option: "remat: [\"block*\"]",
        about: "the backward pass computes blocks (a transformer's layers: layer*) again from what goes into them: the same bits",
        pull: remat_blocks,
    },
    Lever {
        name: "space-to-depth stem",
        option: "stem: space_to_depth",
        about: "ResNet's first convolution on squares of four pixels: the same function, summed in another order",
        pull: space_to_depth,
    },
];

fn remat(setting: &mut Setting) -> Result<(), String> {
    recompute(setting, remat::Config::Elementwise)
}

fn remat_blocks(setting: &mut Setting) -> Result<(), String> {
    let pattern = match &setting.experiment.model {
        Model::Cnn(_) | Model::Resnet(_) => "block*",
        Model::Transformer(_) => "layer*",
        Model::Mlp(_) => return Err("an mlp has no blocks".to_string()),
    };
    recompute(setting, remat::Config::Scopes(vec![pattern.to_string()]))
}

fn recompute(setting: &mut Setting, what: remat::Config) -> Result<(), String> {
    match &setting.experiment.train.remat {
        remat::Config::None => setting.experiment.train.remat = what,
        remat::Config::Elementwise | remat::Config::Scopes(_) => return Err("the model recomputes already".to_string()),
    }
    Ok(())
}

fn space_to_depth(setting: &mut Setting) -> Result<(), String> {
    match &mut setting.experiment.model {
        Model::Resnet(config) if config.stem == Stem::SpaceToDepth => {
            Err("the stem is space-to-depth already".to_string())
        }
        Model::Resnet(config) => {
            config.stem = Stem::SpaceToDepth;
            Ok(())
        }
        Model::Mlp(_) | Model::Cnn(_) | Model::Transformer(_) => Err("the model is no ResNet".to_string()),
    }
}

/// Parts of the batch in the lever of that name: fewer save little, more make each part too small for the TPU's tiles.
const N_PARTS: u32 = 4;

fn accumulate(setting: &mut Setting) -> Result<(), String> {
    match setting.experiment.train.accumulate {
        1 if !setting.batch.is_multiple_of(N_PARTS) => {
            Err(format!("batch {} is no multiple of {N_PARTS}", setting.batch))
        }
        1 => {
            setting.experiment.train.accumulate = N_PARTS;
            Ok(())
        }
        n => Err(format!("gradients are accumulated over {n} parts already")),
    }
}

fn bf16_scope(setting: &mut Setting) -> Result<(), String> {
    match setting.precision {
        Precision::F32 => setting.precision = Precision::Bf16,
        precision => return Err(format!("the network computes in {precision} already")),
    }
    Ok(())
}

fn bf16_moments(setting: &mut Setting) -> Result<(), String> {
    match &mut setting.experiment.train.optimizer {
        Optimizer::Adafactor(Adafactor { momentum: None, .. }) => {
            Err("adafactor without momentum keeps no first moments".to_string())
        }
        Optimizer::Momentum { momentum_dtype, .. }
        | Optimizer::Adam { momentum_dtype, .. }
        | Optimizer::Adafactor(Adafactor { momentum_dtype, .. }) => match momentum_dtype {
            MomentumDtype::Bf16 => Err("first moments are bf16 already".to_string()),
            MomentumDtype::F32 => {
                *momentum_dtype = MomentumDtype::Bf16;
                Ok(())
            }
        },
        Optimizer::Sgd {} => Err("sgd keeps no moments".to_string()),
    }
}

fn adafactor(setting: &mut Setting) -> Result<(), String> {
    match &mut setting.experiment.train.optimizer {
        optimizer @ Optimizer::Adam { .. } => {
            *optimizer = Optimizer::Adafactor(Adafactor::default());
            Ok(())
        }
        Optimizer::Adafactor(_) => Err("the optimizer is adafactor already".to_string()),
        Optimizer::Momentum { .. } | Optimizer::Sgd {} => Err("the optimizer is not adam".to_string()),
    }
}

/// What one lever did.
#[derive(Debug, Serialize)]
struct Pulled {
    lever: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    option: &'static str,
    about: String,
    /// Why it does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_applicable: Option<String>,
    #[serde(flatten)]
    row: Option<Row>,
}

/// All levers on one target.
#[derive(Debug, Serialize)]
struct OnTarget {
    target: String,
    /// The plain program first.
    levers: Vec<Pulled>,
}

/// Runs `fit --levers`.
pub(super) fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let shown = args.model.display();
    ensure!(
        !args.model.is_dir() && !module_file::is_module(&args.model),
        "--levers edits a model's YAML file, and {shown} is not one"
    );
    let precisions = super::without_repeats(&args.precision);
    ensure!(
        precisions.len() < 2,
        "--levers compiles beside one plain program, and {} precisions were named\nhelp: name one, such as --precision f32",
        precisions.len()
    );
    let experiment = read(&args.model)?;
    let batch = args.batch.unwrap_or(experiment.train.batch);
    let plain = Setting { experiment, precision: precisions.first().copied().unwrap_or(Precision::F32), batch };
    let compiler = compiler(args.fresh, context);
    let targets = super::without_repeats(&args.target);
    let mut watch = Watch::new(context.quiet, targets.len());
    keep_what_is_compiled(context.quiet)?;
    let mut all = Vec::new();
    for target in &targets {
        all.push(OnTarget { target: target.to_string(), levers: pull_all(&compiler, target, &plain, &mut watch)? });
        watch.end_series();
    }
    watch.bar.finish_and_clear();
    let model = args.model.display().to_string();
    if args.json {
        context.print_json(&serde_json::json!({
            "model": model, "batch": batch, "precision": plain.precision.to_string(), "libtpu": compiler.libtpu()?,
            "targets": all,
        }))?;
    } else {
        context.print(&render(&model, &plain, &all))?;
    }
    if let Some(path) = &args.html {
        replace(path, page(&model, &plain, &all, &compiler.libtpu()?).render().as_bytes())?;
    }
    let fits = |levers: &[Pulled]| levers.iter().any(|pulled| pulled.report().is_some());
    Ok(if all.iter().all(|on| fits(&on.levers)) { Status::Ok } else { Status::Failing })
}

/// The plain program, each lever alone, and those that apply together.
fn pull_all(compiler: &Compiler, target: &Target, plain: &Setting, watch: &mut Watch) -> anyhow::Result<Vec<Pulled>> {
    let mut together = plain.clone();
    let mut settings = vec![("plain", "", format!("the program as it is, in {}", plain.precision), Ok(plain.clone()))];
    for lever in LEVERS {
        let mut setting = plain.clone();
        let pulled = (lever.pull)(&mut setting);
        if pulled.is_ok() {
            // What applies alone applies to the others' result too, or is left out of it.
            let mut more = together.clone();
            if (lever.pull)(&mut more).is_ok() {
                together = more;
            }
        }
        settings.push((lever.name, lever.option, lever.about.to_string(), pulled.map(|()| setting)));
    }
    if settings.iter().skip(1).filter(|setting| setting.3.is_ok()).count() > 1 {
        settings.push(("together", "", "all of those that apply".to_string(), Ok(together)));
    }
    let mut n_more = settings.iter().filter(|setting| setting.3.is_ok()).count() as u32;
    let mut all = Vec::new();
    for (lever, option, about, setting) in settings {
        let (row, not_applicable) = match setting {
            Ok(setting) => {
                n_more -= 1;
                watch.start(target, &format!("{lever} ({})", setting.precision), Step { batch: setting.batch, n_more });
                let row = match build(&setting.experiment, Which::Train, setting.precision, setting.batch) {
                    Ok(program) => compile(compiler, target, &program.module, setting.batch)?,
                    // A plain program that cannot be built is the user's mistake; a lever that does not work here is not.
                    Err(error) if lever == "plain" => return Err(error),
                    Err(error) => super::failed(setting.batch, format!("{error:#}")),
                };
                watch.done(target, lever, &row);
                (Some(row), None)
            }
            Err(why) => (None, Some(why)),
        };
        all.push(Pulled { lever, option, about, not_applicable, row });
    }
    Ok(all)
}

impl Pulled {
    fn report(&self) -> Option<&Report> {
        self.row.as_ref().and_then(Row::report)
    }

    /// What it is, or why it is not.
    fn remark(&self) -> String {
        match (&self.not_applicable, &self.row) {
            (Some(why), _) => format!("does not apply: {why}"),
            (None, Some(row)) if row.report().is_none() => words::outcome(row),
            (None, _) => String::new(),
        }
    }
}

/// A figure of a report, and how it is written.
struct Figure {
    title: &'static str,
    help: &'static str,
    value: fn(&Report) -> f64,
    shown: fn(f64) -> String,
}

const FIGURES: [Figure; 4] = [
    Figure {
        title: "HBM",
        help: "arguments + outputs - aliased + temporaries + code, and its share of the plain program's",
        value: |report| report.hbm.total as f64,
        shown: |n_bytes| report::mib(n_bytes as i64),
    },
    Figure {
        title: "temporaries",
        help: "what lives between arguments and outputs, and its share of the plain program's",
        value: |report| report.hbm.temporaries as f64,
        shown: |n_bytes| report::mib(n_bytes as i64),
    },
    Figure {
        title: "cycles",
        help: "estimated cycles, and their share of the plain program's",
        value: |report| report.cycles as f64,
        shown: |n| report::grouped(n as i64),
    },
    Figure {
        title: "flops",
        help: "operations of the optimized program, and their share of the plain program's",
        value: |report| report.flops,
        shown: report::scientific,
    },
];

fn heading(plain: &Setting) -> String {
    format!("training step, batch {}, plain in {}, one core", plain.batch, plain.precision)
}

fn render(model: &str, plain: &Setting, all: &[OnTarget]) -> String {
    let mut text = String::new();
    for OnTarget { target, levers } in all {
        let mut table = report::table();
        let titles = FIGURES.iter().flat_map(|figure| [figure.title, "×"]);
        table.set_header(["lever"].into_iter().chain(titles).chain([""]));
        let base = levers.first().and_then(Pulled::report);
        for pulled in levers {
            let mut cells = vec![pulled.lever.to_string()];
            for figure in &FIGURES {
                cells.extend(match (pulled.report(), base) {
                    (Some(own), Some(base)) => {
                        let (own, base) = ((figure.value)(own), (figure.value)(base));
                        [(figure.shown)(own), report::ratio(own, base)]
                    }
                    (Some(own), None) => [(figure.shown)((figure.value)(own)), "-".to_string()],
                    (None, _) => ["-".to_string(), "-".to_string()],
                });
            }
            cells.push(pulled.remark());
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1).take(2 * FIGURES.len()) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
        text += &format!("{model}: {} of {target}\n{table}\n", heading(plain));
    }
    for Lever { name, option, about, .. } in LEVERS {
        text += &format!("{name} (`{option}`): {about}\n");
    }
    for OnTarget { target, levers } in all {
        let prefix = if all.len() > 1 { format!("{target}: ") } else { String::new() };
        text += &format!("{prefix}{}\n", answer(levers));
    }
    text
}

/// Which single lever saves the most memory, and which the most cycles.
fn answer(levers: &[Pulled]) -> String {
    let fitting: Vec<&str> =
        levers.iter().skip(1).filter(|pulled| pulled.report().is_some()).map(|pulled| pulled.lever).collect();
    let Some(base) = levers.first().and_then(Pulled::report) else {
        return match fitting.is_empty() {
            true => "plain does not fit, and no lever makes it fit.".to_string(),
            false => format!("plain does not fit; it does with {}.", fitting.join(", ")),
        };
    };
    let least = |figure: &Figure| {
        let single = levers.iter().skip(1).filter(|pulled| !pulled.option.is_empty());
        let shares = single.filter_map(|pulled| {
            let own = pulled.report()?;
            Some((pulled.lever, (figure.value)(own) / (figure.value)(base)))
        });
        shares.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, share)| *share < 1.0)
    };
    let said = |what: &str, figure: &Figure| match least(figure) {
        Some((lever, share)) => format!("{what}: {lever} ({:.0} % less)", 100.0 * (1.0 - share)),
        None => format!("{what}: none"),
    };
    format!("{}. {}.", said("most memory saved", &FIGURES[0]), said("most cycles saved", &FIGURES[2]))
}

fn page(model: &str, plain: &Setting, all: &[OnTarget], libtpu: &str) -> Page {
    let table = |OnTarget { target, levers }: &OnTarget| {
        let base = levers.first().and_then(Pulled::report);
        let rows = levers.iter().map(|pulled| {
            let mut cells = vec![Cell::Text(pulled.lever.to_string())];
            for figure in &FIGURES {
                let own = pulled.report().map(figure.value);
                cells.push(own.map_or(Cell::Number(f64::INFINITY, "-".to_string()), |own| {
                    Cell::Number(own, (figure.shown)(own))
                }));
                let share = own.zip(base.map(figure.value)).map(|(own, base)| own / base);
                cells.push(
                    share
                        .filter(|share| share.is_finite())
                        .map_or(Cell::Number(f64::INFINITY, "-".to_string()), |share| {
                            Cell::Number(share, format!("{share:.3}"))
                        }),
                );
            }
            let remark = pulled.remark();
            cells.push(Cell::Text(if remark.is_empty() { pulled.about.clone() } else { remark }));
            cells
        });
        let figures = FIGURES.iter().flat_map(|Figure { title, help, .. }| {
            [Column { title, help }, Column { title: "×", help: "of the plain program's" }]
        });
        Table {
            heading: target.clone(),
            lead: String::new(),
            columns: [Column { title: "lever", help: "" }]
                .into_iter()
                .chain(figures)
                .chain([Column { title: "what it changes", help: "or why it does not apply" }])
                .collect(),
            rows: rows.collect(),
        }
    };
    let fact = |on: &OnTarget| {
        let least = on.levers.iter().filter_map(Pulled::report).map(|report| report.hbm.total).min();
        Fact {
            label: format!("{}: least memory", on.target),
            value: least.map_or("does not fit".to_string(), report::mib),
            is_bad: least.is_none(),
        }
    };
    Page {
        title: format!("What saves what: {model}"),
        lead: format!(
            "Every row is a program ({}) that Google's TPU compiler, libtpu {libtpu}, compiled or refused. Cycles are its \
             estimates; no TPU has run anything.",
            heading(plain)
        ),
        facts: all.iter().map(fact).collect(),
        notes: all.iter().map(|on| format!("{}: {}", on.target, answer(&on.levers))).collect(),
        figures: Vec::new(),
        tables: all.iter().map(table).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Model, mlp};
    use crate::tpu::fit::Outcome;
    use crate::train::TrainConfig;

    fn setting(optimizer: Optimizer, precision: Precision) -> Setting {
        let train = TrainConfig { optimizer, ..TrainConfig::default() };
        let experiment = Experiment { model: Model::Mlp(mlp::Config::new([4], 2)), data: None, train };
        Setting { experiment, precision, batch: 8 }
    }

    #[test]
    fn every_lever_changes_something_or_says_why_not() {
        let settings = [
            setting(Optimizer::default(), Precision::F32),
            setting(Optimizer::ADAM, Precision::Bf16),
            setting(Optimizer::Sgd {}, Precision::F32),
        ];
        for lever in LEVERS {
            assert!(!lever.option.is_empty() && !lever.about.is_empty(), "{}", lever.name);
            for plain in &settings {
                let mut pulled = plain.clone();
                match (lever.pull)(&mut pulled) {
                    Ok(()) => {
                        let is_same = pulled.experiment == plain.experiment && pulled.precision == plain.precision;
                        assert!(!is_same, "{} changes nothing", lever.name);
                        assert!((lever.pull)(&mut pulled).is_err(), "{} applies twice", lever.name);
                    }
                    Err(why) => {
                        assert!(!why.is_empty() && pulled.experiment == plain.experiment, "{}", lever.name);
                    }
                }
            }
        }
    }

    #[test]
    fn levers_say_why_they_do_not_apply() {
        let sgd = &mut setting(Optimizer::Sgd {}, Precision::Bf16);
        assert_eq!(bf16_moments(sgd), Err("sgd keeps no moments".to_string()));
        assert_eq!(bf16_scope(sgd), Err("the network computes in bf16 already".to_string()));
        let adam = &mut setting(Optimizer::ADAM, Precision::F32);
        assert_eq!((bf16_scope(adam), bf16_moments(adam)), (Ok(()), Ok(())));
        assert_eq!(bf16_moments(adam), Err("first moments are bf16 already".to_string()));
        assert_eq!(adafactor(sgd), Err("the optimizer is not adam".to_string()));
        assert_eq!((adafactor(adam), accumulate(adam)), (Ok(()), Ok(())));
        assert_eq!(adafactor(adam), Err("the optimizer is adafactor already".to_string()));
        assert_eq!(accumulate(adam), Err("gradients are accumulated over 4 parts already".to_string()));
        assert_eq!(remat_blocks(sgd), Err("an mlp has no blocks".to_string()));
        sgd.batch = 10;
        assert_eq!(accumulate(sgd), Err("batch 10 is no multiple of 4".to_string()));
    }

    #[test]
    fn blocks_that_are_recomputed_are_there_in_every_kind_of_model() {
        for model in [
            "{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [4, 8]}",
            "{kind: resnet, depth: 18, input: [32, 32, 3], n_classes: 10, width: 4}",
            "{kind: transformer, vocabulary: 16, length: 8, max_length: 8, layers: 2, features: 8, heads: 2, hidden: 8}",
        ] {
            let mut setting = setting(Optimizer::Sgd {}, Precision::F32);
            setting.experiment.model = crate::models::yaml::from_str("model", model).unwrap();
            remat_blocks(&mut setting).unwrap();
            // A pattern that matches nothing is an error.
            let program = build(&setting.experiment, Which::Train, setting.precision, setting.batch).unwrap();
            let is_copy = |name: &str| name.contains("remat/");
            assert!(
                program.module.entry().instructions.iter().any(|instr| is_copy(&instr.metadata.op_name)),
                "{model}"
            );
        }
    }

    fn pulled(lever: &'static str, n_bytes: Option<i64>, cycles: u64) -> Pulled {
        let hbm = crate::tpu::Hbm {
            arguments: 0,
            outputs: 0,
            aliased: 0,
            temporaries: 0,
            code: 0,
            total: n_bytes.unwrap_or(0),
            limit: 1000,
        };
        let report = Report {
            hbm,
            flops: 1.0,
            bytes_accessed: 1.0,
            cycles,
            seconds: 1.0,
            examples_per_second: 1.0,
            compile_seconds: 1.0,
        };
        let outcome = match n_bytes {
            Some(_) => Outcome::Fits(report),
            None => Outcome::OutOfMemory { needed: None, available: None },
        };
        let option = if lever == "together" || lever == "plain" { "" } else { "x" };
        let row = Row { batch: 8, cached: false, outcome };
        Pulled { lever, option, about: String::new(), not_applicable: None, row: Some(row) }
    }

    #[test]
    fn the_answer_names_the_lever_that_saves_most() {
        let plain = || pulled("plain", Some(100), 100);
        let levers = [plain(), pulled("a", Some(60), 120), pulled("b", Some(80), 90), pulled("together", Some(50), 80)];
        assert_eq!(answer(&levers), "most memory saved: a (40 % less). most cycles saved: b (10 % less).");
        assert_eq!(answer(&[plain()]), "most memory saved: none. most cycles saved: none.");
        let levers = [pulled("plain", None, 1), pulled("a", Some(60), 1), pulled("b", None, 1)];
        assert_eq!(answer(&levers), "plain does not fit; it does with a.");
        assert_eq!(answer(&levers[..1]), "plain does not fit, and no lever makes it fit.");
    }
}
